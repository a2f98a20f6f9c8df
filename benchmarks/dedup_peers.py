"""The joins of `benchmarks.dedup`, each as its users would write or call it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from indexer.arrays import Vectors
from search.dedup.greedy import DedupDocuments, decide
from search.dedup.join.approximate import ApproximateJoin
from search.dedup.join.exact import ExactJoin
from search.dedup.pairs import PairSource, pair_scores
from search.dedup.settings import JoinOptions, lowest_score

Keys = npt.NDArray[np.int64]  # a pair of rows as one number: the smaller row times the number of rows, plus the other
_ROWS = 2048  # of a tile; about the fastest size for float32 products here
_PAIR_LIMIT = 10_000_000


@dataclass(frozen=True)
class Outcome:
    """The sorted pairs of a join, or the kept rows of a whole deduplication."""

    pairs: Keys
    kept: npt.NDArray[np.bool_] | None = None


def float32_products(vectors: Vectors, threshold: float, threads: int) -> Outcome:
    """Join by blocked float32 products of the upper triangle; only tiles with a high maximum are searched."""
    torch.set_num_threads(threads)
    rows = torch.from_numpy(vectors)
    lowest, keys = float(np.float32(threshold)), []
    for start in range(0, len(rows), _ROWS):
        left = rows[start : start + _ROWS]
        for other in range(start, len(rows), _ROWS):
            products = left @ rows[other : other + _ROWS].T
            hit = (products.amax(dim=1) >= lowest).nonzero()[:, 0]
            cells = (products[hit] >= lowest).nonzero()
            keys.append(_keys(hit[cells[:, 0]].numpy() + start, cells[:, 1].numpy() + other, len(rows)))
    return Outcome(_sorted(keys))


def plain_float32_products(vectors: Vectors, threshold: float, threads: int) -> Outcome:
    """Join by blocked float32 products in the most common form: `numpy.nonzero` of every tile."""
    torch.set_num_threads(threads)
    rows = torch.from_numpy(vectors)
    keys = []
    for start in range(0, len(rows), _ROWS):
        for other in range(start, len(rows), _ROWS):
            products = (rows[start : start + _ROWS] @ rows[other : other + _ROWS].T).numpy()
            left, right = np.nonzero(products >= np.float32(threshold))
            keys.append(_keys(left + start, right + other, len(rows)))
    return Outcome(_sorted(keys))


def faiss_range_search(vectors: Vectors, threshold: float, threads: int) -> Outcome:
    """Join by `IndexFlatIP.range_search` of every row, which returns each pair twice, and each row with itself."""
    import faiss

    faiss.omp_set_num_threads(threads)
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    keys = []
    for start in range(0, len(vectors), _ROWS):
        limits, _, rows = index.range_search(vectors[start : start + _ROWS], float(np.float32(threshold)))
        left = np.repeat(np.arange(len(limits) - 1), np.diff(limits).astype(np.int64)) + start
        keys.append(_keys(left, rows, len(vectors)))
    return Outcome(_sorted(keys))


def isotrope_exact(vectors: Vectors, threshold: float, threads: int, device: str = "cpu") -> Outcome:
    """Run Isotrope's exact join."""
    with TemporaryDirectory() as folder:
        options = JoinOptions(device=device, threads=threads)
        return _pairs_of(ExactJoin(vectors, lowest_score(threshold), Path(folder), options), len(vectors))


def isotrope_ann(vectors: Vectors, threshold: float, threads: int, device: str = "cpu") -> Outcome:
    """Run Isotrope's approximate join, including its measurement of recall."""
    with TemporaryDirectory() as folder:
        options = JoinOptions(device=device, threads=threads)
        return _pairs_of(ApproximateJoin(vectors, lowest_score(threshold), Path(folder), options), len(vectors))


def isotrope_deduplication(vectors: Vectors, threshold: float, threads: int, device: str = "cpu") -> Outcome:
    """Run Isotrope's exact join and decide which rows are kept."""
    everything = np.arange(len(vectors))
    with TemporaryDirectory() as folder:
        join = ExactJoin(vectors, lowest_score(threshold), Path(folder), JoinOptions(device=device, threads=threads))
        collection = DedupDocuments(
            everything, everything, np.full(len(vectors), -1), everything, pair_scores(vectors, vectors)
        )
        decision = decide(collection, join, drop_texts=False, pair_limit=_PAIR_LIMIT)
    return Outcome(np.zeros(0, np.int64), decision.kept_by < 0)


def semhash_deduplication(vectors: Vectors, threshold: float, threads: int) -> Outcome:
    """Run `SemHash.from_embeddings(...).self_deduplicate(...)` with its defaults (usearch)."""
    from semhash import SemHash

    records = [{"text": str(row)} for row in range(len(vectors))]
    no_model: Any = _NoModel()
    semhash = SemHash.from_embeddings(vectors, records, model=no_model, columns=["text"])
    kept = np.zeros(len(vectors), bool)
    kept[[int(record["text"]) for record in semhash.self_deduplicate(threshold).selected]] = True
    neighbours = semhash.index.query_threshold(vectors, threshold)
    pairs = [_keys(np.full(len(rows), row), np.asarray(rows), len(vectors)) for row, (rows, _) in enumerate(neighbours)]
    return Outcome(_sorted(pairs), kept)


JOINS: dict[str, Callable[..., Outcome]] = {
    "float32 products": float32_products,
    "float32 products, nonzero of every tile": plain_float32_products,
    "FAISS range_search": faiss_range_search,
    "isotrope, exact": isotrope_exact,
    "isotrope, ann": isotrope_ann,
    "isotrope, exact, with decision": isotrope_deduplication,
}


def true_pairs(vectors: Vectors, threshold: float, threads: int) -> Keys:
    """Return all pairs whose score (float64, rounded) reaches the threshold, from float32 products."""
    lower = float32_products(vectors, threshold - 1e-4, threads).pairs
    left, right = np.divmod(lower, len(vectors))
    exact = np.concatenate([
        pair_scores(vectors[left[part]], vectors[right[part]])
        for part in np.array_split(np.arange(len(lower)), max(1, len(lower) // 100_000))
    ])  # fmt: skip
    return lower[exact >= lowest_score(threshold)]


def violations(outcome: Outcome, truth: Keys, vectors: Vectors) -> dict[str, int]:
    """Count rows dropped without a kept duplicate, and pairs of kept rows above the threshold."""
    assert outcome.kept is not None
    left, right = np.divmod(truth, len(vectors))
    kept = outcome.kept
    backed = np.zeros(len(vectors), bool)
    backed[right[kept[left]]] = True
    backed[left[kept[right]]] = True
    return {
        "dropped without a kept duplicate": int(np.count_nonzero(~kept & ~backed)),
        "kept pairs above the threshold": int(np.count_nonzero(kept[left] & kept[right])),
        "dropped": int(np.count_nonzero(~kept)),
    }


def _pairs_of(source: PairSource, rows: int) -> Outcome:
    return Outcome(_sorted([_keys(pairs.left, pairs.right, rows) for pairs in source.within(np.arange(rows))]))


def _keys(left: npt.NDArray[Any], right: npt.NDArray[Any], rows: int) -> Keys:
    low, high = np.minimum(left, right).astype(np.int64), np.maximum(left, right).astype(np.int64)
    keys: Keys = (low * rows + high)[low != high]
    return keys


def _sorted(keys: list[Keys]) -> Keys:
    return np.unique(np.concatenate([np.zeros(0, np.int64), *keys]))


class _NoModel:
    """A model that must not be called, because the vectors are given."""

    def encode(self, texts: list[str]) -> None:
        raise AssertionError("encode was called; expected only given vectors")
