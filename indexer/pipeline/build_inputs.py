"""Inputs of a build or an addition besides documents: the recipe, a model, vectors, the names of columns."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy.typing as npt

from indexer.encoders.protocol import Encoder
from indexer.errors import ConfigError, ModelError
from indexer.models.model_files import find_table_files
from indexer.recipe.config import BuildConfig, EncoderConfig
from indexer.recipe.corpus_config import DocumentSource
from indexer.recipe.loading import did_you_mean

_STATIC = "static"  # the recipe for tables of token vectors
_RULES = ("id_column", "title_column", "text_column", "documents")  # of the corpus


Recipe = BuildConfig | str | Path
"""A recipe, its file, or the name of a shipped one, such as "static"."""


class BuildInputs(TypedDict, total=False):
    """Optional inputs of a build, as keyword arguments.

    `model` replaces the recipe's encoder: a hub id, a folder, or a file of word vectors. `vectors` (n, d) are the
    embeddings of the documents, in order; no model runs then, and `model` is a name for them. `id_column`,
    `title_column` and `text_column` name columns of dicts and tables. With `documents="files"`, each file of a folder
    is a document. `transform_from` names an index whose transform is reused.
    """

    model: str | Path
    vectors: npt.ArrayLike
    id_column: str
    title_column: str
    text_column: str
    documents: DocumentSource
    transform_from: str | Path | None


class AddInputs(TypedDict, total=False):
    """Optional inputs of an addition, as keyword arguments.

    `model` is the model's folder if it has moved. `vectors` (n, d) are the embeddings of the documents, in order, for
    an index of given vectors. `encoder` is a loaded encoder, for programs that add often: it is used if it is the
    index's, and ignored otherwise.
    """

    model: str | Path | None
    vectors: npt.ArrayLike | None
    encoder: Encoder | None


class SyncInputs(AddInputs, total=False):
    """Optional inputs of a synchronisation, as keyword arguments: those of an addition, and `force`."""

    force: bool


def build_inputs(given: Mapping[str, Any]) -> BuildInputs:
    """Return keyword arguments as inputs. Raises ConfigError for an unknown name."""
    _require_known(given, BuildInputs.__annotations__, "a build")
    return cast(BuildInputs, given)


def add_inputs(given: Mapping[str, Any]) -> AddInputs:
    """Return keyword arguments as inputs. Raises ConfigError for an unknown name."""
    _require_known(given, AddInputs.__annotations__, "an addition")
    return cast(AddInputs, given)


def sync_inputs(given: Mapping[str, Any]) -> SyncInputs:
    """Return keyword arguments as inputs. Raises ConfigError for an unknown name."""
    _require_known(given, SyncInputs.__annotations__ | AddInputs.__annotations__, "a synchronisation")
    return cast(SyncInputs, given)


def _require_known(given: Mapping[str, Any], known: Mapping[str, Any], what: str) -> None:
    if unknown := [name for name in given if name not in known]:
        raise ConfigError(did_you_mean(f"argument of {what}", unknown[0], known))


def recipe_of(config: Recipe | None, inputs: BuildInputs) -> BuildConfig:
    """Return the recipe with the model and the columns of the inputs. Raises ConfigError."""
    config = BuildConfig.load(config) if isinstance(config, str | Path) else config
    recipe = _with_encoder(config, inputs)
    columns = {name: value for name, value in inputs.items() if name in _RULES and value}
    return recipe.with_columns(cast(dict[str, str], columns)) if columns else recipe


def _with_encoder(config: BuildConfig | None, inputs: BuildInputs) -> BuildConfig:
    model = inputs.get("model", "")
    if not isinstance(model, str | Path):
        raise ConfigError(f"model is of type {type(model).__name__}; expected a hub id, or the path of a model.")
    if inputs.get("vectors") is not None:
        encoder = EncoderConfig(kind="vectors", model=str(model))
        recipe = config or BuildConfig(encoder=encoder)
        if recipe.encoder.kind != "vectors":
            raise ConfigError(
                f'vectors were given, but encoder.kind of the recipe is "{recipe.encoder.kind}", which computes them; '
                'expected "vectors".'
            )
        return recipe
    if not model:
        return config or BuildConfig()
    is_table = _is_table(Path(model).expanduser())
    recipe = config or (BuildConfig.load(_STATIC) if is_table else BuildConfig())
    kind = "static" if is_table else recipe.encoder.kind
    return replace(recipe, encoder=replace(recipe.encoder, kind=kind, model=str(model)))


def _is_table(path: Path) -> bool:
    """Return whether a path is a file of word vectors, or the folder of a table of token vectors."""
    if path.is_dir():
        try:
            find_table_files(path)
        except ModelError:
            return False
    return path.exists()
