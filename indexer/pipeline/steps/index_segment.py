"""Write rows as index segments and check them; segments that fail are removed."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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
from indexer.store.files import FileDigest, atomic_write, make_folder, remove_file
from indexer.store.manifest import SegmentEntry
from indexer.store.parts import PartRecord
from indexer.system.threads import part_threads
from indexer.transforms import Transform

SMALL_ROWS = 50_000  # an added segment of at most so many rows is exact, whatever the recipe says
COUNTS = ("tokens", "truncated", "without_tokens")  # sums over all parts
_SELF_HITS = 1000
_AT_LEAST = ("self_hit", "recall_at_10")  # gates with a lower bound


@dataclass(frozen=True)
class Segment:
    """A written segment.

    `index` is the FAISS index with its search parameters set, and `recall` its measured recall@10; both are None
    for an exact index. `figures` are measurements for the manifest, JSON types: of the index, and after
    `judge_segment` of the whole segment.
    """

    path: Path
    digest: FileDigest
    factory: str
    dim: int
    rows: int
    zero: int  # rows whose vector is zero because they equal the mean exactly
    index: Any = None
    recall: float | None = None
    search_parameters: dict[str, int] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def measured(self) -> dict[str, Any]:
        return {name: self.figures[name] for name in ("index", "recall_curve") if name in self.figures}


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

    index.segment_rows determines their number. A few rows added to existing segments get an exact segment. If the file
    index.queries is missing, a note says that documents replace its queries. Raises QualityError, after removing the
    segments, ConfigError and StoreError.
    """
    settings, notes = generation.config.index, tuple[str, ...]()
    if settings.queries and not Path(settings.queries).exists():
        notes = (f"index.queries: {settings.queries} is missing; documents of the corpus are used as queries instead",)
        settings = replace(settings, queries="")

    def encode_queries(texts: list[str]) -> npt.NDArray[np.floating]:
        return encoder.get().encode(texts, "query")

    request = IndexRequest(rows, generation.transform, settings, options, progress, encode_queries)
    before, written = len(generation.segments), list[Segment]()
    try:
        for parts in even_runs(rows.rows, settings.segment_rows):
            small = bool(before) and rows.stored <= SMALL_ROWS
            written.append(_write_segment(generation, request, parts, records[parts], small))
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
    measured = {file: segment.measured for file, segment in zip(files, written, strict=True)}
    others = {"segments": {file: measured[file] for file in files[1:]}} if len(files) > 1 else {}
    notes += tuple(dict.fromkeys(note for segment in written for note in segment.notes))
    return WrittenSegments(measured, figures | _joined([segment.figures for segment in written]) | others, notes)


def _write_segment(
    generation: Generation, request: IndexRequest, parts: slice, records: Sequence[PartRecord], small: bool
) -> Segment:
    name, rows = generation.next_segment, request.rows.run(parts)
    path, share = generation.index / name, rows.stored / request.rows.stored
    make_folder(path.parent)
    request = replace(request, rows=rows, path=path, share=share)
    segment = fill_segment(request, path, small)
    request.progress.phase("checking", None)
    first_row = sum(entry.rows for entry in generation.segments)
    entry = SegmentEntry(name, first_row, segment.rows, segment.factory, segment.search_parameters)
    generation.add_segment(entry, segment.digest)
    figures = judge_segment(segment, request, records, generation.config)
    return replace(segment, figures=figures, index=None)


def _joined(figures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the figures of several segments: the first segment's, with counts summed and the worst value of gates."""
    joined = dict(figures[0])
    for other in figures[1:]:
        joined |= {count: joined[count] + other[count] for count in COUNTS}
        for name, gate in other.items():
            if isinstance(gate, dict) and "passed" in gate:
                worst = min if name in _AT_LEAST else max
                joined[name] = worst(joined.get(name, gate), gate, key=lambda figure: figure["value"])
    return joined


def fill_segment(request: IndexRequest, path: Path, small: bool = False) -> Segment:
    """Write an index of all rows to `path`; with `small` an exact one, whatever the recipe says.

    Raises ConfigError for an index.type or index.memory that does not fit, and QualityError before writing if
    index.recall is missed, unless `options.allow_low_recall`.
    """
    built = _exact("few rows beside a larger index") if small else _build(request)
    queries = query_file_sha256(request.config.queries, "index.queries")
    segment = _write_exact(request, path, built) if built.index is None else _write_built(request, path, built)
    segment.figures["index"] |= {"factory": built.factory} | ({"queries_sha256": queries} if queries else {})
    return segment


def _build(request: IndexRequest) -> BuiltIndex:
    wanted, factory = request.wanted, ann.factory_of(request.config.type)
    if request.config.type == "auto":
        small = "a query reads all of it in less time than it takes to encode"
        return _exact(small) if wanted.is_small else choose_index(request)
    if not ann.is_exact(factory):
        return build_named(request, factory)
    if not wanted.fits(4 * wanted.dim):
        raise ConfigError(too_large(request, "an exact index", 4 * wanted.dim))
    return _exact("asked for by index.type")


def _exact(why: str) -> BuiltIndex:
    return BuiltIndex("Flat", figures={"index": {"why": why}})


def _write_exact(request: IndexRequest, path: Path, built: BuiltIndex) -> Segment:
    """Write an exact index: block by block if `flat_file` can produce FAISS's format, else with FAISS in memory."""
    dim, blocks = request.wanted.dim, request.blocks()
    if flat_file.matches_faiss(dim):
        with atomic_write(path) as file:
            file.write(flat_file.header(dim, request.rows.stored))
            for _, vectors in blocks:
                file.write(ann.require_finite(vectors))
        digest, rows = file.digest, blocks.count
    else:
        index = ann.make_index("Flat", dim)
        for _, vectors in blocks:
            ann.add_vectors(index, vectors)
        digest, rows = _write_index(path, index), index.ntotal
    exact = {"recall_at_10": 1.0, "queries": 0, "bytes_per_vector": 4.0 * dim}
    return Segment(path, digest, "Flat", dim, rows, blocks.zero, figures={"index": exact | built.figures["index"]})


def _write_built(request: IndexRequest, path: Path, built: BuiltIndex) -> Segment:
    return Segment(
        path=path,
        digest=_write_index(path, built.index),
        factory=built.factory,
        dim=request.wanted.dim,
        rows=built.index.ntotal,
        zero=built.zero,
        index=built.index,
        recall=built.recall,
        search_parameters=ann.search_parameters(built.index),
        figures=built.figures,
        notes=built.notes,
    )


def _write_index(path: Path, index: Any) -> FileDigest:
    """Write through `atomic_write`: FAISS neither hashes nor syncs, and can miss a full disk."""
    with atomic_write(path) as file:
        ann.save_index(index, file)  # type: ignore[arg-type]
    return file.digest


def judge_segment(
    segment: Segment, request: IndexRequest, records: Sequence[PartRecord], config: BuildConfig
) -> dict[str, Any]:
    """Return all gates and figures of a new segment, for the manifest. Raises QualityError if a gate fails."""
    names = (*COUNTS, "not_finite", "zero", "rows", "documents")
    total = {name: sum(getattr(record, name) for record in records) for name in names}
    without_row = total["documents"] - total["rows"]
    without_row = max(0, without_row) if config.chunk.tokens else abs(without_row)
    missing = abs(request.rows.stored - segment.rows) + without_row
    hits = 0.0 if missing else _self_hits(segment, request.rows, request.transform)
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


def _self_hits(segment: Segment, rows: RowView, transform: Transform) -> float:
    """Return the share of sampled live rows that find themselves, or an equal row."""
    numbers = np.sort(rows.sampling_order[:_SELF_HITS])
    if not len(numbers):
        return 1.0
    sample = rows.vectors(transform, numbers)
    if segment.index is not None:
        return self_hits(ann.search_index(segment.index, sample, 1), sample, numbers) / len(numbers)
    # An exact search finds every row that is stored at its place; only the others need a search of the file.
    stored = flat_file.read_rows(segment.path, segment.dim, numbers)
    in_place = equal_scores(np.einsum("nk,nk->n", sample, stored, dtype=np.float64), sample)
    lost = np.flatnonzero(~in_place)
    hits = flat_file.search_flat_file(segment.path, segment.dim, segment.rows, sample[lost]) if len(lost) else []
    return (len(numbers) - len(lost) + self_hits(hits, sample[lost], numbers[lost])) / len(numbers)
