"""Transforms from embeddings (n, d) to unit vectors (n, k): interface, fit and file.

The file is safetensors: arrays, with the kind and settings as metadata.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from indexer.arrays import Embeddings, Float64Array, Vectors
from indexer.errors import ConfigError, CorruptIndexError, spelled
from indexer.moments import Moments
from indexer.recipe.config import Role, WhiteningConfig
from indexer.recipe.paper_methods import TRANSFORMS, load_method, settings_of
from indexer.system.safetensors_file import parse_header
from indexer.transforms.whitening import AffineLayer as AffineLayer
from indexer.transforms.whitening import Normalisation as Normalisation
from indexer.transforms.whitening import Whitening as Whitening
from indexer.transforms.whitening import fewest_rows as fewest_rows
from indexer.transforms.whitening import fit_whitening as fit_whitening
from indexer.typed_json import decode_json

OnStep = Callable[[int, int], None]


class Transform(Protocol):
    """A fitted transform, a dataclass. Vectors are float32 with unit length; zero rows stay zero (the build gate
    rejects them)."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    kind: str

    @property
    def note(self) -> str:
        """Requested properties that the fit could not provide, in words; "" if none."""

    @property
    def dim(self) -> int:
        """Vector size k."""

    @property
    def input_dim(self) -> int:
        """Embedding size d."""

    @property
    def query_mean(self) -> Float64Array | None:
        """The mean (d,) subtracted from queries; None if the transform does not centre."""

    def transform(self, embeddings: Embeddings, role: Role) -> Vectors:
        """Map embeddings (n, d) to vectors (n, k). The role selects the mean."""

    def project(self, embeddings: Embeddings, role: Role) -> Float64Array:
        """Map embeddings to float64 rows before normalisation to unit length."""

    def affine_layers(self, role: Role) -> list[AffineLayer] | None:
        """Return affine maps whose composition is `project`: an empty list is the identity, None if there are none.
        FAISS or torch can run them in place of the transform."""

    def with_query_mean(self, mean: Float64Array) -> "Transform":
        """Return the transform with queries centred by `mean` (d,); itself if `query_mean` is None."""

    def arrays(self) -> dict[str, Float64Array]:
        """Return the arrays of its file."""

    def settings(self) -> dict[str, Any]:
        """Return its settings for the manifest, as JSON types."""


def transform_to_bytes(transform: Transform) -> bytes:
    """Return the bytes of a transform file."""
    arrays = {name: np.ascontiguousarray(array) for name, array in transform.arrays().items()}
    metadata = {"kind": transform.kind, "settings": json.dumps(transform.settings(), sort_keys=True)}
    # One metadata key: safetensors stores several in an order that varies from run to run.
    return save_tensors(arrays, metadata={"isotrope": json.dumps(metadata, sort_keys=True)})


class _Metadata(msgspec.Struct, frozen=True):
    kind: str
    settings: str  # JSON


class _Settings(msgspec.Struct, frozen=True):
    dim: int
    note: str = ""
    levels: int = 0  # levels and depth: of a flow
    depth: int = 0


def transform_from_bytes(data: bytes, where: str) -> Transform:
    """Return the transform in bytes whose hash has been checked. `where` names the file in errors."""
    try:
        arrays = load_tensors(data)
        length = int.from_bytes(data[:8], "little")
        header = parse_header(data[8 : 8 + length], len(data))
        metadata = decode_json(header.metadata["isotrope"].encode(), _Metadata)
        settings = decode_json(metadata.settings.encode(), _Settings)
        classes: dict[str, Any] = {Whitening.kind: Whitening, Normalisation.kind: Normalisation}
        if metadata.kind in TRANSFORMS:
            classes[metadata.kind] = load_method(TRANSFORMS[metadata.kind]).TRANSFORM
        if metadata.kind in classes:
            transform: Transform = classes[metadata.kind].from_arrays(arrays, msgspec.structs.asdict(settings))
            return transform
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CorruptIndexError(f"{where}: not a transform file: {error}.") from error
    raise CorruptIndexError(f'{where}: contains a transform of the unknown kind "{metadata.kind}".')


@dataclass(frozen=True)
class FitData:
    """The embeddings that a transform is fitted on: their moments, and repeatable iteration in blocks."""

    moments: Callable[[], Moments]
    blocks: Callable[[], Iterator[Embeddings]]

    @classmethod
    def of_moments(cls, moments: Moments) -> "FitData":
        """Return fit data with moments only. A kind that needs rows raises ConfigError."""
        return cls(lambda: moments, _no_rows)


def fit_transform(
    data: FitData,
    config: WhiteningConfig,
    pooling: str,
    on_step: OnStep | None = None,
    paper: Mapping[str, Any] | None = None,
) -> Transform:
    """Return the transform of some settings for embeddings with this pooling; queries are centred like documents.

    `paper` contains settings of the paper that the kind comes from; missing settings have their defaults.
    `on_step(done, total)` is called during training. Raises the errors of `fit_whitening` or of the paper's module.
    """
    if config.kind == "whitening":
        return fit_whitening(data.moments(), config, config.removed(pooling))
    method = TRANSFORMS[config.kind]
    settings = settings_of(method.section, paper or {}) if method.section else None
    transform: Transform = load_method(method).fit(data, settings, on_step)
    return transform


def _no_rows() -> Iterator[Embeddings]:
    raise ConfigError(
        'whitening.kind "flow" is trained on individual embeddings, but only their moments are available here. '
        "Fix: leave out the kind, or measure it with "
        f"{spelled('evaluate_sts or refit_index', '`isotrope evaluate sts` or `isotrope refit`')}."
    )
