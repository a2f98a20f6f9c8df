"""Transforms for settings, fitted on moments that are at hand."""

import hashlib

from indexer.moments import Moments
from indexer.transforms import Transform, Whitening, dump_transform, fit_whitening
from search.evaluation.settings import Setting


def fit_setting(setting: Setting, documents: Moments, queries: Moments | None = None) -> Transform:
    """The transform of a setting, fitted on `documents`.

    `queries` are moments of query-like texts; with centre "role" queries are centred by their mean, and by the
    documents' when there are none. Raises ConfigError when more directions are asked for than there are.
    """
    transform = fit_whitening(documents, setting.whitening)
    if isinstance(transform, Whitening) and setting.whitening.centre == "role" and queries is not None:
        return transform.with_query_mean(queries.mean)
    return transform


def transform_hash(transform: Transform) -> str:
    """sha256 of the transform's file: what an index with this transform would name in its manifest."""
    return hashlib.sha256(dump_transform(transform)).hexdigest()
