"""The last step of every change: the files of the next generation, and the manifest that makes them the index."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from indexer.config import BuildConfig
from indexer.corpus.schema import merge_schemas, schema_from_json, schema_to_json
from indexer.pipeline.context import BuildContext
from indexer.pipeline.encoder_state import state_files
from indexer.pipeline.ingest import PendingPart
from indexer.pipeline.rows import contents_of
from indexer.pipeline.stored_transform import StoredTransform
from indexer.store import layout, parts
from indexer.store.checked import check_file
from indexer.store.files import FileDigest, digest_file
from indexer.store.manifest import DELETED, ENCODER_STATE, WINDOWS, Manifest, PartEntry, SegmentEntry, publish
from indexer.store.manifest import list_generations as published_generations
from indexer.store.numbering import Mask, write_deleted
from indexer.versions import library_versions

Files = dict[str, FileDigest]


@dataclass(frozen=True)
class Parts:
    """Parts of a generation with their files and the schema of their metadata."""

    entries: tuple[PartEntry, ...]
    files: Files
    schema: dict[str, Any]

    def __add__(self, other: "Parts") -> "Parts":
        schema = schema_to_json(merge_schemas([schema_from_json(self.schema), schema_from_json(other.schema)]))
        return Parts(self.entries + other.entries, self.files | other.files, schema)


@dataclass(frozen=True)
class Recipe:
    """The settings and the encoder of a generation; `state` are the files of the encoder's fitted state."""

    config: dict[str, Any]
    encoder: dict[str, Any]
    fingerprint: str
    state: Files


def next_generation(index: Path) -> int:
    """The number of the generation that is published next."""
    return (published_generations(index) or [0])[-1] + 1


def new_parts(index: Path, slots: Sequence[PendingPart], records: Sequence[parts.PartRecord]) -> Parts:
    """Parts that this run has written, or found complete."""
    files: Files = {}
    for slot, record in zip(slots, records, strict=True):
        files |= {f"{slot.name}/{name}": stamp for name, stamp in record.files.items()}
        files[f"{slot.name}/{layout.PART}"] = digest_file(index / slot.name / layout.PART)
    entries = tuple(
        PartEntry(slot.name, slot.documents, record.rows, slot.written.document_key, slot.written.embedding_key)
        for slot, record in zip(slots, records, strict=True)
    )
    return Parts(entries, files, schema_to_json(merge_schemas([schema_from_json(record.schema) for record in records])))


def published_parts(published: Manifest) -> Parts:
    """The parts of a published generation, kept as they are."""
    names = {part.name for part in published.parts}
    files = {name: stamp for name, stamp in published.files.items() if name.rpartition("/")[0] in names}
    return Parts(published.parts, files, published.schema)


def recipe_of_build(build: BuildContext, dim: int) -> Recipe:
    """The recipe and encoder of a build; embeddings have `dim` dimensions."""
    spec = build.spec
    # A hub id is looked up again by whoever opens the index; only a folder's place must be remembered.
    folder = spec.folder if spec.local else ""
    encoder = {"model": spec.model, "folder": folder, "dim": dim, "identity": spec.identity.to_dict()}
    state = state_files(build.index, spec) if spec.state else {}
    return Recipe(build.config.to_dict(), encoder, spec.fingerprint, state)


def published_recipe(published: Manifest, config: BuildConfig | None = None) -> Recipe:
    """The recipe and encoder of a published generation, with another `config` if it is given."""
    state = {name: stamp for name, stamp in published.files.items() if name.startswith(f"{layout.ENCODER}/")}
    plain = published.config if config is None else config.to_dict()
    return Recipe(plain, published.encoder, published.fingerprint, state)


def publish_generation(
    index: Path,
    generation: int,
    recipe: Recipe,
    held: Parts,
    transform: StoredTransform,
    segments: Sequence[tuple[SegmentEntry, FileDigest]],
    live: Mask | None,
    quality: dict[str, Any],
) -> Manifest:
    """Publish what has been written as the next generation. `live` (stored documents,): None when none is deleted."""
    files = held.files | recipe.state | transform.files | {entry.file: stamp for entry, stamp in segments}
    deleted, rows = None, sum(part.rows for part in held.entries)
    if live is not None and not live.all():
        deleted, files[deleted] = write_deleted(index, generation, np.flatnonzero(~live))
        for part in (part for part in held.entries if part.rows != part.documents):
            check_file(index / part.name / layout.WINDOWS, files[f"{part.name}/{layout.WINDOWS}"])
        rows = int(np.count_nonzero(live[contents_of(index, held.entries, live).document_of]))
    chunked = (
        any(part.rows != part.documents for part in held.entries)
        or BuildConfig.from_dict(recipe.config).chunk.tokens > 0
    )
    features = {ENCODER_STATE: bool(recipe.state), DELETED: deleted is not None, WINDOWS: chunked}
    manifest = Manifest(
        generation=generation,
        config=recipe.config,
        encoder=recipe.encoder,
        fingerprint=recipe.fingerprint,
        transform=transform.entry,
        parts=held.entries,
        segments=tuple(entry for entry, _ in segments),
        files=files,
        features=tuple(name for name, needed in features.items() if needed),
        schema=held.schema,
        documents=sum(part.documents for part in held.entries) if live is None else int(np.count_nonzero(live)),
        rows=rows,
        quality=quality,
        versions=library_versions(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        deleted=deleted,
    )
    publish(index, manifest)
    return manifest
