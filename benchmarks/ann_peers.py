"""Approximate indexes as their users build them, one class for each library, and the vectors they are built from.

Vectors are real embeddings of Isotrope indexes, extended by perturbed copies; queries are held-out vectors. Vectors,
threads and queries are the same for all.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from indexer.arrays import RowIds, Vectors
from indexer.store.quality import MeasuredPoint
from search.index import Index, LiveRows

DEPTH = 10
_NOISE = 0.35  # length of the noise added to a unit vector: copies score about 0.94 with the original
_BLOCK = 50_000


@dataclass(frozen=True)
class AnnData:
    """Unit vectors (n, d), held-out queries (m, d), and the ten best rows of each query by exact search."""

    vectors: Vectors
    queries: Vectors
    best: RowIds
    real: int  # rows that are not perturbed copies


def load(indexes: Sequence[Path], rows: int, queries: int) -> AnnData:
    """Return distinct vectors of the indexes in a fixed random order, with some held out as queries."""
    whole = distinct_vectors(indexes)
    whole = whole[np.random.default_rng(0).permutation(len(whole))]
    held_out, vectors = whole[:queries], whole[queries : queries + rows]
    real = len(vectors)
    if real < rows:
        vectors = np.concatenate([vectors, perturbed(vectors, rows - real)])
    return AnnData(vectors, held_out, exact_best(vectors, held_out), real)


def distinct_vectors(indexes: Sequence[Path]) -> Vectors:
    """Return the distinct vectors of all indexes by the first index's transform, sorted."""
    transform = Index.open(indexes[0]).transform
    blocks = [
        transform.transform(embeddings, "document")
        for index in indexes
        for _, embeddings in LiveRows(Index.open(index)).embedding_blocks()
    ]
    return np.unique(np.concatenate(blocks), axis=0)


def perturbed(vectors: Vectors, count: int) -> Vectors:
    """Return `count` copies of vectors, each rotated slightly in a random direction."""
    draw = np.random.default_rng(1)
    copies = np.empty((count, vectors.shape[1]), np.float32)
    for start in range(0, count, _BLOCK):
        originals = vectors[draw.integers(0, len(vectors), min(_BLOCK, count - start))]
        noise = draw.standard_normal(originals.shape, dtype=np.float32)
        noise *= _NOISE / np.linalg.norm(noise, axis=1, keepdims=True)
        moved = originals + noise
        copies[start : start + len(moved)] = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    return copies


def exact_best(vectors: Vectors, queries: Vectors) -> RowIds:
    """Return the ten best rows of each query, (m, 10)."""
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


def recall(found: RowIds, best: RowIds) -> float:
    """Return recall@10: the share of the ten best rows that were found."""
    return float(np.mean([len(set(a) & set(b)) / DEPTH for a, b in zip(found.tolist(), best.tolist(), strict=True)]))


_LINKS, _BUILD_REACH = 16, 200  # hnswlib's and usearch's usual M and ef_construction
_REACHES = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


class Peer(Protocol):
    """An index that has been built. `settings` are ordered from the fastest to the highest recall."""

    bytes: int
    settings: list[Any]

    def set(self, setting: Any) -> None:
        """Use a setting for the following searches."""
        ...

    def search(self, queries: Vectors) -> RowIds:
        """Return the ten best rows of each query."""
        ...


@dataclass
class Flat:
    """FAISS's exact index."""

    vectors: Vectors
    threads: int
    settings: list[Any] = field(default_factory=lambda: ["exact"])

    def __post_init__(self) -> None:
        import faiss

        faiss.omp_set_num_threads(self.threads)
        self._index = faiss.IndexFlatIP(self.vectors.shape[1])
        self._index.add(self.vectors)
        self.bytes = self.vectors.nbytes

    def set(self, setting: Any) -> None:
        """Do nothing: there are no settings."""

    def search(self, queries: Vectors) -> RowIds:
        rows: RowIds = self._index.search(queries, DEPTH)[1]
        return rows


@dataclass
class Hnswlib:
    """hnswlib with inner products."""

    vectors: Vectors
    threads: int
    settings: list[Any] = field(default_factory=lambda: list(_REACHES))

    def __post_init__(self) -> None:
        import hnswlib

        self._index = hnswlib.Index(space="ip", dim=self.vectors.shape[1])
        self._index.init_index(max_elements=len(self.vectors), ef_construction=_BUILD_REACH, M=_LINKS, random_seed=0)
        self._index.set_num_threads(self.threads)
        self._index.add_items(self.vectors)
        self.bytes = int(self._index.index_file_size())

    def set(self, setting: Any) -> None:
        self._index.set_ef(max(setting, DEPTH))

    def search(self, queries: Vectors) -> RowIds:
        labels, _ = self._index.knn_query(queries, k=DEPTH)
        return np.asarray(labels, np.int64)


@dataclass
class Usearch:
    """usearch with inner products and vectors stored as `dtype` ("f32", "bf16" or "i8")."""

    vectors: Vectors
    threads: int
    dtype: str = "f32"
    settings: list[Any] = field(default_factory=lambda: list(_REACHES))

    def __post_init__(self) -> None:
        from usearch.index import Index

        self._index: Any = Index(ndim=self.vectors.shape[1], metric="ip", dtype=self.dtype)
        self._index.add(np.arange(len(self.vectors)), self.vectors, threads=self.threads)
        self.bytes = int(self._index.serialized_length)

    def set(self, setting: Any) -> None:
        self._index.expansion_search = setting

    def search(self, queries: Vectors) -> RowIds:
        return np.asarray(self._index.search(queries, DEPTH, threads=self.threads).keys, np.int64)


@dataclass
class Ours:
    """The index type chosen by `index.type = "auto"`, read from an Isotrope index."""

    index: Any
    curve: Sequence[MeasuredPoint]
    stored: int
    threads: int
    what: str = ""

    def __post_init__(self) -> None:
        self.bytes = self.stored
        self.settings = [point.search_parameters for point in self.curve] or [{}]

    def set(self, setting: Any) -> None:
        from indexer import ann

        ann.set_threads(self.threads)
        ann.set_search_parameters(self.index, setting)
        self._setting = setting

    def search(self, queries: Vectors) -> RowIds:
        from indexer.ann.parameters import faiss_search

        return faiss_search(self.index, queries, DEPTH, self._setting)[1]


class Autofaiss:
    """autofaiss in another Python (with an older numpy): data in .npy files, one line of JSON for each call."""

    def __init__(self, python: Path, folder: Path, memory: int, threads: int) -> None:
        script = Path(__file__).with_name("ann_autofaiss.py")
        self._folder = folder
        self._process = subprocess.Popen(
            [str(python), str(script), str(folder), str(memory), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        )
        self._ready = self._answer()
        self.bytes, self.seconds = int(self._ready["bytes"]), float(self._ready["seconds"])
        self.chosen, self.settings = str(self._ready["chosen"]), list(self._ready["settings"])

    def set(self, setting: Any) -> None:
        self._ask({"set": setting})

    def search(self, queries: Vectors) -> RowIds:
        """Search in the process, which measures its seconds (`searched`) without the exchange of data."""
        self.searched = float(self._ask({"search": True})["seconds"])
        rows: RowIds = np.load(self._folder / "found.npy")
        return rows

    def close(self) -> None:
        self._process.communicate("")

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError("the autofaiss process ended")
