"""Vectors to build indexes of: real embeddings of Isotrope indexes, perturbed copies beyond those, held-out queries."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from search.opened import OpenIndex
from search.stored import StoredRows

Vectors = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
DEPTH = 10
_NOISE = 0.35  # length of what is added to a unit vector: copies score about 0.94 with the original
_BLOCK = 50_000


@dataclass(frozen=True)
class Data:
    """Unit vectors (n, d), queries (m, d) that are not among them, and the queries' exact ten best rows."""

    vectors: Vectors
    queries: Vectors
    best: Rows
    real: int  # rows that are not perturbed copies


def load(indexes: Sequence[Path], rows: int, queries: int) -> Data:
    """Distinct vectors by the first index's transform in a fixed random order, some held out as queries."""
    transform = OpenIndex.open(indexes[0]).transform
    blocks = [
        transform.transform(embeddings, "document")
        for index in indexes
        for _, embeddings in StoredRows(OpenIndex.open(index)).embedding_blocks()
    ]
    whole = np.unique(np.concatenate(blocks), axis=0)
    whole = whole[np.random.default_rng(0).permutation(len(whole))]
    held_out, vectors = whole[:queries], whole[queries : queries + rows]
    real = len(vectors)
    if real < rows:
        vectors = np.concatenate([vectors, perturbed(vectors, rows - real)])
    return Data(vectors, held_out, exact_best(vectors, held_out), real)


def perturbed(vectors: Vectors, count: int) -> Vectors:
    """`count` copies of vectors, each turned a little in a random direction."""
    draw = np.random.default_rng(1)
    made = np.empty((count, vectors.shape[1]), np.float32)
    for start in range(0, count, _BLOCK):
        some = vectors[draw.integers(0, len(vectors), min(_BLOCK, count - start))]
        noise = draw.standard_normal(some.shape, dtype=np.float32)
        noise *= _NOISE / np.linalg.norm(noise, axis=1, keepdims=True)
        turned = some + noise
        made[start : start + len(some)] = turned / np.linalg.norm(turned, axis=1, keepdims=True)
    return made


def exact_best(vectors: Vectors, queries: Vectors) -> Rows:
    """The ten best rows of each query, (m, 10)."""
    scores = np.full((len(queries), DEPTH), -np.inf, np.float32)
    rows = np.zeros((len(queries), DEPTH), np.int64)
    for start in range(0, len(vectors), _BLOCK):
        fresh = queries @ vectors[start : start + _BLOCK].T
        near = np.argpartition(-fresh, DEPTH, axis=1)[:, :DEPTH]
        scores = np.concatenate([scores, np.take_along_axis(fresh, near, 1)], axis=1)
        rows = np.concatenate([rows, near + start], axis=1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :DEPTH]
        scores, rows = np.take_along_axis(scores, best, 1), np.take_along_axis(rows, best, 1)
    return rows


def recall(found: Rows, best: Rows) -> float:
    """recall@10: the share of the ten best rows that were found."""
    return float(np.mean([len(set(a) & set(b)) / DEPTH for a, b in zip(found.tolist(), best.tolist(), strict=True)]))
