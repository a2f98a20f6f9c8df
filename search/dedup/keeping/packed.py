"""Bytes on their way into a file: collected to a few MiB, compressed, and then written."""

import bz2
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pyarrow as pa

from indexer.output_files import OutputFile

_HELD_BYTES = 4 << 20
_GZIP = zlib.MAX_WBITS | 16  # a gzip stream, which bears no name and no time
_GZIP_LEVEL = 6


class PackedFile:
    """A binary file that is only written to; what pyarrow wants of one is here too."""

    closed = False

    def __init__(self, file: OutputFile, compression: str) -> None:
        self._file = file
        self._packer = _packer(compression)
        self._held: list[bytes] = []
        self._size = 0
        self._detached = False

    def write(self, data: Any) -> int:
        """Take in bytes, or anything that holds them."""
        if self._detached:
            return len(data)
        held = bytes(data)
        self._held.append(held)
        self._size += len(held)
        if self._size >= _HELD_BYTES:
            self._empty()
        return len(held)

    def flush(self) -> None:
        """Nothing that a library could want on the disk early."""

    def writable(self) -> bool:
        """Yes."""
        return True

    def finish(self) -> None:
        """Write what is held and what ends the compressed stream."""
        self._empty()
        self._file.write(self._packer.flush())

    def detach(self) -> None:
        """From now on write nothing: libraries that tidy up late must not reach a descriptor that is another's."""
        self._detached = True

    def _empty(self) -> None:
        self._file.write(self._packer.compress(b"".join(self._held)))
        self._held.clear()
        self._size = 0


@contextmanager
def packed(file: OutputFile, compression: str) -> Iterator[PackedFile]:
    """A file to write into, compressed as gzip, bz2 or zstd, or "" for as it is."""
    sink = PackedFile(file, compression)
    try:
        yield sink
        sink.finish()
    finally:
        sink.detach()


class _Packer(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class _Plain:
    def compress(self, data: bytes, /) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


class _Zstd:
    """One frame after another, which every reader takes for one stream."""

    def __init__(self) -> None:
        self._codec = pa.Codec("zstd")

    def compress(self, data: bytes, /) -> bytes:
        frame: bytes = self._codec.compress(data, asbytes=True)
        return frame

    def flush(self) -> bytes:
        return b""


def _packer(compression: str) -> _Packer:
    if compression == "gzip":
        return zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP)
    if compression == "bz2":
        return bz2.BZ2Compressor()
    return _Zstd() if compression == "zstd" else _Plain()
