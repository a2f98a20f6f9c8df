"""Word-level data sets, read from their published files. The content of a file determines its kind.

similarity      pairs with a human score: SimLex-999, MEN, WordSim-353, Rare Words (RW)
analogy         a is to b as c is to d: Google's questions-words.txt, MSR's word_relationship.questions with its
                .answers, or both in one file (a b c tag d)
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
from search.evaluation.sts.readers import find_column, read_lines, score_of
from search.formatting import counted

_PART_OF_SPEECH = re.compile(r"(.+)-[nvajr]")


@dataclass(frozen=True)
class Row:
    """The cells of a line; `title` is set for a line ": name", the title of a section."""

    where: str  # "file:line"
    cells: list[str]
    title: str | None = None


def read_rows(path: Path) -> tuple[list[Row], str]:
    """Return the lines of a file, also of a .gz, without blank lines and comments (# or //), and its sha256.

    Cells are separated by tabs if the first line has one, else by commas if it has one, else by white space. Raises
    EvaluationError for a file without lines, an unreadable file, and a file that is not UTF-8.
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
    """Return the cells. Raises EvaluationError for another number of cells, or an empty cell."""
    if len(row.cells) != count or row.title is not None:
        content = "the title of a section" if row.title is not None else counted(len(row.cells), "column")
        raise EvaluationError(f"{row.where}: {content}; expected {counted(count, 'column')}, as in the lines before.")
    if not all(row.cells):
        raise EvaluationError(f"{row.where}: column {row.cells.index('') + 1} is empty; expected a value.")
    return row.cells


def without_part_of_speech(words: Sequence[str]) -> list[str]:
    """Return the words without -n, -v, -a, -j or -r if all end so, as in the lemma form of MEN and in BLESS."""
    matches = [_PART_OF_SPEECH.fullmatch(word) for word in words]
    return [match[1] for match in matches if match] if all(matches) else list(words)


Kind = Literal["similarity", "analogy", "categorisation"]
Question = tuple[str, str, str, str]
_ALL = "all"
_FORMS = (
    "pairs with a score (word1 word2 score), analogies (four words per line, or three in a .questions file), or words "
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
        """Yield every word, with repetitions."""
        yield from self.first
        yield from self.second


@dataclass(frozen=True)
class Analogies:
    """Questions (a, b, c, d) by section: a is to b as c is to d, where d is the answer."""

    name: str
    sections: dict[str, tuple[Question, ...]]
    files: dict[str, str] = field(default_factory=dict)
    kind: Kind = "analogy"

    def words(self) -> Iterator[str]:
        """Yield every word, with repetitions."""
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
        """Yield every word once."""
        yield from self.classes


WordSet = Similarity | Analogies | Categories


def read_word_sets(paths: Sequence[str | Path]) -> list[WordSet]:
    """Return one set per file, in order; .answers are read with their .questions.

    A set's name is its file's, without an ending such as .txt. Blank lines and comments are skipped. Raises
    EvaluationError with file and line for unreadable lines and unknown kinds, and for two sets with one name.
    """
    files = [Path(path) for path in paths]
    answers = {path for path in files if path.suffix == _ANSWERS and path.with_suffix(_QUESTIONS) in files}
    sets: dict[str, WordSet] = {}
    for words in (_read(path) for path in files if path not in answers):
        if (other := sets.setdefault(words.name, words)) is not words:
            both = " and ".join(next(iter(each.files)) for each in (other, words))
            raise EvaluationError(f"{both} are both {words.name}; expected each set once. Fix: rename or omit a file.")
    return list(sets.values())


def _read(path: Path) -> WordSet:
    if path.suffix == _ANSWERS:
        raise EvaluationError(f"{path}: answers without questions. Fix: name {path.with_suffix(_QUESTIONS).name} too.")
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
    raise EvaluationError(f"{first.where}: {counted(width, 'column')} of no known kind; expected {_FORMS}.")


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
    pairs = []
    for row in rows[1:]:
        cells = require_columns(row, len(header.cells))
        pairs.append((row, cells[first], cells[second], cells[score]))
    return _scored_pairs(name, pairs, files)


def _column(header: Row, wanted: Sequence[str]) -> int:
    names = [cell.lower() for cell in header.cells]
    return find_column(header.where, names, wanted, f"its columns are {', '.join(header.cells)}")


def _leading(row: Row, width: int) -> tuple[str, str, str]:
    """Return two words and a score; further columns must be raters' scores."""
    first, second, score, *raters = require_columns(row, width)
    for rater in raters:
        if score_of(rater) is None:
            raise EvaluationError(f'{row.where}: "{rater}" is not a number; expected word1, word2, scores.')
    return first, second, score


def _scored_pairs(name: str, rows: Sequence[tuple[Row, str, str, str]], files: dict[str, str]) -> Similarity:
    scores = []
    for row, _, _, text in rows:
        if (score := score_of(text)) is None:
            raise EvaluationError(f'{row.where}: the score "{text}" is not a finite number; expected one per pair.')
        scores.append(score)
    if len(set(scores)) < 2:
        content = "no pair" if not scores else "one pair" if len(scores) == 1 else f"{len(scores):,} pairs of one score"
        raise EvaluationError(f"{next(iter(files))}: {content}; a correlation needs two different scores.")
    words = without_part_of_speech([word for _, *pair, _ in rows for word in pair])
    return Similarity(name, tuple(words[::2]), tuple(words[1::2]), np.array(scores), files)


def _titled(rows: Sequence[Row]) -> Iterator[tuple[str, Question]]:
    """Yield questions with the titles ": name" of their sections."""
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
    """Return the cells. Raises EvaluationError for a number, which no analogy contains."""
    if numbers := [cell for cell in cells if score_of(cell) is not None]:
        raise EvaluationError(f'{row.where}: "{numbers[0]}" is not a word of an analogy; expected {_FORMS}.')
    return cells


def _read_answered(name: str, path: Path, rows: Sequence[Row], files: dict[str, str]) -> Analogies:
    """Read MSR's two files: a b c, and in the same line of the answers a tag and d."""
    answers = path.with_suffix(_ANSWERS)
    if not answers.is_file():
        raise EvaluationError(f"{path}: questions without answers; expected them in {answers}.")
    answered, sha256 = read_rows(answers)
    if len(answered) != len(rows):
        raise EvaluationError(
            f"{answers}: {len(answered):,} answers to {len(rows):,} questions of {path.name}; expected one each."
        )
    questions = []
    for question, answer in zip(rows, answered, strict=True):
        a, b, c = require_columns(question, 3)
        tag, d = require_columns(answer, 2)
        questions.append((tag, (a, b, c, d)))
    return _analogies(name, questions, files | {str(answers): sha256})


def _analogies(name: str, questions: Iterable[tuple[str, Question]], files: dict[str, str]) -> Analogies:
    sections: dict[str, list[Question]] = {}
    for section, question in questions:
        sections.setdefault(section, []).append(question)
    if not sections:
        raise EvaluationError(f"{next(iter(files))}: no question under its titles; expected four words per line.")
    return Analogies(name, {section: tuple(of_section) for section, of_section in sections.items()}, files)


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
    classes: dict[str, tuple[str, str]] = {}
    for row, word, kind in rows:
        known, where = classes.setdefault(word, (kind, row.where))
        if known != kind:
            raise EvaluationError(
                f'{row.where}: "{word}" is of class {kind} here and of {known} in {where}; expected one class per '
                "word. Fix: remove one of the lines."
            )
    kinds = [kind for kind, _ in classes.values()]
    if not 1 < len(set(kinds)) < len(kinds):
        raise EvaluationError(
            f"{next(iter(files))}: {len(kinds):,} words in {len(set(kinds)):,} classes, read as word and class; "
            "expected at least two classes, and one of them with two words."
        )
    words = without_part_of_speech(list(classes))
    if len(set(words)) < len(words):  # cook-n and cook-v are two items
        words = list(classes)
    return Categories(name, dict(zip(words, kinds, strict=True)), files)
