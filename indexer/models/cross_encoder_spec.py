"""Which cross-encoder is this? The model that a recipe names for reranking: found, hashed, and refused if it is none.

A cross-encoder is a classifier with one label that reads a question and a text together, in the form that
sentence-transformers' `CrossEncoder` saves and loads. Its identity is that of an encoder whose pooling is the model's
own; the fingerprint of it is what a recipe records as `rerank.sha256`. Loads no numerical library.
"""

import dataclasses
from typing import Any, Literal

import msgspec

from indexer.errors import ConfigError, MismatchError, ModelError
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.hub import ModelLocation, locate_model
from indexer.models.identity import EncoderIdentity
from indexer.models.model_files import ModelFiles, find_model_files, hash_files
from indexer.models.model_json import read_json
from indexer.models.resolution import max_positions, model_max_length
from indexer.recipe.config import BuildConfig
from indexer.recipe.ranking import RerankConfig

RULES = 1  # bump when the same files and settings would give other scores
Activation = Literal["identity", "sigmoid"]
_CLASSIFIER = "ForSequenceClassification"
_FEWEST_TOKENS = 8  # of a question and a text with their special tokens
_LABELS = 2  # that transformers gives a model whose config.json says nothing of labels
_ACTIVATIONS: dict[str, Activation] = {"Identity": "identity", "Sigmoid": "sigmoid"}
_SETTINGS = "config_sentence_transformers.json"
_NAMED_BY = "--rerank FOLDER, or --set rerank.model=FOLDER to record it"
_WAYS_OUT = (
    "The recipe records it as its cross-encoder: put it back, leave hits as they are found (--no-rerank, or a "
    "rerank_depth of 0), or record none or another: isotrope refit INDEX --set rerank.model= (or =MODEL)."
)


class _Saved(msgspec.Struct, frozen=True):
    """What sentence-transformers writes beside a cross-encoder, or into its config.json."""

    activation_fn: str | None = None
    default_prompt_name: str | None = None


class _Config(msgspec.Struct, frozen=True):
    """What is read of config.json."""

    architectures: list[str] | None = None
    id2label: dict[str, Any] | None = None
    num_labels: int | None = None
    sentence_transformers: _Saved | None = None
    sbert_ce_default_activation_function: str | None = None  # of versions before 4


def resolve_cross_encoder(config: RerankConfig) -> EncoderSpec:
    """Find the files of `rerank.model`, hash them and resolve its limit; loads no model.

    Raises ConfigError where none is named or `max_length` is more than the model takes, ModelError for files that are
    missing or no cross-encoder, and MismatchError where the recipe records another hash.
    """
    if not config.model:
        raise ConfigError("rerank.model is empty; expected the hub id or folder of a cross-encoder.")
    located, files = _located(config)
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
    found = EncoderSpec(config.model, str(located.folder), identity, identity.fingerprint, located.local, found=files)
    if config.sha256 and config.sha256 != found.fingerprint:
        raise MismatchError(
            f"{located.folder}: the cross-encoder at hand is not the one that the recipe records: its files and "
            f"settings have sha256 {found.fingerprint[:16]}..., expected {config.sha256[:16]}.... Put the original "
            "model back, or record this one: isotrope refit INDEX --set rerank.model=MODEL."
        )
    return found


def _located(config: RerankConfig) -> tuple[ModelLocation, ModelFiles]:
    """Where the model lies. Raises ModelError; for one that a recipe records, with the ways to ask without it."""
    try:
        located = locate_model(config.model, named_by=_NAMED_BY)
        return located, find_model_files(located.folder)
    except ModelError as error:
        if not config.sha256:
            raise
        raise ModelError(f"{error} {_WAYS_OUT}") from error


def with_recorded_hash(config: BuildConfig) -> BuildConfig:
    """A recipe with the hash of its cross-encoder, and a folder's whole path; the same where it names none.

    Raises as `resolve_cross_encoder` does.
    """
    if not config.rerank.model:
        return config
    found = resolve_cross_encoder(config.rerank)
    model = found.folder if found.local else config.rerank.model
    return dataclasses.replace(config, rerank=dataclasses.replace(config.rerank, model=model, sha256=found.fingerprint))


def read_activation(files: ModelFiles) -> Activation:
    """What a cross-encoder's logit goes through, as `CrossEncoder` has it. Raises ModelError for anything else."""
    settings, config = files.root / _SETTINGS, read_json(files.root / "config.json", _Config)
    beside = read_json(settings, _Saved) if settings.is_file() else _Saved()
    inside = config.sentence_transformers or _Saved()
    named = beside.activation_fn or inside.activation_fn or config.sbert_ce_default_activation_function
    if named is None:
        return "sigmoid"
    found = _ACTIVATIONS.get(named.rpartition(".")[2])
    if found is None:
        raise ModelError(
            f"{files.root}: its scores go through {named}; expected {' or '.join(_ACTIVATIONS)} of torch, as "
            "cross-encoders for ranking have."
        )
    return found


def _require_cross_encoder(files: ModelFiles) -> None:
    """Raises ModelError for a model that gives no single score for two texts."""
    config, settings = read_json(files.root / "config.json", _Config), files.root / _SETTINGS
    architecture = (config.architectures or ["of an architecture it does not name"])[0]
    if not architecture.endswith(_CLASSIFIER):
        raise ModelError(
            f"{files.root}: is {architecture}, not a cross-encoder; expected a model ...{_CLASSIFIER}, which reads a "
            "question and a text together, such as those that sentence-transformers' CrossEncoder trains."
        )
    labels = len(config.id2label) if config.id2label is not None else config.num_labels or _LABELS
    if labels != 1:
        raise ModelError(
            f"{files.root}: gives {labels} labels; expected a cross-encoder with 1, its score. A model of several "
            "classes, as for inference or sentiment, puts nothing in order."
        )
    if settings.is_file() and read_json(settings, _Saved).default_prompt_name:
        raise ModelError(f"{settings}: puts a prompt before its texts, which is not supported here.")
    read_activation(files)


def _max_length(asked: int, files: ModelFiles) -> int:
    limit = max_positions(files)
    if asked and limit and asked > limit:
        raise ConfigError(
            f"rerank.max_length is {asked}, but the model in {files.root} has position embeddings for {limit} tokens; "
            f"expected at most {limit}, or 0 for the model's own limit."
        )
    if asked and asked < _FEWEST_TOKENS:
        raise ConfigError(
            f"rerank.max_length is {asked}; expected at least {_FEWEST_TOKENS}, or 0 for the model's own limit."
        )
    return asked or model_max_length(files)
