"""Resolution of the cross-encoder that a recipe names for reranking: located, hashed, and checked.

A cross-encoder is a classifier with one label that reads a question and a text together, in the format of
sentence-transformers' `CrossEncoder`. Its identity is that of an encoder with the model's own pooling; a recipe records
the fingerprint as `rerank.sha256`. Loads no numerical library.
"""

import dataclasses
from typing import Any, Literal

import msgspec

from indexer.errors import ConfigError, MismatchError, ModelError, spelled
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.hub import locate_model
from indexer.models.identity import EncoderIdentity
from indexer.models.model_files import ModelFiles, find_model_files, hash_files, is_onnx
from indexer.models.model_json import read_json
from indexer.models.rescorer_spec import is_rescorer, resolve_rescorer
from indexer.models.resolution import check_max_length, model_max_length
from indexer.recipe.config import BuildConfig
from indexer.recipe.ranking import RerankConfig

RULES = 1  # bump when the same files and settings would give other scores
Activation = Literal["identity", "sigmoid"]
_CLASSIFIER = "ForSequenceClassification"
_FEWEST_TOKENS = 8  # of a question and a text with their special tokens
_LABELS = 2  # transformers' default for a config.json without labels
_ACTIVATIONS: dict[str, Activation] = {"Identity": "identity", "Sigmoid": "sigmoid"}
_SETTINGS = "config_sentence_transformers.json"


class _Saved(msgspec.Struct, frozen=True):
    """Settings that sentence-transformers saves in a cross-encoder's folder or config.json."""

    activation_fn: str | None = None
    default_prompt_name: str | None = None


class _Config(msgspec.Struct, frozen=True):
    """The fields of config.json."""

    architectures: list[str] | None = None
    id2label: dict[str, Any] | None = None
    num_labels: int | None = None
    sentence_transformers: _Saved | None = None
    sbert_ce_default_activation_function: str | None = None  # of versions before 4


def resolve_cross_encoder(config: RerankConfig) -> EncoderSpec:
    """Find the files of `rerank.model`, hash them and resolve its limit; loads no model.

    Raises ConfigError if no model is named or `max_length` exceeds the model's limit, ModelError for files that are
    missing or no cross-encoder, and MismatchError if the recipe records another hash.
    """
    if not config.model:
        raise ConfigError("rerank.model is empty; expected the hub id or folder of a cross-encoder.")
    try:
        located = locate_model(config.model, named_by=_named_by())
        files = find_model_files(located.folder)
    except ModelError as error:
        if not config.sha256:
            raise
        raise ModelError(f"{error} {_fixes()}") from error
    if is_onnx(files.weights):
        raise ModelError(f"{files.root}: has only {files.weights[0]}; expected a cross-encoder with model.safetensors.")
    _require_cross_encoder(files)
    identity = EncoderIdentity(
        kind="transformer",
        rules=RULES,
        weights=hash_files(files.root, files.weights),
        tokenizer=hash_files(files.root, files.tokenizer),
        config=hash_files(files.root, ("config.json", *(_SETTINGS,) * (files.root / _SETTINGS).is_file())),
        max_length=_max_length(config.max_length, files),
        precision=config.precision,
    )
    spec = EncoderSpec(config.model, str(located.folder), identity, identity.fingerprint, located.local, found=files)
    if config.sha256 and config.sha256 != spec.fingerprint:
        raise MismatchError(
            f"{located.folder}: the cross-encoder differs from the one in the recipe: its files and settings have "
            f"sha256 {spec.fingerprint[:16]}..., expected {config.sha256[:16]}.... Fix: put the original model back, "
            f"or record this one: {record_reranker()}."
        )
    return spec


def record_reranker() -> str:
    """Return the call that records a cross-encoder in an index."""
    return spelled('refit_index(INDEX, ["rerank.model=MODEL"])', "isotrope refit INDEX --set rerank.model=MODEL")


def _named_by() -> str:
    return spelled(
        "SearchEngine.rerank_by(FOLDER), or rerank.model in the recipe to record it",
        "--rerank FOLDER, or --set rerank.model=FOLDER to record it",
    )


def _fixes() -> str:
    return (
        "The recipe records it as its cross-encoder. Fix: put it back, search without reranking "
        f"({spelled('rerank_depth=0', '--no-rerank')}), or record another one (an empty name for none): "
        f"{record_reranker()}."
    )


def with_recorded_hash(config: BuildConfig) -> BuildConfig:
    """Return a recipe with the hash of its reranker and the full path of a folder; unchanged without a model.

    Raises as `resolve_cross_encoder` and `resolve_rescorer`.
    """
    if not config.rerank.model:
        return config
    if is_rescorer(config.rerank.model):
        rescorer = resolve_rescorer(dataclasses.replace(config.rerank, sha256=""))
        named = dataclasses.replace(config.rerank, model=str(rescorer.folder), sha256=rescorer.sha256)
        return dataclasses.replace(config, rerank=named)
    spec = resolve_cross_encoder(config.rerank)
    model = spec.folder if spec.local else config.rerank.model
    return dataclasses.replace(config, rerank=dataclasses.replace(config.rerank, model=model, sha256=spec.fingerprint))


def _saved(files: ModelFiles) -> _Saved:
    path = files.root / _SETTINGS
    return read_json(path, _Saved) if path.is_file() else _Saved()


def read_activation(files: ModelFiles) -> Activation:
    """Return the activation of a cross-encoder's logit, as in `CrossEncoder`. Raises ModelError for an unknown one."""
    config = read_json(files.root / "config.json", _Config)
    inside = config.sentence_transformers or _Saved()
    named = _saved(files).activation_fn or inside.activation_fn or config.sbert_ce_default_activation_function
    if named is None:
        return "sigmoid"
    activation = _ACTIVATIONS.get(named.rpartition(".")[2])
    if activation is None:
        raise ModelError(
            f"{files.root}: the activation of its scores is {named}; expected {' or '.join(_ACTIVATIONS)} of torch, as "
            "in cross-encoders for ranking."
        )
    return activation


def _require_cross_encoder(files: ModelFiles) -> None:
    """Raise ModelError for a model that does not return a single score for two texts."""
    config = read_json(files.root / "config.json", _Config)
    architecture = (config.architectures or ["of an unnamed architecture"])[0]
    if not architecture.endswith(_CLASSIFIER):
        raise ModelError(
            f"{files.root}: is {architecture}, not a cross-encoder; expected a model ...{_CLASSIFIER}, which reads a "
            "question and a text together, such as a model trained by sentence-transformers' CrossEncoder."
        )
    labels = len(config.id2label) if config.id2label is not None else config.num_labels or _LABELS
    if labels != 1:
        raise ModelError(
            f"{files.root}: has {labels} labels; expected a cross-encoder with 1 label, the score. A model of several "
            "classes, for inference or sentiment, cannot rank."
        )
    if _saved(files).default_prompt_name:
        raise ModelError(f"{files.root / _SETTINGS}: sets a prompt for its texts, which is not supported here.")
    read_activation(files)


def _max_length(requested: int, files: ModelFiles) -> int:
    check_max_length(requested, files, "rerank.max_length")
    if requested and requested < _FEWEST_TOKENS:
        raise ConfigError(
            f"rerank.max_length is {requested}; expected at least {_FEWEST_TOKENS}, or 0 for the model's own limit."
        )
    return requested or model_max_length(files)
