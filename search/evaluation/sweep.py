"""Settings to compare: the pooling of token states, the transform of embeddings, their sweeps and fits."""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from indexer.errors import ConfigError, as_argument
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.identity import PoolingKey
from indexer.moments import Moments
from indexer.recipe.config import PoolingMode, WhiteningConfig
from indexer.transforms import FitData, Transform, fit_transform, transform_to_bytes
from indexer.typed_arguments import checked

Strength = float | Literal["none"]
Centre = Literal["role", "common", "none"]
Kind = Literal["whitening", "flow", "hellinger"]


@dataclass(frozen=True)
class Setting:
    """A setting of a comparison. `layers` are as the user wrote them: (1, -1) is the paper's average.

    Embeddings from the corpus have no layers, and the pooling "given".
    """

    pooling: PoolingMode
    layers: tuple[int, ...]
    whitening: WhiteningConfig
    paper: tuple[tuple[str, Any], ...] = ()  # settings of the transform's paper that differ from its defaults

    @property
    def key(self) -> PoolingKey:
        """The key of its embeddings in the result of `Encoder.states`."""
        return self.layers, self.pooling

    @property
    def raw(self) -> bool:
        """Whether the transform only scales to unit length."""
        whitening = self.whitening
        return whitening.kind == "whitening" and whitening.strength == "none" and not self.removed

    @property
    def removed(self) -> int:
        """The number of removed leading directions."""
        return self.whitening.removed(self.pooling)

    @property
    def label(self) -> str:
        """A short name, such as "mean 1,-1 strength 0.25 role"."""
        embedding = " ".join(filter(None, [self.pooling, ",".join(map(str, self.layers))]))
        if self.raw:
            return f"{embedding} raw"
        whitening = self.whitening
        if whitening.kind != "whitening":
            return f"{embedding} {whitening.kind}" + f" {whitening.centre}" * (whitening.kind == "flow")
        extras = [f"{self.removed} removed"] * bool(self.removed)
        if whitening.strength == "none":
            return " ".join([embedding, *extras])
        extras += [f"dim {whitening.dim}"] * bool(whitening.dim)
        extras += [f"shrinkage {shortest(whitening.shrinkage)}"] * bool(whitening.shrinkage)
        return " ".join([f"{embedding} strength {shortest(float(whitening.strength))}", *extras, whitening.centre])

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types. `strength` "none" is no whitening, `dim` null all, `centre` null no transform.

        "kind" is present if the transform is not "whitening", "removed" if directions are removed.
        """
        whitening = self.whitening
        special = whitening.kind != "whitening"
        return {
            "pooling": self.pooling,
            "layers": list(self.layers),
            "strength": None if special else whitening.strength,
            "dim": whitening.dim or None,
            "shrinkage": whitening.shrinkage,
            "centre": None if self.raw else whitening.centre,
            **({"kind": whitening.kind} if special else {}),
            **({"removed": self.removed} if self.removed else {}),
        }


@checked
@dataclass(frozen=True)
class Sweep:
    """Values to try; an empty tuple is the recipe's own value. The settings are the product of all values."""

    poolings: tuple[PoolingMode, ...] = ()
    layers: tuple[tuple[int, ...], ...] = ()
    strengths: tuple[Strength, ...] = ()
    dims: tuple[int, ...] = ()  # 0: all
    shrinkages: tuple[float, ...] = ()
    centres: tuple[Centre, ...] = ()
    kinds: tuple[Kind, ...] = ()  # only "whitening" has strengths, dimensions and shrinkages

    @property
    def is_empty(self) -> bool:
        """Whether the recipe's own setting is the only one."""
        return not any(vars(self).values())

    def settings(self, own: Setting) -> list[Setting]:
        """Return the distinct settings of the product in order; `own` is the recipe's.

        Strength "none" appears once for all dimensions, shrinkages and centres.
        """
        tried = product(
            self.poolings or (own.pooling,),
            self.layers or (own.layers,),
            self.strengths or (own.whitening.strength,),
            self.dims or (own.whitening.dim,),
            self.shrinkages or (own.whitening.shrinkage,),
            self.centres or (own.whitening.centre,),
            self.kinds or (own.whitening.kind,),
        )
        return list(
            dict.fromkeys(
                _setting(own.whitening, pooling, layers, dict(zip(_VARIED, values, strict=True)))
                for pooling, layers, *values in tried
            )
        )


_VARIED = ("strength", "dim", "shrinkage", "centre", "kind")


def _setting(base: WhiteningConfig, pooling: PoolingMode, layers: tuple[int, ...], varied: dict[str, Any]) -> Setting:
    """Return a setting with values that have no effect reset, so that equal settings compare equal."""
    if varied["kind"] != "whitening":
        varied = varied | {"strength": "none", "dim": 0, "shrinkage": 0.0, "remove": "auto"}
    if varied["strength"] == "none":
        centre = varied["centre"] if varied["kind"] == "flow" else "none"
        varied = varied | {"dim": 0, "shrinkage": 0.0, "centre": centre}
    return Setting(pooling, layers, dataclasses.replace(base, **varied))


def frozen_settings(settings: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return settings as a hashable value, in order of their names."""
    return tuple(sorted(settings.items()))


def shortest(value: float) -> str:
    """Return the shortest text that identifies a number: 0.25, 1, 0.1234567."""
    return repr(float(value)).removesuffix(".0")


def parse_layers(text: str) -> tuple[int, ...]:
    """Parse layers: "1,-1" is the average of layer 1 and the last. Raises ConfigError."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise ConfigError(
            f'{as_argument("layers")} "{text}" is not a list of layers; expected for example -1 or 1,-1.'
        ) from None


def parse_strength(text: str) -> Strength:
    """Parse a number or "none". Raises ConfigError."""
    if text.strip().lower() == "none":
        return "none"
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f'{as_argument("strength")} "{text}" is not a number; expected 0 to 1, or "none".') from None


def union_of_layers(settings: Iterable[Setting]) -> tuple[int, ...]:
    """Return every layer that some setting needs, as written."""
    return tuple(dict.fromkeys(layer for setting in settings for layer in setting.layers))


def state_keys(settings: Sequence[Setting]) -> list[PoolingKey]:
    """Return the distinct (layers, pooling) of some settings, in order."""
    return list(dict.fromkeys(setting.key for setting in settings))


_SIZES = ("hidden_size", "d_model", "n_embd", "dim", "emb_dim")  # names in the configurations of transformers


def check_dimensions(settings: Iterable[Setting], spec: EncoderSpec) -> None:
    """Raise ConfigError, before any encoding, if a setting has more dimensions than the encoder.

    Without a size in the model's config.json, `fit_setting` checks later.
    """
    if not spec.traits.has_layers:
        return
    stated = (getattr(spec.files.config, name) for name in _SIZES)
    size: int | None = next((value for value in stated if value is not None), None)
    for setting in settings:
        if size is not None and not setting.raw and setting.whitening.dim > size:
            raise ConfigError(
                f"whitening.dim is {setting.whitening.dim}, but embeddings have {size} dimensions; "
                f"expected at most {size}."
            )


def fit_setting(setting: Setting, documents: Moments | FitData, queries: Moments | None = None) -> Transform:
    """Return the transform of a setting, fitted on `documents`; only a flow needs more than moments.

    `queries` are moments of query-like texts. Centre "role" centres queries by their mean, or without `queries` by
    the documents' mean. Raises ConfigError for more dimensions than the documents have.
    """
    material = FitData.of_moments(documents) if isinstance(documents, Moments) else documents
    transform = fit_transform(material, setting.whitening, setting.pooling, paper=dict(setting.paper))
    if queries is None or not setting.whitening.centres_by_role:
        return transform
    return transform.with_query_mean(queries.mean)


def transform_hash(transform: Transform) -> str:
    """Return the sha256 of the transform's file, as in the manifest of an index with this transform."""
    return hashlib.sha256(transform_to_bytes(transform)).hexdigest()
