"""Scored sentence pairs from TSV folders and a SentEval download, with errors by line.

Each reader returns pairs by task and subset in a fixed order.
"""

import gzip
import hashlib
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.errors import EvaluationError
from indexer.system.regular_files import read_regular
from search.formatting import counted

SCORE = ("score", "relatedness_score")
FIRST = ("sentence1", "sentence_a")
SECOND = ("sentence2", "sentence_b")
_KNOWN = {*SCORE, *FIRST, *SECOND}
_HEADER = "score<TAB>sentence1<TAB>sentence2"


@dataclass(frozen=True)
class Subset:
    """Pairs that are ranked together; `scores` (n,) are human."""

    name: str  # WHOLE for a task without subsets
    scores: npt.NDArray[np.float64]
    first: tuple[str, ...]
    second: tuple[str, ...]


@dataclass(frozen=True)
class ScoredPairs:
    """A subset of a task; `files` maps its sources to their sha256."""

    task: str
    subset: Subset
    files: dict[str, str]


Line = tuple[str, str, str, str]
"""Place ("file:line"), score, first sentence, second sentence."""


def pairs_of(task: str, subset: str, source: str, files: dict[str, str], lines: Iterable[Line]) -> ScoredPairs:
    """Return checked pairs.

    Raises EvaluationError for a score that is not finite, a blank sentence, and pairs without a defined correlation.
    """
    scores, first, second = [], [], []
    for where, score, a, b in lines:
        if (value := score_of(score)) is None:
            raise EvaluationError(f'{where}: the score "{score.strip()[:40]}" is not a finite number.')
        scores.append(value)
        for sentence, which in ((a, "first"), (b, "second")):
            if not sentence.strip():
                raise EvaluationError(f"{where}: the {which} sentence is blank. Fix: remove the line.")
        first.append(a)
        second.append(b)
    shown = f"task {task}" if subset == WHOLE else f"{task} {subset}"
    if len(scores) < 2:
        few = "only one pair" if scores else "no pair"
        raise EvaluationError(f"{source}: {few} in {shown}; a correlation needs at least two.")
    if len(set(scores)) == 1:
        raise EvaluationError(
            f"{source}: all {len(scores):,} scores of {shown} are {scores[0]:g}; "
            "with constant scores the correlation is undefined."
        )
    return ScoredPairs(task, Subset(subset, np.array(scores, np.float64), tuple(first), tuple(second)), files)


def read_table(path: Path, task: str, subset: str) -> ScoredPairs:
    """Read a tab-separated file with a header, or without one with exactly score, sentence1, sentence2.

    Quotes are literal. Raises EvaluationError with the line.
    """
    lines, sha256 = read_lines(path)
    columns, width, start = _columns(path, lines)
    return pairs_of(task, subset, str(path), {path.name: sha256}, _rows(path, lines, columns, width, start))


def read_lines(path: Path) -> tuple[list[str], str]:
    r"""Return the lines, ended by "\n" or "\r\n", without a byte order mark, and the sha256 of the file's bytes.

    Empty lines at the end are kept. Raises EvaluationError if the file cannot be read or unpacked (.gz), or is not
    UTF-8.
    """
    try:
        data = read_regular(path)
    except OSError as error:
        raise EvaluationError(f"{path}: cannot be read: {error.strerror or error}.") from error
    sha256 = hashlib.sha256(data).hexdigest()
    try:
        data = gzip.decompress(data) if path.suffix.lower() == ".gz" else data
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise EvaluationError(
            f"{path}:{line}: not UTF-8 (byte {data[error.start]:#04x}). Fix: iconv -t UTF-8 {path.name}"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise EvaluationError(f"{path}: not a complete gzip file: {error}. Fix: download it again.") from error
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return (lines[:-1] if lines[-1] == "" else lines), sha256


def _is_header(cells: Sequence[str]) -> bool:
    return len(_KNOWN.intersection(cell.strip().lower() for cell in cells)) >= 2


def _columns(path: Path, lines: Sequence[str]) -> tuple[tuple[int, int, int], int, int]:
    """Return the columns of score and sentences, the number of columns, and the first row."""
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
            f"{path}:1: {counted(len(cells), 'column')} without a header; expected {_HEADER}, as a header or as the "
            "columns of each row."
        )
    return (0, 1, 2), 3, 0


def _column(path: Path, names: Sequence[str], wanted: Sequence[str]) -> int:
    if wanted is SCORE and not set(names) & set(wanted):
        raise _without_scores(path)
    return find_column(f"{path}:1", names, wanted, f"expected {_HEADER}")


def find_column(where: str, names: Sequence[str], wanted: Sequence[str], expected: str) -> int:
    """Return the position of the only column of a header with a `wanted` name. Raises EvaluationError."""
    places = [number for number, name in enumerate(names) if name in wanted]
    if len(places) != 1:
        fault = "no column" if not places else "more than one column"
        raise EvaluationError(f"{where}: the header has {fault} {' or '.join(wanted)}; {expected}.")
    return places[0]


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
            raise EvaluationError(
                f"{path}:{number}: {counted(len(cells), 'column')}; expected {width}, separated by tabs."
            )
        score, first, second = (cells[column] for column in columns)
        yield f"{path}:{number}", score, first, second


def score_of(text: str) -> float | None:
    """Return a finite number, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


WHOLE = "all"
_YEARS = ("STS12", "STS13", "STS14", "STS15", "STS16")
_NAMES = {"stsb": "STSB", "stsbenchmark": "STSB", "sick": "SICK", "sickr": "SICK"} | {y.lower(): y for y in _YEARS}
_NOT_DATA = ("readme", "license", "notice", "manifest", "provenance", "checksums", "sha256sums", "dataset_infos")


@dataclass(frozen=True)
class Source:
    """The pairs of a source. `notes` are pairs of a task's name, "" for the whole source, and a note."""

    shown: str
    found: list[ScoredPairs]
    notes: list[tuple[str, str]]


def read_tsv_folder(folder: Path) -> Source:
    """Read the TSV files of a folder. Raises EvaluationError if it has none."""
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith((".", "_")))
    tables = [path for path in entries if path.is_file() and is_table(path)]
    if not tables:
        raise EvaluationError(
            f"{folder}: no STS set in this folder; expected files such as stsb.tsv, sts12.MSRpar.tsv, or a SentEval "
            "download (STS/STS12-en-test/STS.input.MSRpar.txt)."
        )
    pairs, notes = _tables(tables)
    others = [
        path.name for path in entries if path not in tables
        if path.suffix.lower() != ".md" and path.name.lower().partition(".")[0] not in _NOT_DATA
    ]  # fmt: skip
    ignored = [("", f"{folder}: skipped, because they are not .tsv files: {', '.join(others)}")] if others else []
    return Source(str(folder), pairs, notes + ignored)


def read_tsv_files(paths: Sequence[Path]) -> Source:
    """Read TSV files as if they were in one folder."""
    for path in paths:
        if not is_table(path):
            raise EvaluationError(f"{path}: expected a .tsv file, a folder, or the id of a data set.")
    shown = str(paths[0]) if len(paths) == 1 else "the files given"
    return Source(shown, *_tables(sorted(paths, key=lambda path: path.name)))


def is_table(path: Path) -> bool:
    """Return whether the name ends in .tsv or .tsv.gz."""
    return path.name.lower().endswith((".tsv", ".tsv.gz"))


def _tables(paths: Sequence[Path]) -> tuple[list[ScoredPairs], list[tuple[str, str]]]:
    by_task: dict[str, dict[str, Path]] = {}
    for path in paths:
        task, subset = _named(path)
        subsets = by_task.setdefault(task, {})
        if subset in subsets:
            raise EvaluationError(f"{subsets[subset]} and {path} are both {task} ({subset}); expected each once.")
        subsets[subset] = path
    tables, notes = [], []
    for task, subsets in by_task.items():
        whole = subsets.pop(WHOLE) if len(subsets) > 1 and WHOLE in subsets else None
        parts = [read_table(path, task, subset) for subset, path in subsets.items()]
        tables += parts
        if whole:
            lines, _ = read_lines(whole)
            rows = len(lines) - bool(lines and _is_header(lines[0].split("\t")))
            if rows != (pairs := sum(len(part.subset.scores) for part in parts)):
                used = f"its subsets together have {pairs:,} and were used"
                notes.append((task, f"{whole.name} has {counted(rows, 'pair')}, {used}"))
    return tables, notes


def _named(path: Path) -> tuple[str, str]:
    """Return task and subset: (STS12, MSRpar) for sts12.MSRpar.tsv, (STSB, all) for stsb.tsv."""
    stem = re.sub(r"\.tsv(\.gz)?$", "", path.name, flags=re.IGNORECASE)
    head, _, rest = stem.partition(".")
    task = known_name(head)
    if task in _YEARS:
        return task, WHOLE if rest.lower() in ("", WHOLE) else rest
    return known_name(stem) or stem, WHOLE


def known_name(name: str) -> str:
    """Return the task's usual name, regardless of case and hyphens; "" for tasks other than the seven."""
    return _NAMES.get(re.sub(r"[-_]", "", name).lower(), "")


def find_senteval(folder: Path) -> Path | None:
    """Return the folder with STS and SICK of a SentEval download, at or under `folder`, or the folder STS itself."""
    for base in (folder, folder / "downstream", folder / "data" / "downstream"):
        if any(base.glob("STS*-en-test")) or (base / "STS").is_dir() or (base / "SICK").is_dir():
            return base
    return None


def read_senteval(base: Path) -> Source:
    """Read the test sets in a folder of `find_senteval`. Raises EvaluationError if there are none."""
    sts = base / "STS" if (base / "STS").is_dir() else base
    sets: list[ScoredPairs] = []
    notes: list[tuple[str, str]] = []
    benchmark, sick = sts / "STSBenchmark" / "sts-test.csv", base / "SICK" / "SICK_test_annotated.txt"
    if benchmark.is_file():
        sets.append(_read_benchmark(benchmark))
    if sick.is_file():
        sets.append(read_table(sick, "SICK", WHOLE))
    for year in _YEARS:
        folder = sts / f"{year}-en-test"
        if folder.is_dir():
            sets += _read_year(year, folder, notes)
    if not sets:
        raise EvaluationError(f"{base}: no test set of SentEval; expected for example {sts / 'STS12-en-test'}.")
    return Source(str(base), sets, notes)


def _read_year(year: str, folder: Path, notes: list[tuple[str, str]]) -> Iterator[ScoredPairs]:
    inputs = {path.name.removeprefix("STS.input."): path for path in sorted(folder.glob("STS.input.*.txt"))}
    golds = {path.name.removeprefix("STS.gs."): path for path in sorted(folder.glob("STS.gs.*.txt"))}
    for names in (inputs, golds):
        names.pop("ALL.txt", None)  # the concatenation
    if not inputs:
        raise EvaluationError(f"{folder}: expected files STS.input.*.txt, but there are none.")
    if alone := [path.name for name, path in golds.items() if name not in inputs]:
        notes.append((year, f"{folder}: skipped, because their sentences are missing: {', '.join(alone)}"))
    for name, path in inputs.items():
        if name not in golds:
            raise EvaluationError(f"{path}: no scores for these pairs; expected them in {folder / f'STS.gs.{name}'}.")
        sources, files = _two_files(path, golds[name])
        if unscored := sum(not score.strip() for _, score in sources):
            count = counted(unscored, "pair")
            notes.append((year, f"{path.name}: {count} without a score left out, as SentEval does"))
        yield pairs_of(year, name.removesuffix(".txt"), str(path), files, _scored(path, golds[name], sources))


def _two_files(sentences: Path, gold: Path) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Return the lines of both files in pairs, and the files' sha256."""
    lines, sentences_hash = read_lines(sentences)
    scores, gold_hash = read_lines(gold)
    if len(lines) != len(scores):
        raise EvaluationError(
            f"{gold}: {counted(len(scores), 'line')} for {counted(len(lines), 'pair')} of "
            f"{sentences.name}; expected one score per pair (an empty line for a pair without a score)."
        )
    folder = sentences.parent.name
    files = {f"{folder}/{sentences.name}": sentences_hash, f"{folder}/{gold.name}": gold_hash}
    return list(zip(lines, scores, strict=True)), files


def _scored(sentences: Path, gold: Path, lines: Sequence[tuple[str, str]]) -> Iterator[Line]:
    for number, (line, score) in enumerate(lines, 1):
        if not score.strip():
            continue
        cells = line.split("\t")
        if len(cells) < 2:
            raise EvaluationError(f"{sentences}:{number}: 1 column; expected two sentences, separated by a tab.")
        if not all(cell.strip() for cell in cells[:2]):
            raise EvaluationError(f"{sentences}:{number}: a sentence is blank; expected two, separated by a tab.")
        yield f"{gold}:{number}", score, cells[0], cells[1]


def _read_benchmark(path: Path) -> ScoredPairs:
    """Read STSBenchmark: genre, file, year, id, score, sentence1, sentence2 and optional sources, without a header."""
    lines, sha256 = read_lines(path)

    def rows() -> Iterator[Line]:
        for number, line in enumerate(lines, 1):
            cells = line.split("\t")
            if len(cells) < 7:
                raise EvaluationError(
                    f"{path}:{number}: {counted(len(cells), 'column')}; expected genre, file, year, id, score, "
                    "sentence1, sentence2, separated by tabs."
                )
            yield f"{path}:{number}", cells[4], cells[5], cells[6]

    return pairs_of("STSB", WHOLE, str(path), {f"STSBenchmark/{path.name}": sha256}, rows())
