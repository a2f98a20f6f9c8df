"""Search of inverted lists that probes as many lists as a query needs.

FAISS probes the `nprobe` best lists for every query. A query close to one centroid needs fewer, a query between many
centroids needs more. Here a query probes all lists whose centroid scores at most a gap less than its best centroids,
and `nprobe` is the number of lists on average, from which the gap follows. On 200,000 whitened vectors of 128
dimensions in 512 lists, 99 % of the ten best rows are among 51,000 rows; with equally many lists for every query, they
are among 74,000. Limits relative to the best list are from SPANN (Chen et al., NeurIPS 2021).
"""

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from indexer.ann.faiss_index import (
    faiss_module,
    faiss_threads,
    innermost,
    is_flat,
    pretransformed,
    single_faiss_thread,
    unwrap,
)
from indexer.ann.rescoring import best_candidates, stored_vectors
from indexer.arrays import Float32Array, RowIds, Scores, Vectors
from indexer.system.threads import ordered_map

_BEST = 8  # lists whose mean score the others are compared with
_EXAMPLES = 128  # vectors by which the gap for a number of lists is found
_SCORES = 1 << 22  # of centroids, for the queries of one FAISS call
_QUERIES = 32  # of a thread, at least
_known: "WeakKeyDictionary[Any, ProbedLists | None]" = WeakKeyDictionary()


@dataclass(frozen=True)
class ProbedLists:
    """The parts of an index with inverted lists that its search uses, and some stored vectors as example queries."""

    lists: Any
    """FAISS's index of the lists."""
    centroids: Any
    """The matrix of the centroids. FAISS multiplies, because the threads of NumPy's BLAS stay busy after a product."""
    examples: Vectors
    """Vectors (n, d) as the lists receive them."""
    outer: tuple[Any, ...]
    """IndexPreTransforms in front of the store, or of the lists if there is none."""
    store: Any | None
    """The finer vectors of a refine layer."""
    inner: tuple[Any, ...]
    """IndexPreTransforms between the store and the lists."""
    _gaps: dict[int, np.float32] = field(default_factory=dict)

    def search(self, queries: Vectors, reach: int, nprobe: int, candidates: int, params: Any) -> tuple[Scores, RowIds]:
        """Return the best `reach` rows of queries (n, d), best first, (n, reach), padded with row -1.

        Probes `nprobe` lists on average. A refine layer scores `candidates` rows again. `params` are those of FAISS,
        with the number of all lists.
        """

        def search(some: Vectors) -> tuple[Scores, RowIds]:
            finer = pretransformed(self.outer, some)
            if self.store is None:
                return self._scan(finer, reach, nprobe, params)
            _, rows = self._scan(pretransformed(self.inner, finer), max(reach, candidates), nprobe, params)
            return best_candidates(self.store, finer, rows, reach)

        def search_on_one_thread(some: Vectors) -> tuple[Scores, RowIds]:
            with single_faiss_thread():
                return search(some)

        threads = min(faiss_threads(), len(queries) // _QUERIES)
        if threads < 2:
            return search(queries)
        found = list(ordered_map(search_on_one_thread, np.array_split(queries, threads), threads))
        return np.concatenate([scores for scores, _ in found]), np.concatenate([rows for _, rows in found])

    def count(self, query: Vectors, nprobe: int) -> int:
        """Return the number of lists that a query (1, d) probes."""
        near = self.centroids.apply(pretransformed((*self.outer, *self.inner), query))
        return int(np.count_nonzero(near >= self._limits(near, nprobe)[:, None]))

    def _scan(self, queries: Vectors, wanted: int, nprobe: int, params: Any) -> tuple[Scores, RowIds]:
        """Return the best `wanted` rows of queries (n, d) by the codes in the lists, (n, wanted)."""
        faiss, count = faiss_module(), self.lists.nlist
        scores, rows = np.empty((len(queries), wanted), np.float32), np.empty((len(queries), wanted), np.int64)
        step = max(1, _SCORES // count)
        for start in range(0, len(queries), step):
            some = slice(start, start + step)
            near = self.centroids.apply(queries[some])
            probed = np.where(near >= self._limits(near, nprobe)[:, None], np.arange(count), -1)
            arrays = (queries[some], probed, near, scores[some], rows[some])
            given, *others = map(faiss.swig_ptr, arrays)
            self.lists.search_preassigned_c(len(near), given, wanted, *others, False, params)
        return scores, rows

    def _limits(self, near: Float32Array, nprobe: int) -> Float32Array:
        """Return the least score (n,) of a probed list, from the scores (n, lists) of all. The best list is always
        probed."""
        if nprobe >= near.shape[1]:
            return np.full(len(near), -np.inf, np.float32)
        if nprobe not in self._gaps:
            self._gaps[nprobe] = self._gap(nprobe)
        best = _best_scores(near)
        limits: Float32Array = np.minimum(best.mean(axis=1) - self._gaps[nprobe], best.max(axis=1))
        return limits

    def _gap(self, nprobe: int) -> np.float32:
        """Return the gap with which the examples probe `nprobe` lists on average."""
        near = self.centroids.apply(self.examples)
        gaps = (_best_scores(near).mean(axis=1)[:, None] - near).ravel()
        place = nprobe * len(near) - 1
        return np.float32(np.partition(gaps, place)[place])


def probed_lists(index: Any) -> ProbedLists | None:
    """Return the inverted lists of an index if queries can choose among them: it has several lists with flat centroids
    and some rows. None for other kinds."""
    if index not in _known and index.ntotal:
        _known[index] = _lists_of(index)
    return _known.get(index)


def _lists_of(index: Any) -> ProbedLists | None:
    faiss, lists, layers = faiss_module(), innermost(index), unwrap(index)
    if not layers or not isinstance(lists, faiss.IndexIVF) or lists.nlist < 2:
        return None
    coarse, finer = faiss.downcast_index(lists.quantizer), [isinstance(layer, faiss.IndexRefine) for layer in layers]
    if not is_flat(coarse) or coarse.ntotal != lists.nlist or sum(finer) > 1:
        return None
    outer, store, inner = layers[:-1], None, layers[:0]
    if any(finer):
        outer, inner = layers[: finer.index(True)], layers[finer.index(True) + 1 : -1]
        store = faiss.downcast_index(layers[finer.index(True)].refine_index)
        rows = np.random.default_rng(0).integers(0, store.ntotal, _EXAMPLES)
        examples = pretransformed(inner, stored_vectors(store, rows))
    elif "FastScan" in type(lists).__name__:
        return None  # FAISS 1.15 crashes when it decodes a vector of such lists
    else:
        examples = _vectors_in(lists)
    centroids = faiss.LinearTransform(lists.d, lists.nlist, False)
    faiss.copy_array_to_vector(coarse.reconstruct_n(0, lists.nlist).ravel(), centroids.A)
    centroids.is_trained = True
    return ProbedLists(lists, centroids, examples, outer, store, inner)


def _vectors_in(lists: Any) -> Vectors:
    """Return one vector of each of some lists."""
    vectors = list[Vectors]()
    for number in np.random.default_rng(0).permutation(lists.nlist).tolist():
        if (size := lists.invlists.list_size(number)) and len(vectors) < _EXAMPLES:
            vectors.append(np.empty(lists.d, np.float32))
            lists.reconstruct_from_offset(number, size // 2, faiss_module().swig_ptr(vectors[-1]))
    return np.stack(vectors)


def _best_scores(near: Float32Array) -> Float32Array:
    """Return each query's best scores of lists, (n, _BEST), from all (n, lists)."""
    count = min(_BEST, near.shape[1])
    return np.partition(near, near.shape[1] - count, axis=1)[:, -count:]
