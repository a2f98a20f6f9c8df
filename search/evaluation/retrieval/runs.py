"""Files for one query at a time: TREC runs, which other tools can judge, and a table of scores per query."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from indexer.arrays import Scores, SearchResult
from indexer.errors import ConfigError, EvaluationError
from indexer.output_files import is_stream
from indexer.store.files import FileDigest
from search.evaluation.retrieval.metrics import Array
from search.files import write_output
from search.ranking import ordered, unordered

_ENDING = ".run"


def run_files(target: Path, settings: Sequence[str], baselines: Sequence[str]) -> dict[str, Path]:
    """Label -> the file of its run.

    A single setting's run is `target` itself, unless that is a folder; several, and then those of `baselines`
    too, each have a file in the folder `target`. Raises ConfigError when it is a file.
    """
    if len(settings) == 1 and not target.is_dir():
        return {settings[0]: target}
    if is_stream(target) or target.is_file():
        raise ConfigError(f"--run {target} is no folder, but there are {len(settings)} settings; name a folder.")
    return {label: target / f"{run_tag(label)}{_ENDING}" for label in (*settings, *baselines)}


def run_tag(label: str) -> str:
    """A label as one word, for names of files and the last column of a run."""
    return re.sub(r"\s+", "_", label)


def require_plain_ids(ids: Sequence[str], option: str = "--run") -> None:
    """Raises EvaluationError for an id that a run, whose columns are parted by spaces, cannot hold."""
    for name in ids:
        if not name or name.split() != [name]:
            raise EvaluationError(
                f'the id "{name}" holds white space, which parts the columns of a TREC run. Leave out {option}, or '
                "write the ids without it."
            )


def write_run(
    path: Path,
    tag: str,
    queries: Sequence[str],
    ids: Sequence[str],
    answers: Sequence[SearchResult],
    *,
    option: str = "--run",
    force: bool = False,
) -> FileDigest:
    """`query Q0 document rank score tag`, one line a hit. `ids` are those of the rows in `answers`."""
    lines = []
    for query, (scores, rows) in zip(queries, answers, strict=True):
        for rank, (row, score) in enumerate(zip(rows.tolist(), falling(scores).tolist(), strict=True), start=1):
            lines.append(f"{query} Q0 {ids[row]} {rank} {score:.9g} {tag}\n")
    return write_output(path, "".join(lines).encode(), option, force)


def falling(scores: Scores) -> Scores:
    """Descending scores (n,) with ties, and what follows them, lowered by single steps of float32 until none is left.

    trec_eval sorts a run by score, in float32, and puts ties in descending order of id; without ties it judges
    the ranking that was written.
    """
    steps = np.arange(len(scores))
    return unordered(np.minimum.accumulate(ordered(scores) + steps) - steps)


def write_per_query(
    path: Path,
    measure: str,
    judgements: Mapping[str, Mapping[str, int]],
    columns: Mapping[str, Array],
    force: bool = False,
) -> None:
    """Tab-separated: query id, relevant documents, then `measure` from 0 to 1 for each of `columns` (label -> (n,))."""
    lines = ["\t".join(["query-id", "relevant", *(f"{measure} {label}" for label in columns)])]
    for number, (query, relevances) in enumerate(judgements.items()):
        relevant = sum(value > 0 for value in relevances.values())
        lines.append("\t".join([query, str(relevant), *(f"{values[number]:.6f}" for values in columns.values())]))
    write_output(path, ("\n".join(lines) + "\n").encode(), "--per-query", force)
