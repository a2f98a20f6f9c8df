"""The fourth step: transform every embedding, write the index, judge what was written."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer import ann, flat_file, quality
from indexer.config import BuildConfig
from indexer.moments import Moments, one_blas_thread
from indexer.pipeline.fit import Fitted
from indexer.pipeline.progress import Progress
from indexer.pipeline.stages import in_order
from indexer.store import parts
from indexer.store.files import FileStamp, write_file
from indexer.transforms import Whitening

TRAINING_ROWS = 262_144  # more than any common factory string looks at
_SELF_HITS = 1000
_RECALL_QUERIES = 200
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Filled:
    """A segment of every row, written.

    `index` is the FAISS index with its search parameters tuned, and `recall` its measured recall@10; both are None
    for an exact index, which is never held in memory.
    """

    path: Path
    stamp: FileStamp
    factory: str
    dim: int
    rows: int
    zero: int  # documents whose vector is zero: those that equal the mean exactly
    index: Any = None
    recall: float | None = None

    @property
    def search_parameters(self) -> dict[str, int]:
        return ann.search_parameters(self.index) if self.index is not None else {}


def fill_index(
    fitted: Fitted, records: list[parts.PartRecord], config: BuildConfig, path: Path, threads: int, progress: Progress
) -> Filled:
    """Write an index of every row to `path`. Raises ConfigError for an index.type that does not fit."""
    factory, dim = ann.factory_of(config.index.type), fitted.transform.dim
    rows = sum(record.rows for record in records)
    blocks = _Vectors(fitted, threads, progress, rows)
    if ann.is_exact(factory) and flat_file.is_known(dim):
        with write_file(path) as file:
            file.write(flat_file.header(dim, rows))
            for _, vectors in blocks:
                file.write(ann.require_finite(vectors))
        return Filled(path, file.stamp, factory, dim, blocks.count, blocks.zero)
    index = ann.make_index(factory, dim)
    if not index.is_trained:
        ann.train_index(index, _sample_vectors(fitted, TRAINING_ROWS)[0])
    truth = None if ann.is_exact(factory) else quality.ExactTop(*_sample_vectors(fitted, _RECALL_QUERIES))
    for first, vectors in blocks:
        ann.add_vectors(index, vectors)
        if truth:
            truth.update(vectors, first)
    recall = _tune(index, truth, config.index.recall) if truth else None
    stamp = write_segment(path, index)
    return Filled(path, stamp, factory, dim, index.ntotal, blocks.zero, index, recall)


class _Vectors:
    """(first row, vectors) of every part, in order, once; counts rows and vectors that are zero as they go by."""

    def __init__(self, fitted: Fitted, threads: int, progress: Progress, rows: int) -> None:
        self._fitted, self._threads, self._progress, self._rows = fitted, threads, progress, rows
        self.count = self.zero = 0

    def __iter__(self) -> Iterator[tuple[int, Vectors]]:
        transform, folders = self._fitted.transform, self._fitted.sample.folders
        self._progress.phase("indexing", self._rows)
        with one_blas_thread():  # around all threads, so that none of them lets the others have more
            for vectors in in_order(
                lambda folder: transform.transform(parts.open_embeddings(folder), "document"), folders, self._threads
            ):
                yield self.count, vectors
                self.count += len(vectors)
                self.zero += int(np.count_nonzero(~vectors.any(axis=1)))
                self._progress.advance(len(vectors))


def _tune(index: Any, truth: quality.ExactTop, target: float) -> float:
    """Widen the search until recall@10 reaches the target, or cannot grow; returns what was reached."""
    while True:
        recall = truth.recall(ann.search_index(index, truth.queries, quality.RECALL_DEPTH + 1))
        if recall >= target or not ann.widen_search(index):
            return recall


def judge(
    filled: Filled,
    fitted: Fitted,
    records: list[parts.PartRecord],
    config: BuildConfig,
    threads: int,
    progress: Progress,
) -> dict[str, Any]:
    """All gates and figures of a build, for the manifest. Raises QualityError if one fails."""
    progress.phase("checking", None)
    figures: dict[str, Any] = {"sample": len(fitted.sample.rows)}
    gates = _index_gates(filled, fitted, records, config)
    if isinstance(fitted.transform, Whitening):
        with one_blas_thread():
            deviation = quality.covariance_deviation(
                fitted.transform, config.whitening, _sample_embeddings(fitted), partial(in_order, threads=threads)
            )
            figures["held_out"] = _held_out(fitted, fitted.transform, threads)
        gates.append(
            quality.Gate("covariance", deviation, quality.COVARIANCE_LIMIT, meaning="in-sample whitened covariance")
        )
    tokens, cut = sum(record.tokens for record in records), sum(record.truncated for record in records)
    return figures | {"tokens": tokens, "truncated": cut} | quality.require(gates)


def _index_gates(
    filled: Filled, fitted: Fitted, records: list[parts.PartRecord], config: BuildConfig
) -> list[quality.Gate]:
    rows, documents = sum(record.rows for record in records), sum(record.documents for record in records)
    missing = abs(rows - filled.rows) + abs(rows - documents)
    hits = 0.0 if missing else _self_hits(filled, fitted)
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


def _self_hits(filled: Filled, fitted: Fitted) -> float:
    """The share of some sampled rows that find themselves, or an equal row."""
    sample, own = _sample_vectors(fitted, _SELF_HITS)
    if filled.index is not None:
        return quality.self_hits(ann.search_index(filled.index, sample, 1), sample, own) / len(own)
    # An exact search finds a row that the file holds where it belongs: only for others must the file be searched.
    stored = flat_file.read_rows(filled.path, filled.dim, own)
    there = quality.equal_scores(np.einsum("nk,nk->n", sample, stored, dtype=np.float64), sample)
    lost = np.flatnonzero(~there)
    found = flat_file.search_file(filled.path, filled.dim, filled.rows, sample[lost]) if len(lost) else []
    return (len(own) - len(lost) + quality.self_hits(found, sample[lost], own[lost])) / len(own)


def write_segment(path: Path, index: Any) -> FileStamp:
    """Store the index through our own writer: FAISS neither hashes nor syncs, and can miss a full disk."""
    with write_file(path) as file:
        ann.save_index(index, file)  # type: ignore[arg-type]
    return file.stamp


def _sample_embeddings(fitted: Fitted) -> Iterator[npt.NDArray[np.floating]]:
    return (fitted.sample.embeddings(part) for part in range(len(fitted.sample.folders)))


def _sample_vectors(fitted: Fitted, most: int) -> tuple[Vectors, quality.Rows]:
    """Vectors of at most `most` sampled rows, spread evenly over the sample, and their row numbers."""
    rows, firsts = fitted.sample.rows, fitted.sample.firsts
    chosen = np.unique(rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int)])
    ends = np.searchsorted(chosen, firsts)
    vectors = [
        fitted.transform.transform(parts.open_embeddings(folder)[chosen[low:high] - first], "document")
        for folder, first, low, high in zip(fitted.sample.folders, firsts, ends, ends[1:], strict=False)
        if low < high
    ]
    return np.concatenate(vectors), chosen


def _held_out(fitted: Fitted, whitening: Whitening, threads: int) -> dict[str, Any] | None:
    """Held-out figures: rows outside the sample if there are any, else one half of the sample against the other."""
    sample = fitted.sample

    def halves(part: int) -> tuple[Moments, Moments]:
        embeddings = parts.open_embeddings(sample.folders[part])
        if sample.everything:
            return Moments.of(embeddings[0::2]), Moments.of(embeddings[1::2])
        inside = sample.rows_of(part)
        outside = np.setdiff1d(np.arange(len(embeddings)), inside)[: len(inside)]
        return Moments.of(embeddings[inside]), Moments.of(embeddings[outside])

    seen = unseen = Moments.zero(len(whitening.mean))
    for one, other in in_order(halves, range(len(sample.folders)), threads):
        seen, unseen = seen + one, unseen + other
    if seen.count < 2 or unseen.count < 2 or not seen.scatter.any():
        return None
    return quality.held_out_deviation(seen, unseen, whitening.dim)
