"""Queries that an index is measured with while it is built: the user's own, or documents of the corpus, moved.

A document as it stands is a row of the index and too easy a query. So a document that the index was not trained on is
moved by noise of the corpus's own covariance, through half the angle that lies between such documents and the closest
other one (the median over all of them). On SciFact and CACM, moved documents then are about as hard to answer as the
real queries: recall@10 of 4-bit codes with 1, 2, 4, 8 times the candidates is .84 .93 .98 .995 with them and .87 .95
.98 .996 with real ones. Their own rows and the copies of those do not count.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer import ann
from indexer.arrays import RowIds, Vectors
from indexer.corpus.query_file import is_npy, query_file_sha256, read_query_file, read_query_vectors
from indexer.errors import ConfigError
from indexer.pipeline.rows import RowView
from indexer.recipe.config import IndexConfig
from indexer.store.embeddings import open_embeddings
from indexer.system.threads import single_blas_thread
from indexer.transforms import Transform

QUERIES = 400
TRAINING_ROWS = 262_144  # more than any common factory string looks at
_NOISE_ROWS = 1024  # whose random sums are noise with the covariance of the corpus
_NEIGHBOUR_ROWS = 20_000  # among which the closest other document is looked for
_SETTING = "index.queries: "
Encode = Callable[[list[str]], npt.NDArray[np.floating]]


@dataclass(frozen=True)
class RecallQueries:
    """Unit vectors of queries (n, k). `origins` (n, k) are the rows they were drawn from, None for real queries.

    `own` are all rows of each one's document, and `similarity` is the score of each with its origin.
    """

    vectors: Vectors
    origins: Vectors | None = None
    own: tuple[RowIds, ...] | None = None
    similarity: float | None = None
    sha256: str = ""

    @property
    def described(self) -> str:
        """Where the queries come from, in words."""
        if self.origins is None:
            return "index.queries"
        return f"documents of the corpus, moved to a score of {self.similarity:.2f} with themselves"


def split_train_queries(view: RowView) -> tuple[RowIds, RowIds]:
    """Rows to train on and rows to draw queries from, each by id hash and none in both, unless there is but one."""
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
    encode: Encode | None,
) -> RecallQueries:
    """The queries of a build. `training` are vectors (n, k) of sampled rows other than those held out.

    Raises ConfigError for a query file that cannot be read, and where there is nothing to encode it.
    """
    if not config.queries:
        documents = view.vectors(transform, held_out)
        there = documents.any(axis=1)
        return replace(perturbed(documents[there], training), own=view.rows_of_same_document(held_out[there]))
    embeddings = _query_embeddings(view, config, encode)
    with single_blas_thread():
        vectors = transform.transform(embeddings, "query")
    return RecallQueries(vectors[vectors.any(axis=1)], sha256=query_file_sha256(config.queries, "index.queries"))


def _query_embeddings(view: RowView, config: IndexConfig, encode: Encode | None) -> npt.NDArray[np.floating]:
    """Embeddings (n, d) of the user's queries: those of a .npy file, or encoded now."""
    if is_npy(config.queries):
        dim = open_embeddings(view.folders[0]).shape[1]
        return read_query_vectors(config.queries, dim, ConfigError, _SETTING)
    if encode is None:
        raise ConfigError(f"{_SETTING}there is no encoder here to turn {config.queries} into vectors. Leave it empty.")
    return encode(read_query_file(Path(config.queries), ConfigError, _SETTING).texts)


def perturbed(documents: Vectors, others: Vectors) -> RecallQueries:
    """Unit vectors (n, k) moved as this module says; `others` (m, k) are those of the rest of their corpus."""
    similarity = math.sqrt((1 + _closest_other(documents, others[:_NEIGHBOUR_ROWS])) / 2)  # cosine of half the angle
    random = np.random.default_rng(0)
    with single_blas_thread():
        spread = others[:_NOISE_ROWS] - others[:_NOISE_ROWS].mean(axis=0)
        noise = random.standard_normal((len(documents), len(spread)), np.float32) @ spread
    noise -= np.einsum("nk,nk->n", noise, documents)[:, None] * documents
    length = np.linalg.norm(noise, axis=1, keepdims=True)
    there = length > 1e-6  # nothing is to be had from a single other document
    noise = np.divide(noise, length, out=np.zeros_like(noise), where=there)
    queries = np.where(there, similarity * documents + np.sqrt(1 - similarity**2) * noise, documents)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    return RecallQueries(queries.astype(np.float32), documents, similarity=similarity)


def _closest_other(documents: Vectors, others: Vectors) -> float:
    """The median score of a document with the closest other one that is not a copy of it; 1 where there is none."""
    exact = ann.GroundTruthBuilder(documents, 1, origins=documents)
    with single_blas_thread():
        exact.update(0, others)
    scores = exact.last_scores[np.isfinite(exact.last_scores)]
    return float(np.clip(np.median(scores), 0.0, 1.0)) if len(scores) else 1.0
