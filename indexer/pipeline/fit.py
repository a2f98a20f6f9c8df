"""The third step: fit the transform on a sample, and estimate where queries lie.

The sample is the same for any order of the corpus and any number of workers; see `indexer.pipeline.rows`.
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.config import BuildConfig
from indexer.corpus.document import pseudo_query
from indexer.corpus.query_file import is_npy, query_file_sha256, read_query_file, read_query_vectors
from indexer.errors import ConfigError
from indexer.moments import Moments
from indexer.pipeline.encoder_state import QueryEncoder
from indexer.pipeline.rows import Population, chosen_documents
from indexer.pipeline.stored_transform import Fitted as Fitted
from indexer.progress import Progress, step_callback
from indexer.transforms import Flow, Whitening, centres_by_role, fit_transform

QUERY_TEXTS = 1024  # the mean of a few hundred query-like texts is already steady
_SETTING = "whitening.query_sample: "
_ONE_MEAN = "queries are centred by the mean of the documents: whitening.query_sample names no embeddings of queries"


@dataclass(frozen=True)
class KnownQueries:
    """The mean embedding of query-like texts that a published transform holds, and the sha256 of those texts."""

    sha256: str
    mean: npt.NDArray[np.float64]


def fit(population: Population, source: QueryEncoder, progress: Progress, known: KnownQueries | None = None) -> Fitted:
    """Fit the recipe's transform. Encodes query-like texts where queries have their own mean, unless it is known."""
    config = source.config
    progress.phase("fitting", None)
    sample = population.draw(config.whitening.sample)
    on_step = step_callback(progress, "training the flow")
    transform = fit_transform(sample.fit_data(), config.whitening, config.encoder.pooling, on_step)
    if not isinstance(transform, Whitening | Flow) or not centres_by_role(transform, config.whitening):
        unused = query_file_sha256(config.whitening.query_sample, "whitening.query_sample")
        return Fitted(transform, sample, {"source": "none", "texts": 0} | ({"sha256": unused} if unused else {}))
    if is_npy(config.whitening.query_sample):
        embeddings = read_query_vectors(config.whitening.query_sample, len(transform.mean), ConfigError, _SETTING)
        origin = {
            "source": "file",
            "texts": len(embeddings),
            "sha256": query_file_sha256(config.whitening.query_sample, "whitening.query_sample"),
        }
        return Fitted(transform.with_query_mean(Moments.of(embeddings).mean), sample, origin)
    if not config.encoder.traits.encodes_texts:
        note = "; ".join(filter(None, [transform.note, _ONE_MEAN]))
        return Fitted(replace(transform, note=note), sample, {"source": "none", "texts": 0})
    texts, origin = _query_texts(population, sum(map(len, sample.documents)), config)
    if known is not None and known.sha256 == origin["texts_sha256"]:
        return Fitted(transform.with_query_mean(known.mean), sample, origin)
    progress.phase("encoding query-like texts", len(texts))
    embeddings = source.get().encode(texts, "query")
    progress.advance(len(texts))
    return Fitted(transform.with_query_mean(Moments.of(embeddings).mean), sample, origin)


def _query_texts(population: Population, sampled: int, config: BuildConfig) -> tuple[list[str], dict[str, Any]]:
    if config.whitening.query_sample:
        texts = read_query_file(Path(config.whitening.query_sample), ConfigError, _SETTING).texts
        digest = query_file_sha256(config.whitening.query_sample, "whitening.query_sample")
        return texts, {"source": "file", "texts": len(texts), "sha256": digest, "texts_sha256": _texts_hash(texts)}
    chosen = population.draw(min(QUERY_TEXTS, sampled))
    texts = [pseudo_query(document) for document in chosen_documents(chosen)]
    texts = [text for text in texts if text]
    if not texts:
        raise ConfigError(
            "no query-like text could be drawn from the corpus (no titles, no sentences). Name a file of queries "
            'with --set whitening.query_sample=FILE, or --set whitening.centre="common".'
        )
    return texts, {"source": "corpus", "texts": len(texts), "texts_sha256": _texts_hash(texts)}


def _texts_hash(texts: list[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()
