"""Transforms from embeddings (n, d) to unit vectors (n, k): what each offers, its fit, and its file.

The file is safetensors: arrays, with the kind and settings as metadata.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from indexer.arrays import Embeddings, Float64Array, Vectors
from indexer.errors import ConfigError, CorruptIndexError
from indexer.moments import Moments
from indexer.recipe.config import Role, WhiteningConfig
from indexer.recipe.paper_methods import TRANSFORMS, load_method, settings_of
from indexer.system.safetensors_file import parse_header
from indexer.transforms.whitening import AffineLayer as AffineLayer
from indexer.transforms.whitening import Normalisation as Normalisation
from indexer.transforms.whitening import Whitening as Whitening
from indexer.transforms.whitening import fit_whitening as fit_whitening
from indexer.typed_json import decode_json

OnStep = Callable[[int, int], None]


class Transform(Protocol):
    """A fitted transform. Vectors are float32 and of unit length; a zero row stays zero (the build gate refuses it)."""

    kind: str

    @property
    def note(self) -> str:
        """What the fit could not do as asked, in words; "" when all is well."""
        ...

    @property
    def dim(self) -> int:
        """Vector size k."""
        ...

    @property
    def input_dim(self) -> int:
        """Embedding size d."""
        ...

    @property
    def query_mean(self) -> Float64Array | None:
        """The mean (d,) that queries are centred by; None where the transform centres nothing."""
        ...

    def transform(self, embeddings: Embeddings, role: Role) -> Vectors:
        """Embeddings (n, d) to vectors (n, k)."""
        ...

    def project(self, embeddings: Embeddings, role: Role) -> Float64Array:
        """The same before normalisation to unit length, float64."""
        ...

    def affine_layers(self, role: Role) -> list[AffineLayer] | None:
        """Affine maps that, one after another, do what `project` does: an empty list is the identity.

        None where no such maps do it. Whatever runs affine maps (FAISS, torch) can run them in place of the transform.
        """
        ...

    def with_query_mean(self, mean: Float64Array) -> "Transform":
        """The same transform with queries centred by `mean` (d,); itself where `query_mean` is None."""
        ...

    def with_note(self, note: str) -> "Transform":
        """The same transform with another note."""
        ...

    def arrays(self) -> dict[str, Float64Array]:
        """What its file holds."""
        ...

    def settings(self) -> dict[str, Any]:
        """What the manifest says of it: JSON types."""
        ...


def transform_to_bytes(transform: Transform) -> bytes:
    """The bytes of a transform file."""
    arrays = {name: np.ascontiguousarray(array) for name, array in transform.arrays().items()}
    metadata = {"kind": transform.kind, "settings": json.dumps(transform.settings(), sort_keys=True)}
    # One metadata key only: safetensors keeps them in a hash map, and the order of two would vary from run to run.
    return save_tensors(arrays, metadata={"isotrope": json.dumps(metadata, sort_keys=True)})


class _Metadata(msgspec.Struct, frozen=True):
    kind: str
    settings: str  # JSON


class _Settings(msgspec.Struct, frozen=True):
    dim: int
    note: str = ""
    levels: int = 0  # of a flow, as is its depth
    depth: int = 0


def transform_from_bytes(data: bytes, where: str) -> Transform:
    """The transform in bytes whose hash has been checked. `where` names the file in errors."""
    try:
        arrays = load_tensors(data)
        length = int.from_bytes(data[:8], "little")
        header = parse_header(data[8 : 8 + length], len(data))
        metadata = decode_json(header.metadata["isotrope"].encode(), _Metadata)
        settings = decode_json(metadata.settings.encode(), _Settings)
        if (found := _class_of(metadata.kind)) is not None:
            transform: Transform = found.from_arrays(arrays, msgspec.structs.asdict(settings))
            return transform
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CorruptIndexError(f"{where}: not a transform file: {error}.") from error
    raise CorruptIndexError(f'{where}: holds a transform of kind "{metadata.kind}", which this version does not know.')


def _class_of(kind: str) -> Any:
    """Return the class of a kind of transform, None for an unknown one."""
    if kind in TRANSFORMS:
        return load_method(TRANSFORMS[kind]).TRANSFORM
    return {one.kind: one for one in (Whitening, Normalisation)}.get(kind)


@dataclass(frozen=True)
class FitData:
    """The embeddings a transform is fitted on: their moments, and block by block, any number of times."""

    moments: Callable[[], Moments]
    blocks: Callable[[], Iterator[Embeddings]]

    @classmethod
    def of(cls, rows: Embeddings) -> "FitData":
        """Embeddings (n, d) in memory."""
        return cls(lambda: Moments.of(rows), lambda: iter([rows]))

    @classmethod
    def of_moments(cls, moments: Moments) -> "FitData":
        """Where only moments are left. A kind that needs more raises ConfigError."""
        return cls(lambda: moments, _no_rows)


def fit_transform(
    data: FitData,
    config: WhiteningConfig,
    pooling: str,
    on_step: OnStep | None = None,
    paper: Mapping[str, Any] | None = None,
) -> Transform:
    """Return the transform of some settings for embeddings pooled so; queries are centred as documents are.

    `paper` are settings of the paper that the kind comes from; missing ones take their defaults. `on_step(done, total)`
    is called while a transform is trained. Raises what `fit_whitening` or the module of the paper raises.
    """
    if config.kind == "whitening":
        return fit_whitening(data.moments(), config, config.removed(pooling))
    method = TRANSFORMS[config.kind]
    settings = settings_of(method.section, paper or {}) if method.section else None
    transform: Transform = load_method(method).fit(data, settings, on_step)
    return transform


def _no_rows() -> Iterator[Embeddings]:
    raise ConfigError(
        'whitening.kind "flow" is trained on embeddings one by one, of which only moments are at hand here; '
        "leave the kind out, or measure it with `isotrope evaluate sts` or `isotrope refit`."
    )
