"""Transforms for settings, fitted on moments that are at hand."""

import hashlib
from collections.abc import Iterable

from indexer.encoders import EncoderSpec
from indexer.errors import ConfigError
from indexer.moments import Moments
from indexer.transforms import FitData, Transform, fit_transform, transform_to_bytes
from search.evaluation.settings import Setting

_SIZES = ("hidden_size", "d_model", "n_embd", "dim", "emb_dim")  # what transformers' attribute maps call it


def check_dimensions(settings: Iterable[Setting], spec: EncoderSpec) -> None:
    """Raises ConfigError, before anything is encoded, for more directions than the encoder gives.

    The size stands in the model's config.json; where it does not, `fit_setting` finds out.
    """
    if not spec.traits.has_layers:
        return
    config = spec.files.config
    stated = (getattr(config, name) for name in _SIZES)
    size: int | None = next((value for value in stated if value is not None), None)
    for setting in settings:
        if size is not None and not setting.raw and setting.whitening.dim > size:
            raise ConfigError(
                f"whitening.dim is {setting.whitening.dim}; the encoder gives {size} dimensions. Ask for at most that."
            )


def fit_setting(setting: Setting, documents: Moments | FitData, queries: Moments | None = None) -> Transform:
    """The transform of a setting, fitted on `documents`: moments are enough for all but a flow.

    `queries` are moments of query-like texts; with centre "role" queries are centred by their mean, and by the
    documents' when there are none. Raises ConfigError when more directions are asked for than there are.
    """
    material = FitData.of_moments(documents) if isinstance(documents, Moments) else documents
    transform = fit_transform(material, setting.whitening, setting.pooling)
    if queries is None or not setting.whitening.centres_by_role:
        return transform
    return transform.with_query_mean(queries.mean)


def transform_hash(transform: Transform) -> str:
    """sha256 of the transform's file: what an index with this transform would name in its manifest."""
    return hashlib.sha256(transform_to_bytes(transform)).hexdigest()
