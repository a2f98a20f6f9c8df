"""Rescorers: folders of a second encoder that orders the first hits of an index by its own vectors.

`rescorer.json` names the encoder; `transform.safetensors` turns its embeddings into unit vectors. `isotrope migrate
--mode rescore` writes such folders, and a recipe names them as `rerank.model`. Loads no numerical library.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from indexer.errors import MismatchError, ModelError, spelled
from indexer.hashing import fingerprint
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.model_files import file_sha256
from indexer.models.model_json import read_json
from indexer.models.resolution import resolve_spec
from indexer.recipe.config import EncoderConfig
from indexer.recipe.loading import from_mapping
from indexer.recipe.ranking import RerankConfig

FILE = "rescorer.json"
TRANSFORM = "transform.safetensors"
FORMAT = 1


class RescorerFile(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of `rescorer.json`."""

    format: int
    encoder: dict[str, Any]
    """Settings of `EncoderConfig`."""


@dataclass(frozen=True)
class RescorerSpec:
    """A resolved rescorer: its folder, its encoder, and the sha256 of everything that affects its scores."""

    folder: Path
    encoder: EncoderSpec
    sha256: str


def is_rescorer(model: str | Path) -> bool:
    """Return whether `rerank.model` names a rescorer, not a cross-encoder."""
    return bool(str(model)) and (Path(model).expanduser() / FILE).is_file()


def resolve_rescorer(config: RerankConfig) -> RescorerSpec:
    """Find and hash the files of a rescorer; loads no model.

    Raises ModelError for a folder that is no rescorer, and MismatchError if its hash is not the recorded one.
    """
    folder = Path(config.model).expanduser().resolve()
    described = read_json(folder / FILE, RescorerFile)
    if described.format != FORMAT:
        raise ModelError(f"{folder / FILE}: has format {described.format}; expected {FORMAT}. Fix: update isotrope.")
    if not (folder / TRANSFORM).is_file():
        made = spelled("rescore_index", "isotrope migrate --mode rescore")
        raise ModelError(f"{folder}: contains no {TRANSFORM}; expected a folder from {made}.")
    encoder = resolve_spec(from_mapping(EncoderConfig, described.encoder, str(folder / FILE)))
    hashed = fingerprint({"encoder": encoder.fingerprint, "transform": file_sha256(folder / TRANSFORM)})
    if config.sha256 and hashed != config.sha256:
        record = spelled(
            'refit_index(INDEX, ["rerank.model=FOLDER"])', "isotrope refit INDEX --set rerank.model=FOLDER"
        )
        raise MismatchError(
            f"{folder}: differs from the rescorer in the recipe: it has sha256 {hashed[:16]}..., expected "
            f"{config.sha256[:16]}.... Fix: put the original folder back, or record this one: {record}."
        )
    return RescorerSpec(folder, encoder, hashed)
