"""Write rows as index segments and check them; segments that fail are removed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from indexer import ann
from indexer.ann import flat_file
from indexer.corpus.query_file import query_file_sha256
from indexer.errors import ConfigError, QualityError
from indexer.pipeline.generation import Generation
from indexer.pipeline.rows import RowView, even_runs
from indexer.pipeline.steps.auto_index import BuiltIndex, IndexRequest, build_named, choose_index, too_large
from indexer.pipeline.steps.build_encoder import LazyEncoder
from indexer.pipeline.steps.fit import judge_fit
from indexer.pipeline.steps.quality_gates import Gate, equal_scores, recall_gates, require_all, self_hits
from indexer.progress import Progress
from indexer.recipe.config import BuildConfig
from indexer.recipe.run_options import RunOptions
from indexer.store.files import DurableFile, FileDigest, atomic_write, make_folder, remove_file
from indexer.store.manifest import SegmentEntry
from indexer.store.parts import PartRecord
from indexer.system.threads import part_threads

SMALL_ROWS = 50_000  # an added segment of at most so many rows is exact, whatever the recipe says
COUNTS = ("tokens", "truncated", "without_tokens")  # sums over all parts
_SELF_HITS = 1000
_AT_LEAST = ("self_hit", "recall_at_10")  # gates with a lower bound


@dataclass(frozen=True, kw_only=True)
class Segment(BuiltIndex):
    """A written segment; after `judge_segment` its `figures` are of the whole segment."""

    path: Path
    digest: FileDigest
    rows: int


@dataclass(frozen=True)
class WrittenSegments:
    """New segments. `measured` maps each file to its figures.

    `figures` are for the manifest: of the fit and the first segment, with counts summed and the worst value of each
    gate, and under "segments" the figures of the others.
    """

    measured: dict[str, dict[str, Any]]
    figures: dict[str, Any]
    notes: tuple[str, ...]


def write_segments(
    generation: Generation,
    rows: RowView,
    records: Sequence[PartRecord],
    encoder: LazyEncoder,
    options: RunOptions,
    progress: Progress,
) -> WrittenSegments:
    """Write the vectors of all `rows`, which are the parts of `records`, as the generation's next segments; check them.

    index.segment_rows determines their number; without parts there are none. A few rows added to existing segments get
    an exact segment. If the file index.queries is missing, a note says that documents replace its queries. Raises
    QualityError, after removing the segments, ConfigError and StoreError.
    """
    settings, notes = generation.config.index, tuple[str, ...]()
    if settings.queries and not Path(settings.queries).exists():
        notes = (f"index.queries: {settings.queries} is missing; documents of the corpus are used as queries instead",)
        settings = replace(settings, queries="")

    before, written = len(generation.segments), list[Segment]()
    small = bool(before) and rows.stored <= SMALL_ROWS
    try:
        for parts in even_runs(rows.rows, settings.segment_rows):
            inside, path = rows.run(parts), generation.index / generation.next_segment
            share = inside.stored / rows.stored
            request = IndexRequest(
                inside, generation.transform, options, progress, path, settings, encoder.encode_queries, share
            )
            written.append(_write_segment(generation, request, records[parts], small))
        figures: dict[str, Any] = {}
        if generation.fitted is not None:
            threads = part_threads(options.threads)
            figures, gates = judge_fit(generation.fitted, rows, generation.config.whitening, threads)
            figures |= require_all(gates)
    except QualityError:
        for entry in generation.segments[before:]:
            remove_file(generation.index, entry.file)
        raise
    files = [entry.file for entry in generation.segments[before:]]
    measured: dict[str, dict[str, Any]] = {
        file: {name: segment.figures[name] for name in ("index", "recall_curve") if name in segment.figures}
        for file, segment in zip(files, written, strict=True)
    }
    others = {"segments": {file: measured[file] for file in files[1:]}} if len(files) > 1 else {}
    notes += tuple(dict.fromkeys(note for segment in written for note in segment.notes))
    return WrittenSegments(measured, figures | _joined([segment.figures for segment in written]) | others, notes)


def _write_segment(
    generation: Generation, request: IndexRequest, records: Sequence[PartRecord], small: bool
) -> Segment:
    make_folder(request.path.parent)
    segment = fill_segment(request, small)
    request.progress.phase("checking", None)
    name, first_row = generation.next_segment, sum(entry.rows for entry in generation.segments)
    entry = SegmentEntry(name, first_row, segment.rows, segment.factory, segment.search_parameters)
    generation.add_segment(entry, segment.digest)
    figures = judge_segment(segment, request, records, generation.config)
    return replace(segment, figures=figures, index=None)


def _joined(figures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the figures of several segments: the first segment's, with counts summed and the worst value of gates.

    Without segments, no document fails to be found by its own vector.
    """
    if not figures:
        return dict.fromkeys(COUNTS, 0) | require_all([Gate("self_hit", 1.0, 1.0, True)])
    joined = dict(figures[0])
    for other in figures[1:]:
        joined |= {count: joined[count] + other[count] for count in COUNTS}
        for name, gate in other.items():
            if isinstance(gate, dict) and "passed" in gate:
                worst = min if name in _AT_LEAST else max
                joined[name] = worst(joined.get(name, gate), gate, key=lambda figure: figure["value"])
    return joined


def fill_segment(request: IndexRequest, small: bool = False) -> Segment:
    """Write an index of all rows; with `small` an exact one, whatever the recipe says.

    Raises ConfigError for an index.type or index.memory that does not fit, and QualityError before writing if
    index.recall is missed, unless `options.allow_low_recall`.
    """
    built = _exact("few rows beside a larger index") if small else _build(request)
    queries = query_file_sha256(request.config.queries, "index.queries")
    with atomic_write(request.path) as file:  # FAISS neither hashes nor syncs, and can miss a full disk
        if built.index is None:
            built, rows = _write_exact(request, built, file)
        else:
            ann.save_index(built.index, file)  # type: ignore[arg-type]
            rows = built.index.ntotal
    built.figures["index"] |= {"factory": built.factory} | ({"queries_sha256": queries} if queries else {})
    return Segment(**vars(built), path=request.path, digest=file.digest, rows=rows)


def _build(request: IndexRequest) -> BuiltIndex:
    wanted, factory = request.wanted, ann.factory_of(request.config.type)
    if request.config.type == "auto":
        small = "a query reads all of it in a few milliseconds"
        return _exact(small) if wanted.is_small else choose_index(request)
    if not ann.is_exact(factory):
        return build_named(request, factory)
    if not wanted.fits(4 * wanted.dim):
        raise ConfigError(too_large(request, "an exact index", 4 * wanted.dim))
    return _exact("requested by index.type")


def _exact(why: str) -> BuiltIndex:
    return BuiltIndex("Flat", figures={"index": {"why": why}})


def _write_exact(request: IndexRequest, built: BuiltIndex, file: DurableFile) -> tuple[BuiltIndex, int]:
    """Write an exact index block by block; return it with its figures, and the number of rows."""
    dim, blocks = request.wanted.dim, request.blocks()
    file.write(flat_file.header(dim, request.rows.stored))
    for _, vectors in blocks:
        file.write(ann.require_finite(vectors))
    exact = {"recall_at_10": 1.0, "queries": 0, "bytes_per_vector": 4.0 * dim}
    return replace(built, zero=blocks.zero, figures={"index": exact | built.figures["index"]}), blocks.count


def judge_segment(
    segment: Segment, request: IndexRequest, records: Sequence[PartRecord], config: BuildConfig
) -> dict[str, Any]:
    """Return all gates and figures of a new segment, for the manifest. Raises QualityError if a gate fails."""
    names = (*COUNTS, "not_finite", "zero", "rows", "documents")
    total = {name: sum(getattr(record, name) for record in records) for name in names}
    without_row = total["documents"] - total["rows"]
    without_row = max(0, without_row) if config.chunk.tokens else abs(without_row)
    missing = abs(request.rows.stored - segment.rows) + without_row
    hits = 0.0 if missing else _self_hits(segment, request)
    gates = [
        Gate("not_finite", total["not_finite"], 0, meaning="NaN or infinity"),
        Gate("zero_embeddings", total["zero"], 0, meaning="embeddings of zeros"),
        Gate("zero_vectors", segment.zero, 0, meaning="documents that equal the mean exactly"),
        Gate("missing_rows", missing, 0, meaning="lost rows"),
    ]
    if segment.recall is None:
        gates.append(Gate("self_hit", hits, 1.0, True, "share of documents found by their own vector"))
    else:
        gates += recall_gates(segment.recall, hits, config.index.recall, request.options.allow_low_recall)
    return {count: total[count] for count in COUNTS} | segment.figures | require_all(gates)


def _self_hits(segment: Segment, request: IndexRequest) -> float:
    """Return the share of sampled live rows that find themselves, or an equal row."""
    numbers, dim = np.sort(request.rows.sampling_order[:_SELF_HITS]), request.transform.dim
    if not len(numbers):
        return 1.0
    sample = request.rows.vectors(request.transform, numbers)
    if segment.index is not None:
        return self_hits(ann.search_index(segment.index, sample, 1), sample, numbers) / len(numbers)
    # An exact search finds every row that is stored at its place; only the others need a search of the file.
    stored = flat_file.read_rows(segment.path, dim, numbers)
    in_place = equal_scores(np.einsum("nk,nk->n", sample, stored, dtype=np.float64), sample)
    lost = np.flatnonzero(~in_place)
    hits = flat_file.search_flat_file(segment.path, dim, segment.rows, sample[lost]) if len(lost) else []
    return (len(numbers) - len(lost) + self_hits(hits, sample[lost], numbers[lost])) / len(numbers)
