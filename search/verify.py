"""Verification of a whole index: the hash of every file, every count, and a sample of vectors of each part."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from indexer import ann
from indexer.errors import CorruptIndexError
from indexer.pipeline.generation import finish_erasure
from indexer.pipeline.steps.quality_gates import SCORE_TOLERANCE, self_hits
from indexer.recipe.loading import named_path
from indexer.store import layout
from indexer.store.embeddings import open_embeddings
from indexer.store.integrity import damaged_files
from indexer.store.manifest import load_manifest
from indexer.store.stores import store_at
from indexer.typed_arguments import checked
from search.index import Index

_SAMPLE_ROWS = 64  # of each part, whose embeddings are transformed again


@dataclass
class VerifyReport:
    """Result of `verify_index`. `problems` is empty if the index is intact."""

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


@checked
def verify_index(index: str | Path, on_file: Callable[[str], None] = lambda name: None) -> VerifyReport:
    """Hash every file; if all hashes match, also check counts, vectors and self-hits.

    `on_file` is called with the name of each hashed file. Raises NotAnIndexError, StoreError, and CorruptIndexError if
    the manifest itself is damaged. All other damage is listed in the report.
    """
    path = named_path(index, "the index")
    manifest = load_manifest(path)
    report = VerifyReport(path, manifest.generation, len(manifest.files), manifest.documents)
    report.problems = [str(error) for error in damaged_files(path, manifest, on_file)]
    if store_at(path).has(layout.ERASE):
        report.problems.append(f"an erasure of documents is unfinished. Fix: {finish_erasure(path)}")
    if report.problems:
        return report
    try:
        opened = Index(path, manifest)
        report.problems += _counts(opened)
        _compare_vectors(opened, report)
    except CorruptIndexError as error:
        report.problems.append(str(error))
    return report


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


def _compare_vectors(index: Index, report: VerifyReport) -> None:
    """Transform a sample of embeddings again: the index must find the vectors, and an exact index must contain them.

    Deleted rows are compared but not searched for.
    """
    live, numbering = index.numbering.live_rows, index.numbering
    hits = searched = first = 0
    for part in index.manifest.parts:
        embeddings = open_embeddings(index.path / part.name)
        if len(embeddings) != part.rows:
            name = f"{part.name}/{layout.EMBEDDINGS}"
            report.problems.append(f"{name}: {len(embeddings):,} rows instead of {part.rows:,}")
            return
        sampled = np.unique(np.linspace(0, part.rows - 1, _SAMPLE_ROWS).astype(np.int64))
        vectors, rows = index.transform.transform(embeddings[sampled], "document"), sampled + first
        _compare_stored(index, rows, vectors, report)
        kept = slice(None) if live is None else live[rows]
        numbers = numbering.numbers_of(rows[kept])
        hits += self_hits(index.search(vectors[kept], 1), vectors[kept], numbers)
        searched, report.vectors_compared = searched + len(numbers), report.vectors_compared + len(rows)
        first += part.rows
    report.self_hits = hits / searched if searched else 1.0
    limit = 1.0 if all(segment.exact for segment in index.segments) else index.config.index.recall
    if report.self_hits < limit:
        share = f"{report.self_hits:.4f} of the sampled rows find themselves"
        report.problems.append(f"self-hit: {share}, expected {limit}")


def _compare_stored(index: Index, rows: Any, vectors: Any, report: VerifyReport) -> None:
    for segment in index.segments:
        entry = segment.entry
        inside = (rows >= entry.first_row) & (rows < entry.first_row + entry.rows)
        if not segment.exact or not inside.any():
            continue
        gap = np.abs(ann.reconstruct(segment.index, rows[inside] - entry.first_row) - vectors[inside]).max()
        if not gap <= SCORE_TOLERANCE:
            report.problems.append(f"{entry.file}: vectors differ from the transformed embeddings by {gap:.2g}")
