"""Judging what was written: the gates of a segment, and of a transform where one was fitted."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer import ann, quality
from indexer.ann import flat_file
from indexer.config import BuildConfig, IndexConfig, RunOptions, WhiteningConfig
from indexer.moments import Moments
from indexer.parallel import ordered_map, part_threads, single_blas_thread
from indexer.pipeline.segment import Filled, Mask, Rows, SegmentSource
from indexer.pipeline.stored_transform import Fitted
from indexer.progress import Progress
from indexer.store import parts
from indexer.store.embeddings import open_embeddings
from indexer.transforms import Whitening

COUNTS = ("tokens", "truncated", "without_tokens")  # of all parts
_SELF_HITS = 1000
Record = parts.PartRecord


def judge_segment(
    filled: Filled,
    source: SegmentSource,
    records: Sequence[Record],
    config: BuildConfig,
    options: RunOptions,
    progress: Progress,
    fitted: Fitted | None,
) -> dict[str, Any]:
    """All gates and figures of a new segment, for the manifest, and of its transform if that was `fitted` for it.

    Raises QualityError if a gate fails.
    """
    progress.phase("checking", None)
    figures: dict[str, Any] = {}
    not_finite, zero = (sum(getattr(record, name) for record in records) for name in ("not_finite", "zero"))
    gates = [
        quality.Gate("not_finite", not_finite, 0, meaning="NaN or infinity"),
        quality.Gate("zero_embeddings", zero, 0, meaning="embeddings of zeros"),
        *_segment_gates(filled, source, _without_row(records, config), config.index, options),
    ]
    if fitted is not None:
        figures, more = _fit_figures(fitted, config.whitening, part_threads(options.threads), source.live)
        gates += more
    counts = {name: sum(getattr(record, name) for record in records) for name in COUNTS}
    return figures | counts | filled.figures | quality.require(gates)


def _without_row(records: Sequence[Record], config: BuildConfig) -> int:
    """Documents that no vector stands for."""
    rows, documents = sum(record.rows for record in records), sum(record.documents for record in records)
    return max(0, documents - rows) if config.chunk.tokens else abs(rows - documents)


def _segment_gates(
    filled: Filled, source: SegmentSource, without_row: int, config: IndexConfig, options: RunOptions
) -> list[quality.Gate]:
    """Gates of a segment's file. One that misses its recall stands when `options.allow_low_recall` says so."""
    missing = abs(source.rows - filled.rows) + without_row
    hits = 0.0 if missing else _self_hits(filled, source)
    gates = [
        quality.Gate("zero_vectors", filled.zero, 0, meaning="documents that equal the mean exactly"),
        quality.Gate("missing_rows", missing, 0, meaning="rows that are lost"),
    ]
    if filled.recall is None:
        meaning = "share of documents found by their own vector"
        return [*gates, quality.Gate("self_hit", hits, 1.0, True, meaning)]
    return [*gates, *quality.recall_gates(filled.recall, hits, config.recall, options.allow_low_recall)]


def _fit_figures(
    fitted: Fitted, config: WhiteningConfig, threads: int, live: Mask | None = None
) -> tuple[dict[str, Any], list[quality.Gate]]:
    """Figures of a fit and its gate; `live` (stored rows,) says which rows are not deleted, None all."""
    figures: dict[str, Any] = {"sample": len(fitted.sample.rows)}
    if not isinstance(fitted.transform, Whitening) or config.strength == "none":
        return figures, []
    with single_blas_thread():
        deviation = quality.covariance_deviation(
            fitted.transform, config, _sample_embeddings(fitted), partial(ordered_map, threads=threads)
        )
        figures["held_out"] = _held_out(fitted, fitted.transform, threads, live)
    meaning = "in-sample whitened covariance"
    return figures, [quality.Gate("covariance", deviation, quality.COVARIANCE_LIMIT, meaning=meaning)]


def _self_hits(filled: Filled, source: SegmentSource) -> float:
    """The share of some live rows that find themselves, or an equal row."""
    own = np.sort(source.drawing_order[:_SELF_HITS])
    if not len(own):
        return 1.0
    sample = source.vectors(own)
    if filled.index is not None:
        return quality.self_hits(ann.search_index(filled.index, sample, 1), sample, own) / len(own)
    # An exact search finds a row that the file holds where it belongs: only for others must the file be searched.
    stored = flat_file.read_rows(filled.path, filled.dim, own)
    there = quality.equal_scores(np.einsum("nk,nk->n", sample, stored, dtype=np.float64), sample)
    lost = np.flatnonzero(~there)
    found = flat_file.search_file(filled.path, filled.dim, filled.rows, sample[lost]) if len(lost) else []
    return (len(own) - len(lost) + quality.self_hits(found, sample[lost], own[lost])) / len(own)


def _sample_embeddings(fitted: Fitted) -> Iterator[npt.NDArray[np.floating]]:
    return (fitted.sample.embeddings(part) for part in range(len(fitted.sample.folders)))


def _held_out(fitted: Fitted, whitening: Whitening, threads: int, live: Mask | None) -> dict[str, Any] | None:
    """Held-out figures: rows outside the sample if there are any, else one half of the sample against the other."""
    sample, firsts = fitted.sample, fitted.sample.firsts
    everything = len(sample) == (sum(sample.stored) if live is None else np.count_nonzero(live))

    def halves(part: int) -> tuple[Moments, Moments]:
        if everything:
            embeddings = sample.embeddings(part)
            return Moments.of(embeddings[0::2]), Moments.of(embeddings[1::2])
        embeddings, inside = open_embeddings(sample.folders[part]), sample.part_rows[part]
        there: Rows = np.arange(len(embeddings))
        if live is not None:
            there = np.flatnonzero(live[firsts[part] : firsts[part + 1]])
        outside = np.setdiff1d(there, inside)[: len(inside)]
        return Moments.of(embeddings[inside]), Moments.of(embeddings[outside])

    seen = unseen = Moments.zero(len(whitening.mean))
    for one, other in ordered_map(halves, range(len(sample.folders)), threads):
        seen, unseen = seen + one, unseen + other
    if seen.count < 2 or unseen.count < 2 or not seen.scatter.any():
        return None
    return quality.held_out_deviation(seen, unseen, whitening.dim)
