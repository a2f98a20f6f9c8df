"""The bytes of one source, decompressed, and their lines.

The size of decompressed files and the length of lines are limited.
"""

import bz2
import codecs
import gzip
import io
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import IO, Any

from indexer.corpus.readers.remote import open_object
from indexer.corpus.row import RAW_CHARACTERS, BadRow, BrokenFile
from indexer.corpus.sources import SourceFile
from indexer.errors import CorpusError, IsotropeError
from indexer.system.regular_files import open_regular

CHUNK_BYTES = 1 << 18  # read at once
BOMB_BYTES = 64 << 20  # smaller output never counts as a bomb
BOMB_RATIO = 250  # output / input; text reaches 3 to 20, gzip at most 1,030
MAX_LINE_BYTES = 32 << 20
# an error in zstd loses the output of its chunk, so the chunks are small
_ZSTD_CHUNK_BYTES = 1 << 14
NumberedLine = tuple[int, bytes]  # from 1


class ByteStream:
    """Bytes of one file, plain or compressed; a context manager.

    `read` raises BrokenFile ("compression", "bomb") for bad content, and CorpusError for problems of the machine
    (permissions, a failing disk).
    """

    def __init__(self, file: SourceFile) -> None:
        self.file = file
        self._produced = 0
        self._stack = ExitStack()

    def __enter__(self) -> "ByteStream":
        if self.file.is_stdin and sys.stdin is None:
            raise CorpusError("stdin: it is closed. Fix: pipe the corpus in, or name a file.")
        try:
            raw: IO[bytes] | _CountingReader
            raw = sys.stdin.buffer if self.file.is_stdin else self._stack.enter_context(open_source(self.file))
        except OSError as error:
            raise unreadable(self.file, error) from error
        self._input = _CountingReader(raw)
        self._read = _reader(self._input, self.file.compression)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self) -> bytes:
        """Return the next bytes, at most CHUNK_BYTES; empty at the end of the file."""
        try:
            data = self._read(CHUNK_BYTES)
        except (EOFError, zlib.error, OSError) as error:
            if self._input.fault is not None:
                raise unreadable(self.file, self._input.fault) from error
            if self._input.count == 0:
                return b""  # an empty file has no rows, although a decompressor may call it truncated
            raise self._broken(error) from error
        self._produced += len(data)
        ratio = self._produced / max(self._input.count, 1)
        if (kind := self.file.compression) and self._produced > BOMB_BYTES and ratio > BOMB_RATIO:
            what = f"the {kind} stream expands to {ratio:.0f} times its size; the limit is {BOMB_RATIO}"
            raise BrokenFile("bomb", what, "decompress the file first if you trust it")
        return data

    def _broken(self, error: Exception) -> BrokenFile:
        cut = isinstance(error, EOFError) or "truncated" in str(error).lower()
        # checksums come after the data, so rows that were already read may be wrong
        how = "is truncated" if cut else f"is corrupt ({error}), and rows before this point may be damaged"
        return BrokenFile("compression", f"the {self.file.compression} stream {how}", "download the file again")


def open_source(file: SourceFile) -> io.BufferedReader:
    """Open a file (not stdin) as it is stored; seekable. Raises OSError, and StoreError for object storage."""
    return open_regular(file.path) if file.path is not None else open_object(file.url)


def open_seekable(file: SourceFile) -> IO[bytes]:
    """Open a file for a format that seeks; stdin and compressed files as a temporary copy, deleted when closed.

    Raises OSError, CorpusError, and StoreError for object storage.
    """
    if not file.is_stdin and not file.compression:
        return open_source(file)
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - handed to the caller
    try:
        with ByteStream(file) as stream:
            while chunk := stream.read():
                copy.write(chunk)
        copy.seek(0)
    except OSError as error:
        copy.close()
        raise CorpusError(f"{file.display_name}: cannot be unpacked to a temporary file: {error.strerror}.") from error
    except CorpusError:
        copy.close()
        raise
    return copy


def unreadable(file: SourceFile, error: OSError) -> CorpusError:
    """Return an OSError of reading as an error with the file's name."""
    return CorpusError(f"{file.display_name}: cannot be read: {error.strerror or error}.")


def numbered_lines(stream: ByteStream) -> Iterator[NumberedLine | BadRow]:
    r"""Yield lines without their "\n", numbered from 1, and a BadRow ("long-line") for each beyond MAX_LINE_BYTES.

    Only "\n" ends a line: a lone "\r", U+2028 or a form feed is content. A byte order mark at the start of the
    file is dropped. Memory holds at most one line, and only the beginning of a line that is too long.
    """
    number = 1
    held = _HeldLine()
    chunk = _first_chunk(stream)
    while chunk:
        head, newline, tail = chunk.partition(b"\n")
        held.add(head)
        if newline:
            yield held.finish(number)
            *whole, rest = tail.split(b"\n")
            for number, line in enumerate(whole, number + 1):  # noqa: B020 - continues the count
                yield number, line
            number += 1
            held.add(rest)
        chunk = _read(stream, number)
    if held.size:
        yield held.finish(number)


def text_lines(stream: IO[bytes], shown: str, error: type[IsotropeError]) -> Iterator[tuple[int, str]]:
    r"""Yield the lines of a user's list (queries, ids) as text, numbered from 1, without "\n" or "\r\n".

    Raises `error` with `shown`, the line and the byte for a line that is not UTF-8 or beyond MAX_LINE_BYTES; OSError as
    the stream does.
    """
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise error(f"{shown}:{number}: the line is longer than {MAX_LINE_BYTES:,} bytes. Fix: shorten it.")
        start = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        text = decode_line(start.removesuffix(b"\n"), number)
        if isinstance(text, BadRow):
            raise error(f"{shown}:{number}: {text.what}. Fix: {text.way_out}.")
        yield number, text.removesuffix("\r")


def decode_line(line: bytes, number: int) -> str | BadRow:
    """Return the line as text, or a BadRow ("encoding") with the first byte that is not UTF-8."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        hint = " (the file looks like UTF-16)" if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else ""
        what = f"byte {error.start + 1} of the line, 0x{line[error.start]:02x}, is not UTF-8{hint}"
        return BadRow("encoding", what, "convert the file to UTF-8 (iconv -t UTF-8)", line=number, raw=line)


class _HeldLine:
    """A line that arrives in pieces."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size = 0

    def add(self, piece: bytes) -> None:
        if not piece:
            return
        if self.size > MAX_LINE_BYTES:
            self._pieces = [self._pieces[0][: 4 * RAW_CHARACTERS]]
        else:
            self._pieces.append(piece)
        self.size += len(piece)

    def finish(self, number: int) -> NumberedLine | BadRow:
        pieces, size = self._pieces, self.size
        self._pieces, self.size = [], 0
        if size > MAX_LINE_BYTES:
            what = f"the line has {size:,} bytes; the limit is {MAX_LINE_BYTES:,}"
            return BadRow("long-line", what, "split the document", line=number, raw=pieces[0])
        return number, b"".join(pieces)


def _first_chunk(stream: ByteStream) -> bytes:
    start = b""
    while len(start) < len(codecs.BOM_UTF8) and (more := _read(stream, 1)):
        start += more
    start = start.removeprefix(codecs.BOM_UTF8)
    return start or _read(stream, 1)


def _read(stream: ByteStream, line: int) -> bytes:
    try:
        return stream.read()
    except BrokenFile as broken:
        broken.line = line
        raise


class _CountingReader(io.RawIOBase):
    """Count the bytes read and record an OSError, which decompressors report as their own error."""

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


def _reader(raw: _CountingReader, compression: str) -> Callable[[int], bytes]:
    """Return a function that reads at most so many decompressed bytes."""
    if compression == "gzip":
        return gzip.GzipFile(fileobj=raw, mode="rb").read1  # unlike `read`, returns the data before an error
    if compression == "bz2":
        return _Bz2(raw).read
    if compression == "zstd":
        import pyarrow as pa

        stream = pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd")
        return lambda size: stream.read(min(size, _ZSTD_CHUNK_BYTES))
    return raw.read


class _Bz2:
    """One or more bzip2 streams; unlike bz2.BZ2File, rejects garbage after the first."""

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
