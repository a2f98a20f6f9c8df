"""A reader of word vectors in the formats of GloVe and word2vec, a block of rows at a time.

GloVe               word 0.1 0.2 ... on each line
word2vec, text      the same after a first line "words dimensions"; also fastText's .vec files
word2vec, binary    the same first line, then for each word: the word, a space, its numbers as little-endian float32,
                    and often a newline

The format and the compression (gzip, bzip2 or zstd) are detected from the contents. Words may contain spaces (as
GloVe's "at name@domain.com"), so numbers are counted from the end of the line.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from indexer.arrays import Float32Array
from indexer.corpus.readers.streams import ByteStream
from indexer.corpus.row import BrokenFile, excerpt
from indexer.corpus.sources import SourceFile
from indexer.errors import CorpusError, ModelError
from indexer.system.regular_files import open_regular

Form = Literal["text", "binary"]
_BLOCK_BYTES = 8 << 20
_SAMPLE_BYTES = 1 << 16  # searched for binary numbers; rare words further on may have any characters
_LOOKED_AT = 100  # lines, to detect the dimensions
_PACKED = {"gzip": rb"\x1f\x8b", "bz2": rb"BZh[1-9]1AY&SY", "zstd": rb"\x28\xb5\x2f\xfd"}
_HEADER = re.compile(rb"(\d{1,12}) (\d{1,6})\s*")
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1f]")  # absent from text, present in any few binary numbers
_BOM = b"\xef\xbb\xbf"
_OTHERS = {
    rb"PK\x03\x04": "a zip archive. Fix: unpack it and name the file in it",
    rb"\xba\x16\x4f\x2f": "fastText's own model. Fix: name the .vec file of the model, which has the word vectors",
    rb"\x80[\x02-\x05]": "a pickle, which can run code when loaded. Fix: save the vectors in word2vec's format",
}
_LONGEST_LINE = 8 << 20  # bytes
_NUMBER = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?(nan|inf|infinity)", re.IGNORECASE)
_SHOWN = 40  # characters of a field
_LONGEST_WORD = 1 << 16  # bytes


@dataclass(frozen=True)
class WordVectorFormat:
    """The layout of a file: rows begin after `start` bytes; the first line states `stated` rows, if there is one."""

    form: Form
    dim: int
    start: int = 0
    stated: int | None = None


def read_word_vectors(path: Path) -> Iterator[tuple[list[bytes], Float32Array]]:
    """Yield the words in the file and their vectors (n, d), float32, block by block.

    Raises ModelError with the line, its contents and the expectation for a file that is no such table, is cut short,
    has a number that is not finite, or more or fewer words than its first line states.
    """
    try:
        with ByteStream(SourceFile(path, str(path), path.name, "text", _compression(path))) as stream:
            blocks = _blocks(stream)
            head = next(blocks, b"")
            layout = detect_format(path, head)
            _require_size(path, layout)
            rest = chain([head[layout.start :]], blocks)
            if layout.form == "binary":
                yield from parse_binary(path, rest, layout.dim, layout.stated or 0)
            else:
                yield from parse_text(path, rest, layout.dim, layout.stated)
    except BrokenFile as broken:
        raise ModelError(f"{path}: {broken.what.rpartition(';')[0]}. Fix: {broken.way_out}.") from broken
    except CorpusError as error:
        raise ModelError(str(error)) from error


def detect_format(path: Path, head: bytes) -> WordVectorFormat:
    """Return the layout of a file that begins with `head`. Raises ModelError if it is no table of words."""
    for pattern, kind in _OTHERS.items():
        if re.match(pattern, head):
            raise ModelError(f"{path}: is {kind}.")
    mark = len(_BOM) if head.startswith(_BOM) else 0
    first, _, rows = head[mark:].partition(b"\n")
    header = _HEADER.fullmatch(first)
    if header is None:
        return _without_header(path, head, mark)
    stated, dim = int(header[1]), int(header[2])
    if not stated or not dim:
        raise ModelError(f"{path}:1: states {stated} words of {dim} dimensions; expected at least one of each.")
    form: Form = "binary" if _BINARY.search(rows, 0, _SAMPLE_BYTES) else "text"
    return WordVectorFormat(form, dim, mark + len(first) + 1, stated)


def _require_size(path: Path, layout: WordVectorFormat) -> None:
    """Raise ModelError if an uncompressed binary file is too small for the words in its first line."""
    if layout.form != "binary" or layout.stated is None or _compression(path):
        return
    size = path.stat().st_size - layout.start
    if layout.stated * 4 * layout.dim > size:
        raise ModelError(
            f"{path}: the first line states {layout.stated:,} words of {layout.dim:,} dimensions, which do not fit "
            f"into {size:,} bytes; the file is cut short. Fix: download it again."
        )


def _without_header(path: Path, head: bytes, start: int) -> WordVectorFormat:
    if not head[start:].strip():
        raise ModelError(f"{path}: is empty; expected a table of word vectors.")
    if _BINARY.search(head, 0, _SAMPLE_BYTES):
        raise ModelError(
            f"{path}: is neither text nor word2vec's binary form, which begins with a line such as 3000000 300; "
            "expected a table of word vectors."
        )
    dim = _agreed_dim(head[start:])
    if not dim:
        raise ModelError(f"{path}: its lines do not end in numbers; expected a word and its vector on each line.")
    return WordVectorFormat("text", dim, start)


def _agreed_dim(head: bytes) -> int:
    """Return how many numbers most of the first lines end in, the largest in a tie; one field is the word."""
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
    chunks, size = [], 0
    while chunk := stream.read():
        chunks.append(chunk)
        size += len(chunk)
        if size >= _BLOCK_BYTES:
            yield b"".join(chunks)
            chunks, size = [], 0
    if chunks:
        yield b"".join(chunks)


def parse_text(
    path: Path, blocks: Iterable[bytes], dim: int, stated: int | None
) -> Iterator[tuple[list[bytes], Float32Array]]:
    """Parse rows written as text: words and vectors (n, dim), float32, block by block. Raises ModelError.

    `stated` is the number of words in a first line, after which `blocks` begin; None without a first line.
    """
    headed, count = stated is not None, 0
    for lines in _lines(path, blocks):
        first = count + 1 + headed
        split = [_split(path, first + place, line, dim) for place, line in enumerate(lines)]
        vectors = _parsed([numbers for _, numbers in split], dim)
        if vectors is None or not np.isfinite(vectors).all():
            vectors = _parsed_one_by_one(path, first, split)
        count += len(lines)
        yield [word for word, _ in split], vectors
    if stated is not None and count != stated:
        fix = "; the file is cut short. Fix: download it again." if count < stated else ". Fix: correct the first line."
        raise ModelError(f"{path}: the first line states {stated:,} words, but there are {count:,}{fix}")


def is_number(field: bytes) -> bool:
    """Return whether a field is a decimal number, finite or not."""
    return _NUMBER.fullmatch(field) is not None


def named(field: bytes) -> str:
    """Return a field as shown in messages."""
    return excerpt(field[:_SHOWN])


def _lines(path: Path, blocks: Iterable[bytes]) -> Iterator[list[bytes]]:
    r"""Yield lists of lines without their "\n"; blank lines at the end of the file are left out."""
    rest = b""
    for block in blocks:
        data = rest + block
        end = data.rfind(b"\n", 0, len(data.rstrip(b"\r\n")))  # the next block decides whether blank lines are the last
        rest = data[end + 1 :]
        if end >= 0:
            yield data[:end].split(b"\n")
        elif len(rest) > _LONGEST_LINE:
            raise ModelError(f"{path}: a line exceeds {_LONGEST_LINE:,} bytes; expected a word and its vector.")
    if last := rest.rstrip(b"\r\n"):
        yield last.split(b"\n")


def _split(path: Path, number: int, line: bytes, dim: int) -> tuple[bytes, bytes]:
    line = line.rstrip(b" \r")
    if b"\t" in line:
        raise ModelError(f"{path}:{number}: has a tab; expected a word and its numbers, separated by single spaces.")
    word = _word(line, dim)
    if word is None:
        fields = line.count(b" ") + 1 if line else 0
        raise ModelError(f"{path}:{number}: has {fields} fields; expected {dim + 1}, a word and {dim} numbers.")
    return word.rstrip(b" "), line[len(word) + 1 :]


def _word(line: bytes, dim: int) -> bytes | None:
    """Return the text before the last `dim` fields; None for too few fields, or if it ends in another number."""
    extra = line.count(b" ") - dim
    if extra <= 0:
        return line.partition(b" ")[0] if extra == 0 else None
    word = line.rsplit(b" ", dim)[0]
    return None if is_number(word.rpartition(b" ")[2]) else word


def _parsed(rows: Sequence[bytes], dim: int) -> Float32Array | None:
    """Return the numbers (n, dim) of rows, read by Arrow as a CSV column; None if Arrow cannot read one of them."""
    import pyarrow as pa
    from pyarrow import csv

    data = b"\n".join(rows).replace(b" ", b"\n")
    try:
        table = csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=["number"]),
            csv.ParseOptions(quote_char=False, escape_char=False, ignore_empty_lines=False),
            csv.ConvertOptions(column_types={"number": pa.float32()}, null_values=[], check_utf8=False),
        )
    except pa.ArrowInvalid:
        return None
    numbers = table["number"].to_numpy()
    return numbers.reshape(len(rows), dim) if len(numbers) == len(rows) * dim else None


def _parsed_one_by_one(path: Path, first: int, split: Sequence[tuple[bytes, bytes]]) -> Float32Array:
    """Parse as `_parsed`, in Python. Raises ModelError with the invalid number."""
    rows = []
    for line, (word, numbers) in enumerate(split, first):
        fields = numbers.split(b" ")
        bad = next((field for field in fields if not is_number(field)), None)
        if bad is not None:
            raise ModelError(
                f'{path}:{line}: "{named(bad)}" is not a number; expected {len(fields)} after "{named(word)}".'
            )
        with np.errstate(over="ignore"):
            rows.append(np.array([float(field) for field in fields]).astype(np.float32))
        if not np.isfinite(rows[-1]).all():
            bad = fields[int(np.isfinite(rows[-1]).argmin())]
            raise ModelError(
                f'{path}:{line}: "{named(bad)}" in the vector of "{named(word)}" is not finite in float32.'
            )
    return np.stack(rows)


def parse_binary(
    path: Path, blocks: Iterable[bytes], dim: int, stated: int
) -> Iterator[tuple[list[bytes], Float32Array]]:
    """Parse rows of word2vec's binary form: words and vectors (n, dim), float32, block by block. Raises ModelError."""
    count, rest = 0, b""
    for block in blocks:
        rest += block
        words, vectors, end = _records(rest, dim, stated - count)
        rest = rest[end:]
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            row = int(finite.argmin())
            raise ModelError(f'{path}: the vector of word {count + row + 1:,}, "{named(words[row])}", is not finite.')
        count += len(words)
        if count == stated and rest.strip(b"\r\n"):
            raise ModelError(f"{path}: has more data than the {stated:,} words of {dim} dimensions in its first line.")
        if count < stated and not words and len(rest) > _LONGEST_WORD + 4 * dim:
            raise ModelError(f"{path}: is damaged at word {count + 1:,}, which has no end. Fix: download it again.")
        yield words, vectors
    if count < stated:
        raise ModelError(
            f"{path}: ends within word {count + 1:,}, but its first line states {stated:,} words of {dim} dimensions; "
            "the file is cut short. Fix: download it again."
        )


def _records(data: bytes, dim: int, most: int) -> tuple[list[bytes], Float32Array, int]:
    """Return the complete words and vectors at the start of `data`, and where they end."""
    words: list[bytes] = []
    numbers: list[bytes] = []
    at, size = 0, 4 * dim
    while len(words) < most:
        space = data.find(b" ", at, at + _LONGEST_WORD)
        end = space + 1 + size
        if space < 0 or end > len(data):
            break
        words.append(data[at:space].lstrip(b"\n"))
        numbers.append(data[space + 1 : end])
        at = end
    return words, np.frombuffer(b"".join(numbers), "<f4").reshape(-1, dim), at
