"""Parquet and Arrow IPC files, streamed in batches; rows are numbered from 1.

A column of embeddings is read as arrays, without Python numbers.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from indexer.arrays import Int64Array
from indexer.corpus.readers.streams import open_seekable, unreadable
from indexer.corpus.row import BadRow, BrokenFile, Header, Row, RowStream, read_as
from indexer.corpus.sources import SourceFile
from indexer.errors import CorpusError

BATCH_ROWS = 1024
_FILE_MAGIC = b"ARROW1"  # of a file; a stream begins with a message
_BYTES = {  # text type -> type of its bytes
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}


def read_arrow(file: SourceFile, conversions: Mapping[str, str], vectors: str = "") -> RowStream:
    """Yield a Header, then one Row a row of the table.

    `conversions` (column -> type, as in CorpusConfig.columns) matters for timestamps read as "string": Arrow writes
    them in full, while Python's datetime would lose nanoseconds. The column `vectors`, if it contains lists of numbers,
    is read as arrays. Raises BrokenFile for a corrupt file.
    """
    next_row = 1
    try:
        with open_seekable(file) as raw:
            if not raw.read(1):
                return  # an empty file of any format has no rows
            header, batches = _open(raw, file.format)
            for item in table_rows(file.display_name, header, batches, conversions, vectors):
                next_row += not isinstance(item, Header)
                yield item
    except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise unreadable(file, error) from error
        # a corrupt length leads to a request for more memory than the machine has
        reason = "it requests more memory than the machine has" if isinstance(error, MemoryError) else error
        what = f"not a readable {file.format} file: {reason}"
        raise BrokenFile("malformed", what, "write the file again", line=next_row) from error


def table_rows(
    shown: str, header: Header, batches: Iterable[pa.RecordBatch], conversions: Mapping[str, str], vectors: str
) -> RowStream:
    """Yield the header, then one Row a row of the batches; `shown` names the table in messages."""
    _check_names(shown, header.schema)
    check_tensor_rank(shown, header.schema, vectors)
    yield header
    next_row = 1
    for batch in batches:
        _check_layout(batch)  # the whole batch: a check of a slice looks at all values of its lists
        for start in range(0, batch.num_rows, BATCH_ROWS):  # bounds the Python objects of a huge batch
            rows = batch.slice(start, BATCH_ROWS)
            yield from _rows(rows, next_row, header, conversions, vectors)
            next_row += rows.num_rows


def _open(raw: IO[bytes], file_format: str) -> tuple[Header, Iterator[pa.RecordBatch]]:
    raw.seek(0)
    start = raw.read(len(_FILE_MAGIC))
    raw.seek(0)
    if file_format == "parquet":
        table = pq.ParquetFile(raw, page_checksum_verification=True, pre_buffer=False)
        schema = table.schema_arrow
        return Header(schema.names, schema=schema), table.iter_batches(batch_size=BATCH_ROWS, use_threads=False)
    if start == _FILE_MAGIC:
        reader = pa.ipc.open_file(raw)
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        return Header(reader.schema.names, schema=reader.schema), batches
    stream = pa.ipc.open_stream(raw)
    return Header(stream.schema.names, schema=stream.schema, stream=True), iter(stream)


def _check_names(shown: str, schema: pa.Schema) -> None:
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise CorpusError(f'{shown}: two columns are named "{twice[0]}". Fix: give each column its own name.')


def check_tensor_rank(shown: str, schema: pa.Schema, name: str) -> None:
    """Raises CorpusError for a column of tensors with several axes, which would be read as their flat storage."""
    kind = schema.field(name).type if name in schema.names else None
    if isinstance(kind, pa.FixedShapeTensorType) and len(kind.shape) != 1:
        raise CorpusError(
            f'{shown}: the column "{name}" contains tensors of shape {tuple(kind.shape)}; expected one axis. Fix: '
            "write one embedding per document."
        )


def _check_layout(batch: pa.RecordBatch) -> None:
    """Raises ArrowInvalid for offsets and indices out of range, on which pyarrow would crash.

    Text is checked as bytes, since bad UTF-8 affects its row only, not the file.
    """
    for column in batch.columns:
        if pa.types.is_dictionary(column.type):
            column.indices.validate(full=True)
            column = pa.DictionaryArray.from_arrays(column.indices, _as_bytes(column.dictionary))
        _as_bytes(column).validate(full=True)


def _as_bytes(column: pa.Array) -> pa.Array:
    if _holds_null(column.type):
        return column  # pyarrow's view of nested nulls has the wrong length
    try:
        return column.view(_bytes(column.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return column  # a layout without such a view is checked strictly, including UTF-8


def _holds_null(kind: pa.DataType) -> bool:
    return pa.types.is_null(kind) or any(_holds_null(kind.field(place).type) for place in range(kind.num_fields))


def _bytes(kind: pa.DataType) -> pa.DataType:
    if kind in _BYTES:
        return _BYTES[kind]
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_bytes(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_bytes(kind.value_type)))
    return kind


def _rows(
    batch: pa.RecordBatch, first_row: int, header: Header, conversions: Mapping[str, str], vectors: str
) -> Iterator[Row | BadRow]:
    bad: dict[int, BadRow] = {}
    columns = [
        read_vectors(name, column, bad)
        if name == vectors and holds_vectors(column)
        else _values(name, column, conversions.get(name, ""), bad)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    for place, cells in enumerate(zip(*columns, strict=True)):
        values = dict(zip(batch.schema.names, cells, strict=True))
        if place in bad:
            bad[place].line = first_row + place
            bad[place].raw = json.dumps(values, default=str, ensure_ascii=False)
            yield bad[place]
        else:
            yield Row(first_row + place, values, header=header, batch=batch, place=place)


def holds_vectors(column: pa.Array) -> bool:
    """Return whether a column contains lists of numbers, of fixed size or not, or tensors of one axis."""
    kind = _storage(column).type
    is_list = pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return is_list and bool(pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type))


def read_vectors(name: str, column: pa.Array, bad: dict[int, BadRow]) -> list[npt.NDArray[Any] | None]:
    """Return an array for each row of such a column, None for null; rows with a null inside are added to `bad`."""
    storage = _storage(column)
    starts, ends = _bounds(storage)
    first, last = (int(starts[0]), int(ends[-1])) if len(starts) else (0, 0)
    elements = storage.values.slice(first, last - first)  # `values` spans the whole batch
    starts, ends = starts - first, ends - first
    numbers = elements.to_numpy(zero_copy_only=False)
    present = storage.is_valid().to_numpy(zero_copy_only=False)
    if elements.null_count:
        valid = elements.is_valid().to_numpy(zero_copy_only=False)
        for place in np.flatnonzero(present).tolist():
            row = valid[starts[place] : ends[place]]
            if not row.all():
                what = f'the vector "{name}" contains null at position {int(np.argmin(row)) + 1}'
                bad.setdefault(place, BadRow("vector", what))
    return [
        numbers[start:end] if is_present else None
        for start, end, is_present in zip(starts.tolist(), ends.tolist(), present.tolist(), strict=True)
    ]


def _storage(column: pa.Array) -> pa.Array:
    kind = column.type
    return column.storage if isinstance(kind, pa.FixedShapeTensorType) and len(kind.shape) == 1 else column


def _bounds(column: pa.Array) -> tuple[Int64Array, Int64Array]:
    """Return where each row's elements start and end in `column.values`, which ignores slices."""
    if pa.types.is_fixed_size_list(column.type):
        size = column.type.list_size
        starts = (column.offset + np.arange(len(column), dtype=np.int64)) * size
        return starts, starts + size
    offsets = column.offsets.to_numpy().astype(np.int64)
    return offsets[:-1], offsets[1:]


# pyarrow's errors for bad UTF-8, dates beyond year 9999, lossy casts and unknown time zones, in this order
_CONVERSION_ERRORS = (UnicodeDecodeError, OverflowError, ValueError, pa.ArrowException, KeyError)


def _values(name: str, column: pa.Array, conversion: str, bad: dict[int, BadRow]) -> list[Any]:
    """Return the column as Python values; rows without a value are added to `bad` by their place in the batch."""
    try:
        return _python(column, conversion)
    except _CONVERSION_ERRORS:
        return [_value(name, column.slice(place, 1), conversion, place, bad) for place in range(len(column))]


def _value(name: str, cell: pa.Array, conversion: str, place: int, bad: dict[int, BadRow]) -> Any:
    try:
        return _python(cell, conversion)[0]
    except UnicodeDecodeError as error:
        what = f'column "{name}" contains bytes that are not UTF-8: {error.reason} at byte {error.start + 1}'
        bad_row = BadRow("encoding", what, "write the column as UTF-8")
    except _CONVERSION_ERRORS as error:
        what = f'column "{name}" ({cell.type}) contains a value that cannot be kept exactly: {error}'
        bad_row = BadRow("type", what, f"{read_as(name, 'string')} to read it as text")
    bad.setdefault(place, bad_row)
    return None


def _python(column: pa.Array, conversion: str) -> list[Any]:
    if conversion == "string" and pa.types.is_timestamp(column.type):
        column = column.cast(pa.string())
    plain = _microseconds(column.type)
    values: list[Any] = (column if plain == column.type else column.cast(plain)).to_pylist()
    return values


def _microseconds(kind: pa.DataType) -> pa.DataType:
    """Return the type with microseconds for nanoseconds and UTC for zones, at any depth; casts refuse to round."""
    if pa.types.is_timestamp(kind) and (kind.unit == "ns" or kind.tz):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_time64(kind):
        return pa.time64("us")
    if pa.types.is_dictionary(kind):
        return _microseconds(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_microseconds(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_microseconds(kind.value_type)))
    return kind
