"""`compact_index`: remove deleted documents from disk, merge segments, remove old generations.

The index is rebuilt from its live documents in their order: parts that a build would cut in the same way stay, the
others are rewritten with their stored embeddings. The transform is kept. Nothing is encoded.
"""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from indexer.corpus.document import text_bytes
from indexer.errors import StoreError
from indexer.pipeline.drift import AddedSince
from indexer.pipeline.generation import Generation, open_generation
from indexer.pipeline.published_index import PublishedIndex
from indexer.pipeline.rows import even_runs
from indexer.pipeline.steps.build_encoder import LazyEncoder
from indexer.pipeline.steps.encode import encode_parts
from indexer.pipeline.steps.fit import fit, known_query_mean
from indexer.pipeline.steps.index_segment import write_segments
from indexer.pipeline.steps.ingest import ingest
from indexer.pipeline.steps.kept_recall import begin_again
from indexer.pipeline.steps.reuse import ReuseInOrder
from indexer.progress import NoProgress, Progress
from indexer.recipe.index_config import PART_BYTES
from indexer.recipe.loading import named_path
from indexer.recipe.run_options import RunOptions
from indexer.store import layout
from indexer.store.manifest import Manifest, list_generations, load_generation
from indexer.typed_arguments import checked

KEPT_GENERATIONS = 2
GRACE_SECONDS = 3600.0  # readers may still use a generation that was superseded more recently


@dataclass(frozen=True)
class CompactReport:
    """Result of a compaction. `bytes_freed` is the decrease in size on disk."""

    index: Path
    generation: int
    documents: int
    rows: int
    folded: bool  # a new generation was published
    dropped: int = 0  # deleted documents that were removed from disk
    segments_before: int = 1
    generations_removed: int = 0
    generations_kept: int = 1
    bytes_freed: int = 0
    notes: tuple[str, ...] = ()
    quality: dict[str, Any] = field(default_factory=dict)


@checked
def compact_index(
    index: str | Path,
    options: RunOptions | None = None,
    progress: Progress | None = None,
    model: str | Path | None = None,
    keep: int = KEPT_GENERATIONS,
    grace: float = GRACE_SECONDS,
) -> CompactReport:
    """Compact an index, if needed, and remove generations beyond the newest `keep`.

    A generation that was superseded less than `grace` seconds ago stays, because readers may have it open.
    Raises QualityError, ModelError, MismatchError, LockedError, StoreError and MachineError as `build_index`.
    """
    options, progress = options or RunOptions(), progress or NoProgress()
    with open_generation(named_path(index, "the index")) as generation:
        index, published, generation.model = generation.index, generation.previous.manifest, model
        before, folds = generation.store.size(), _is_scattered(generation.previous)
        manifest, notes = fold(generation, options, progress) if folds else (published, ())
        removed, files = remove_generations(generation, max(keep, 1), grace)
        note = generation.sweep(files)
        return CompactReport(
            index=index,
            generation=manifest.generation,
            documents=manifest.documents,
            rows=manifest.rows,
            folded=folds,
            dropped=published.stored_documents - manifest.stored_documents,
            segments_before=len(published.segments),
            generations_removed=removed,
            generations_kept=len(list_generations(index)),
            bytes_freed=before - generation.store.size(),
            notes=tuple(filter(None, (*notes, note))),
            quality=manifest.quality,
        )


def _is_scattered(published: PublishedIndex) -> bool:
    """Return whether a build of the same documents would cut parts or segments differently."""
    manifest, config = published.manifest, published.config
    rows = [part.rows for part in manifest.parts]
    cut = [sum(rows[parts]) for parts in even_runs(rows, config.index.segment_rows)]
    if manifest.deleted is not None or [entry.rows for entry in manifest.segments] != cut:
        return True
    most = config.store.part_documents
    ends = accumulate(part.documents for part in manifest.parts[:-1])
    for part, end in enumerate(ends):
        if manifest.parts[part].documents != most:
            (following,) = published.documents.fetch([end])
            if published.documents.uncompressed_bytes(part) + text_bytes(following) <= PART_BYTES:
                return True
    return False


def fold(
    generation: Generation, options: RunOptions, progress: Progress, refitting: bool = False
) -> tuple[Manifest, tuple[str, ...]]:
    """Publish a generation of the live documents only; with `refitting`, with a transform fitted on them."""
    published, config = generation.previous, generation.config
    queries = LazyEncoder(config, options, lambda: published.spec(generation.model))
    if not config.chunk.tokens:
        # Only chunking needs the tokenizer; without it the model may be missing.
        generation.spec = published.spec_without_files()
    ingested = ingest(published.all_documents(), generation, progress, ReuseInOrder(published))
    stored = LazyEncoder(config, options, generation.spec)
    records = encode_parts(ingested.parts, generation, stored, options, progress).records
    generation.keep_encoder()
    rows, figures, kept = ingested.rows(generation.index), published.manifest.quality, dict[str, Any]()
    if refitting:
        generation.write_transform(fit(rows, queries, progress, known_query_mean(published)))
    else:
        generation.keep_transform()
        names = "sample", "held_out", "covariance", "drift"  # of the fit
        kept = {name: figures[name] for name in names if name in figures}
        kept |= (
            AddedSince.of(published.manifest).compacted(published.manifest, published.numbering, rows.rows).figures()
        )
    written = write_segments(generation, rows, records, queries, options, progress)
    figures = {**kept, **written.figures}
    measured = begin_again(generation, rows, figures, options, progress, queries.encode_queries)
    return generation.publish(measured.figures), tuple(filter(None, (*written.notes, measured.note)))


def remove_generations(generation: Generation, keep: int, grace: float) -> tuple[int, set[str]]:
    """Remove manifests of old generations; return their number, and the files that the readable ones named."""
    index, removed, named = generation.index, 0, set[str]()
    numbers = list_generations(index)
    for number, successor in pairwise(numbers[: max(0, len(numbers) - keep + 1)]):
        if time.time() - generation.store.published_time(successor) >= grace:
            with suppress(StoreError):
                named |= {*load_generation(index, number).files}
            generation.store.remove(layout.manifest_name(number))
            removed += 1
    return removed, named
