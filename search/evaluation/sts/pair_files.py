"""Scored sentence pairs, row by row: lines of a file to numbers and sentences, with every fault at its line."""

import gzip
import hashlib
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from indexer.errors import EvaluationError
from indexer.regular_files import read_regular

SCORE = ("score", "relatedness_score")
FIRST = ("sentence1", "sentence_a")
SECOND = ("sentence2", "sentence_b")
_KNOWN = {*SCORE, *FIRST, *SECOND}
_HEADER = "score<TAB>sentence1<TAB>sentence2"


@dataclass(frozen=True)
class Pairs:
    """Pairs of one file or data set. `shown` names it in messages; `files` maps what was read to its sha256."""

    shown: str
    files: dict[str, str]
    scores: list[float]
    first: list[str]
    second: list[str]
    unscored: int = 0  # pairs left out because nobody scored them


Line = tuple[str, str, str, str]
"""Where it stands ("file:line"), score, first sentence, second sentence."""


def pairs_of(shown: str, files: dict[str, str], lines: Iterable[Line]) -> Pairs:
    """Checked pairs. Raises EvaluationError at the first score that is no finite number, and at a blank sentence."""
    scores, first, second = [], [], []
    for where, score, a, b in lines:
        scores.append(_number(where, score))
        for sentence, which in ((a, "first"), (b, "second")):
            if not sentence.strip():
                raise EvaluationError(f"{where}: the {which} sentence is blank; expected a text. Way out: remove "
                                      "the line.")  # fmt: skip
        first.append(a)
        second.append(b)
    return Pairs(shown, files, scores, first, second)


def read_table(path: Path, name: str) -> Pairs:
    """A tab-separated file: columns by its header, or without one exactly score, sentence1, sentence2.

    Quotes are literal. `name` stands for the file in `Pairs.files`. Raises EvaluationError with the line.
    """
    lines, sha256 = read_lines(path)
    columns, width, start = _columns(path, lines)
    return pairs_of(str(path), {name: sha256}, _rows(path, lines, columns, width, start))


def count_rows(path: Path) -> int:
    """Rows of a tab-separated file, its header not counted."""
    lines, _ = read_lines(path)
    return len(lines) - bool(lines and _is_header(lines[0].split("\t")))


def read_lines(path: Path) -> tuple[list[str], str]:
    r"""Lines, ended by "\n" or "\r\n", and the sha256 of the file's bytes. A byte order mark is dropped.

    Empty lines at the end of a table are content to the caller; the newline that ends the last line is not.
    Raises EvaluationError when the file cannot be read, unpacked (.gz) or is not UTF-8.
    """
    try:
        data = read_regular(path)
    except OSError as error:
        raise EvaluationError(f"{path}: cannot be read: {error.strerror or error}.") from error
    sha256 = hashlib.sha256(data).hexdigest()
    plain = _unpacked(path, data) if path.suffix.lower() == ".gz" else data
    try:
        text = plain.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = plain[: error.start].count(b"\n") + 1
        raise EvaluationError(
            f"{path}:{line}: not UTF-8 (byte {plain[error.start]:#04x}). Way out: iconv -t UTF-8 {path.name}"
        ) from error
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return (lines[:-1] if lines[-1] == "" else lines), sha256


def _unpacked(path: Path, data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise EvaluationError(f"{path}: not a whole gzip file: {error}. Way out: fetch it again.") from error


def _is_header(cells: Sequence[str]) -> bool:
    return len(_KNOWN.intersection(cell.strip().lower() for cell in cells)) >= 2


def _columns(path: Path, lines: Sequence[str]) -> tuple[tuple[int, int, int], int, int]:
    """Where score and sentences stand, how many columns a row has, and the first row."""
    if not any(line.strip() for line in lines):
        raise EvaluationError(f"{path}: the file is empty; expected rows {_HEADER}.")
    cells = lines[0].split("\t")
    if _is_header(cells):
        names = [cell.strip().lower() for cell in cells]
        score, first, second = (_column(path, names, wanted) for wanted in (SCORE, FIRST, SECOND))
        return (score, first, second), len(cells), 1
    if len(cells) == 2:
        raise _without_scores(path)
    if len(cells) != 3:
        raise EvaluationError(
            f"{path}:1: {count_columns(len(cells))}, and no header that names them; expected {_HEADER}, as a header or "
            "as the columns of each row."
        )
    return (0, 1, 2), 3, 0


def _column(path: Path, names: Sequence[str], wanted: Sequence[str]) -> int:
    found = [number for number, name in enumerate(names) if name in wanted]
    if not found and wanted is SCORE:
        raise _without_scores(path)
    if len(found) != 1:
        fault = "no column" if not found else "more than one column"
        raise EvaluationError(f"{path}:1: the header has {fault} {' or '.join(wanted)}; expected {_HEADER}.")
    return found[0]


def _without_scores(path: Path) -> EvaluationError:
    return EvaluationError(
        f"{path}:1: sentences without scores; a correlation needs human scores to compare with. Expected {_HEADER}."
    )


def _rows(path: Path, lines: Sequence[str], columns: tuple[int, int, int], width: int, start: int) -> Iterable[Line]:
    end = len(lines)
    while end > start and not lines[end - 1].strip():
        end -= 1
    for number, line in enumerate(lines[start:end], start + 1):
        cells = line.split("\t")
        if len(cells) != width:
            raise EvaluationError(f"{path}:{number}: {count_columns(len(cells))}; expected {width}, parted by tabs.")
        score, first, second = (cells[column] for column in columns)
        yield f"{path}:{number}", score, first, second


def count_columns(columns: int) -> str:
    """For messages."""
    return "1 column" if columns == 1 else f"{columns} columns"


def _number(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise EvaluationError(f'{where}: the score "{text.strip()[:40]}" is not a finite number.')
    return value
