"""The tensors of a safetensors file as arrays, mapped: only what is looked at is read from the disk.

The `safetensors` library cannot hand bfloat16 to numpy, and copies.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.encoders.safetensors_file import read_header
from indexer.errors import ModelError

_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "<i1",
    "U8": "<u1",
}


class Tensors:
    """An open safetensors file. Raises ModelError for a damaged one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        header = read_header(path)
        try:
            self._data = np.asarray(np.memmap(path, np.uint8, "r"))[header.start :]
        except (OSError, ValueError) as error:
            raise ModelError(f"{path}: cannot be read as safetensors: {error}.") from error
        self._entries = header.tensors

    @property
    def names(self) -> list[str]:
        """The tensors there are, with their sizes, as "embeddings (29528, 128)"."""
        return [f"{name} {entry.shape}" for name, entry in sorted(self._entries.items())]

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def floats(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor as float32, of whatever type it is stored in; float32 itself is not copied."""
        kind, values = self._values(name)
        if kind == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32, copy=False)

    def integers(self, name: str) -> npt.NDArray[np.int64]:
        """A tensor of integers."""
        kind, values = self._values(name)
        if not kind.startswith(("I", "U")):
            raise ModelError(f'{self.path}: the tensor "{name}" is of type {kind}; expected integers.')
        return values.astype(np.int64, copy=False)

    def _values(self, name: str) -> tuple[str, npt.NDArray[Any]]:
        entry = self._entries[name]
        if entry.dtype not in _TYPES:
            raise ModelError(
                f'{self.path}: the tensor "{name}" is of type {entry.dtype}; expected one of {", ".join(_TYPES)}.'
            )
        start, end = entry.data_offsets
        return entry.dtype, self._data[start:end].view(_TYPES[entry.dtype]).reshape(entry.shape)
