"""Facets of metadata columns, for building filters: kind, most frequent values, minimum and maximum.

Columns are read part by part. The distinct values of a column are counted up to a limit; above the limit, a facet has
only the number of documents with a value and the range.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from time import monotonic
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from indexer.corpus.schema import ColumnPath
from indexer.errors import ConfigError
from indexer.store.document_tables import STORED, type_at
from search.filters.columns import in_utc, written
from search.filters.expressions import Kind, kind_of
from search.filters.scanner import UNFIT

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from search.index import Index

Value = str | int | float | bool | date | datetime | time | Decimal
MOST_DISTINCT = 1 << 16  # counted values of a column
MOST_BYTES = 16 << 20  # of these values
LONGEST = 1000  # characters of a listed value
_RANGED = (Kind.NUMBERS, Kind.DATES, Kind.MOMENTS, Kind.TIMES)
_COUNTED = (Kind.TEXT, Kind.TRUTH, *_RANGED)


@dataclass(frozen=True)
class ColumnFacet:
    """A metadata column or an object's field, for use in filters. Only live documents count."""

    name: str
    """Name of the column; of a field, the names from the column down, joined by dots."""
    sql: str
    """The name as filters write it, quoted if necessary."""
    kind: str
    """Kind of the values, such as "text", "numbers" or "dates"."""
    documents: int
    """Documents with a value."""
    elements: str | None = None
    """Kind of the elements of lists."""
    distinct: int | None = None
    """Different values (of lists, elements); None if there are too many or they cannot be compared."""
    values: tuple[tuple[Value, int], ...] = ()
    """The most frequent values with their document counts, ties in ascending order: of text, booleans, whole numbers if
    all can be listed, and the elements of lists. Texts of more than 1,000 characters are not listed."""
    least: Value | None = None
    """Smallest number, date or time (in UTC)."""
    most: Value | None = None
    """Largest number, date or time (in UTC)."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types: dates and times as ISO text, decimals as floats."""
        values = [{"value": plain_value(value), "count": count} for value, count in self.values]
        return vars(self) | {"values": values, "least": plain_value(self.least), "most": plain_value(self.most)}


def column_facets(
    index: "Index",
    most_values: int = 50,
    among: "npt.NDArray[np.bool_] | None" = None,
    names: Collection[str] = (),
    seconds: float = math.inf,
) -> list[ColumnFacet]:
    """Return a facet of each metadata column that a filter can name, or of each field of objects, in index order.

    `among` (documents,) selects the documents to count (None: all), `names` the columns (empty: all). A facet lists at
    most `most_values`. Raises ConfigError if that is less than 1, for unknown columns, and if counting takes longer
    than `seconds`.
    """
    if isinstance(most_values, bool) or not isinstance(most_values, int) or most_values < 1:
        raise ConfigError(f"most_values is {most_values!r}; expected a whole number, at least 1.")
    documents = index.documents
    schema = documents.schema
    every = [path for column in list(schema)[len(STORED) :] for path in _fields((column.name,), column.type)]
    paths = [path for path in every if not names or ".".join(path) in names]
    if unknown := set(names) - {".".join(path) for path in paths}:
        known = ", ".join(".".join(path) for path in every) or "none"
        raise ConfigError(f'columns: "{min(unknown)}" is not a metadata column; expected some of: {known}.')
    tallies = [_Tally(path, type_at(schema, path)) for path in paths]
    started, last = monotonic(), 0
    for part, count in enumerate(documents.counts if paths else []):
        first, last = last, last + count
        chosen = None if among is None else pa.array(among[first:last])
        if chosen is not None and not chosen.true_count:
            continue
        if monotonic() - started > seconds:
            raise ConfigError(f"the values of {len(documents):,} documents cannot be counted within {seconds:g} s.")
        for tally, column in zip(tallies, documents.columns(part, paths), strict=True):
            tally.add(in_utc(column if chosen is None else column.filter(chosen)))
    return [tally.facet(most_values) for tally in tallies]


def _fields(path: ColumnPath, kind: pa.DataType) -> Iterator[ColumnPath]:
    """Yield the column or the fields of its objects, except names that no filter can write."""
    if not path[-1] or UNFIT.search(path[-1]):
        return
    if pa.types.is_struct(kind):
        for inner in kind:
            yield from _fields((*path, inner.name), inner.type)
    else:
        yield path


class _Tally:
    """Counts the values of one column."""

    def __init__(self, path: ColumnPath, kind: pa.DataType) -> None:
        self._path, self._kind = path, kind_of(kind)
        self._value_type = kind.value_type if self._kind == Kind.LISTS else kind
        self._elements = kind_of(self._value_type)
        self._documents = 0
        self._ends: list[Value] = []  # the least and the most
        self._counts = _Counts() if self._elements in _COUNTED else None

    def add(self, column: pa.ChunkedArray) -> None:
        self._documents += len(column) - column.null_count
        if self._kind in _RANGED and column.null_count < len(column):
            ends = [*self._ends, *pc.min_max(column).as_py().values()]
            self._ends = [min(ends), max(ends)]
        if self._counts is not None:
            self._counts.add(_elements_of(column) if self._kind == Kind.LISTS else column)

    def facet(self, most_values: int) -> ColumnFacet:
        counts = None if self._counts is None else self._counts.summed()
        none = 0 if self._counts is not None and not self._documents else None  # no part was read
        distinct = none if counts is None else len(counts)
        few_whole = pa.types.is_integer(self._value_type) and distinct is not None and distinct <= most_values
        listed = self._elements in (Kind.TEXT, Kind.TRUTH) or few_whole
        least, most = self._ends or (None, None)
        return ColumnFacet(
            ".".join(self._path),
            written(self._path),
            self._kind,
            self._documents,
            self._elements if self._kind == Kind.LISTS else None,
            distinct,
            tuple(_most_frequent(counts, most_values)) if counts is not None and listed else (),
            least,
            most,
        )


class _Counts:
    """The count of each value; nothing beyond the limits."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] | None = []

    def add(self, values: pa.ChunkedArray) -> None:
        if self._tables is None:
            return
        counts = pc.value_counts(values.drop_null())
        self._tables.append(pa.table({"value": counts.field("values"), "count": counts.field("counts")}))
        rows, size = sum(map(len, self._tables)), sum(table.nbytes for table in self._tables)
        if rows > 2 * MOST_DISTINCT or size > 2 * MOST_BYTES:
            self.summed()

    def summed(self) -> pa.Table | None:
        """Return distinct values and their counts; None beyond the limits."""
        if self._tables:
            table = pa.concat_tables(self._tables)
            if len(self._tables) > 1:
                table = table.group_by("value", use_threads=False).aggregate([("count", "sum")])
            fits = len(table) <= MOST_DISTINCT and table.nbytes <= MOST_BYTES
            self._tables = [table.rename_columns(["value", "count"])] if fits else None
        return self._tables[0] if self._tables else None


def _elements_of(lists: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the elements of lists, each element once a list."""
    whole = lists.combine_chunks()
    pairs = pa.table({"list": pc.list_parent_indices(whole), "value": pc.list_flatten(whole)})
    return pairs.group_by(["list", "value"], use_threads=False).aggregate([]).column("value")


def _most_frequent(counts: pa.Table, most: int) -> Iterator[tuple[Value, int]]:
    """Return (value, count) pairs, the most frequent first, ties by value."""
    if pa.types.is_string(counts.schema.field("value").type):
        counts = counts.filter(pc.less_equal(pc.utf8_length(counts.column("value")), LONGEST))
    best = counts.sort_by([("count", "descending"), ("value", "ascending")])[:most]
    return zip(*(column.to_pylist() for column in best.columns), strict=True)


def plain_value(value: Any) -> Any:
    """Return dates and times as ISO 8601, decimals as floats, and other values unchanged."""
    if isinstance(value, date | time):
        return value.isoformat()
    return float(value) if isinstance(value, Decimal) else value
