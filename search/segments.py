"""The segments of an index, searched as one: rows that may not be found are left out, every score is exact.

A segment is a FAISS index of a run of stored rows. Kinds that do not hold the vectors as they are give candidates only,
whose scores are then taken from the stored embeddings, so a hit's score depends neither on the kind of index nor on
which segment it lies in. Few rows are scored one by one instead of searched for, as are all allowed rows when an
approximate search gave fewer than there are: k hits come back whenever k documents match.
"""

import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from indexer import ann
from indexer.arrays import Mask, RowIds, SearchResult, Vectors
from indexer.errors import ConfigError, CorruptIndexError, ShardLostError
from indexer.store.files import BLOCK, FileDigest
from indexer.store.integrity import BackgroundCheck, CheckedFile, map_checked, read_checked
from indexer.store.manifest import SegmentEntry
from indexer.store.stores import holder_of

MAPPED_BYTES = 256 << 20  # a larger segment is memory-mapped


class VectorsOf(Protocol):
    """Unit vectors (n, k) of stored rows."""

    def __call__(self, rows: RowIds) -> Vectors: ...


Finish = Callable[[], list[SearchResult]]
"""Waits for what was begun: for each query the best rows of a segment, counted from its first."""


class Searchable(Protocol):
    """A segment that `search_segments` can search."""

    @property
    def entry(self) -> SegmentEntry:
        """The file, rows and kind of the segment."""
        ...

    def begin(self, queries: Vectors, k: int, mask: Mask | None, vectors_of: VectorsOf, exact: bool) -> Finish:
        """Begin to search it, beside others."""
        ...


class SearchedSegment(Searchable, Protocol):
    """A segment wherever it lies: opened here (`Segment`), or held by another process (`search.shards`)."""

    @property
    def exact(self) -> bool:
        """Whether it holds the vectors as they are and compares a query with each."""
        ...

    def set_search_parameters(self, parameters: dict[str, int]) -> None:
        """Search so far from now on."""
        ...


@dataclass(frozen=True)
class Segment:
    """An opened segment. `background` is the hashing of a file that is searched before all of it was read."""

    entry: SegmentEntry
    index: Any
    background: BackgroundCheck | None = None

    @property
    def exact(self) -> bool:
        """Whether it holds the vectors as they are and compares a query with each."""
        return ann.is_exact(self.entry.factory)

    def require_sound(self, wait: bool = False) -> None:
        """Raises CorruptIndexError if the hashing in the background has found another file than was published.

        `wait` for the end of it.
        """
        if self.background is not None:
            self.background.require_sound(wait)

    def begin(self, queries: Vectors, k: int, mask: Mask | None, vectors_of: VectorsOf, exact: bool) -> Finish:
        """See `SearchedSegment`: nothing is done before its turn comes."""
        return partial(self.search, queries, k, mask, vectors_of, exact)

    def search(
        self, queries: Vectors, k: int, mask: Mask | None, vectors_of: VectorsOf, exact: bool
    ) -> list[SearchResult]:
        """For each query (n, k) the best rows, counted from the first. Raises CorruptIndexError."""
        try:
            found = _search_segment(self, queries, k, mask, vectors_of, exact)
        except RuntimeError as error:  # FAISS's own: the file is not what it seemed when it was loaded
            reason = str(error).partition("\n")[0]
            raise CorruptIndexError(f"{self.entry.file}: cannot be searched: {reason}. Run isotrope verify.") from error
        self.require_sound()
        return found

    def set_search_parameters(self, parameters: dict[str, int]) -> None:
        """See `SearchedSegment`."""
        ann.set_search_parameters(self.index, parameters)


class MissingRows:
    """The segments that gave no answer, where answers without them were asked for."""

    def __init__(self) -> None:
        self._lost: dict[str, SegmentEntry] = {}

    @property
    def segments(self) -> tuple[SegmentEntry, ...]:
        """Those lost, in row order."""
        return tuple(sorted(self._lost.values(), key=lambda entry: entry.first_row))

    def has(self, entry: SegmentEntry) -> bool:
        """Whether a segment is lost already."""
        return entry.file in self._lost

    def finish(self, finish: Finish, entry: SegmentEntry, queries: int) -> list[SearchResult]:
        """Return the result of a search; nothing from a segment that is lost, which is noted."""
        try:
            return finish()
        except ShardLostError:
            self._lost[entry.file] = entry
            return [ann.nothing() for _ in range(queries)]


@dataclass(frozen=True)
class DispensableSegment:
    """A segment whose loss is noted in `missing` instead of raised."""

    segment: Searchable
    missing: MissingRows

    @property
    def entry(self) -> SegmentEntry:
        """See `Searchable`."""
        return self.segment.entry

    def begin(self, queries: Vectors, k: int, mask: Mask | None, vectors_of: VectorsOf, exact: bool) -> Finish:
        """See `Searchable`. Skips a segment that is lost already: its timeout would pass once more."""
        if self.missing.has(self.entry):
            return lambda: [ann.nothing() for _ in queries]
        begun = self.segment.begin(queries, k, mask, vectors_of, exact)
        return partial(self.missing.finish, begun, self.entry, len(queries))


def open_segment(path: Path, entry: SegmentEntry, digest: FileDigest, dim: int, at_once: bool) -> Segment:
    """Open a segment; `at_once`: hash it now, as the whole index is small. Raises CorruptIndexError."""
    background = None
    small = digest.bytes <= MAPPED_BYTES
    if at_once or (small and not holder_of(path)[0].checked_ahead):  # sha256 is twice as fast as a digest for each MiB
        index = ann.load_index(BytesIO(read_checked(path, digest)), str(path), digest.bytes)
    elif not small:
        with CheckedFile(path, digest) as file:  # what FAISS reads to lay out the index
            file.check((np.array([0, digest.bytes - 1]), np.array([BLOCK, digest.bytes])))
        mapped, descriptor = map_checked(path, digest)
        if descriptor is None:  # it reads ahead of FAISS, whose pages come one by one
            background = BackgroundCheck(path, digest)
        index = _map_index(mapped, descriptor)
    else:
        with CheckedFile(path, digest) as file:
            index = ann.load_index(file, str(path), digest.bytes)
    _require_searchable(index, path)
    if index.ntotal != entry.rows or index.d != dim:
        raise CorruptIndexError(
            f"{path}: {index.ntotal:,} vectors of {index.d} dimensions, the manifest says {entry.rows:,} of "
            f"{dim}. Build the index again."
        )
    try:
        ann.set_search_parameters(index, entry.search_parameters)
    except ConfigError as error:
        raise CorruptIndexError(f"{path}: {error} Build the index again.") from error
    return Segment(entry, index, background)


def _map_index(path: Path, descriptor: int | None) -> Any:
    """Map an index; close the descriptor when the index is collected."""
    try:
        index = ann.map_index(path)
    except BaseException:
        if descriptor is not None:
            os.close(descriptor)
        raise
    if descriptor is not None:
        weakref.finalize(index, os.close, descriptor)
    return index


def _require_searchable(index: Any, path: Path) -> None:
    """Refuse what FAISS loads and could not search, or not end searching: an efSearch of 0 makes it go on for ever."""
    try:
        ann.require_parameters(index, ann.search_parameters(index))
    except ConfigError as error:
        raise CorruptIndexError(f"{path}: {error} Build the index again.") from error
    if not index.is_trained:
        raise CorruptIndexError(f"{path}: holds an index that was not trained. Build the index again.")


def search_segments(
    segments: Sequence[Searchable],
    queries: Vectors,
    k: int,
    allowed: Mask | None,
    vectors_of: VectorsOf,
    exact: bool = False,
) -> list[SearchResult]:
    """For each query (n, k) the best k stored rows and all that tie with the k-th, best first: (scores, rows).

    `allowed` (stored rows,) says which rows may be found, None all; `exact` scores every one of them. Segments that
    other processes hold are searched at the same time.
    """
    if not len(queries):
        return []
    found: list[list[SearchResult]] = [[] for _ in queries]
    begun = [one.begin(queries, k, _mask(allowed, one.entry), vectors_of, exact) for one in segments]
    for segment, finish in zip(segments, begun, strict=True):
        for query, (scores, rows) in enumerate(finish()):
            found[query].append((scores, rows + segment.entry.first_row))
    return [ann.merge_top_k(pieces, k) for pieces in found]


def _mask(allowed: Mask | None, entry: SegmentEntry) -> Mask | None:
    """Which rows of a segment may be found; None all."""
    if allowed is None:
        return None
    mask = allowed[entry.first_row : entry.first_row + entry.rows]
    return None if mask.all() else mask


def _search_segment(
    segment: Segment, queries: Vectors, k: int, mask: Mask | None, vectors_of: VectorsOf, exact: bool
) -> list[SearchResult]:
    """Best rows of one segment, counted from its first."""
    count = segment.entry.rows if mask is None else int(np.count_nonzero(mask))
    if not count:
        return [ann.nothing() for _ in queries]
    if segment.exact:
        return ann.search_index(segment.index, queries, k, mask)
    if exact or _is_cheaper_to_score(segment, len(queries), k, count):
        return _score(segment, queries, k, _numbers(mask, segment), vectors_of)
    found = _rescored(segment, queries, ann.search_index(segment.index, queries, k, mask), vectors_of)
    short = [query for query, best in enumerate(found) if len(best[1]) < min(k, count)]
    if short:
        scored = _score(segment, queries[short], k, _numbers(mask, segment), vectors_of)
        for query, best in zip(short, scored, strict=True):
            found[query] = best
    return found


def _is_cheaper_to_score(segment: Segment, queries: int, k: int, rows: int) -> bool:
    """Whether to compute the vectors of `rows` rows and score them takes less than to search.

    A vector is made of its embedding once for all queries: a read somewhere, and a product a dimension.
    """
    width = 4 * segment.index.d
    making = ann.QueryCost(bytes=rows * width, products=rows * segment.index.d, fetches=rows)
    scoring = ann.QueryCost(bytes=rows * width, products=0)
    return making.cost + queries * scoring.cost <= queries * ann.query_cost(segment.index, k, allowed=rows).cost


def _numbers(mask: Mask | None, segment: Segment) -> RowIds:
    return np.arange(segment.entry.rows) if mask is None else np.flatnonzero(mask)


def _score(segment: Segment, queries: Vectors, k: int, rows: RowIds, vectors_of: VectorsOf) -> list[SearchResult]:
    """The best k of some rows by their exact scores."""
    return ann.search_rows(queries, k, rows, lambda some: vectors_of(some + segment.entry.first_row))


def _rescored(
    segment: Segment, queries: Vectors, found: Sequence[SearchResult], vectors_of: VectorsOf
) -> list[SearchResult]:
    """The candidates of an approximate search with the scores of their vectors, best first."""
    counts = [len(candidates) for _, candidates in found]
    candidates = np.concatenate([candidates for _, candidates in found])
    if not len(candidates):
        return list(found)
    rows, places = np.unique(candidates, return_inverse=True)
    owners = np.repeat(np.arange(len(found)), counts)
    vectors = vectors_of(rows + segment.entry.first_row)
    scores = ann.pair_products(queries, owners, vectors, places).astype(np.float32)
    order = np.lexsort((candidates, -scores, owners))
    ends = np.cumsum(counts)[:-1]
    return list(zip(np.split(scores[order], ends), np.split(candidates[order], ends), strict=True))
