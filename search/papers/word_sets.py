"""Word-level data sets, read from the files they are published as. What a file holds tells its kind.

similarity      pairs with a human score: SimLex-999, MEN, WordSim-353, Rare Words (RW)
analogy         a is to b as c is to d: Google's questions-words.txt, MSR's word_relationship.questions with .answers
                beside it, or both in one file (a b c tag d)
categorisation  words with a class: two columns (Almuhareb-Poesio, ESSLLI), or BLESS's concept, class, relation and
                relatum
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from indexer.errors import EvaluationError
from search.evaluation.sts.readers import count_columns, find_column, read_lines, score_of

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


def without_part_of_speech(words: Sequence[str]) -> list[str]:
    """The words without -n, -v, -a, -j or -r behind them, if all have one, as in the lemma form of MEN and in BLESS."""
    found = [_PART_OF_SPEECH.fullmatch(word) for word in words]
    if not all(found):
        return list(words)
    return [match[1] for match in found if match]


Kind = Literal["similarity", "analogy", "categorisation"]
Question = tuple[str, str, str, str]
_ALL = "all"
_FORMS = (
    "pairs with a score (word1 word2 score), analogies (four words a line, or three in a .questions file), or words "
    "with a class (word class)"
)
_FIRST, _SECOND = ("word1", "word 1"), ("word2", "word 2")
_SCORES = ("simlex999", "human (mean)", "human mean", "score", "similarity", "rating", "mean")
_RELATIONS = ("attri", "coord", "event", "hyper", "mero", "random-j", "random-n", "random-v")  # of BLESS
_QUESTIONS, _ANSWERS = ".questions", ".answers"
_ENDINGS = (".gz", ".txt", ".csv", ".tab", ".tsv", _QUESTIONS)


@dataclass(frozen=True)
class Similarity:
    """Pairs and their human scores (n,)."""

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    scores: npt.NDArray[np.float64]
    files: dict[str, str] = field(default_factory=dict)  # path -> sha256
    kind: Kind = "similarity"

    def words(self) -> Iterator[str]:
        """Every word, as often as it occurs."""
        yield from self.first
        yield from self.second


@dataclass(frozen=True)
class Analogies:
    """Questions (a, b, c, d) by section: a is to b as c is to d, which is asked for."""

    name: str
    sections: dict[str, tuple[Question, ...]]
    files: dict[str, str] = field(default_factory=dict)
    kind: Kind = "analogy"

    def words(self) -> Iterator[str]:
        """Every word, as often as it occurs."""
        for questions in self.sections.values():
            for question in questions:
                yield from question


@dataclass(frozen=True)
class Categories:
    """The class of each word."""

    name: str
    classes: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)
    kind: Kind = "categorisation"

    def words(self) -> Iterator[str]:
        """Every word once."""
        yield from self.classes


WordSet = Similarity | Analogies | Categories


def read_word_sets(paths: Sequence[str | Path]) -> list[WordSet]:
    """One set a file, in the order given; .answers go with the .questions beside them.

    A set's name is its file's, without an ending such as .txt. Lines that are blank or begin with # are passed over.
    Raises EvaluationError with file and line for what cannot be read or is of no kind above, and for two sets of one
    name.
    """
    files = [Path(path) for path in paths]
    sets = [_read(path) for path in files if not _belongs(path, files)]
    for number, one in enumerate(sets):
        for other in sets[:number]:
            if one.name == other.name:
                both = " and ".join(next(iter(found.files)) for found in (other, one))
                raise EvaluationError(
                    f"{both} are both {one.name}; expected each set once. Leave one out, or rename it."
                )
    return sets


def _belongs(path: Path, files: Iterable[Path]) -> bool:
    """Whether these are answers to questions that are read too."""
    return path.suffix == _ANSWERS and path.with_suffix(_QUESTIONS) in files


def _read(path: Path) -> WordSet:
    if path.suffix == _ANSWERS:
        raise EvaluationError(f"{path}: answers without questions; name {path.with_suffix(_QUESTIONS).name} instead.")
    rows, sha256 = read_rows(path)
    name, files = _name(path), {str(path): sha256}
    if path.suffix == _QUESTIONS:
        return _read_answered(name, path, rows, files)
    first, width = rows[0], len(rows[0].cells)
    if first.title is not None:
        return _analogies(name, _titled(rows), files)
    if _is_header(first):
        return _headed_pairs(name, rows, files)
    if width == 2:
        return _categories(name, _listed(rows), files)
    if width >= 3 and score_of(first.cells[2]) is not None:
        return _scored_pairs(name, [(row, *_leading(row, width)) for row in rows], files)
    if width == 4 and first.cells[2] in _RELATIONS:
        return _categories(name, _concepts(rows), files)
    if width == 4:
        return _analogies(name, [(_ALL, _question(row)) for row in rows], files)
    if width == 5:
        return _analogies(name, _tagged(rows), files)
    raise EvaluationError(f"{first.where}: {count_columns(width)} of no known kind; expected {_FORMS}.")


def _name(path: Path) -> str:
    name = path.name
    for ending in _ENDINGS:
        name = name.removesuffix(ending) or name
    return name


def _is_header(row: Row) -> bool:
    names = [cell.lower() for cell in row.cells]
    return any(name in _FIRST for name in names) and any(name in _SECOND for name in names)


def _headed_pairs(name: str, rows: Sequence[Row], files: dict[str, str]) -> Similarity:
    header = rows[0]
    first, second, score = (_column(header, wanted) for wanted in (_FIRST, _SECOND, _SCORES))
    found = []
    for row in rows[1:]:
        cells = require_columns(row, len(header.cells))
        found.append((row, cells[first], cells[second], cells[score]))
    return _scored_pairs(name, found, files)


def _column(header: Row, wanted: Sequence[str]) -> int:
    names = [cell.lower() for cell in header.cells]
    return find_column(header.where, names, wanted, f"its columns are {', '.join(header.cells)}")


def _leading(row: Row, width: int) -> tuple[str, str, str]:
    """Two words and a score; what follows are the raters' own scores."""
    first, second, score, *raters = require_columns(row, width)
    for rater in raters:
        if score_of(rater) is None:
            raise EvaluationError(f'{row.where}: "{rater}" is no number; expected word1, word2, scores.')
    return first, second, score


def _scored_pairs(name: str, rows: Sequence[tuple[Row, str, str, str]], files: dict[str, str]) -> Similarity:
    scores = []
    for row, _, _, text in rows:
        if (score := score_of(text)) is None:
            raise EvaluationError(
                f'{row.where}: the score "{text}" is not a finite number; expected one for each pair.'
            )
        scores.append(score)
    if len(set(scores)) < 2:
        found = "no pair" if not scores else "one pair" if len(scores) == 1 else f"{len(scores):,} pairs of one score"
        raise EvaluationError(f"{next(iter(files))}: {found}; a correlation needs two scores that differ.")
    words = without_part_of_speech([word for _, *pair, _ in rows for word in pair])
    return Similarity(name, tuple(words[::2]), tuple(words[1::2]), np.array(scores), files)


def _titled(rows: Sequence[Row]) -> Iterator[tuple[str, Question]]:
    """Questions under the titles ": name" of their sections."""
    title = ""
    for row in rows:
        if row.title is None:
            yield title, _question(row)
        else:
            title = row.title


def _tagged(rows: Sequence[Row]) -> Iterator[tuple[str, Question]]:
    for row in rows:
        a, b, c, tag, d = _no_numbers(row, require_columns(row, 5))
        yield tag, (a, b, c, d)


def _question(row: Row) -> Question:
    a, b, c, d = _no_numbers(row, require_columns(row, 4))
    return a, b, c, d


def _no_numbers(row: Row, cells: list[str]) -> list[str]:
    """The cells; a number among the words of an analogy means that the file is something else."""
    if numbers := [cell for cell in cells if score_of(cell) is not None]:
        raise EvaluationError(f'{row.where}: "{numbers[0]}" is no word of an analogy; expected {_FORMS}.')
    return cells


def _read_answered(name: str, path: Path, rows: Sequence[Row], files: dict[str, str]) -> Analogies:
    """MSR's two files: a b c, and in the same line of the other one a tag and d."""
    answers = path.with_suffix(_ANSWERS)
    if not answers.is_file():
        raise EvaluationError(f"{path}: questions without answers; expected them in {answers}.")
    answered, sha256 = read_rows(answers)
    if len(answered) != len(rows):
        raise EvaluationError(
            f"{answers}: {len(answered):,} answers to {len(rows):,} questions of {path.name}; expected one each."
        )
    questions = []
    for asked, answer in zip(rows, answered, strict=True):
        a, b, c = require_columns(asked, 3)
        tag, d = require_columns(answer, 2)
        questions.append((tag, (a, b, c, d)))
    return _analogies(name, questions, files | {str(answers): sha256})


def _analogies(name: str, questions: Iterable[tuple[str, Question]], files: dict[str, str]) -> Analogies:
    sections: dict[str, list[Question]] = {}
    for section, question in questions:
        sections.setdefault(section, []).append(question)
    if not sections:
        raise EvaluationError(f"{next(iter(files))}: no question under its titles; expected four words a line.")
    return Analogies(name, {section: tuple(found) for section, found in sections.items()}, files)


def _listed(rows: Sequence[Row]) -> Iterator[tuple[Row, str, str]]:
    for row in rows:
        word, kind = require_columns(row, 2)
        yield row, word, kind


def _concepts(rows: Sequence[Row]) -> Iterator[tuple[Row, str, str]]:
    for row in rows:
        concept, kind, relation, _ = require_columns(row, 4)
        if relation not in _RELATIONS:
            raise EvaluationError(f'{row.where}: relation "{relation}"; expected one of {", ".join(_RELATIONS)}.')
        yield row, concept, kind


def _categories(name: str, rows: Iterable[tuple[Row, str, str]], files: dict[str, str]) -> Categories:
    found: dict[str, tuple[str, str]] = {}
    for row, word, kind in rows:
        known, where = found.setdefault(word, (kind, row.where))
        if known != kind:
            raise EvaluationError(
                f'{row.where}: "{word}" is of class {kind} here and of {known} in {where}; expected one class a word. '
                "Remove one of the lines."
            )
    kinds = [kind for kind, _ in found.values()]
    if not 1 < len(set(kinds)) < len(kinds):
        raise EvaluationError(
            f"{next(iter(files))}: {len(kinds):,} words in {len(set(kinds)):,} classes, read as word and class; "
            "expected at least two classes, and one of them with two words."
        )
    words = without_part_of_speech(list(found))
    if len(set(words)) < len(words):  # cook-n and cook-v are two items
        words = list(found)
    return Categories(name, dict(zip(words, kinds, strict=True)), files)
