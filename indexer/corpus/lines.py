"""Lines of a byte stream, numbered, of bounded length."""

import codecs
from collections.abc import Iterator
from typing import IO

from indexer.corpus.rejection import RAW_CHARACTERS, BadRow, BrokenFile
from indexer.corpus.streams import ByteStream
from indexer.errors import IsotropeError

MAX_LINE_BYTES = 32 << 20

NumberedLine = tuple[int, bytes]


def split_lines(stream: ByteStream) -> Iterator[NumberedLine | BadRow]:
    r"""Lines without their "\n", numbered from 1, and a BadRow ("long-line") for each beyond MAX_LINE_BYTES.

    Only "\n" ends a line: a lone "\r", U+2028 or a form feed is content. A byte order mark at the start of the
    file is dropped. Holds at most one line; of a line that is too long only the beginning.
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
            for number, line in enumerate(whole, number + 1):  # noqa: B020 - counts on from where it stands
                yield number, line
            number += 1
            held.add(rest)
        chunk = _read(stream, number)
    if held.size:
        yield held.finish(number)


def text_lines(stream: IO[bytes], shown: str, error: type[IsotropeError]) -> Iterator[tuple[int, str]]:
    r"""Lines of a user's list (queries, ids) as they arrive, as text, numbered from 1, by the rules of `split_lines`.

    Neither "\n" nor a "\r" before it is given. Raises `error`, naming the list as `shown`, the line and the byte, for
    one that is not UTF-8 or beyond MAX_LINE_BYTES; OSError as the stream does.
    """
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise error(f"{shown}:{number}: the line is longer than {MAX_LINE_BYTES:,} bytes. Way out: fix the line.")
        start = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        text = decoded(start.removesuffix(b"\n"), number)
        if isinstance(text, BadRow):
            raise error(f"{shown}:{number}: {text.what}. Way out: {text.way_out}.")
        yield number, text.removesuffix("\r")


def decoded(line: bytes, number: int) -> str | BadRow:
    """The line as text, or a BadRow ("encoding") that tells the first byte that is not UTF-8."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        hint = " (the file looks like UTF-16)" if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else ""
        return BadRow(
            "encoding",
            f"byte {error.start + 1} of the line, 0x{line[error.start]:02x}, is not UTF-8{hint}",
            "convert the file to UTF-8 (iconv -t UTF-8)",
            line=number,
            raw=line,
        )


class _HeldLine:
    """A line met in pieces."""

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
