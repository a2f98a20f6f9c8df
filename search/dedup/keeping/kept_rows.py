"""Survivors as they were in the corpus: the same lines, or the same rows of the same schema."""

from collections.abc import Iterator

import pyarrow as pa

from indexer.corpus.row import Header, Row
from search.dedup.keeping.packed import PackedFile
from search.dedup.keeping.table_file import TableFile, has_dictionaries

MarkedRows = Iterator[tuple[Row, bool]]  # every row of the corpus, and whether it survives


class MixedColumns(Exception):  # noqa: N818 - no mistake, but a reason to convert
    """The files of the corpus have different columns, or the same of different types."""


def write_lines(sink: PackedFile, rows: MarkedRows) -> None:
    """The lines of surviving rows, under the first header if there is one; each byte as it was but for a last line
    without an end. Raises MixedColumns."""
    header: Header | None = None
    for row, survives in rows:
        if row.header is not header and row.header is not None:
            if header is None:
                sink.write(_ended(row.header.raw))
            elif row.header.columns != header.columns:
                raise MixedColumns
            header = row.header
        if survives:
            sink.write(_ended(row.raw))


def write_batches(sink: PackedFile, rows: MarkedRows, file_format: str, files: int) -> None:
    """Surviving rows of Parquet or Arrow files (so many), all columns as they were. Raises MixedColumns."""
    first = next(rows, None)
    if first is None or first[0].header is None:
        return
    header = first[0].header
    # an Arrow file has one dictionary a column, and several files may have several
    stream = header.stream or (files > 1 and has_dictionaries(header.schema))
    with TableFile(sink, file_format, header.schema, stream) as table:
        for batch in _taken(first, rows):
            table.write(batch)


def _taken(first: tuple[Row, bool], rows: MarkedRows) -> Iterator[pa.RecordBatch]:
    """The survivors of each batch, in order."""
    header, batch, places = first[0].header, first[0].batch, [first[0].place] * first[1]
    for row, survives in rows:
        if row.header is not header:
            _require_same(row.header, header)
            header = row.header
        if row.batch is not batch:
            yield from _survivors(batch, places)
            batch, places = row.batch, []
        if survives:
            places.append(row.place)
    yield from _survivors(batch, places)


def _survivors(batch: pa.RecordBatch, places: list[int]) -> Iterator[pa.RecordBatch]:
    if not places:
        return
    try:
        yield batch.take(pa.array(places, pa.int64()))
    except pa.ArrowNotImplementedError:  # of string views, for one
        yield pa.concat_batches([batch.slice(place, 1) for place in places])


def _require_same(header: Header | None, other: Header | None) -> None:
    if header is None or other is None or not header.schema.equals(other.schema, check_metadata=False):
        raise MixedColumns


def _ended(line: bytes) -> bytes:
    return line if line.endswith(b"\n") else line + b"\n"
