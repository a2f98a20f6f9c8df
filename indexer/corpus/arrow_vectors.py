"""A column of embeddings of an Arrow table, as arrays: no Python number is made of any."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from indexer.corpus.rejection import BadRow
from indexer.errors import CorpusError

Ints = npt.NDArray[np.int64]


def check_axes(shown: str, schema: pa.Schema, name: str) -> None:
    """Raises CorpusError for a column of tensors of more than one axis, which would else be read as their storage."""
    kind = schema.field(name).type if name in schema.names else None
    if isinstance(kind, pa.FixedShapeTensorType) and len(kind.shape) != 1:
        raise CorpusError(
            f'{shown}: the column "{name}" holds tensors of shape {tuple(kind.shape)}; expected one axis. Way out: '
            "write an embedding a document."
        )


def holds_vectors(column: pa.Array) -> bool:
    """Whether the column is one of lists of numbers, of fixed size or not, or of tensors of one axis."""
    kind = _storage(column).type
    is_list = pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return is_list and bool(pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type))


def read_vectors(name: str, column: pa.Array, bad: dict[int, BadRow]) -> list[npt.NDArray[Any] | None]:
    """An array for each row of such a column, None for a null one; rows with a null inside are noted in `bad`."""
    storage = _storage(column)
    starts, ends = _bounds(storage)
    elements = storage.values
    numbers = elements.to_numpy(zero_copy_only=False)
    there = storage.is_valid().to_numpy(zero_copy_only=False)
    if elements.null_count:
        valid = elements.is_valid().to_numpy(zero_copy_only=False)
        for place in np.flatnonzero(there).tolist():
            row = valid[starts[place] : ends[place]]
            if not row.all():
                what = f'the vector "{name}" holds null at position {int(np.argmin(row)) + 1}'
                bad.setdefault(place, BadRow("vector", what))
    return [
        numbers[start:end] if known else None
        for start, end, known in zip(starts.tolist(), ends.tolist(), there.tolist(), strict=True)
    ]


def _storage(column: pa.Array) -> pa.Array:
    kind = column.type
    return column.storage if isinstance(kind, pa.FixedShapeTensorType) and len(kind.shape) == 1 else column


def _bounds(column: pa.Array) -> tuple[Ints, Ints]:
    """Where each row's elements start and end in `column.values`, which knows nothing of slices."""
    if pa.types.is_fixed_size_list(column.type):
        size = column.type.list_size
        starts = (column.offset + np.arange(len(column), dtype=np.int64)) * size
        return starts, starts + size
    offsets = column.offsets.to_numpy().astype(np.int64)
    return offsets[:-1], offsets[1:]
