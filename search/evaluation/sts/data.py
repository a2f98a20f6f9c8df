"""Semantic textual similarity sets: pairs of sentences with human scores, read from folders and data set ids."""

import difflib
import hashlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from indexer.errors import EvaluationError
from indexer.lazy_imports import require_extra
from indexer.typed_arguments import checked
from search.evaluation.sts.readers import (
    FIRST,
    SCORE,
    SECOND,
    WHOLE,
    Source,
    Subset,
    find_senteval,
    is_table,
    known_name,
    pairs_of,
    read_senteval,
    read_tsv_files,
    read_tsv_folder,
)

TASKS = ("STSB", "SICK", "STS12", "STS13", "STS14", "STS15", "STS16")
_SUBSETS = {"STS12": 5, "STS13": 3, "STS14": 6, "STS15": 5, "STS16": 5}  # as published; STS13 without SMT, not free
_HUB = "hf://"
_SPLIT = "test"  # of a data set of the hub


@dataclass(frozen=True)
class Task:
    """One data set, such as STS12, in one or more subsets."""

    name: str
    subsets: tuple[Subset, ...]
    files: dict[str, str] = field(default_factory=dict)  # name of the file or data set -> sha256
    notes: tuple[str, ...] = ()


def files_of(tasks: Iterable[Task]) -> dict[str, str]:
    """Return the sha256 of every file or data set of the tasks, by name."""
    return {name: digest for task in tasks for name, digest in task.files.items()}


@checked
def read_tasks(*sources: str | Path) -> list[Task]:
    """Return the tasks of all sources: STSB, SICK, STS12 to STS16, then others by name.

    A source is a folder of TSV files, a TSV file, a SentEval download, or the id of a data set of the Hugging Face hub
    (mteb/sts12-sts, unambiguously with "hf://" before it). Raises EvaluationError, with file and line, for unreadable
    lines, sets without a defined correlation (one pair, or equal scores), and a task in two sources.
    """
    tasks: dict[str, Task] = {}
    origins: dict[str, str] = {}
    for source in _read(sources):
        for task in _tasks(source):
            if task.name in tasks:
                raise EvaluationError(
                    f"{task.name} is in {origins[task.name]} and in {source.shown}; expected each task once. "
                    "Fix: leave out one of the sources."
                )
            tasks[task.name], origins[task.name] = task, source.shown
    return sorted(tasks.values(), key=lambda task: _place(task.name))


def _place(name: str) -> tuple[int, str]:
    return (TASKS.index(name) if name in TASKS else len(TASKS)), name


def _read(sources: Sequence[str | Path]) -> Iterator[Source]:
    if not sources:
        raise EvaluationError("no STS source was given; expected a folder, a .tsv file or the id of a data set.")
    single = [Path(source) for source in sources if Path(source).is_file()]
    for source in sources:
        path = Path(source)
        if path.is_dir():
            yield _read_folder(path)
        elif path in single:
            if path == single[0]:
                yield read_tsv_files(single)
        else:
            yield _read_hub(_hub_id(str(source)))


def _read_folder(folder: Path) -> Source:
    try:
        if any(is_table(path) for path in folder.iterdir()):
            return read_tsv_folder(folder)
        base = find_senteval(folder)
        return read_senteval(base) if base else read_tsv_folder(folder)
    except OSError as error:
        raise EvaluationError(f"{folder}: cannot be listed: {error.strerror or error}.") from error


def _hub_id(source: str) -> str:
    """Return the id of a data set. Raises EvaluationError if the source can only be a path."""
    if source.startswith(_HUB):
        return source.removeprefix(_HUB)
    path = Path(source)
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", source) and not is_table(path) and not path.parent.is_dir():
        return source
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    hint = f'; did you mean "{path.parent / close[0]}"?' if close else f". For a data set of the hub write {_HUB}NAME."
    raise EvaluationError(f"{source}: no such file or folder{hint}")


def _read_hub(identity: str) -> Source:
    """Read the test split of a data set of the Hugging Face hub, such as mteb/sts12-sts, as one subset.

    Raises MachineError without the package `datasets`, and EvaluationError if the data set cannot be loaded or has
    other columns.
    """
    datasets = require_extra("datasets", "datasets")
    try:
        with _quiet_hub():
            rows = datasets.load_dataset(identity, split=_SPLIT)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise EvaluationError(
            f"{identity}: no such file or folder, and the data set of this id cannot be loaded: "
            f"{' '.join(str(error).split())[:300]}. Fix: name an existing folder or .tsv file; for a data set check "
            "its id and the network."
        ) from error
    score, first, second = (_hub_column(identity, list(rows.column_names), wanted) for wanted in (SCORE, FIRST, SECOND))
    table = zip(list(rows[score]), list(rows[first]), list(rows[second]), strict=True)
    lines = ((f"{identity} {_SPLIT}:{n}", _text(s), _text(a), _text(b)) for n, (s, a, b) in enumerate(table, 1))
    name = identity.rpartition("/")[2]
    pairs = pairs_of(known_name(name.lower().removesuffix("-sts")) or name, WHOLE, identity, {}, lines)
    subset = pairs.subset
    content = json.dumps([subset.scores.tolist(), subset.first, subset.second], ensure_ascii=False)
    pairs.files[identity] = hashlib.sha256(content.encode()).hexdigest()
    return Source(identity, [pairs], [])


@contextmanager
def _quiet_hub() -> Iterator[None]:
    """Silence the log of every attempt to reach the hub; the outcome is reported once."""
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


def _tasks(source: Source) -> Iterator[Task]:
    names = sorted({pairs.task for pairs in source.found}, key=_place)
    for name in names:
        parts = [pairs for pairs in source.found if pairs.task == name]
        subsets = tuple(pairs.subset for pairs in parts)
        files = {file: sha256 for part in parts for file, sha256 in part.files.items()}
        notes = [note for task, note in source.notes if task == name or (task == "" and name == names[0])]
        if name in TASKS[2:] and [subset.name for subset in subsets] == [WHOLE]:
            notes.append(f"{name} has no subsets here, so the protocols mean, wmean and all are the same (all)")
        elif 0 < len(subsets) < _SUBSETS.get(name, 0):
            present = ", ".join(subset.name for subset in subsets)
            notes.append(f"{name} has {len(subsets)} of its {_SUBSETS[name]} subsets: {present}")
        yield Task(name, subsets, files, tuple(notes))
