"""Reader of safetensors files without the `safetensors` library: the checked header, and the tensors as arrays.

8 bytes       length of the header, little-endian
header        JSON: tensor name -> type, shape and byte range; and "__metadata__", name -> text
the rest      the bytes of the tensors, in which the ranges count

The header is checked against the size of the file first.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from indexer.arrays import Float32Array, Int64Array
from indexer.errors import ModelError
from indexer.system.regular_files import open_regular
from indexer.typed_json import convert_json, decode_json

_MOST_HEADER_BYTES = 100_000_000  # the limit of the `safetensors` library
_MOST_DIMENSIONS = 16
_METADATA = "__metadata__"
_BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
         "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64}  # fmt: skip
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
          "I8": "<i1", "U8": "<u1"}  # fmt: skip


class TensorEntry(msgspec.Struct, frozen=True):
    """A tensor as the header describes it."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]  # start and end, in bytes after the header

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Header:
    """A header that is consistent with its file. `start` is the position of the first byte of the tensors."""

    start: int
    tensors: dict[str, TensorEntry]
    metadata: dict[str, str]


def read_header(path: Path) -> Header:
    """Return the header of a file. Raises ModelError if the file is not safetensors, truncated or has wrong sizes."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _MOST_HEADER_BYTES):
                raise ModelError(
                    f"{path}: cannot be read as safetensors: its {size:,} bytes are too few for the stated header of "
                    f"{length:,}; the file is truncated or not safetensors."
                )
            data = file.read(length)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}.") from error
    try:
        return parse_header(data, size)
    except ValueError as error:
        raise ModelError(f"{path}: cannot be read as safetensors: {error}.") from error


def parse_header(data: bytes, size: int) -> Header:
    """Parse a header, without the 8 bytes before it, of a file of `size` bytes. Raises ValueError."""
    stated = decode_json(data, dict[str, Any])
    metadata = stated.pop(_METADATA, None) or {}
    start = 8 + len(data)
    tensors = {name: _entry(name, entry, size - start) for name, entry in stated.items()}
    return Header(start, tensors, convert_json(metadata, dict[str, str]))


def _entry(name: str, stated: Any, size: int) -> TensorEntry:
    try:
        entry = convert_json(stated, TensorEntry)
    except ValueError as error:
        raise ValueError(f'the header of "{name}": {error}') from None
    begin, end = entry.data_offsets
    if not 0 <= begin <= end <= size:
        raise ValueError(
            f'the tensor "{name}" is truncated or damaged: it states bytes {begin:,} to {end:,}, the file has {size:,}'
        )
    if len(entry.shape) > _MOST_DIMENSIONS or min(entry.shape, default=0) < 0:
        raise ValueError(f'the tensor "{name}" has an invalid shape: {str(entry.shape)[:60]}')
    bits = _BITS.get(entry.dtype)
    if bits and entry.elements * bits != 8 * (end - begin):
        raise ValueError(
            f'the tensor "{name}" is truncated or damaged: {end - begin:,} bytes do not fit type {entry.dtype} and '
            f"shape {entry.shape}"
        )
    return entry


class SafetensorsFile:
    """A memory-mapped safetensors file: tensors are read from the disk when they are used.

    The `safetensors` library copies, and cannot pass bfloat16 to numpy. Raises ModelError for a damaged file.
    """

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
        """The tensors' names and shapes, such as "embeddings (29528, 128)"."""
        return [f"{name} {entry.shape}" for name, entry in sorted(self._entries.items())]

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def entry(self, name: str) -> TensorEntry:
        """Return a tensor's entry in the header."""
        return self._entries[name]

    def floats(self, name: str) -> Float32Array:
        """Return a tensor of any type as float32; a float32 tensor is not copied."""
        kind, values = self._values(name)
        if kind == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32, copy=False)

    def integers(self, name: str) -> Int64Array:
        """Return a tensor of integers as int64."""
        kind, values = self._values(name)
        if not kind.startswith(("I", "U")):
            raise ModelError(f'{self.path}: the tensor "{name}" is of type {kind}; expected integers.')
        return values.astype(np.int64, copy=False)

    def _values(self, name: str) -> tuple[str, npt.NDArray[Any]]:
        entry = self._entries[name]
        if entry.dtype not in _TYPES:
            known = ", ".join(_TYPES)
            raise ModelError(f'{self.path}: the tensor "{name}" is of type {entry.dtype}; expected one of {known}.')
        start, end = entry.data_offsets
        return entry.dtype, self._data[start:end].view(_TYPES[entry.dtype]).reshape(entry.shape)
