"""A Parquet or Arrow file being written, its rows collected to groups of a useful size."""

from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from search.dedup.keeping.packed import PackedFile

_GROUP_ROWS = 1 << 16
_GROUP_BYTES = 32 << 20


class TableFile:
    """Takes batches of one schema; a context manager. `stream` asks for the streaming form of Arrow."""

    def __init__(self, sink: PackedFile, file_format: str, schema: pa.Schema, stream: bool = False) -> None:
        self._schema = schema
        self._writer = _writer(pa.PythonFile(sink, mode="w"), file_format, schema, stream)
        # dictionaries that differ from batch to batch need not fit one index type, so they are left apart
        self._joined = not has_dictionaries(schema)
        self._held: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def __enter__(self) -> "TableFile":
        self._writer.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._empty()
        finally:
            self._writer.__exit__(kind, error, trace)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add some rows."""
        self._held.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._empty()

    def _empty(self) -> None:
        table = pa.Table.from_batches(self._held, self._schema)
        self._writer.write_table(table.combine_chunks() if self._joined else table)
        self._held.clear()
        self._rows = self._bytes = 0


def has_dictionaries(schema: pa.Schema) -> bool:
    """Whether any column holds, at any depth, numbers that stand for the entries of a dictionary."""
    return any(_has_dictionary(column.type) for column in schema)


def _has_dictionary(kind: pa.DataType) -> bool:
    inner = (kind.field(place).type for place in range(kind.num_fields))
    return pa.types.is_dictionary(kind) or any(map(_has_dictionary, inner))


def _writer(sink: Any, file_format: str, schema: pa.Schema, stream: bool) -> Any:
    if file_format == "parquet":
        return pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True)
    return (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, schema)
