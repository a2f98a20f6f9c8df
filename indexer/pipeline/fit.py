"""The third step: fit the transform on a sample, and estimate where queries lie.

The sample is the same for any order of the corpus and any number of workers; see `indexer.sampling`.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.config import BuildConfig, WhiteningConfig
from indexer.corpus.document import Document
from indexer.corpus.query_file import read_query_file
from indexer.errors import ConfigError
from indexer.moments import Moments
from indexer.pipeline.encode import EncoderSource
from indexer.pipeline.ingest import Ingested
from indexer.pipeline.progress import Progress
from indexer.sampling import Sample, draw_sample, query_like
from indexer.store.documents import read_some
from indexer.transforms import Transform, Whitening, fit_whitening

QUERY_TEXTS = 1024  # the mean of a few hundred query-like texts is already steady


@dataclass(frozen=True)
class Fitted:
    """The transform, the sample it was fitted on, and where its query mean comes from (JSON types)."""

    transform: Transform
    sample: Sample
    query_texts: dict[str, Any]


def sample_of(index: Path, ingested: Ingested, size: int | str) -> Sample:
    """The `size` documents with the smallest id hash, or all."""
    folders = [index / slot.name for slot in ingested.slots]
    return draw_sample(folders, [slot.documents for slot in ingested.slots], ingested.id_hashes, size)


def fit(index: Path, ingested: Ingested, source: EncoderSource, progress: Progress) -> Fitted:
    """Fit the recipe's transform. Encodes query-like texts where queries get a mean of their own."""
    config = source.config
    progress.phase("fitting", None)
    sample = sample_of(index, ingested, config.whitening.sample)
    transform = fit_whitening(sample.moments(), config.whitening)
    if not isinstance(transform, Whitening) or config.whitening.centre != "role":
        unused = query_sample_hash(config.whitening)
        return Fitted(transform, sample, {"source": "none", "texts": 0} | ({"sha256": unused} if unused else {}))
    texts, origin = _query_texts(index, sample, ingested, config)
    progress.phase("encoding query-like texts", len(texts))
    embeddings = source.get().encode(texts, "query")
    progress.advance(len(texts))
    return Fitted(transform.with_query_mean(Moments.of(embeddings).mean), sample, origin)


def query_sample_hash(config: WhiteningConfig) -> str:
    """sha256 of the user's query file; empty when the recipe names none."""
    if not config.query_sample:
        return ""
    try:
        return hashlib.sha256(Path(config.query_sample).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"whitening.query_sample: {config.query_sample} cannot be read: {error.strerror}.") from error


def _query_texts(
    index: Path, sample: Sample, ingested: Ingested, config: BuildConfig
) -> tuple[list[str], dict[str, Any]]:
    if config.whitening.query_sample:
        texts = read_queries(Path(config.whitening.query_sample))
        digest = query_sample_hash(config.whitening)
        return texts, {"source": "file", "texts": len(texts), "sha256": digest}
    chosen = sample_of(index, ingested, min(QUERY_TEXTS, len(sample.rows)))
    texts = [query_like(document) for document in chosen_documents(sample.folders, chosen)]
    texts = [text for text in texts if text]
    if not texts:
        raise ConfigError(
            "no query-like text could be drawn from the corpus (no titles, no sentences). Name a file of queries "
            'with --set whitening.query_sample=FILE, or --set whitening.centre="common".'
        )
    return texts, {"source": "corpus", "texts": len(texts)}


def chosen_documents(folders: Sequence[Path], chosen: Sample) -> Iterator[Document]:
    """The chosen documents, in row order."""
    for part, folder in enumerate(folders):
        rows = chosen.rows_of(part).tolist()
        if rows:
            yield from read_some(folder, rows)


def read_queries(path: Path) -> list[str]:
    """The user's queries, one a line. Raises ConfigError."""
    return read_query_file(path, ConfigError, "whitening.query_sample: ").texts
