"""Checking a whole index: every byte against its hash, every count, and that vectors are what they should be."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from indexer import ann
from indexer.errors import CorruptIndexError
from indexer.pipeline.gates import SCORE_TOLERANCE, self_hits
from indexer.settings import named_path
from indexer.store import layout
from indexer.store.embeddings import open_embeddings
from indexer.store.integrity import damaged_files
from indexer.store.manifest import load_manifest
from search.index import Index

_SAMPLE_ROWS = 64  # a part, compared with a fresh transform of their embeddings


@dataclass
class VerifyReport:
    """What `verify_index` found. `problems` is empty for an index in order."""

    index: Path
    generation: int
    files: int = 0
    documents: int = 0
    vectors_compared: int = 0
    self_hits: float = 1.0
    problems: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.problems


def verify_index(index: str | Path, on_file: Callable[[str], None] = lambda name: None) -> VerifyReport:
    """Hash every file; if all are right, also compare counts, vectors and self-hits with each other.

    `on_file` is called with each file's name once it is hashed. Raises NotAnIndexError and StoreError when there
    is nothing to verify, and CorruptIndexError when the manifest itself is damaged; all other damage is listed.
    """
    path = named_path(index, "the index")
    manifest = load_manifest(path)
    found = VerifyReport(path, manifest.generation, len(manifest.files), manifest.documents)
    found.problems = [str(error) for error in damaged_files(path, manifest, on_file)]
    if found.problems:
        return found
    try:
        opened = Index(path, manifest)
        found.problems += _counts(opened)
        _compare_vectors(opened, found)
    except CorruptIndexError as error:
        found.problems.append(str(error))
    return found


def _counts(index: Index) -> list[str]:
    manifest = index.manifest
    problems = []
    in_parts = sum(part.rows for part in manifest.parts)
    in_segments = sum(segment.index.ntotal for segment in index.segments)
    if in_parts != in_segments:
        problems.append(f"rows: {in_parts:,} in parts, {in_segments:,} in segments")
    live = index.numbering.live_rows
    rows = in_parts if live is None else int(np.count_nonzero(live))
    if rows != manifest.rows:
        problems.append(f"rows: {rows:,} are live, {manifest.rows:,} in the manifest")
    ids = list(index.documents.all_ids())
    if len(ids) != manifest.documents:
        problems.append(f"documents: {len(ids):,} are live, {manifest.documents:,} in the manifest")
    if len(set(ids)) != len(ids):
        problems.append(f"documents: {len(ids) - len(set(ids)):,} ids occur more than once")
    return problems


def _compare_vectors(index: Index, found: VerifyReport) -> None:
    """Transform some stored embeddings again: the index must find them, and an exact one must hold them.

    Deleted rows are compared too, but are not looked for.
    """
    live, numbering = index.numbering.live_rows, index.numbering
    hits = looked = first = 0
    for part in index.manifest.parts:
        embeddings = open_embeddings(index.path / part.name)
        if len(embeddings) != part.rows:
            found.problems.append(f"{part.name}/{layout.EMBEDDINGS}: {len(embeddings):,} rows instead of {part.rows:,}")
            return
        rows = np.unique(np.linspace(0, part.rows - 1, _SAMPLE_ROWS).astype(np.int64))
        vectors = index.transform.transform(embeddings[rows], "document")
        _compare_stored(index, rows + first, vectors, found)
        there = slice(None) if live is None else live[rows + first]
        own = numbering.numbers_of((rows + first)[there])
        hits += self_hits(index.search(vectors[there], 1), vectors[there], own)
        looked, found.vectors_compared = looked + len(own), found.vectors_compared + len(rows)
        first += part.rows
    found.self_hits = hits / looked if looked else 1.0
    limit = 1.0 if all(segment.exact for segment in index.segments) else index.config.index.recall
    if found.self_hits < limit:
        found.problems.append(f"self-hit: {found.self_hits:.4f} of the sampled rows find themselves, {limit} must")


def _compare_stored(index: Index, rows: Any, vectors: Any, found: VerifyReport) -> None:
    for segment in index.segments:
        entry = segment.entry
        inside = (rows >= entry.first_row) & (rows < entry.first_row + entry.rows)
        if not segment.exact or not inside.any():
            continue
        gap = np.abs(ann.reconstruct(segment.index, rows[inside] - entry.first_row) - vectors[inside]).max()
        if not gap <= SCORE_TOLERANCE:
            found.problems.append(f"{entry.file}: vectors differ from the transformed embeddings by {gap:.2g}")
