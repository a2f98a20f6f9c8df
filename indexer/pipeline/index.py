"""The fourth step: transform every embedding, fill the FAISS index, judge the result."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer import ann, quality
from indexer.config import BuildConfig
from indexer.moments import Moments
from indexer.pipeline.fit import Fitted
from indexer.pipeline.progress import Progress
from indexer.store import parts
from indexer.store.files import FileStamp, write_file
from indexer.transforms import Whitening

TRAINING_ROWS = 262_144  # more than any common factory string looks at
_SELF_HITS = 1000
_RECALL_QUERIES = 200


@dataclass(frozen=True)
class Filled:
    """A FAISS index of every row, its search parameters tuned, and for an approximate one its measured recall@10."""

    index: Any
    factory: str
    zero: int  # documents whose vector is zero: those that equal the mean exactly
    recall: float | None = None

    @property
    def search_parameters(self) -> dict[str, int]:
        return ann.search_parameters(self.index)


def fill_index(fitted: Fitted, records: list[parts.PartRecord], config: BuildConfig, progress: Progress) -> Filled:
    """Index every row. Raises ConfigError for an index.type that does not fit."""
    factory = ann.factory_of(config.index.type)
    index = ann.make_index(factory, fitted.transform.dim)
    if not index.is_trained:
        ann.train_index(index, _sample_vectors(fitted, TRAINING_ROWS)[0])
    truth = None if ann.is_exact(factory) else quality.ExactTop(*_sample_vectors(fitted, _RECALL_QUERIES))
    progress.phase("indexing", sum(record.rows for record in records))
    zero = 0
    for folder, first in zip(fitted.sample.folders, fitted.sample.firsts[:-1], strict=True):
        vectors = fitted.transform.transform(parts.open_embeddings(folder), "document")
        zero += int(np.count_nonzero(~vectors.any(axis=1)))
        ann.add_vectors(index, vectors)
        if truth:
            truth.update(vectors, first)
        progress.advance(len(vectors))
    return Filled(index, factory, zero, _tune(index, truth, config.index.recall) if truth else None)


def _tune(index: Any, truth: quality.ExactTop, target: float) -> float:
    """Widen the search until recall@10 reaches the target, or cannot grow; returns what was reached."""
    while True:
        recall = truth.recall(ann.search_index(index, truth.queries, quality.RECALL_DEPTH + 1))
        if recall >= target or not ann.widen_search(index):
            return recall


def judge(
    filled: Filled, fitted: Fitted, records: list[parts.PartRecord], config: BuildConfig, progress: Progress
) -> dict[str, Any]:
    """All gates and figures of a build, for the manifest. Raises QualityError if one fails."""
    progress.phase("checking", None)
    figures: dict[str, Any] = {"sample": len(fitted.sample.rows)}
    gates = _index_gates(filled, fitted, records, config)
    if isinstance(fitted.transform, Whitening):
        deviation = quality.covariance_deviation(fitted.transform, config.whitening, _sample_embeddings(fitted))
        gates.append(
            quality.Gate("covariance", deviation, quality.COVARIANCE_LIMIT, meaning="in-sample whitened covariance")
        )
        figures["held_out"] = _held_out(fitted, fitted.transform)
    tokens, cut = sum(record.tokens for record in records), sum(record.truncated for record in records)
    return figures | {"tokens": tokens, "truncated": cut} | quality.require(gates)


def _index_gates(
    filled: Filled, fitted: Fitted, records: list[parts.PartRecord], config: BuildConfig
) -> list[quality.Gate]:
    rows, documents = sum(record.rows for record in records), sum(record.documents for record in records)
    sample, own = _sample_vectors(fitted, _SELF_HITS)
    hits = quality.self_hits(ann.search_index(filled.index, sample, 1), sample, own) / len(own)
    missing = abs(rows - filled.index.ntotal) + abs(rows - documents)
    target = 1.0 if filled.recall is None else config.index.recall
    finer = "choose a finer index.type or a lower index.recall"
    gates = [
        quality.Gate("not_finite", sum(record.not_finite for record in records), 0, meaning="NaN or infinity"),
        quality.Gate("zero_embeddings", sum(record.zero for record in records), 0, meaning="embeddings of zeros"),
        quality.Gate("zero_vectors", filled.zero, 0, meaning="documents that equal the mean exactly"),
        quality.Gate("missing_rows", missing, 0, meaning="rows that are lost"),
        quality.Gate("self_hit", hits, target, True, f"share of documents found by their own vector; {finer}"),
    ]
    if filled.recall is not None:
        gates.append(quality.Gate("recall_at_10", filled.recall, target, True, f"against exact search; {finer}"))
    return gates


def write_segment(path: Path, index: Any) -> FileStamp:
    """Store the index through our own writer: FAISS neither hashes nor syncs, and can miss a full disk."""
    with write_file(path) as file:
        ann.save_index(index, file)  # type: ignore[arg-type]
    return file.stamp


def _sample_embeddings(fitted: Fitted) -> Any:
    return (fitted.sample.embeddings(part) for part in range(len(fitted.sample.folders)))


def _sample_vectors(fitted: Fitted, most: int) -> tuple[npt.NDArray[np.float32], list[int]]:
    """Vectors of at most `most` sampled rows, spread evenly over the sample, and their row numbers."""
    rows = fitted.sample.rows
    chosen = set(rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int)].tolist())
    vectors, numbers = [], []
    for part, first in enumerate(fitted.sample.firsts[:-1]):
        within = fitted.sample.rows_of(part)
        keep = np.array([row + first in chosen for row in within.tolist()], bool)
        if keep.any():
            vectors.append(fitted.transform.transform(fitted.sample.embeddings(part)[keep], "document"))
            numbers += (within[keep] + first).tolist()
    return np.concatenate(vectors), numbers


def _held_out(fitted: Fitted, whitening: Whitening) -> dict[str, Any] | None:
    """Held-out figures: rows outside the sample if there are any, else one half of the sample against the other."""
    sample = fitted.sample
    seen = unseen = Moments.zero(len(whitening.mean))
    for part, folder in enumerate(sample.folders):
        embeddings, inside = parts.open_embeddings(folder), sample.rows_of(part)
        if sample.everything:
            seen, unseen = seen + Moments.of(embeddings[0::2]), unseen + Moments.of(embeddings[1::2])
        else:
            outside = np.setdiff1d(np.arange(len(embeddings)), inside)[: len(inside)]
            seen, unseen = seen + Moments.of(embeddings[inside]), unseen + Moments.of(embeddings[outside])
    if seen.count < 2 or unseen.count < 2 or not seen.scatter.any():
        return None
    return quality.held_out_deviation(seen, unseen, whitening.dim)
