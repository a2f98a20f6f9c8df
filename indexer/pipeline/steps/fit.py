"""The third step: fit the transform on a sample, and estimate the mean of queries.

The sample depends neither on the order of the corpus nor on the number of workers; see `indexer.pipeline.rows`.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from indexer.arrays import Float64Array, Mask
from indexer.corpus.document import pseudo_query
from indexer.corpus.query_file import is_npy, query_file_sha256, read_query_file, read_query_vectors
from indexer.errors import ConfigError, set_to, spelled
from indexer.moments import Moments
from indexer.pipeline.generation import FittedTransform
from indexer.pipeline.published_index import PublishedIndex
from indexer.pipeline.rows import RowView
from indexer.pipeline.steps.build_encoder import LazyEncoder
from indexer.pipeline.steps.quality_gates import COVARIANCE_LIMIT, Gate, covariance_deviation, held_out_deviation
from indexer.progress import Progress, step_callback
from indexer.recipe.config import BuildConfig, WhiteningConfig
from indexer.store.embeddings import open_embeddings
from indexer.store.manifest import Manifest
from indexer.system.threads import ordered_map, single_blas_thread
from indexer.transforms import Normalisation, Transform, Whitening, fewest_rows, fit_transform

QUERY_TEXTS = 1024  # the mean of a few hundred query-like texts is already stable
_SETTING = "whitening.query_sample"
_ONE_MEAN = "queries are centred by the mean of the documents: whitening.query_sample names no embeddings of queries"


def fit(
    rows: RowView, encoder: LazyEncoder, progress: Progress, known: Mapping[str, Float64Array] | None = None
) -> FittedTransform:
    """Fit the recipe's transform. Encodes query-like texts if queries have their own mean and it is not `known`, by the
    sha256 of the texts.

    With fewer rows than `fewest_rows`, vectors are only normalised, and the transform's note says so.
    """
    config, queries = encoder.config, encoder.config.whitening.query_sample
    progress.phase("fitting", None)
    sample, on_step = rows.sample(config.whitening.sample), step_callback(progress, "training the flow")
    paper, no_texts = config.transform_settings(), {"source": "none", "texts": 0}
    transform: Transform = Normalisation(_dim(rows, encoder))
    if note := _too_few(len(sample), transform.dim, config):
        transform = Normalisation(transform.dim, note)
    elif rows.folders:
        transform = fit_transform(sample.fit_data(), config.whitening, config.encoder.pooling, on_step, paper)
    if transform.query_mean is None or not config.whitening.centres_by_role:
        unused = query_file_sha256(queries, _SETTING)
        return FittedTransform(transform, sample, no_texts | ({"sha256": unused} if unused else {}))
    if is_npy(queries):
        embeddings = read_query_vectors(queries, transform.input_dim, ConfigError, f"{_SETTING}: ")
        digest = query_file_sha256(queries, _SETTING)
        origin: dict[str, Any] = {"source": "file", "texts": len(embeddings), "sha256": digest}
        return FittedTransform(transform.with_query_mean(Moments.of(embeddings).mean), sample, origin)
    if not config.encoder.traits.encodes_texts:
        note = "; ".join(filter(None, [transform.note, _ONE_MEAN]))
        return FittedTransform(replace(transform, note=note), sample, no_texts)
    texts, origin = _query_texts(rows, config)
    mean = (known or {}).get(origin["texts_sha256"])
    if mean is None:
        progress.phase("encoding query-like texts", len(texts))
        mean = Moments.of(encoder.get().encode(texts, "query")).mean
        progress.advance(len(texts))
    return FittedTransform(transform.with_query_mean(mean), sample, origin)


def known_query_mean(published: PublishedIndex) -> dict[str, Float64Array]:
    """Return the mean embedding of query-like texts in the published transform, by the sha256 of the texts."""
    texts, mean = published.manifest.transform["query_texts"], published.transform.query_mean
    return {} if mean is None or "texts_sha256" not in texts else {texts["texts_sha256"]: mean}


def _dim(rows: RowView, encoder: LazyEncoder) -> int:
    """Return the embedding size d; 0 without rows if the first vectors of the corpus decide it."""
    if rows.folders:
        return rows.dim
    return encoder.get().dim if encoder.config.encoder.traits.encodes_texts else 0


def _too_few(count: int, dim: int, config: BuildConfig) -> str:
    """Return a note if a sample of `count` rows is too small for the recipe's transform, "" if not."""
    whitening = config.whitening
    if not whitening.is_fitted(config.encoder.pooling):
        return ""
    if not dim:
        return "no whitening was fitted, as the index has no documents yet: the first ones decide the dimensions"
    needed = fewest_rows(whitening, dim)
    if count >= max(needed, 1):
        return ""
    low = whitening.sample != "all" and whitening.sample < needed
    command = refit_command(f"whitening.sample={needed}" if low else "")
    return (
        f"no whitening was fitted: a fit needs {needed:,} rows, and the sample has {count:,}. Search works "
        f"without it: vectors are only scaled to unit length. From {needed:,} rows on, fit the recipe's whitening "
        f"with: {command}"
    )


def refit_command(setting: str = "") -> str:
    """Return the call or command of a refit, with a setting that it changes."""
    library = f'refit_index(index, ["{setting}"])' if setting else "refit_index(index)"
    return spelled(library, f"isotrope refit INDEX --set {setting}" if setting else "isotrope refit INDEX")


def refit_note(manifest: Manifest, config: BuildConfig) -> str:
    """Return a note if a refit would now fit the whitening that an index lacks for its earlier few rows, "" if not."""
    whitening, transform = config.whitening, manifest.transform
    lacks = transform["kind"] == Normalisation.kind and "taken_from" not in transform
    if not lacks or not whitening.is_fitted(config.encoder.pooling):
        return ""
    sampled, needed = manifest.rows, fewest_rows(whitening, manifest.encoder["dim"])
    if whitening.sample != "all":
        sampled = min(sampled, whitening.sample)
    if sampled < needed:
        return ""
    return f"the index now has enough rows for its recipe's whitening. Fit it with: {refit_command()}"


def _query_texts(rows: RowView, config: BuildConfig) -> tuple[list[str], dict[str, Any]]:
    queries = config.whitening.query_sample
    if queries:
        texts = read_query_file(Path(queries), ConfigError, f"{_SETTING}: ").texts
        digest = query_file_sha256(queries, _SETTING)
        return texts, {"source": "file", "texts": len(texts), "sha256": digest, "texts_sha256": _texts_hash(texts)}
    drawn = rows.sampled_documents(min(QUERY_TEXTS, rows.count_documents(config.whitening.sample)))
    texts = [text for text in map(pseudo_query, drawn) if text]
    if not texts:
        raise ConfigError(
            "no query-like text could be drawn from the corpus (no titles, no sentences). Fix: name a file of queries "
            f"with {set_to('whitening.query_sample', 'FILE')}, or pass {set_to('whitening.centre', 'common')}."
        )
    return texts, {"source": "corpus", "texts": len(texts), "texts_sha256": _texts_hash(texts)}


def _texts_hash(texts: list[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()


def judge_fit(
    fitted: FittedTransform, rows: RowView, config: WhiteningConfig, threads: int
) -> tuple[dict[str, Any], list[Gate]]:
    """Return the figures of a fit, JSON types, and its gate."""
    figures: dict[str, Any] = {"sample": len(fitted.sample)}
    if not isinstance(fitted.transform, Whitening) or config.strength == "none":
        return figures, []
    sample = fitted.sample
    with single_blas_thread():
        blocks = map(sample.embeddings, range(len(sample.folders)))
        deviation = covariance_deviation(fitted.transform, config, blocks, threads)
        figures["held_out"] = _held_out(sample, rows.live_rows, fitted.transform, threads)
    return figures, [Gate("covariance", deviation, COVARIANCE_LIMIT, meaning="in-sample whitened covariance")]


def _held_out(sample: RowView, live: Mask | None, whitening: Whitening, threads: int) -> dict[str, Any] | None:
    """Return held-out figures on rows outside the sample; without any, on one half of the sample against the other."""
    firsts, chosen = sample.firsts, sample.chosen
    everything = len(sample) == (sample.stored if live is None else np.count_nonzero(live))

    def halves(part: int) -> tuple[Moments, Moments]:
        if everything or chosen is None:
            embeddings = sample.embeddings(part)
            return Moments.of(embeddings[0::2]), Moments.of(embeddings[1::2])
        embeddings, inside = open_embeddings(sample.folders[part]), chosen[part]
        rows = np.arange(len(embeddings))
        if live is not None:
            rows = np.flatnonzero(live[firsts[part] : firsts[part + 1]])
        outside = np.setdiff1d(rows, inside)[: len(inside)]
        return Moments.of(embeddings[inside]), Moments.of(embeddings[outside])

    seen = unseen = Moments.zero(len(whitening.mean))
    for first, second in ordered_map(halves, range(len(sample.folders)), threads):
        seen, unseen = seen + first, unseen + second
    if seen.count < 2 or unseen.count < 2 or not seen.scatter.any():
        return None
    return held_out_deviation(seen, unseen, whitening.dim)
