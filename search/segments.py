"""Search of all segments of an index as one, with filtered rows excluded and exact scores.

A segment is a FAISS index of consecutive stored rows. Index types that compress vectors return only candidates, which
are scored again from the stored embeddings, so a score depends neither on the index type nor on the segment. If few
rows are allowed, or an approximate search returns too few, all allowed rows are scored: a search returns k hits
whenever k documents match.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from indexer import ann
from indexer.arrays import Mask, RowIds, SearchResult, Vectors
from indexer.errors import CorruptIndexError, ShardLostError, spelled
from indexer.store.files import FileDigest
from indexer.store.integrity import BackgroundCheck
from indexer.store.manifest import SegmentEntry
from indexer.store.segments import open_segment_file
from indexer.system.threads import ordered_map

_QUERIES = 64  # whose candidates a thread scores again, at least

VectorsOf = Callable[[RowIds], Vectors]
"""Returns unit vectors (n, k) of stored rows."""
Finish = Callable[[], list[SearchResult]]
"""Waits for a search and returns for each query the best rows, numbered from the segment's first row."""
MissingRows = dict[str, SegmentEntry]
"""The segments without an answer, by file, if partial answers are allowed."""


class SearchedSegment(Protocol):
    """A segment that is opened here (`Segment`) or in another process (`search.shards`)."""

    @property
    def entry(self) -> SegmentEntry:
        """The segment's file, rows and index type."""

    @property
    def exact(self) -> bool:
        """Whether it holds the vectors as they are and compares a query with each."""

    def begin(self, queries: Vectors, k: int, mask: Mask | None, exact: bool) -> Finish:
        """Start a search that runs concurrently with other segments' searches."""

    def set_search_parameters(self, parameters: dict[str, int]) -> None:
        """Set the search parameters of all later searches."""


@dataclass(frozen=True)
class Segment:
    """An open segment. `background` hashes a large file while it is already searched."""

    entry: SegmentEntry
    index: Any
    vectors_of: VectorsOf
    background: BackgroundCheck | None = None

    @property
    def exact(self) -> bool:
        return ann.is_exact(self.entry.factory)

    def require_sound(self, wait: bool = False) -> None:
        """Raise CorruptIndexError if the background hashing found a changed file; `wait` until it ends."""
        if self.background is not None:
            self.background.require_sound(wait)

    def begin(self, queries: Vectors, k: int, mask: Mask | None, exact: bool) -> Finish:
        """See `SearchedSegment`; the search itself runs when the result is requested."""
        return partial(self.search, queries, k, mask, exact)

    def search(self, queries: Vectors, k: int, mask: Mask | None, exact: bool) -> list[SearchResult]:
        """Return the best rows of each query (n, k), numbered from the first row. Raises CorruptIndexError."""
        try:
            results = _search_segment(self, queries, k, mask, exact)
        except RuntimeError as error:  # from FAISS: damage that loading did not detect
            reason = str(error).partition("\n")[0]
            raise CorruptIndexError(
                f"{self.entry.file}: cannot be searched: {reason}. Fix: run "
                f"{spelled('verify_index', 'isotrope verify')}."
            ) from error
        self.require_sound()
        return results

    def set_search_parameters(self, parameters: dict[str, int]) -> None:
        ann.set_search_parameters(self.index, parameters)


def open_segment(
    path: Path, entry: SegmentEntry, digest: FileDigest, dim: int, vectors_of: VectorsOf, at_once: bool
) -> Segment:
    """Open a segment; `at_once` hashes it now, for a small index. Raises CorruptIndexError."""
    index, background = open_segment_file(path, entry, digest, dim, at_once)
    return Segment(entry, index, vectors_of, background)


def search_segments(
    segments: Sequence[SearchedSegment],
    queries: Vectors,
    k: int,
    allowed: Mask | None,
    exact: bool = False,
    missing: MissingRows | None = None,
) -> list[SearchResult]:
    """Return (scores, rows) for each query (n, k): the best k stored rows and all ties with the k-th, best first.

    `allowed` (stored rows,) is a mask of the rows that may be found, None for all; `exact` scores each of them.
    Segments in other processes are searched concurrently. The segments of lost processes are added to `missing`, whose
    segments are left out; if that is None, ShardLostError is raised.
    """
    if not len(queries):
        return []
    results: list[list[SearchResult]] = [[] for _ in queries]
    segments = [segment for segment in segments if segment.entry.file not in (missing or ())]
    begun = [segment.begin(queries, k, _mask(allowed, segment.entry), exact) for segment in segments]
    for segment, finish in zip(segments, begun, strict=True):
        try:
            found = finish()
        except ShardLostError:
            if missing is None:
                raise
            missing[segment.entry.file] = segment.entry
            continue
        for query, (scores, rows) in enumerate(found):
            results[query].append((scores, rows + segment.entry.first_row))
    return [ann.merge_top_k(pieces, k) for pieces in results]


def _mask(allowed: Mask | None, entry: SegmentEntry) -> Mask | None:
    """Return the mask of a segment's rows; None if all may be found."""
    if allowed is None:
        return None
    mask = allowed[entry.first_row : entry.first_row + entry.rows]
    return None if mask.all() else mask


def _search_segment(segment: Segment, queries: Vectors, k: int, mask: Mask | None, exact: bool) -> list[SearchResult]:
    count = segment.entry.rows if mask is None else int(np.count_nonzero(mask))
    if not count:
        return [ann.nothing() for _ in queries]
    if segment.exact:
        return ann.search_index(segment.index, queries, k, mask)
    if exact or (mask is not None and _is_cheaper_to_score(segment, len(queries), k, count)):
        return _score(segment, queries, k, mask)
    found = ann.search_index(segment.index, queries, k, mask)
    threads = max(1, min(ann.faiss_threads(), len(queries) // _QUERIES))
    cuts = [len(queries) * part // threads for part in range(threads + 1)]
    blocks = [slice(*cut) for cut in pairwise(cuts)]
    rescored = ordered_map(lambda block: _rescored(segment, queries[block], found[block]), blocks, threads)
    results = [answer for block in rescored for answer in block]
    short = [query for query, best in enumerate(results) if len(best[1]) < min(k, count)]
    if short:
        for query, best in zip(short, _score(segment, queries[short], k, mask), strict=True):
            results[query] = best
    return results


def _is_cheaper_to_score(segment: Segment, queries: int, k: int, rows: int) -> bool:
    """Return whether scoring `rows` rows costs less than searching.

    Scoring computes each vector once for all queries, by one random read and one product per dimension.
    """
    width = 4 * segment.index.d
    making = ann.QueryCost(bytes=rows * width, products=rows * segment.index.d, fetches=rows)
    scoring = ann.QueryCost(bytes=rows * width, products=0)
    return making.cost + queries * scoring.cost <= queries * ann.query_cost(segment.index, k, allowed=rows).cost


def _score(segment: Segment, queries: Vectors, k: int, mask: Mask | None) -> list[SearchResult]:
    """Return the best rows of each query, by scoring all rows of the mask."""
    rows = np.arange(segment.entry.rows) if mask is None else np.flatnonzero(mask)
    return ann.search_rows(queries, k, rows, lambda some: segment.vectors_of(some + segment.entry.first_row))


def _rescored(segment: Segment, queries: Vectors, approximate: Sequence[SearchResult]) -> list[SearchResult]:
    """Return the candidates of an approximate search with exact scores, best first."""
    counts = [len(rows) for _, rows in approximate]
    candidates = np.concatenate([rows for _, rows in approximate])
    if not len(candidates):
        return list(approximate)
    rows, places = np.unique(candidates, return_inverse=True)
    owners = np.repeat(np.arange(len(counts)), counts)
    vectors = segment.vectors_of(rows + segment.entry.first_row)
    scores = ann.pair_products(queries, owners, vectors, places).astype(np.float32)
    order = np.lexsort((candidates, -scores, owners))
    ends = np.cumsum(counts)[:-1]
    return list(zip(np.split(scores[order], ends), np.split(candidates[order], ends), strict=True))
