"""The rows of word vectors written as text, parsed many lines at a time."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.corpus.row import shown
from indexer.errors import ModelError

Vectors = npt.NDArray[np.float32]
_LONGEST_LINE = 8 << 20  # bytes
_NUMBER = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?(nan|inf|infinity)", re.IGNORECASE)
_SHOWN = 40  # characters of a field


def text_rows(
    path: Path, blocks: Iterable[bytes], dim: int, stated: int | None
) -> Iterator[tuple[list[bytes], Vectors]]:
    """Words and vectors (n, dim), float32, block by block. Raises ModelError as `word_files.read_rows` does.

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
    return shown(field[:_SHOWN])


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


def _parsed(rows: Sequence[bytes], dim: int) -> Vectors | None:
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


def _parsed_one_by_one(path: Path, first: int, split: Sequence[tuple[bytes, bytes]]) -> Vectors:
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
