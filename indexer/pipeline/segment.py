"""A segment before and after: the rows it is made of, and what was written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer import ann
from indexer.ann import flat_file
from indexer.config import BuildConfig, IndexConfig, RunOptions, WhiteningConfig
from indexer.corpus.query_file import query_file_sha256
from indexer.errors import ConfigError, QualityError
from indexer.moments import Moments
from indexer.parallel import ordered_map, part_threads, single_blas_thread
from indexer.pipeline.auto_index import BuiltIndex, IndexRequest, build_named, choose_index, too_large
from indexer.pipeline.encoder_state import QueryEncoder
from indexer.pipeline.gates import (
    COVARIANCE_LIMIT,
    Gate,
    covariance_deviation,
    equal_scores,
    held_out_deviation,
    recall_gates,
    require_all,
    self_hits,
)
from indexer.pipeline.recall_queries import Encode
from indexer.pipeline.rows import Contents, Rows, SegmentSource, VectorBlocks, segment_source
from indexer.pipeline.stored_transform import Fitted, StoredTransform
from indexer.progress import Progress
from indexer.store import layout, parts
from indexer.store.embeddings import open_embeddings
from indexer.store.files import FileDigest, atomic_write, make_folder, remove_file
from indexer.store.manifest import SegmentEntry
from indexer.store.numbering import Mask
from indexer.transforms import Whitening


@dataclass(frozen=True)
class Filled:
    """A segment, written.

    `index` is the FAISS index with its search parameters set, and `recall` its measured recall@10; both are None
    for an exact index, which is never held in memory. `figures` are for the manifest, JSON types.
    """

    path: Path
    stamp: FileDigest
    factory: str
    dim: int
    rows: int
    zero: int  # rows whose vector is zero: those that equal the mean exactly
    index: Any = None
    recall: float | None = None
    search_parameters: dict[str, int] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def fill_segment(
    source: SegmentSource,
    config: IndexConfig,
    path: Path,
    options: RunOptions,
    progress: Progress,
    encode_queries: Encode | None = None,
    small: bool = False,
) -> Filled:
    """Write an index of every row to `path`; `small`: an exact one, whatever the recipe says.

    Raises ConfigError for an index.type or index.memory that does not fit, and QualityError, with nothing written,
    where index.recall is not reached, unless `options.allow_low_recall`.
    """
    order = IndexRequest(source, config, options, progress, encode_queries)
    made = _exact("few rows beside a larger index") if small else _make(order)
    queries = query_file_sha256(config.queries, "index.queries")
    filled = _write_exact(order, path, made) if made.index is None else _write_made(order, path, made)
    filled.figures["index"] |= {"factory": made.factory} | ({"queries_sha256": queries} if queries else {})
    return filled


def _make(order: IndexRequest) -> BuiltIndex:
    wanted, factory = order.wanted, ann.factory_of(order.config.type)
    if order.config.type == "auto":
        small = "a query reads all of it in less time than it takes to encode"
        return _exact(small) if wanted.is_small else choose_index(order)
    if not ann.is_exact(factory):
        return build_named(order, factory)
    if not wanted.fits(4 * wanted.dim):
        raise ConfigError(too_large(order, "an exact index", 4 * wanted.dim))
    return _exact("asked for by index.type")


def _exact(why: str) -> BuiltIndex:
    return BuiltIndex("Flat", figures={"index": {"why": why}})


def _write_exact(order: IndexRequest, path: Path, made: BuiltIndex) -> Filled:
    """An exact index, written block by block where the file is known, so that it is never in memory."""
    dim, blocks = order.wanted.dim, VectorBlocks(order.source, part_threads(order.options.threads), order.progress)
    if flat_file.matches_faiss(dim):
        with atomic_write(path) as file:
            file.write(flat_file.header(dim, order.source.rows))
            for _, vectors in blocks:
                file.write(ann.require_finite(vectors))
        stamp, rows = file.digest, blocks.count
    else:
        index = ann.make_index("Flat", dim)
        for _, vectors in blocks:
            ann.add_vectors(index, vectors)
        stamp, rows = _write_index(path, index), index.ntotal
    exact = {"recall_at_10": 1.0, "queries": 0, "bytes_per_vector": 4.0 * dim}
    return Filled(path, stamp, "Flat", dim, rows, blocks.zero, figures={"index": exact | made.figures["index"]})


def _write_made(order: IndexRequest, path: Path, made: BuiltIndex) -> Filled:
    parameters = ann.search_parameters(made.index)
    stamp = _write_index(path, made.index)
    return Filled(
        path,
        stamp,
        made.factory,
        order.wanted.dim,
        made.index.ntotal,
        made.zero,
        made.index,
        made.recall,
        parameters,
        made.figures,
        made.notes,
    )


def _write_index(path: Path, index: Any) -> FileDigest:
    """Store the index through our own writer: FAISS neither hashes nor syncs, and can miss a full disk."""
    with atomic_write(path) as file:
        ann.save_index(index, file)  # type: ignore[arg-type]
    return file.digest


@dataclass(frozen=True)
class NewSegment:
    """A segment that was written and found good."""

    filled: Filled
    quality: dict[str, Any]

    def entry(self, index: Path, first_row: int = 0) -> tuple[SegmentEntry, FileDigest]:
        """What the manifest says of it, when its rows follow on `first_row` others."""
        filled = self.filled
        name = filled.path.relative_to(index).as_posix()
        return SegmentEntry(name, first_row, filled.rows, filled.factory, filled.search_parameters), filled.stamp


def write_segment_of(
    index: Path,
    generation: int,
    contents: Contents,
    records: Sequence[parts.PartRecord],
    stored: StoredTransform,
    config: BuildConfig,
    source: QueryEncoder,
    options: RunOptions,
    progress: Progress,
    small: bool = False,
) -> NewSegment:
    """Write the vectors of all rows of `contents` as one segment and judge it; a bad one does not stay.

    With `small` it is exact whatever the recipe says. An index.queries file that is not where it was when the index was
    built is done without, and a note says so. Raises QualityError, ConfigError and StoreError.
    """
    path = index / layout.segment_name(generation, 0)
    make_folder(path.parent)
    rows = segment_source(contents, stored.transform)

    def encode_queries(texts: list[str]) -> Any:
        return source.get().encode(texts, "query")

    settings, notes = config.index, tuple[str, ...]()
    if settings.queries and not Path(settings.queries).exists():
        notes = (f"index.queries: {settings.queries} is not there; held-out documents stand in for its queries",)
        settings = replace(settings, queries="")
    filled = fill_segment(rows, settings, path, options, progress, encode_queries, small)
    filled = replace(filled, notes=(*notes, *filled.notes))
    try:
        quality = judge_segment(filled, rows, list(records), config, options, progress, stored.fitted)
    except QualityError:
        remove_file(index, layout.segment_name(generation, 0))
        raise
    return NewSegment(filled, quality)


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
        Gate("not_finite", not_finite, 0, meaning="NaN or infinity"),
        Gate("zero_embeddings", zero, 0, meaning="embeddings of zeros"),
        *_segment_gates(filled, source, _without_row(records, config), config.index, options),
    ]
    if fitted is not None:
        figures, more = _fit_figures(fitted, config.whitening, part_threads(options.threads), source.live)
        gates += more
    counts = {name: sum(getattr(record, name) for record in records) for name in COUNTS}
    return figures | counts | filled.figures | require_all(gates)


def _without_row(records: Sequence[Record], config: BuildConfig) -> int:
    """Documents that no vector stands for."""
    rows, documents = sum(record.rows for record in records), sum(record.documents for record in records)
    return max(0, documents - rows) if config.chunk.tokens else abs(rows - documents)


def _segment_gates(
    filled: Filled, source: SegmentSource, without_row: int, config: IndexConfig, options: RunOptions
) -> list[Gate]:
    """Gates of a segment's file. One that misses its recall stands when `options.allow_low_recall` says so."""
    missing = abs(source.rows - filled.rows) + without_row
    hits = 0.0 if missing else _self_hits(filled, source)
    gates = [
        Gate("zero_vectors", filled.zero, 0, meaning="documents that equal the mean exactly"),
        Gate("missing_rows", missing, 0, meaning="rows that are lost"),
    ]
    if filled.recall is None:
        meaning = "share of documents found by their own vector"
        return [*gates, Gate("self_hit", hits, 1.0, True, meaning)]
    return [*gates, *recall_gates(filled.recall, hits, config.recall, options.allow_low_recall)]


def _fit_figures(
    fitted: Fitted, config: WhiteningConfig, threads: int, live: Mask | None = None
) -> tuple[dict[str, Any], list[Gate]]:
    """Figures of a fit and its gate; `live` (stored rows,) says which rows are not deleted, None all."""
    figures: dict[str, Any] = {"sample": len(fitted.sample.rows)}
    if not isinstance(fitted.transform, Whitening) or config.strength == "none":
        return figures, []
    with single_blas_thread():
        deviation = covariance_deviation(
            fitted.transform, config, _sample_embeddings(fitted), partial(ordered_map, threads=threads)
        )
        figures["held_out"] = _held_out(fitted, fitted.transform, threads, live)
    meaning = "in-sample whitened covariance"
    return figures, [Gate("covariance", deviation, COVARIANCE_LIMIT, meaning=meaning)]


def _self_hits(filled: Filled, source: SegmentSource) -> float:
    """The share of some live rows that find themselves, or an equal row."""
    own = np.sort(source.drawing_order[:_SELF_HITS])
    if not len(own):
        return 1.0
    sample = source.vectors(own)
    if filled.index is not None:
        return self_hits(ann.search_index(filled.index, sample, 1), sample, own) / len(own)
    # An exact search finds a row that the file holds where it belongs: only for others must the file be searched.
    stored = flat_file.read_rows(filled.path, filled.dim, own)
    there = equal_scores(np.einsum("nk,nk->n", sample, stored, dtype=np.float64), sample)
    lost = np.flatnonzero(~there)
    found = flat_file.search_flat_file(filled.path, filled.dim, filled.rows, sample[lost]) if len(lost) else []
    return (len(own) - len(lost) + self_hits(found, sample[lost], own[lost])) / len(own)


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
    return held_out_deviation(seen, unseen, whitening.dim)
