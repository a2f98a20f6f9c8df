"""The bytes of one source, decompressed, with a limit on what a small file may unfold to."""

import bz2
import gzip
import io
import sys
import tempfile
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Protocol

from indexer.corpus.rejection import BrokenFile
from indexer.corpus.sources import SourceFile
from indexer.errors import CorpusError
from indexer.regular_files import open_regular

CHUNK_BYTES = 1 << 18
BOMB_BYTES = 64 << 20  # output below this is never called a bomb
BOMB_RATIO = 250  # output over input; text reaches 3 to 20, gzip can do 1,030
# what zstd has decompressed before an error is lost with the chunk, so its chunks are small
_ZSTD_CHUNK_BYTES = 1 << 14


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class ByteStream:
    """Bytes of one file, plain or compressed; a context manager.

    `read` raises BrokenFile ("compression", "bomb") for what is wrong with the content, and CorpusError for what
    is wrong with the machine (permissions, a failing disk).
    """

    def __init__(self, file: SourceFile) -> None:
        self.file = file
        self._produced = 0
        self._stack = ExitStack()

    def __enter__(self) -> "ByteStream":
        if self.file.path is None and sys.stdin is None:
            raise CorpusError("stdin: it is closed. Way out: pipe the corpus in, or name a file.")
        try:
            raw: IO[bytes] | _CountingReader
            raw = sys.stdin.buffer if self.file.path is None else self._opened(self.file.path)
        except OSError as error:
            raise unreadable(self.file, error) from error
        self._input = _CountingReader(raw)
        self._plain = _decompressor(self._input, self.file.compression)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _opened(self, path: Path) -> IO[bytes]:
        return self._stack.enter_context(open_regular(path))

    def read(self) -> bytes:
        """The next bytes, at most CHUNK_BYTES; empty at the end of the file."""
        try:
            data = self._plain.read(CHUNK_BYTES)
        except (EOFError, zlib.error, OSError) as error:
            if self._input.fault is not None:
                raise unreadable(self.file, self._input.fault) from error
            if self._input.count == 0:
                return b""  # a decompressor may call an empty file cut short; an empty file holds no rows
            raise self._broken(error) from error
        self._produced += len(data)
        if self.file.compression and self._produced > BOMB_BYTES:
            self._check_ratio()
        return data

    def _check_ratio(self) -> None:
        ratio = self._produced / max(self._input.count, 1)
        if ratio > BOMB_RATIO:
            raise BrokenFile(
                "bomb",
                f"the {self.file.compression} stream unfolds to {ratio:.0f} times its size; the limit is {BOMB_RATIO}",
                "decompress the file first if you trust it",
            )

    def _broken(self, error: Exception) -> BrokenFile:
        cut = isinstance(error, EOFError) or "truncated" in str(error).lower()
        # checksums come after the data, so what was already read need not be right
        how = "is cut short" if cut else f"is corrupt ({error}), and rows before this point may be damaged"
        return BrokenFile("compression", f"the {self.file.compression} stream {how}", "fetch the file again")


def spooled(file: SourceFile) -> IO[bytes]:
    """The decompressed file as a seekable temporary one, gone when closed; for formats that need to seek."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - handed to the caller
    try:
        with ByteStream(file) as stream:
            while chunk := stream.read():
                copy.write(chunk)
        copy.seek(0)
    except OSError as error:
        copy.close()
        raise CorpusError(f"{file.shown}: cannot be unpacked to a temporary file: {error.strerror}.") from error
    except CorpusError:
        copy.close()
        raise
    return copy


def unreadable(file: SourceFile, error: OSError) -> CorpusError:
    """The machine's refusal to read a file, as an error that names the file."""
    return CorpusError(f"{file.shown}: cannot be read: {error.strerror or error}.")


class _CountingReader(io.RawIOBase):
    """Counts the bytes read and remembers a fault of the machine, which decompressors report as their own."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.count = 0
        self.fault: OSError | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._raw.read(len(buffer))
        except OSError as error:
            self.fault = error
            raise
        buffer[: len(data)] = data
        self.count += len(data)
        return len(data)


class _Gzip:
    """`read` returns what came before an error in the stream, where GzipFile's own loses it to the error."""

    def __init__(self, raw: _CountingReader) -> None:
        self.read = gzip.GzipFile(fileobj=raw, mode="rb").read1


class _Bz2:
    """One or more bzip2 streams; unlike bz2.BZ2File, does not pass over garbage after the first in silence."""

    def __init__(self, raw: _CountingReader) -> None:
        self._raw = raw
        self._stream = bz2.BZ2Decompressor()

    def read(self, size: int) -> bytes:
        data = b""
        while not data:
            packed = b""
            if self._stream.eof:
                packed = self._stream.unused_data or self._raw.read(CHUNK_BYTES) or b""
                if not packed:
                    return b""
                self._stream = bz2.BZ2Decompressor()
            elif self._stream.needs_input:
                packed = self._raw.read(CHUNK_BYTES) or b""
                if not packed:
                    raise EOFError
            data = self._stream.decompress(packed, size)
        return data


class _Zstd:
    def __init__(self, raw: _CountingReader) -> None:
        import pyarrow as pa

        self._stream = pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd")

    def read(self, size: int) -> bytes:
        data: bytes = self._stream.read(min(size, _ZSTD_CHUNK_BYTES))
        return data


def _decompressor(raw: _CountingReader, compression: str) -> _Readable:
    if compression == "gzip":
        return _Gzip(raw)
    if compression == "bz2":
        return _Bz2(raw)
    if compression == "zstd":
        return _Zstd(raw)
    return raw
