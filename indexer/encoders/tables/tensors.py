"""The tensors of a safetensors file as arrays, mapped: only what is looked at is read from the disk.

The `safetensors` library cannot hand bfloat16 to numpy, and copies.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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
_MOST_HEADER_BYTES = 100_000_000  # the library's own limit


class Tensors:
    """An open safetensors file. Raises ModelError for a damaged one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(size)) if size <= _MOST_HEADER_BYTES else None
            data = np.asarray(np.memmap(path, np.uint8, "r"))[8 + size :]
        except (OSError, ValueError) as error:
            raise ModelError(f"{path}: cannot be read as safetensors: {error}.") from error
        if not isinstance(header, dict) or not all(isinstance(entry, dict) for entry in header.values()):
            raise ModelError(f"{path}: does not start as a safetensors file does.")
        self._data, self._entries = data, {name: each for name, each in header.items() if name != "__metadata__"}

    @property
    def names(self) -> list[str]:
        """The tensors there are, with their sizes, as "embeddings (29528, 128)"."""
        return [f"{name} {tuple(entry.get('shape', ()))}" for name, entry in sorted(self._entries.items())]

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
        entry: Mapping[str, Any] = self._entries[name]
        kind = str(entry.get("dtype"))
        if kind not in _TYPES:
            raise ModelError(
                f'{self.path}: the tensor "{name}" is of type {kind}; expected one of {", ".join(_TYPES)}.'
            )
        try:
            start, end = entry["data_offsets"]
            values = self._data[start:end].view(_TYPES[kind]).reshape(entry["shape"])
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f'{self.path}: the tensor "{name}" is cut short or damaged: {error}.') from error
        return kind, values
