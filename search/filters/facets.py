"""What filters an index's metadata could have: for each column its kind, its most frequent values, its least and most.

Columns are read part by part. Of each, the counts of its distinct values are held, up to a bound; above it neither
their number nor the most frequent are known, and only how many documents have a value, and between what.
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

from indexer.errors import ConfigError
from indexer.store.documents import STORED, ColumnPath, type_at
from search.filters.columns import in_utc, written
from search.filters.expressions import DATES, LISTS, MOMENTS, NUMBERS, TEXT, TIMES, TRUTH, kind_of
from search.filters.scanner import UNFIT

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from search.index import Index

Value = str | int | float | bool | date | datetime | time | Decimal
MOST_DISTINCT = 1 << 16  # values of a column that are counted
MOST_BYTES = 16 << 20  # that these may take
LONGEST = 1000  # characters of a value that is listed
_RANGED = (NUMBERS, DATES, MOMENTS, TIMES)
_COUNTED = (TEXT, TRUTH, *_RANGED)


@dataclass(frozen=True)
class ColumnFacet:
    """A metadata column, or a field inside its objects, as a filter could use it. Only live documents count.

    `sql` is how a filter writes it, in double quotes where it must be; `name` how people do. `kind` is a word of
    `search.filters.expressions`, `elements` that of the elements where the kind is "lists". `documents` are those with
    a value. `distinct` counts the values (of lists, the elements); None: there are too many, or they cannot be
    compared. `values` are the most frequent with the number of documents that have each, equals in ascending order: of
    text, of true or false, and of whole numbers where all can be listed; of lists, their elements. A text of more than
    1,000 characters is not listed. `least` and `most` are those of numbers, dates and times, which count in UTC.
    """

    name: str
    sql: str
    kind: str
    documents: int
    elements: str | None = None
    distinct: int | None = None
    values: tuple[tuple[Value, int], ...] = ()
    least: Value | None = None
    most: Value | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: dates and times as ISO text, decimals as floats."""
        values = [{"value": _plain(value), "count": count} for value, count in self.values]
        return vars(self) | {"values": values, "least": _plain(self.least), "most": _plain(self.most)}


def column_facets(
    index: "Index",
    most_values: int = 50,
    among: "npt.NDArray[np.bool_] | None" = None,
    names: Collection[str] = (),
    seconds: float = math.inf,
) -> list[ColumnFacet]:
    """Return a facet of each metadata column that a filter can name, in index order; of objects, of each field.

    `among` (documents,) selects the documents to count, None all; `names` selects columns, empty all. At most
    `most_values` are listed of a column. Raises ConfigError if that is less than 1, for unknown columns, and if
    counting takes longer than `seconds`.
    """
    if isinstance(most_values, bool) or not isinstance(most_values, int) or most_values < 1:
        raise ConfigError(f"most_values is {most_values!r}; expected a whole number, at least 1.")
    documents = index.documents
    schema = documents.schema
    every = [path for column in list(schema)[len(STORED) :] for path in _fields((column.name,), column.type)]
    paths = [path for path in every if not names or ".".join(path) in names]
    if unknown := set(names) - {".".join(path) for path in paths}:
        known = ", ".join(".".join(path) for path in every) or "none"
        raise ConfigError(f'columns: "{min(unknown)}" is no metadata column; expected some of: {known}.')
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
    """Yield the column itself, or the fields inside its objects, except those that no filter can name."""
    if not path[-1] or UNFIT.search(path[-1]):
        return
    if pa.types.is_struct(kind):
        for inner in kind:
            yield from _fields((*path, inner.name), inner.type)
    else:
        yield path


class _Tally:
    """The values of one column that were counted so far."""

    def __init__(self, path: ColumnPath, kind: pa.DataType) -> None:
        self._path, self._kind = path, kind_of(kind)
        self._value_type = kind.value_type if self._kind == LISTS else kind
        self._elements = kind_of(self._value_type)
        self._documents = 0
        self._ends: list[Value] = []  # the least and the most
        self._counts = _Counts() if self._elements in _COUNTED else None

    def add(self, column: pa.ChunkedArray) -> None:
        """Add the column of a part."""
        self._documents += len(column) - column.null_count
        if self._kind in _RANGED and column.null_count < len(column):
            ends = [*self._ends, *pc.min_max(column).as_py().values()]
            self._ends = [min(ends), max(ends)]
        if self._counts is not None:
            self._counts.add(_elements_of(column) if self._kind == LISTS else column)

    def facet(self, most_values: int) -> ColumnFacet:
        """Return the facet, once all parts were added."""
        counts = None if self._counts is None else self._counts.summed()
        none = 0 if self._counts is not None and not self._documents else None  # no part was looked at
        distinct = none if counts is None else len(counts)
        few_whole = pa.types.is_integer(self._value_type) and distinct is not None and distinct <= most_values
        listed = self._elements in (TEXT, TRUTH) or few_whole
        least, most = self._ends or (None, None)
        return ColumnFacet(
            ".".join(self._path),
            written(self._path),
            self._kind,
            self._documents,
            self._elements if self._kind == LISTS else None,
            distinct,
            tuple(_most_frequent(counts, most_values)) if counts is not None and listed else (),
            least,
            most,
        )


class _Counts:
    """The count of each value. Beyond the limits it holds nothing."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] | None = []

    def add(self, values: pa.ChunkedArray) -> None:
        """Count some values; nulls are left out."""
        if self._tables is None:
            return
        met = pc.value_counts(values.drop_null())
        self._tables.append(pa.table({"value": met.field("values"), "count": met.field("counts")}))
        rows, size = sum(map(len, self._tables)), sum(table.nbytes for table in self._tables)
        if rows > 2 * MOST_DISTINCT or size > 2 * MOST_BYTES:
            self.summed()

    def summed(self) -> pa.Table | None:
        """Return values and counts, each value once; None beyond the limits."""
        if self._tables:
            table = pa.concat_tables(self._tables)
            if len(self._tables) > 1:
                table = table.group_by("value", use_threads=False).aggregate([("count", "sum")])
            fits = len(table) <= MOST_DISTINCT and table.nbytes <= MOST_BYTES
            self._tables = [table.rename_columns(["value", "count"])] if fits else None
        return self._tables[0] if self._tables else None


def _elements_of(lists: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the elements of lists; an element counts once a list."""
    whole = lists.combine_chunks()
    pairs = pa.table({"list": pc.list_parent_indices(whole), "value": pc.list_flatten(whole)})
    return pairs.group_by(["list", "value"], use_threads=False).aggregate([]).column("value")


def _most_frequent(counts: pa.Table, most: int) -> Iterator[tuple[Value, int]]:
    """Return (value, count) pairs, the most frequent first, equals by value."""
    if pa.types.is_string(counts.schema.field("value").type):
        counts = counts.filter(pc.less_equal(pc.utf8_length(counts.column("value")), LONGEST))
    if pa.types.is_boolean(counts.schema.field("value").type):
        pairs = zip(*(column.to_pylist() for column in counts.columns), strict=True)
        return iter(sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:most])
    keys = [("count", "descending"), ("value", "ascending")]
    best = counts.take(pc.select_k_unstable(counts, most, keys))
    return zip(*(column.to_pylist() for column in best.columns), strict=True)


def _plain(value: Value | None) -> Any:
    if isinstance(value, date | time):
        return value.isoformat()
    return float(value) if isinstance(value, Decimal) else value
