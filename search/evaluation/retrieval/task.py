"""What a measurement of retrieval is asked, and the files it writes beside its result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from indexer.corpus.corpus import OnError
from search.evaluation.retrieval.bm25 import LABEL
from search.evaluation.retrieval.hybrid import hybrid_label
from search.evaluation.retrieval.runs import run_files
from search.evaluation.subject import Subject
from search.files import check_outputs, read_by


@dataclass(frozen=True)
class RetrievalTask:
    """What is asked: a BEIR folder and a split of it, the ranks to cut at, and what is written beside the result."""

    folder: Path
    split: str = "test"
    cutoffs: tuple[int, ...] = (10, 100)
    bm25: bool = True
    run: Path | None = None  # TREC runs: a file, or a folder for several
    per_query: Path | None = None  # a table of the first nDCG
    on_error: OnError = "fail"  # or "skip": rows of the corpus that cannot be documents, such as blank ones
    hybrid: bool = False  # fuse each setting's ranking with BM25's too
    query_vectors: Path | None = None  # embeddings of the queries, by id, so that none is encoded
    force: bool = False  # write over files that are there already
    also: Mapping[str, Path] = field(default_factory=dict)  # option -> file that the caller writes: no file twice


def beside_of(task: RetrievalTask, labels: Sequence[str]) -> list[str]:
    """Labels of what is measured beside the settings."""
    return [hybrid_label(label) for label in labels if task.hybrid] + [LABEL] * task.bm25


def runs_of(task: RetrievalTask, labels: Sequence[str]) -> dict[str, Path]:
    """Label -> the file of its run."""
    return run_files(task.run, labels, beside_of(task, labels)) if task.run else {}


def require_places(task: RetrievalTask, subject: Subject, runs: Mapping[str, Path]) -> None:
    """What cannot be written shows now and not after hours of encoding."""
    written = {f"--run ({label})" if len(runs) > 1 else "--run": path for label, path in runs.items()}
    if task.per_query is not None:
        written["--per-query"] = task.per_query
    whitening, index = subject.config.whitening, subject.opened.path if subject.opened else None
    reads = read_by(task.folder, task.query_vectors, whitening.query_sample, subject.spec.folder, index)
    check_outputs({**written, **task.also}, reads, task.force)
