"""Files of word vectors, as GloVe and word2vec write them, a block of rows at a time.

    GloVe                  word 0.1 0.2 ...         on each line
    word2vec, as text      the same under a first line "words dimensions"; fastText's .vec files too
    word2vec, as binary    that first line, then for each word: the word, a space, its numbers as little-endian
                           float32, and often a newline

Which of them a file is, its contents tell, and whether gzip, bzip2 or zstd packed it. Words may hold spaces (GloVe's
"at name@domain.com" does), so numbers are counted from the end of the line.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from indexer.corpus.row import BrokenFile
from indexer.corpus.sources import SourceFile
from indexer.corpus.streams import ByteStream
from indexer.encoders.tables.binary_rows import binary_rows
from indexer.encoders.tables.text_rows import is_number, text_rows
from indexer.errors import CorpusError, ModelError
from indexer.regular_files import open_regular

Vectors = npt.NDArray[np.float32]
Form = Literal["text", "binary"]
_BLOCK_BYTES = 8 << 20
_SAMPLE_BYTES = 1 << 16  # in which binary numbers show; the rare words further on may be of any characters
_LOOKED_AT = 100  # lines, to learn the dimensions from
_PACKED = {"gzip": rb"\x1f\x8b", "bz2": rb"BZh[1-9]1AY&SY", "zstd": rb"\x28\xb5\x2f\xfd"}
_HEADER = re.compile(rb"(\d{1,12}) (\d{1,6})\s*")
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1f]")  # no row of text has these, and any few binary numbers do
_BOM = b"\xef\xbb\xbf"
_OTHERS = {
    rb"PK\x03\x04": "a zip archive. Unpack it, and name the file in it",
    rb"\xba\x16\x4f\x2f": "fastText's own model. Name the .vec file beside it, which has the word vectors",
    rb"\x80[\x02-\x05]": "a pickle, which can run code when loaded. Save the vectors in word2vec's format",
}


@dataclass(frozen=True)
class Layout:
    """How a file is laid out: `start` bytes come before its rows, of which the first line `stated` so many."""

    form: Form
    dim: int
    start: int = 0
    stated: int | None = None


def read_rows(path: Path) -> Iterator[tuple[list[bytes], Vectors]]:
    """Words as they are in the file and their vectors (n, d), float32, block by block.

    Raises ModelError naming the line, what was found and what was expected, for a file that is no such table, is cut
    short, holds a number that is not finite, or more or fewer words than its first line says.
    """
    try:
        with ByteStream(SourceFile(path, str(path), path.name, "text", _compression(path))) as stream:
            blocks = _blocks(stream)
            head = next(blocks, b"")
            layout = find_layout(path, head)
            _require_size(path, layout)
            rest = chain([head[layout.start :]], blocks)
            if layout.form == "binary":
                yield from binary_rows(path, rest, layout.dim, layout.stated or 0)
            else:
                yield from text_rows(path, rest, layout.dim, layout.stated)
    except BrokenFile as broken:
        raise ModelError(f"{path}: {broken.what.rpartition(';')[0]}. Way out: {broken.way_out}.") from broken
    except CorpusError as error:
        raise ModelError(str(error)) from error


def find_layout(path: Path, head: bytes) -> Layout:
    """The layout of a file that begins with `head`. Raises ModelError for one that is no table of words."""
    for pattern, what in _OTHERS.items():
        if re.match(pattern, head):
            raise ModelError(f"{path}: is {what}.")
    mark = len(_BOM) if head.startswith(_BOM) else 0
    first, _, rows = head[mark:].partition(b"\n")
    header = _HEADER.fullmatch(first)
    if header is None:
        return _without_header(path, head, mark)
    stated, dim = int(header[1]), int(header[2])
    if not stated or not dim:
        raise ModelError(f"{path}:1: states {stated} words of {dim} dimensions; expected at least one of each.")
    form: Form = "binary" if _BINARY.search(rows, 0, _SAMPLE_BYTES) else "text"
    return Layout(form, dim, mark + len(first) + 1, stated)


def _require_size(path: Path, layout: Layout) -> None:
    """Raise ModelError if a binary file that nothing packed is far too small for what its first line states."""
    if layout.form != "binary" or layout.stated is None or _compression(path):
        return
    size = path.stat().st_size - layout.start
    if layout.stated * 4 * layout.dim > size:
        raise ModelError(
            f"{path}: its first line says {layout.stated:,} words of {layout.dim:,} dimensions, which {size:,} bytes "
            "cannot hold; it is cut short. Fetch it again."
        )


def _without_header(path: Path, head: bytes, start: int) -> Layout:
    if not head[start:].strip():
        raise ModelError(f"{path}: is empty; expected a table of word vectors.")
    if _BINARY.search(head, 0, _SAMPLE_BYTES):
        raise ModelError(
            f"{path}: is neither text nor word2vec's binary form, which begins with a line such as 3000000 300; "
            "expected a table of word vectors."
        )
    dim = _agreed_dim(head[start:])
    if not dim:
        raise ModelError(f"{path}: its lines do not end in numbers; expected a word and its vector on each.")
    return Layout("text", dim, start)


def _agreed_dim(head: bytes) -> int:
    """How many numbers most of the first lines end in, the most of these where that is undecided; one field is the
    word."""
    lines = head.split(b"\n", _LOOKED_AT)[:_LOOKED_AT]
    counts = Counter(_numbers_at_end(line.rstrip()) for line in lines if line.strip())
    return max(counts, key=lambda dim: (counts[dim], dim))


def _numbers_at_end(line: bytes) -> int:
    fields = line.split(b" ")
    words = next((place for place in range(len(fields), 0, -1) if not is_number(fields[place - 1])), 0)
    return len(fields) - max(words, 1)


def _compression(path: Path) -> str:
    try:
        with open_regular(path) as file:
            start = file.read(16)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}.") from error
    return next((name for name, pattern in _PACKED.items() if re.match(pattern, start)), "")


def _blocks(stream: ByteStream) -> Iterator[bytes]:
    """The stream in larger pieces."""
    held, size = [], 0
    while chunk := stream.read():
        held.append(chunk)
        size += len(chunk)
        if size >= _BLOCK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
