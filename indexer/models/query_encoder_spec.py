"""Query encoders: folders that turn questions into the vector space of one index, in place of its own encoder.

`query_encoder.json` names the space, the encoder of questions and, if there is a file `map.safetensors`, an affine map
from its embeddings into the space. `isotrope distill` and `isotrope migrate --mode map` write such folders. A recipe
records the hash as `queries.sha256`. Loads no numerical library.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from indexer.errors import ConfigError, MismatchError, ModelError, as_argument, spelled
from indexer.hashing import fingerprint
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.model_files import file_sha256
from indexer.models.model_json import read_json
from indexer.models.resolution import resolve_spec
from indexer.recipe.config import BuildConfig, EncoderConfig
from indexer.recipe.loading import from_mapping
from indexer.recipe.ranking import QueriesConfig
from indexer.store.manifest import Manifest

FILE = "query_encoder.json"
MAP = "map.safetensors"
FORMAT = 1
OWN_FOLDER = "."  # encoder.model of a query encoder whose own folder holds the model


class QueryEncoderFile(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of `query_encoder.json`."""

    format: int
    space: str
    """The index's vector space: `Manifest.space`."""
    dim: int
    """Dimensions of the space."""
    encoder: dict[str, Any]
    """Settings of `EncoderConfig` for the encoder of questions."""


@dataclass(frozen=True)
class QueryEncoderSpec:
    """A resolved query encoder: its folder, the encoder of questions, and the sha256 of both and of the space."""

    folder: Path
    file: QueryEncoderFile
    encoder: EncoderSpec
    sha256: str
    map_file: Path | None = None


def resolve_query_encoder(folder: str | Path, manifest: Manifest, expected: str = "") -> QueryEncoderSpec:
    """Find and hash the files of a query encoder for an index; loads no model.

    Raises ModelError for a folder that is no query encoder, and MismatchError if it was made for another encoder or
    transform than the index's, or if its sha256 is not the `expected` one.
    """
    place = Path(folder).expanduser()
    if not (place / FILE).is_file():
        found = f"contains no {FILE}" if place.is_dir() else "no such folder"
        made = spelled("distill_index or map_index", "isotrope distill or isotrope migrate --mode map")
        recorded = f" The recipe of the index names it. Fix: {record_query_encoder()}, or use {_own_encoder()}."
        raise ModelError(
            f"{place}: {found}; expected a query encoder, a folder from {made}.{recorded if expected else ''}"
        )
    described = read_json(place / FILE, QueryEncoderFile)
    if described.format != FORMAT:
        raise ModelError(f"{place / FILE}: has format {described.format}; expected {FORMAT}. Fix: update isotrope.")
    if described.space != manifest.space:
        raise MismatchError(
            f"{place}: was made for another encoder or transform than generation {manifest.generation:,} of the index "
            f"has. Fix: make it again from this index, or use {_own_encoder()}."
        )
    own = {"model": str(place)} if described.encoder.get("model") == OWN_FOLDER else {}
    encoder = resolve_spec(from_mapping(EncoderConfig, described.encoder | own, str(place / FILE)))
    map_file = place / MAP if (place / MAP).is_file() else None
    mapped = file_sha256(map_file) if map_file else ""
    hashed = fingerprint({"encoder": encoder.fingerprint, "space": described.space, "map": mapped})
    if expected and hashed != expected:
        raise MismatchError(
            f"{place}: differs from the query encoder in the recipe: it has sha256 {hashed[:16]}..., expected "
            f"{expected[:16]}.... Fix: put the original folder back, record this one: {record_query_encoder()}, or use "
            f"{_own_encoder()}."
        )
    return QueryEncoderSpec(place, described, encoder, hashed, map_file)


def record_query_encoder() -> str:
    """Return the call that records a query encoder in an index."""
    return spelled('refit_index(INDEX, ["queries.encoder=FOLDER"])', "isotrope refit INDEX --queries-by FOLDER")


def with_recorded_query_encoder(config: BuildConfig, manifest: Manifest) -> BuildConfig:
    """Return a recipe with the full path and the hash of its query encoder; unchanged without one.

    Raises as `resolve_query_encoder`.
    """
    if not config.queries.encoder:
        return dataclasses.replace(config, queries=QueriesConfig())
    folder = Path(config.queries.encoder).expanduser().resolve()
    queries = QueriesConfig(str(folder), resolve_query_encoder(folder, manifest).sha256)
    return dataclasses.replace(config, queries=queries)


def require_no_query_encoder(config: BuildConfig, index: str = "") -> None:
    """Raise ConfigError for a recipe that names a query encoder where a new vector space is fitted.

    `index` is that of a command that cannot change the recipe.
    """
    if config.queries.encoder:
        same = f"in the same command ({as_argument('set', 'queries.encoder=')})"
        raise ConfigError(
            f'queries.encoder is "{config.queries.encoder}", which fits the vectors of the present generation only; '
            f"this command changes them. Fix: go back to the index's own encoder "
            f"{f'first ({forget_query_encoder(index)})' if index else same}, then make the query encoder again from "
            "the result."
        )


def forget_query_encoder(index: str = "INDEX") -> str:
    """Return the call that removes the query encoder from an index's recipe."""
    call = "INDEX" if index == "INDEX" else repr(index)
    return spelled(f'refit_index({call}, ["queries.encoder="])', f'isotrope refit {index} --queries-by ""')


def _own_encoder() -> str:
    """Return the calls that answer by the index's own encoder, now and from now on."""
    once = spelled('encode_queries_by("")', 'query --encoder ""')
    return f"the index's own encoder: {once}, or {forget_query_encoder()}"
