"""The files that an ONNX file names: its tensors can be stored outside of it, as "external data".

Only the wire format of protobuf is read, as far as needed to visit each tensor, so the package onnx is not needed and
the numbers themselves are skipped.
"""

from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path

from indexer.errors import ModelError
from indexer.system.regular_files import open_regular

# Messages of onnx.proto that can contain a tensor: number of a field -> the message in it.
_MESSAGES: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {13: "external data"},
    "external data": {},
}
_KEY, _VALUE = 1, 2  # fields of an entry of external data
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_LONGEST_VARINT = 10


def external_files(path: Path) -> list[str]:
    """Return the names of the files with external data, as written in an ONNX file, sorted.

    Raises ModelError for a file that is not ONNX.
    """
    names = set()
    try:
        with open_regular(path) as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            waiting = [("model", 0, len(data))]
            while waiting:
                message, start, stop = waiting.pop()
                fields = list(_fields(data, start, stop))
                if message == "external data":
                    entry = {number: data[first:end] for number, first, end in fields}
                    if entry.get(_KEY) == b"location":
                        names.add(entry.get(_VALUE, b"").decode("utf-8"))
                inner = _MESSAGES[message]
                waiting += [(inner[number], first, end) for number, first, end in fields if number in inner]
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise ModelError(f"{path}: cannot be read as ONNX: {error}.") from error
    return sorted(names)


def _fields(data: mmap, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each field of bytes in a message; other fields are skipped."""
    while start < stop:
        tag, start = _varint(data, start, stop)
        number, kind = tag >> 3, tag & 7
        first = start
        if kind == _BYTES:
            length, first = _varint(data, start, stop)
            start = first + length
        elif kind == _VARINT:
            _, start = _varint(data, start, stop)
        elif kind in (_FIXED64, _FIXED32):
            start += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"field {number} has the unknown wire type {kind}")
        if start > stop:
            raise ValueError(f"field {number} ends {start - stop:,} bytes after its message")
        if kind == _BYTES:
            yield number, first, start


def _varint(data: mmap, start: int, stop: int) -> tuple[int, int]:
    """Return a number of 7 bits a byte and the position after it."""
    value = 0
    for place in range(min(_LONGEST_VARINT, stop - start)):
        byte = data[start + place]
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, start + place + 1
    raise ValueError(f"the number at byte {start:,} has no end")
