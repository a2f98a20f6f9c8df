"""The columns that a filter names, and a cache of their values."""

import difflib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa

from indexer.corpus.schema import ColumnPath
from indexer.store.document_tables import type_at
from indexer.store.documents import DocumentReader
from indexer.system.threads import ordered_map, part_threads
from search.filters.expressions import Kind, kind_of, shortened

HELD_BYTES = 128 << 20  # of cached columns
BATCH_BYTES = 64 << 20  # of columns in a batch, about
_AHEAD = 2  # parts that wait, read, for one that takes longer

# A column with one of these names needs double quotes.
_KEYWORDS = """
all analyse analyze and anti any array as asc asof asymmetric at authorization binary both by case cast check
collate collation column concurrently constraint create cross default deferrable desc describe distinct do else end
except false fetch for foreign freeze from full glob group having ilike in initially inner intersect into is isnull
join lambda lateral leading left like limit natural not notnull null offset on only or order outer overlaps pivot
pivot_longer pivot_wider placing positional primary qualify references returning right select semi show similar some
summarize symmetric table tablesample then to trailing true union unique unpack unpivot using variadic verbose when
where window with
"""
RESERVED = frozenset(_KEYWORDS.split())
_PLAIN = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_LISTED = 30  # columns named in a message
_LONGEST = 100  # characters of a name that are compared with existing names


class ColumnNames:
    """Maps columns to the SQL names c0, c1, ..., because DuckDB ignores case: "Year" would equal "year"."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self.paths: list[ColumnPath] = []  # of c0, c1, ...

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of c0, c1, ..."""
        return [kind_of(type_at(self._schema, path)) for path in self.paths]

    def find(self, names: ColumnPath, quoted: bool | None = None) -> tuple[str, pa.DataType]:
        """Return the SQL name and the type of a column or of an object's field.

        An exact match wins over a match in another case. Raises ValueError for an unknown column and for an object;
        `quoted` changes the advice where text may be meant: whether the filter quotes the name; None: no text is meant.
        """
        path = self._path(names, quoted)
        type_ = type_at(self._schema, path)
        if kind_of(type_) == Kind.OBJECTS:
            fields, shown = _listed([field.name for field in type_]), shortened(".".join(names))
            raise ValueError(f"{shown} contains objects; name one of their fields, as {shown}.field: {fields}")
        if path not in self.paths:
            self.paths.append(path)
        return f"c{self.paths.index(path)}", type_

    def has(self, name: str) -> bool:
        """Return whether a column has this name."""
        return _match(name, self._schema.names) is not None

    def _path(self, names: ColumnPath, quoted: bool | None) -> ColumnPath:
        path, known = ColumnPath(), self._schema.names
        for name in names:
            if (found := _match(name, known)) is None:
                raise ValueError(self._unknown(names, path, known, quoted))
            path = (*path, found)
            type_ = type_at(self._schema, path)
            known = [field.name for field in type_] if pa.types.is_struct(type_) else []
        return path

    def _unknown(self, names: ColumnPath, path: ColumnPath, known: list[str], quoted: bool | None) -> str:
        """Return the fault of a name that is not among the `known` ones at a path, with advice."""
        whole, name = ".".join(names), names[len(path)]
        close, has_dot = _closest(name, known), names[1:] and whole in self._schema.names
        dotted = f' (did you mean "{whole}", in double quotes?)' if has_dot else ""
        if path:
            inside = ".".join(path)
            meant = f" (did you mean {inside}.{close}?)" if close else ""
            listed = f"its fields are {_listed(known)}" if known else f"{inside} is not an object"
            return f'no field "{shortened(whole)}"{meant}: {listed}{dotted}'
        if dotted:
            return f'no column "{shortened(whole)}"{dotted}'
        meant = f" (did you mean {_shown(close)}?)" if close else ""
        advice = f"; text needs single quotes: '{shortened(name)}'" if quoted else ""
        if quoted is False and not close:
            advice = f"; for text, use single quotes: '{shortened(name)}'"
        return f'no column "{shortened(whole)}"{meant}; the columns are {_listed(known)}{advice}'


def _closest(name: str, known: list[str]) -> str | None:
    folded = {other.casefold(): other for other in known}
    close = difflib.get_close_matches(name[:_LONGEST].casefold(), folded, n=1)
    return folded[close[0]] if close else None


def _match(name: str, known: list[str]) -> str | None:
    if name in known:
        return name
    same = [other for other in known if other.casefold() == name.casefold()]
    return same[0] if len(same) == 1 else None


def _listed(names: list[str]) -> str:
    return ", ".join(map(_shown, names[:_LISTED])) + ", ..." * (len(names) > _LISTED)


def _shown(name: str) -> str:
    return written((shortened(name),))


def written(path: ColumnPath) -> str:
    """Return a column or an object's field as a filter writes it, in double quotes where SQL needs them."""
    return ".".join(
        name if _PLAIN.fullmatch(name) and name.lower() not in RESERVED else '"' + name.replace('"', '""') + '"'
        for name in path
    )


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """A cache of at most `room` bytes; evicts the least recently used value. Safe to share between threads."""

    def __init__(self, room: int) -> None:
        self._room, self._bytes = room, 0
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()  # most recently used last
        self._lock = threading.Lock()

    def find(self, key: Key) -> Value | None:
        """Return the value stored for `key`, or None."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def keep(self, key: Key, value: Value, size: int) -> Value:
        """Store a value of `size` bytes unless it is larger than the room; return it."""
        with self._lock:
            _, earlier = self._values.pop(key, (None, 0))
            self._bytes -= earlier
            if size <= self._room:
                self._values[key] = value, size
                self._bytes += size
            while self._bytes > self._room:
                self._bytes -= self._values.popitem(last=False)[1][1]
        return value


@dataclass(frozen=True)
class Batch:
    """Columns of `count` consecutive documents, from document number `first`."""

    first: int
    count: int
    columns: list[pa.ChunkedArray]


class ColumnReader:
    """Reads columns of documents part by part, so that memory stays bounded."""

    def __init__(self, documents: DocumentReader) -> None:
        self._documents = documents
        self._held: LruCache[tuple[int, ColumnPath], pa.ChunkedArray] = LruCache(HELD_BYTES)

    def batches(self, paths: Sequence[ColumnPath], on_read: Callable[[int], None] = lambda _: None) -> Iterator[Batch]:
        """Yield batches of all documents, in order of number. Times with a zone become UTC times without a zone.

        `on_read` is as in `DocumentReader.columns`, called by several threads.
        """
        counts = self._documents.counts
        names = [str(number) for number in range(len(paths))]
        parts: list[pa.Table] = []
        first = last = size = 0
        context = copy_context()  # `on_read` may ask whether the caller still waits
        threads = part_threads(0)
        read = ordered_map(
            lambda part: context.copy().run(self._read, part, paths, on_read),
            range(len(counts)),
            threads,
            threads + _AHEAD,
        )
        for part, (count, columns) in enumerate(zip(counts, read, strict=True)):
            parts.append(pa.table(columns, names=names))
            last += count
            size += parts[-1].nbytes
            if size >= BATCH_BYTES or part + 1 == len(counts):
                yield Batch(first, last - first, pa.concat_tables(parts).columns)
                parts, first, size = [], last, 0

    def _read(self, part: int, paths: Sequence[ColumnPath], on_read: Callable[[int], None]) -> list[pa.ChunkedArray]:
        columns = {path: self._held.find((part, path)) for path in paths}
        missing = [path for path, column in columns.items() if column is None]
        if missing:
            for path, column in zip(missing, self._documents.columns(part, missing, on_read), strict=True):
                fitting = in_utc(column)
                columns[path] = self._held.keep((part, path), fitting, fitting.nbytes)
        return [columns[path] for path in paths]


def in_utc(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert times with a zone to UTC times without: DuckDB would compare them in the zone of the machine."""
    kind = _without_zone(column.type)
    return column if column.type == kind else column.cast(kind)


def _without_zone(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_without_zone(kind.value_type))
    return pa.timestamp("us") if pa.types.is_timestamp(kind) else kind
