"""The values of an index's columns, those used lately kept in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from indexer.store.documents import ColumnPath, DocumentReader
from search.filters.held import Held

HELD_BYTES = 128 << 20  # of columns kept for the next filter
BATCH_BYTES = 64 << 20  # of columns that are handed out at a time


@dataclass
class Batch:
    """Some parts, one after another: the number of their first document, how many they have, their columns."""

    first: int
    count: int = 0
    parts: list[list[pa.ChunkedArray]] = field(default_factory=list)

    @property
    def columns(self) -> list[pa.ChunkedArray]:
        """The columns, each over all those documents."""
        columns = zip(*self.parts, strict=True)
        return [
            pa.chunked_array([chunk for part in column for chunk in part.chunks], column[0].type) for column in columns
        ]


class Values:
    """Reads columns of documents part by part, so that memory stays bounded whatever is asked for."""

    def __init__(self, documents: DocumentReader) -> None:
        self._documents = documents
        self._held: Held[tuple[int, ColumnPath], pa.ChunkedArray] = Held(HELD_BYTES)

    def batches(self, paths: Sequence[ColumnPath]) -> Iterator[Batch]:
        """All documents, in order of number, a few parts at a time. Times with a zone come in UTC, without one."""
        counts = self._documents.counts
        batch, size = Batch(0), 0
        for part, count in enumerate(counts):
            columns = self._read(part, paths)
            batch.parts.append(columns)
            batch.count += count
            size += sum(column.nbytes for column in columns)
            if size >= BATCH_BYTES or part + 1 == len(counts):
                yield batch
                batch, size = Batch(batch.first + batch.count), 0

    def _read(self, part: int, paths: Sequence[ColumnPath]) -> list[pa.ChunkedArray]:
        """Columns of one part; those that are not kept are read together."""
        found = {path: self._held.find((part, path)) for path in paths}
        missing = [path for path, column in found.items() if column is None]
        if missing:
            read = self._documents.columns(part, missing)
            found |= {
                path: self._held.keep((part, path), _in_utc(column)) for path, column in zip(missing, read, strict=True)
            }
        return [found[path] for path in paths]


def _in_utc(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times with a zone as times without: DuckDB would compare them in the zone of the machine it runs on."""
    kind = _without_zone(column.type)
    return column if column.type == kind else column.cast(kind)


def _without_zone(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_without_zone(kind.value_type))
    return pa.timestamp("us") if pa.types.is_timestamp(kind) else kind
