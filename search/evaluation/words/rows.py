"""Lines of a word-level data set as cells, each with where it stands."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from indexer.errors import EvaluationError
from search.evaluation.sts.pair_files import count_columns, read_lines

_PART_OF_SPEECH = re.compile(r"(.+)-[nvajr]")


@dataclass(frozen=True)
class Row:
    """The cells of a line; `title` where the line is ": name", the title of a section."""

    where: str  # "file:line"
    cells: list[str]
    title: str | None = None


def read_rows(path: Path) -> tuple[list[Row], str]:
    """The lines of a file that are neither blank nor begin with # or //, and the sha256 of its bytes; also of a .gz.

    Cells are parted by tabs if the first line has one, else by commas if it has one, else by white space. Raises
    EvaluationError for a file without any line, one that cannot be read and one that is not UTF-8.
    """
    lines, sha256 = read_lines(path)
    kept = [
        (f"{path}:{n}", line) for n, line in enumerate(lines, 1) if line.strip() and not line.startswith(("#", "//"))
    ]
    if not kept:
        raise EvaluationError(f"{path}: the file is empty; expected a word-level data set.")
    first = kept[0][1]
    delimiter = None if first.startswith(":") else "\t" if "\t" in first else "," if "," in first else None
    return [_row(where, line, delimiter) for where, line in kept], sha256


def _row(where: str, line: str, delimiter: str | None) -> Row:
    if line.startswith(":"):
        return Row(where, [line], line[1:].strip())
    return Row(where, [cell.strip() for cell in line.split(delimiter)])


def require_columns(row: Row, count: int) -> list[str]:
    """The cells. Raises EvaluationError where they are not `count`, or one is empty."""
    if len(row.cells) != count or row.title is not None:
        found = "the title of a section" if row.title is not None else count_columns(len(row.cells))
        raise EvaluationError(f"{row.where}: {found}; expected {count_columns(count)}, as in the lines before.")
    if not all(row.cells):
        raise EvaluationError(f"{row.where}: column {row.cells.index('') + 1} is empty; expected {count} that are not.")
    return row.cells


def score_of(text: str) -> float | None:
    """A finite number, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def without_part_of_speech(words: Sequence[str]) -> list[str]:
    """The words without -n, -v, -a, -j or -r behind them, if all have one, as in the lemma form of MEN and in BLESS."""
    found = [_PART_OF_SPEECH.fullmatch(word) for word in words]
    if not all(found):
        return list(words)
    return [match[1] for match in found if match]
