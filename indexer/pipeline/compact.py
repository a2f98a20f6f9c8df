"""`compact_index`: deleted documents leave the disk, segments become one, old generations go.

The index is rebuilt from its own live documents, in their order: parts that are as a build would cut them stay, the
others are written anew with the embeddings they have. The transform is kept. Nothing is encoded.
"""

import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from indexer.config import RunOptions
from indexer.errors import StoreError
from indexer.pipeline.change import Change, change
from indexer.pipeline.drift import AddedSince
from indexer.pipeline.encode import encode_parts
from indexer.pipeline.encoder_state import EncoderSource, LateEncoder
from indexer.pipeline.ingest import ingest
from indexer.pipeline.publication import new_parts, next_generation, publish_generation, published_recipe
from indexer.pipeline.reuse import ReuseInOrder
from indexer.pipeline.segment import write_segment_of
from indexer.pipeline.stored_transform import published_transform
from indexer.pipeline.sweep import sweep_after
from indexer.progress import NoProgress, Progress
from indexer.settings import named_path
from indexer.store import layout
from indexer.store.files import remove_file
from indexer.store.manifest import Manifest, list_generations

KEPT_GENERATIONS = 2
GRACE_SECONDS = 3600.0  # readers may still be at work on a generation published so lately


@dataclass(frozen=True)
class CompactReport:
    """What a compaction did. `bytes_freed` counts what is not on disk any more."""

    index: Path
    generation: int
    documents: int
    rows: int
    folded: bool  # a new generation was published
    dropped: int = 0  # deleted documents that are gone from it
    segments_before: int = 1
    generations_removed: int = 0
    generations_kept: int = 1
    bytes_freed: int = 0
    notes: tuple[str, ...] = ()
    quality: dict[str, Any] = field(default_factory=dict)


def compact_index(
    index: str | Path,
    options: RunOptions | None = None,
    progress: Progress | None = None,
    model: str | Path | None = None,
    keep: int = KEPT_GENERATIONS,
    grace: float = GRACE_SECONDS,
) -> CompactReport:
    """Fold an index, if there is anything to fold, and remove generations beyond the newest `keep`.

    A generation that was followed by another less than `grace` seconds ago stays, for readers that have it open.
    Raises QualityError, ModelError, MismatchError, LockedError, StoreError and MachineError as `build_index`.
    """
    options, progress = options or RunOptions(), progress or NoProgress()
    with change(named_path(index, "the index")) as opened:
        before, published = _bytes(opened.index), opened.published
        folds = _is_scattered(opened)
        manifest, notes = _fold(opened, options, progress, model) if folds else (published, ())
        removed = _forget(opened.index, max(keep, 1), grace)
        left = sweep_after(opened.index)
        return CompactReport(
            index=opened.index,
            generation=manifest.generation,
            documents=manifest.documents,
            rows=manifest.rows,
            folded=folds,
            dropped=published.stored_documents - manifest.stored_documents,
            segments_before=len(published.segments),
            generations_removed=removed,
            generations_kept=len(list_generations(opened.index)),
            bytes_freed=before - _bytes(opened.index),
            notes=tuple(note for note in (*notes, left) if note),
            quality=manifest.quality,
        )


def _is_scattered(opened: Change) -> bool:
    """Whether a build of the same documents would cut parts or segments in another way."""
    published, size = opened.published, opened.config.store.part_documents
    uneven = any(part.documents != size for part in published.parts[:-1])
    return published.deleted is not None or len(published.segments) > 1 or uneven


def _fold(
    opened: Change, options: RunOptions, progress: Progress, model: str | Path | None
) -> tuple[Manifest, tuple[str, ...]]:
    index, published = opened.index, opened.published
    # The tokenizer is needed where documents are chunked; elsewhere a model that is gone does not stand in the way.
    build = opened.context(model) if opened.config.chunk.tokens else opened.context_without_encoder()
    known = ReuseInOrder(index, published, opened.numbering)
    ingested = ingest(opened.all_documents(), build, progress, known)
    source = EncoderSource(build.config, options, build.spec)
    encoded = encode_parts(ingested.slots, build, source, options, progress)
    records = [slot.record or encoded[slot.name].record for slot in ingested.slots]
    transform, generation = published_transform(index, published), next_generation(index)
    contents = ingested.contents(index)
    queries = LateEncoder(opened, build.config, options, model)
    segment = write_segment_of(
        index, generation, contents, records, transform, build.config, queries, options, progress
    )
    of_the_fit = ("sample", "held_out", "covariance", "drift")
    kept: dict[str, Any] = {name: published.quality[name] for name in of_the_fit if name in published.quality}
    kept |= AddedSince.of(published).compacted(published, opened.numbering, contents.rows).figures()
    manifest = publish_generation(
        index,
        generation,
        published_recipe(published),
        new_parts(index, ingested.slots, records),
        transform,
        [segment.entry(index)],
        None,
        kept | segment.quality,
    )
    return manifest, segment.filled.notes


def _forget(index: Path, keep: int, grace: float) -> int:
    """Remove manifests of old generations; what only they name goes with the next sweep. Returns how many."""
    numbers, removed = list_generations(index), 0
    for number, follower in pairwise(numbers[: max(0, len(numbers) - keep + 1)]):
        path = index / layout.manifest_name(follower)
        try:
            age = time.time() - path.stat().st_mtime
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror}.") from error
        if age >= grace:
            remove_file(index, layout.manifest_name(number))
            removed += 1
    return removed


def _bytes(index: Path) -> int:
    return sum(path.stat().st_size for path in index.rglob("*") if path.is_file())
