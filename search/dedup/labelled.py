"""Choosing a threshold by pairs that people have labelled: precision, recall and F1 at each.

What it cannot say: labelled pairs are hardly ever a sample of all pairs. Precision depends on how many of the pairs
are duplicates, and pairs that were chosen because they score high (or are hard) are not like those of a corpus, where
nearly all are no duplicates; recall is of the labelled duplicates, not of those that nobody has found. Thresholds can
be compared on the same pairs all the same. The best F1 is chosen on these very pairs, so others will give less.
"""

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.arrays import RowIds, Scores, Vectors
from indexer.errors import EvaluationError
from indexer.regular_files import read_regular
from search.dedup.chance import USUAL_THRESHOLDS
from search.dedup.pairs import document_scores
from search.dedup.settings import IDENTICAL, lowest_score
from search.files import file_hash
from search.index import Index
from search.text import counted

DUPLICATE = ("1", "1.0", "true", "yes", "duplicate", "same")
DIFFERENT = ("0", "0.0", "false", "no", "different", "distinct")
_HEADINGS = {"label", "is_duplicate", "class", "match", "judgement", "judgment", "gold"}
_EXPECTED = "expected id<TAB>id<TAB>label (in a .csv file with commas), the label 1 or 0, with or without a header"
_Z = 1.959964  # 95 %, two-sided
_RESAMPLES = 1000


@dataclass(frozen=True)
class LabelledPairs:
    """Pairs of documents with their labels, each pair once. `repeated`: lines that said the same again."""

    shown: str
    sha256: str
    left: RowIds
    right: RowIds
    duplicate: npt.NDArray[np.bool_]
    repeated: int = 0


@dataclass(frozen=True)
class Proportion:
    """A share with its 95 % interval; all None where it has no value."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class ThresholdMetrics:
    """What a threshold gives: `found` pairs reach it, of which `right` are duplicates."""

    threshold: float
    found: int
    right: int
    precision: Proportion  # interval by Wilson's formula
    recall: Proportion  # likewise
    f1: Proportion  # interval by the bootstrap over pairs

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        ratios = {name: vars(getattr(self, name)).copy() for name in ("precision", "recall", "f1")}
        return {"threshold": self.threshold, "found": self.found, "right": self.right, **ratios}


@dataclass(frozen=True)
class LabelledReport:
    """Levels in ascending order of threshold; `best` is the threshold of the best F1, the highest of equals."""

    shown: str
    sha256: str
    pairs: int
    duplicates: int
    best: float
    levels: tuple[ThresholdMetrics, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {**vars(self), "levels": [level.to_dict() for level in self.levels], "notes": list(self.notes)}


def read_labelled(path: Path, index: Index) -> LabelledPairs:
    """Labelled pairs from a tab-separated file (a .csv: comma-separated), ids being those of the index.

    Raises EvaluationError, with the line, for a file that cannot be read, a malformed line, an id that is not in the
    index, a document with itself and a pair with two labels; and for a file without duplicates or without others.
    """
    labels: dict[tuple[str, str], tuple[bool, int]] = {}
    repeated = 0
    for line, one, other, label in _lines(path):
        pair = (min(one, other), max(one, other))
        before, first = labels.setdefault(pair, (label, line))
        if before != label:
            raise EvaluationError(
                f'{path}:{line}: "{one}" and "{other}" are {_word(label)} here and {_word(before)} in line {first}. '
                "Way out: keep one of the lines."
            )
        repeated += first != line
    if len({label for label, _ in labels.values()}) < 2:
        found = f"all {len(labels):,} pairs are {_word(label)}" if labels else "the file holds no pairs"
        raise EvaluationError(f"{path}: {found}; precision and recall need duplicates and others.")
    number_of = _numbers(path, index, labels)
    return LabelledPairs(
        str(path),
        file_hash(path),
        np.array([number_of[one] for one, _ in labels]),
        np.array([number_of[other] for _, other in labels]),
        np.array([label for label, _ in labels.values()]),
        repeated,
    )


def measure_labelled(
    pairs: LabelledPairs, vectors: Vectors, seed: int = 0, document_of: RowIds | None = None
) -> LabelledReport:
    """Precision, recall and F1 at the usual thresholds and the one of the best F1. `vectors` (rows, k).

    `document_of` (rows,) is the document of each row, where documents have several.
    """
    documents = np.arange(len(vectors)) if document_of is None else document_of
    scores = document_scores(vectors, documents, pairs.left, pairs.right)
    scores = np.minimum(scores, np.float32(IDENTICAL))  # no threshold tells higher ones apart
    best = best_threshold(scores, pairs.duplicate)
    generator = np.random.default_rng(seed)
    notes = [
        "Labelled pairs are no sample of all pairs: compare thresholds by them, and do not take their precision for "
        "that of a corpus. The best threshold was chosen on these very pairs."
    ]
    if pairs.repeated:
        notes.append(f"{counted(pairs.repeated, 'line repeats', 'lines repeat')} another and counted once.")
    return LabelledReport(
        shown=pairs.shown,
        sha256=pairs.sha256,
        pairs=len(scores),
        duplicates=int(pairs.duplicate.sum()),
        best=best,
        levels=tuple(_level(t, scores, pairs.duplicate, generator) for t in sorted({*USUAL_THRESHOLDS, best})),
        notes=tuple(notes),
    )


def best_threshold(scores: Scores, duplicate: npt.NDArray[np.bool_]) -> float:
    """The threshold with the best F1, of equals the highest, with as few digits as tell it from the next score.

    `scores` (n,) are at most IDENTICAL.
    """
    levels = np.unique(scores)
    found = len(scores) - np.searchsorted(np.sort(scores), levels)
    right = duplicate.sum() - np.searchsorted(np.sort(scores[duplicate]), levels)
    f1 = 2 * right / (found + duplicate.sum())
    place = int(np.flatnonzero(f1 == f1.max())[-1])
    return _short(float(levels[place]), float(levels[place - 1]) if place else -1.0)


def _short(score: float, below: float) -> float:
    """A threshold that `score` reaches and `below` does not."""
    if score >= np.float32(IDENTICAL):
        return 1.0
    for scale in (10.0**digits for digits in range(1, 8)):
        threshold = math.floor(score * scale) / scale
        if below < lowest_score(threshold) <= score:
            return threshold
    return score


def _level(
    threshold: float, scores: Scores, duplicate: npt.NDArray[np.bool_], generator: np.random.Generator
) -> ThresholdMetrics:
    reached = scores >= lowest_score(threshold)
    found, right, duplicates = int(reached.sum()), int((reached & duplicate).sum()), int(duplicate.sum())
    missed, wrong = duplicates - right, found - right
    shares = np.array([right, missed, wrong, len(scores) - right - missed - wrong]) / len(scores)
    drawn = generator.multinomial(len(scores), shares, _RESAMPLES)
    low, high = np.quantile(_f1(drawn[:, 0], drawn[:, 1], drawn[:, 2]), [0.025, 0.975]).tolist()
    f1 = Proportion(float(_f1(np.array(right), np.array(missed), np.array(wrong))), low, high)
    return ThresholdMetrics(threshold, found, right, _wilson(right, found), _wilson(right, duplicates), f1)


def _f1(right: RowIds, missed: RowIds, wrong: RowIds) -> npt.NDArray[np.float64]:
    """2 right / (2 right + missed + wrong); 0 where nothing is right."""
    values: npt.NDArray[np.float64] = 2 * right / np.maximum(1, 2 * right + missed + wrong)
    return values


def _wilson(right: int, of: int) -> Proportion:
    """Wilson, Probable inference, the law of succession, and statistical inference, 1927."""
    if not of:
        return Proportion(None, None, None)
    share, squared = right / of, _Z * _Z
    middle = (share + squared / (2 * of)) / (1 + squared / of)
    half = _Z / (1 + squared / of) * math.sqrt(share * (1 - share) / of + squared / (4 * of * of))
    return Proportion(share, max(0.0, middle - half), min(1.0, middle + half))


def _lines(path: Path) -> Iterator[tuple[int, str, str, bool]]:
    """(line, id, id, label) of each pair."""
    for number, (line, cells) in enumerate(_cells(path)):
        if len(cells) != 3:
            raise EvaluationError(f"{path}:{line}: {counted(len(cells), 'column', 'columns')}; {_EXPECTED}.")
        one, other, label = cells[0], cells[1], cells[2].strip().casefold()
        if number == 0 and label in _HEADINGS:
            continue
        if label not in (*DUPLICATE, *DIFFERENT):
            raise EvaluationError(
                f'{path}:{line}: the label is "{cells[2]}"; expected one of {", ".join(DUPLICATE)} (a duplicate) or '
                f"{', '.join(DIFFERENT)}. A header is told by the name of its third column: label."
            )
        if one == other:
            raise EvaluationError(f'{path}:{line}: "{one}" is paired with itself. Way out: remove the line.')
        yield line, one, other, label in DUPLICATE


def _cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Lines that are not blank, numbered, cut into cells: at tabs, or as CSV by the file's name."""
    try:
        text = read_regular(path).decode("utf-8-sig")
    except OSError as error:
        raise EvaluationError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise EvaluationError(f"{path}:{line}: not UTF-8. Way out: iconv -t UTF-8 {path.name}") from error
    if path.suffix.lower() == ".csv":
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        try:
            yield from ((reader.line_num, cells) for cells in reader if cells)
        except csv.Error as error:
            raise EvaluationError(f"{path}:{reader.line_num}: not valid CSV: {error}; {_EXPECTED}.") from error
        return
    for number, row in enumerate(text.split("\n"), start=1):
        if row.strip():
            yield number, row.removesuffix("\r").split("\t")


def _numbers(path: Path, index: Index, labels: dict[tuple[str, str], tuple[bool, int]]) -> dict[str, int]:
    """The document number of each id that is named."""
    first_line: dict[str, int] = {}
    for pair, (_, line) in labels.items():
        for name in pair:
            first_line.setdefault(name, line)
    numbers = index.ids.find(first_line)
    unknown = [name for name in first_line if name not in numbers]
    if unknown:
        name = min(unknown, key=lambda name: (first_line[name], name))
        close = index.documents.closest_id(name)
        hint = f' (did you mean "{close}"?)' if close else ""
        more = f", and {len(unknown) - 1:,} more of its ids are not" if len(unknown) > 1 else ""
        raise EvaluationError(
            f'{path}:{first_line[name]}: "{name}" is not the id of a document of {index.path}{hint}{more}. Way out: '
            "take ids from the index that the pairs were labelled in."
        )
    return numbers


def _word(label: bool) -> str:
    return "duplicates" if label else "different"
