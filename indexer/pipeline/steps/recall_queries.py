"""Queries that measure an index during a build: the user's own, or moved documents of the corpus.

An unchanged document is a row of the index and too easy a query. So documents that the index was not trained on are
moved by noise with the corpus's covariance, by half the median angle between such a document and its closest other
document. On SciFact and CACM, moved documents are about as hard as the real queries: recall@10 of 4-bit codes with 1,
2, 4, 8 times the candidates is .84 .93 .98 .995 with moved documents and .87 .95 .98 .996 with real queries. The rows
of a query's own document and their copies do not count.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer import ann
from indexer.arrays import RowIds, Vectors
from indexer.corpus.query_file import is_npy, read_query_file, read_query_vectors
from indexer.errors import ConfigError
from indexer.pipeline.rows import RowView
from indexer.recipe.index_config import IndexConfig
from indexer.store.embeddings import open_embeddings
from indexer.system.threads import single_blas_thread
from indexer.transforms import Transform

QUERIES = 400
TRAINING_ROWS = 262_144  # more than any common factory string uses
_NOISE_ROWS = 1024  # random sums of them are noise with the covariance of the corpus
NEIGHBOUR_ROWS = 20_000  # searched for the closest other document
_SETTING = "index.queries: "
Encode = Callable[[list[str]], npt.NDArray[np.floating]]


@dataclass(frozen=True)
class RecallQueries:
    """Unit vectors of queries (n, k). `origins` (n, k) are the vectors that were moved, None for real queries.

    `own` lists all rows of each query's document; `similarity` is the score of each query with its origin.
    """

    vectors: Vectors
    origins: Vectors | None = None
    own: tuple[RowIds, ...] | None = None
    similarity: float | None = None

    @property
    def described(self) -> str:
        """The origin of the queries, in words."""
        if self.origins is None:
            return "index.queries"
        return f"documents of the corpus, moved to a score of {self.similarity:.2f} with themselves"


def split_train_queries(view: RowView) -> tuple[RowIds, RowIds]:
    """Return rows to train on and rows to draw queries from, by id hash; disjoint, unless there is only one row."""
    order = view.sampling_order
    held_out = min(QUERIES, max(len(order) // 4, 1))
    training = min(TRAINING_ROWS, max(len(order) - held_out, 1))
    return order[:training], order[training : training + held_out] if len(order) > 1 else order


def recall_queries(
    view: RowView,
    transform: Transform,
    config: IndexConfig,
    held_out: RowIds,
    training: Vectors,
    encode: Encode,
) -> RecallQueries:
    """Return the queries of a build. `training` are vectors (n, k) of sampled rows that are not held out.

    Raises ConfigError for a query file that cannot be read.
    """
    if not config.queries:
        documents = view.vectors(transform, held_out)
        nonzero = documents.any(axis=1)
        return replace(perturbed(documents[nonzero], training), own=view.rows_of_same_document(held_out[nonzero]))
    if is_npy(config.queries):
        dim = open_embeddings(view.folders[0]).shape[1]
        embeddings: npt.NDArray[np.floating] = read_query_vectors(config.queries, dim, ConfigError, _SETTING)
    else:
        embeddings = encode(read_query_file(Path(config.queries), ConfigError, _SETTING).texts)
    with single_blas_thread():
        vectors = transform.transform(embeddings, "query")
    return RecallQueries(vectors[vectors.any(axis=1)])


def perturbed(documents: Vectors, others: Vectors) -> RecallQueries:
    """Return unit vectors (n, k) moved as the module docstring describes; `others` (m, k) sample their corpus."""
    similarity = math.sqrt((1 + _closest_other(documents, others[:NEIGHBOUR_ROWS])) / 2)  # cosine of half the angle
    random = np.random.default_rng(0)
    with single_blas_thread():
        spread = others[:_NOISE_ROWS] - others[:_NOISE_ROWS].mean(axis=0)
        noise = random.standard_normal((len(documents), len(spread)), np.float32) @ spread
    noise -= np.einsum("nk,nk->n", noise, documents)[:, None] * documents
    length = np.linalg.norm(noise, axis=1, keepdims=True)
    usable = length > 1e-6  # a single other document has no spread
    noise = np.divide(noise, length, out=np.zeros_like(noise), where=usable)
    queries = np.where(usable, similarity * documents + np.sqrt(1 - similarity**2) * noise, documents)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    return RecallQueries(queries.astype(np.float32), documents, similarity=similarity)


def _closest_other(documents: Vectors, others: Vectors) -> float:
    """Return the median score of a document with the closest other one that is not a copy of it; 1 without others."""
    exact = ann.GroundTruthBuilder(documents, 1, origins=documents)
    with single_blas_thread():
        exact.update(0, others)
    scores = exact.last_scores[np.isfinite(exact.last_scores)]
    return float(np.clip(np.median(scores), 0.0, 1.0)) if len(scores) else 1.0
