"""Where STS pairs lie: a folder of TSV files, a SentEval download, a data set of the Hugging Face hub.

Each reader gives what it found, task by task and subset by subset, in a fixed order.
"""

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.errors import EvaluationError
from search.evaluation.sts.pair_files import (
    FIRST,
    SCORE,
    SECOND,
    Line,
    Pairs,
    count_columns,
    count_rows,
    pairs_of,
    read_lines,
    read_table,
)
from search.extras import require_extra
from search.printable import counted

WHOLE = "all"
_YEARS = ("STS12", "STS13", "STS14", "STS15", "STS16")
_NAMES = {"stsb": "STSB", "stsbenchmark": "STSB", "sick": "SICK", "sickr": "SICK"} | {y.lower(): y for y in _YEARS}
_NOT_DATA = ("readme", "license", "notice", "manifest", "provenance", "checksums", "sha256sums", "dataset_infos")
_SPLIT = "test"


@dataclass(frozen=True)
class Found:
    """Pairs of one subset of a task; the only subset of a task without parts is "all"."""

    task: str
    subset: str
    pairs: Pairs


@dataclass(frozen=True)
class Source:
    """What one source holds. `notes` belong to a task by its name, or to the source where the name is ""."""

    shown: str
    found: list[Found]
    notes: list[tuple[str, str]]


def read_tsv_folder(folder: Path) -> Source:
    """The TSV files of a folder. Raises EvaluationError when it has none."""
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith((".", "_")))
    tables = [path for path in entries if path.is_file() and is_table(path)]
    if not tables:
        raise EvaluationError(
            f"{folder}: no STS set in this folder; expected files such as stsb.tsv, sts12.MSRpar.tsv, or a SentEval "
            "download (STS/STS12-en-test/STS.input.MSRpar.txt)."
        )
    found, notes = _tables(str(folder), tables)
    others = [path.name for path in entries if path not in tables and not _clearly_no_data(path)]
    ignored = [("", f"{folder}: not read, as not .tsv: {', '.join(others)}")] if others else []
    return Source(str(folder), found, notes + ignored)


def read_tsv_files(paths: Sequence[Path]) -> Source:
    """TSV files named one by one; together they are like a folder."""
    for path in paths:
        if not is_table(path):
            raise EvaluationError(f"{path}: expected a .tsv file, a folder, or the id of a data set.")
    shown = str(paths[0]) if len(paths) == 1 else "the files given"
    return Source(shown, *_tables(shown, sorted(paths, key=lambda path: path.name)))


def is_table(path: Path) -> bool:
    """Whether the name says tab-separated, compressed or not."""
    return path.name.lower().endswith((".tsv", ".tsv.gz"))


def _clearly_no_data(path: Path) -> bool:
    return path.suffix.lower() == ".md" or path.name.lower().partition(".")[0] in _NOT_DATA


def _tables(shown: str, paths: Sequence[Path]) -> tuple[list[Found], list[tuple[str, str]]]:
    by_task: dict[str, dict[str, Path]] = {}
    for path in paths:
        task, subset = _named(path)
        subsets = by_task.setdefault(task, {})
        if subset in subsets:
            raise EvaluationError(f"{subsets[subset]} and {path} are both {task} ({subset}); expected each once.")
        subsets[subset] = path
    found, notes = [], []
    for task, subsets in by_task.items():
        whole = subsets.pop(WHOLE) if len(subsets) > 1 and WHOLE in subsets else None
        parts = [Found(task, subset, read_table(path, path.name)) for subset, path in subsets.items()]
        found += parts
        if whole:
            notes += _differing(task, whole, sum(len(part.pairs.scores) for part in parts))
    return found, notes


def _named(path: Path) -> tuple[str, str]:
    """Task and subset: sts12.MSRpar.tsv is (STS12, MSRpar), stsb.tsv (STSB, all), other.name.tsv (other.name, all)."""
    stem = re.sub(r"\.tsv(\.gz)?$", "", path.name, flags=re.IGNORECASE)
    head, _, rest = stem.partition(".")
    task = known_name(head)
    if task in _YEARS:
        return task, WHOLE if rest.lower() in ("", WHOLE) else rest
    return known_name(stem) or stem, WHOLE


def known_name(name: str) -> str:
    """The task's usual name, whatever its case or hyphens; "" for a task that is none of the seven."""
    return _NAMES.get(re.sub(r"[-_]", "", name).lower(), "")


def _differing(task: str, whole: Path, pairs: int) -> list[tuple[str, str]]:
    rows = count_rows(whole)
    if rows == pairs:
        return []
    there = counted(rows, "pair", "pairs")
    return [(task, f"{whole.name} has {there}, the subsets together {pairs:,}; the subsets were used")]


def find_senteval(folder: Path) -> Path | None:
    """The folder that holds STS and SICK of a SentEval download at or under `folder`, or the folder STS itself."""
    for base in (folder, folder / "downstream", folder / "data" / "downstream"):
        if any(base.glob("STS*-en-test")) or (base / "STS").is_dir() or (base / "SICK").is_dir():
            return base
    return None


def read_senteval(base: Path) -> Source:
    """The test parts of what `find_senteval` found. Raises EvaluationError when there are none."""
    sts = base / "STS" if (base / "STS").is_dir() else base
    found: list[Found] = []
    notes: list[tuple[str, str]] = []
    benchmark, sick = sts / "STSBenchmark" / "sts-test.csv", base / "SICK" / "SICK_test_annotated.txt"
    if benchmark.is_file():
        found.append(Found("STSB", WHOLE, _read_benchmark(benchmark)))
    if sick.is_file():
        found.append(Found("SICK", WHOLE, read_table(sick, sick.name)))
    for year in _YEARS:
        folder = sts / f"{year}-en-test"
        if folder.is_dir():
            found += _read_year(year, folder, notes)
    if not found:
        raise EvaluationError(f"{base}: no test set of SentEval in it; expected such as {sts / 'STS12-en-test'}.")
    return Source(str(base), found, notes)


def _read_year(year: str, folder: Path, notes: list[tuple[str, str]]) -> Iterator[Found]:
    inputs = {path.name.removeprefix("STS.input."): path for path in sorted(folder.glob("STS.input.*.txt"))}
    golds = {path.name.removeprefix("STS.gs."): path for path in sorted(folder.glob("STS.gs.*.txt"))}
    for names in (inputs, golds):
        names.pop("ALL.txt", None)  # the concatenation
    if not inputs:
        raise EvaluationError(f"{folder}: no STS.input.*.txt in it.")
    if alone := [path.name for name, path in golds.items() if name not in inputs]:
        notes.append((year, f"{folder}: scores without sentences, not used: {', '.join(alone)}"))
    for name, path in inputs.items():
        if name not in golds:
            raise EvaluationError(f"{path}: no scores for these pairs; expected them in {folder / f'STS.gs.{name}'}.")
        pairs = _read_two_files(path, golds[name])
        if pairs.unscored:
            count = counted(pairs.unscored, "pair", "pairs")
            notes.append((year, f"{path.name}: {count} without a score left out, as SentEval does"))
        yield Found(year, name.removesuffix(".txt"), pairs)


def _read_two_files(sentences: Path, gold: Path) -> Pairs:
    lines, sentences_hash = read_lines(sentences)
    scores, gold_hash = read_lines(gold)
    if len(lines) != len(scores):
        raise EvaluationError(
            f"{gold}: {counted(len(scores), 'line', 'lines')} for {counted(len(lines), 'pair', 'pairs')} of "
            f"{sentences.name}; expected one score a "
            "pair (an empty line for a pair without one)."
        )
    folder = sentences.parent.name
    files = {f"{folder}/{sentences.name}": sentences_hash, f"{folder}/{gold.name}": gold_hash}
    unscored = sum(not score.strip() for score in scores)
    pairs = pairs_of(str(sentences), files, _scored(sentences, lines, gold, scores))
    return Pairs(pairs.shown, files, pairs.scores, pairs.first, pairs.second, unscored)


def _scored(sentences: Path, lines: Sequence[str], gold: Path, scores: Sequence[str]) -> Iterator[Line]:
    for number, (line, score) in enumerate(zip(lines, scores, strict=True), 1):
        if not score.strip():
            continue
        cells = line.split("\t")
        if len(cells) < 2:
            raise EvaluationError(f"{sentences}:{number}: 1 column; expected two sentences, parted by a tab.")
        if not all(cell.strip() for cell in cells[:2]):
            raise EvaluationError(f"{sentences}:{number}: a sentence is blank; expected two, parted by a tab.")
        yield f"{gold}:{number}", score, cells[0], cells[1]


def _read_benchmark(path: Path) -> Pairs:
    """STSBenchmark as published: genre, file, year, id, score, sentence1, sentence2 and perhaps sources; no header."""
    lines, sha256 = read_lines(path)

    def rows() -> Iterator[Line]:
        for number, line in enumerate(lines, 1):
            cells = line.split("\t")
            if len(cells) < 7:
                raise EvaluationError(
                    f"{path}:{number}: {count_columns(len(cells))}; expected genre, file, year, id, score, sentence1, "
                    "sentence2, parted by tabs."
                )
            yield f"{path}:{number}", cells[4], cells[5], cells[6]

    return pairs_of(str(path), {f"STSBenchmark/{path.name}": sha256}, rows())


def read_hub(identity: str) -> Source:
    """The test split of a data set of the Hugging Face hub, such as mteb/sts12-sts, as one subset.

    Raises MachineError without the package `datasets`, and EvaluationError when the data set cannot be loaded or
    has other columns.
    """
    datasets = require_extra("datasets", "datasets")
    try:
        with _quiet_hub():
            rows = datasets.load_dataset(identity, split=_SPLIT)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise EvaluationError(
            f"{identity}: no such file or folder here, and the data set of this id cannot be loaded: "
            f"{' '.join(str(error).split())[:300]}. Way out: name a folder or a .tsv file that is there; for a data "
            "set check its id and the network."
        ) from error
    score, first, second = (_hub_column(identity, list(rows.column_names), wanted) for wanted in (SCORE, FIRST, SECOND))
    table = zip(list(rows[score]), list(rows[first]), list(rows[second]), strict=True)
    lines = ((f"{identity} {_SPLIT}:{n}", _text(s), _text(a), _text(b)) for n, (s, a, b) in enumerate(table, 1))
    pairs = pairs_of(identity, {}, lines)
    content = json.dumps([pairs.scores, pairs.first, pairs.second], ensure_ascii=False)
    pairs.files[identity] = hashlib.sha256(content.encode()).hexdigest()
    name = identity.rpartition("/")[2]
    return Source(identity, [Found(known_name(name.lower().removesuffix("-sts")) or name, WHOLE, pairs)], [])


@contextmanager
def _quiet_hub() -> Iterator[None]:
    """Without a line for every attempt to reach the hub: what comes of them is said once."""
    loggers = [logging.getLogger(name) for name in ("huggingface_hub", "datasets")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _hub_column(identity: str, names: Sequence[str], wanted: Sequence[str]) -> str:
    for name in names:
        if name.lower() in wanted:
            return name
    raise EvaluationError(
        f"{identity}: the {_SPLIT} split has no column {' or '.join(wanted)}; its columns are {', '.join(names)}."
    )


def _text(value: Any) -> str:
    return "" if value is None else str(value)
