"""Files of word vectors, as GloVe and word2vec write them, a block of rows at a time.

GloVe               word 0.1 0.2 ... on each line
word2vec, text      the same under a first line "words dimensions"; fastText's .vec files too
word2vec, binary    that first line, then for each word: the word, a space, its numbers as little-endian float32, and
                    often a newline

Which of them a file is, its contents tell, and whether gzip, bzip2 or zstd packed it. Words may hold spaces (GloVe's
"at name@domain.com" does), so numbers are counted from the end of the line.
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
_LONGEST_LINE = 8 << 20  # bytes
_NUMBER = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?(nan|inf|infinity)", re.IGNORECASE)
_SHOWN = 40  # characters of a field
_LONGEST_WORD = 1 << 16  # bytes; beyond it what is read is no word


@dataclass(frozen=True)
class WordVectorFormat:
    """How a file is laid out: `start` bytes come before its rows, of which the first line `stated` so many."""

    form: Form
    dim: int
    start: int = 0
    stated: int | None = None


def read_word_vectors(path: Path) -> Iterator[tuple[list[bytes], Float32Array]]:
    """Words as they are in the file and their vectors (n, d), float32, block by block.

    Raises ModelError naming the line, what was found and what was expected, for a file that is no such table, is cut
    short, holds a number that is not finite, or more or fewer words than its first line says.
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
    return WordVectorFormat(form, dim, mark + len(first) + 1, stated)


def _require_size(path: Path, layout: WordVectorFormat) -> None:
    """Raise ModelError if a binary file that nothing packed is far too small for what its first line states."""
    if layout.form != "binary" or layout.stated is None or _compression(path):
        return
    size = path.stat().st_size - layout.start
    if layout.stated * 4 * layout.dim > size:
        raise ModelError(
            f"{path}: its first line says {layout.stated:,} words of {layout.dim:,} dimensions, which {size:,} bytes "
            "cannot hold; it is cut short. Fetch it again."
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
        raise ModelError(f"{path}: its lines do not end in numbers; expected a word and its vector on each.")
    return WordVectorFormat("text", dim, start)


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


def parse_text(
    path: Path, blocks: Iterable[bytes], dim: int, stated: int | None
) -> Iterator[tuple[list[bytes], Float32Array]]:
    """Rows written as text: words and vectors (n, dim), float32, block by block. Raises ModelError.

    `stated` is the number of words that a first line, which `blocks` begin after, tells; None without such a line.
    """
    headed, found = stated is not None, 0
    for lines in _lines(path, blocks):
        first = found + 1 + headed
        split = [_split(path, first + place, line, dim) for place, line in enumerate(lines)]
        vectors = _parsed([numbers for _, numbers in split], dim)
        if vectors is None or not np.isfinite(vectors).all():
            vectors = _parsed_one_by_one(path, first, split)
        found += len(lines)
        yield [word for word, _ in split], vectors
    if stated is not None and found != stated:
        raise ModelError(_miscounted(path, stated, found))


def is_number(field: bytes) -> bool:
    """Whether a field is a decimal number, finite or not."""
    return _NUMBER.fullmatch(field) is not None


def named(field: bytes) -> str:
    """A field as it is shown in messages."""
    return excerpt(field[:_SHOWN])


def _lines(path: Path, blocks: Iterable[bytes]) -> Iterator[list[bytes]]:
    r"""Lines without their "\n", many at a time; blank ones at the end of the file are none."""
    rest = b""
    for block in blocks:
        data = rest + block
        end = data.rfind(b"\n", 0, len(data.rstrip(b"\r\n")))  # what comes next tells whether blank lines are the last
        rest = data[end + 1 :]
        if end >= 0:
            yield data[:end].split(b"\n")
        elif len(rest) > _LONGEST_LINE:
            raise ModelError(f"{path}: a line has more than {_LONGEST_LINE:,} bytes; expected a word and its vector.")
    if last := rest.rstrip(b"\r\n"):
        yield last.split(b"\n")


def _split(path: Path, number: int, line: bytes, dim: int) -> tuple[bytes, bytes]:
    """The word and the numbers of a line."""
    line = line.rstrip(b" \r")
    if b"\t" in line:
        raise ModelError(f"{path}:{number}: has a tab; expected a word and its numbers with a space between each.")
    word = _word(line, dim)
    if word is None:
        fields = line.count(b" ") + 1 if line else 0
        raise ModelError(f"{path}:{number}: has {fields} fields; expected {dim + 1}, a word and {dim} numbers.")
    return word.rstrip(b" "), line[len(word) + 1 :]


def _word(line: bytes, dim: int) -> bytes | None:
    """What is before the last `dim` fields; None for too few, and for a word that ends in a number of its own."""
    extra = line.count(b" ") - dim
    if extra <= 0:
        return line.partition(b" ")[0] if extra == 0 else None
    word = line.rsplit(b" ", dim)[0]
    return None if is_number(word.rpartition(b" ")[2]) else word


def _parsed(rows: Sequence[bytes], dim: int) -> Float32Array | None:
    """Numbers (n, dim) of rows, by Arrow's reader of CSV, as one column; None where there is one it cannot read."""
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
    """As `_parsed`, in Python, naming the number that is none."""
    rows = []
    for line, (word, numbers) in enumerate(split, first):
        fields = numbers.split(b" ")
        bad = next((field for field in fields if not is_number(field)), None)
        if bad is not None:
            raise ModelError(
                f'{path}:{line}: "{named(bad)}" is no number; expected {len(fields)} after "{named(word)}".'
            )
        with np.errstate(over="ignore"):
            rows.append(np.array([float(field) for field in fields]).astype(np.float32))
        if not np.isfinite(rows[-1]).all():
            bad = fields[int(np.isfinite(rows[-1]).argmin())]
            raise ModelError(
                f'{path}:{line}: "{named(bad)}", in the vector of "{named(word)}", is not finite in float32.'
            )
    return np.stack(rows)


def _miscounted(path: Path, stated: int, found: int) -> str:
    why = "it is cut short. Fetch it again." if found < stated else "correct the first line if they belong together."
    return f"{path}: the first line says {stated:,} words, but there are {found:,}; {why}"


def parse_binary(
    path: Path, blocks: Iterable[bytes], dim: int, stated: int
) -> Iterator[tuple[list[bytes], Float32Array]]:
    """Rows of word2vec's binary form: words and vectors (n, dim), float32, block by block. Raises ModelError."""
    found, rest = 0, b""
    for block in blocks:
        rest += block
        words, vectors, end = _records(rest, dim, stated - found)
        rest = rest[end:]
        _require_finite(path, words, vectors, found)
        found += len(words)
        if found == stated and rest.strip(b"\r\n"):
            raise ModelError(f"{path}: goes on after the {stated:,} words of {dim} dimensions its first line says.")
        if found < stated and not words and len(rest) > _LONGEST_WORD + 4 * dim:
            raise ModelError(f"{path}: no word ends where word {found + 1:,} should; it is damaged. Fetch it again.")
        yield words, vectors
    if found < stated:
        raise ModelError(
            f"{path}: ends within word {found + 1:,}, where its first line says {stated:,} words of {dim} dimensions; "
            "it is cut short. Fetch it again."
        )


def _records(data: bytes, dim: int, most: int) -> tuple[list[bytes], Float32Array, int]:
    """The whole words and vectors that `data` begins with, and where they end."""
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


def _require_finite(path: Path, words: list[bytes], vectors: Float32Array, before: int) -> None:
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        row = int(finite.argmin())
        raise ModelError(f'{path}: the vector of word {before + row + 1:,}, "{named(words[row])}", is not finite.')
