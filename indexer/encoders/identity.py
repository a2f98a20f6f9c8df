"""Which encoder is this? The settings and file hashes that decide its results, and their fingerprint.

The identity is a dict of JSON types:

    kind, rules                        "transformer", and the version of this code's rules
    weights, tokenizer, config         file name -> sha256
    pooling, layers, max_length, query_prefix, document_prefix, lowercase
    precision                          the class of results; how it is computed is the machine's business
    batch_tokens                       the batch plan, which decides rounding; 0: the backend's own
    sif_a, latte_mix                   settings of a pooling that is fitted
    state                              file name -> sha256 of the fitted state, where there is one (int8, such poolings)

Of kind "static", a table of token vectors: the same without layers and batch plan.
Of kind "vectors", where embeddings come with the corpus: kind, rules, and model, the name the recipe gives it.

With `pooling = "auto"` the settings of a sentence-transformers folder stand in it as resolved, so the same
settings written out in the recipe are the same encoder. Else names and paths are not part of it.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from indexer.config import EncoderConfig
from indexer.encoders.limits import check_max_length, layer_count, own_limit, position_limit, resolve_layers
from indexer.encoders.model_files import ModelFiles, check_pinned, find_model_files, hash_files
from indexer.encoders.model_folder import Located, locate, locate_table
from indexer.encoders.protocol import EncoderSpec
from indexer.encoders.sentence_transformers_folder import FolderSettings, read_folder_settings
from indexer.encoders.tables import hash_table, table_files
from indexer.errors import ConfigError
from indexer.hashing import fingerprint

RULES = 2  # bump when the same files and settings would give other embeddings
STATIC_RULES = 1  # those of kind "static"
VECTOR_RULES = 1  # those of kind "vectors"
NO_LIMIT = 1_000_000_000  # tokens of a text that a table takes
_FIRST_PLAN = {"batch_tokens": 1024, "group_texts": 2048}  # what rules 1 wrote for the default
_FILE_GROUPS = ("weights", "tokenizer", "config", "state")


def resolve_spec(config: EncoderConfig, folder: str | Path | None = None, rules: int = 0) -> EncoderSpec:
    """Find the model's files, hash them and resolve every "auto" and 0; loads no model.

    `folder`, when given, is where the model's files lie now, if they have moved. `rules` are those an existing index
    was built by; 0 for the present ones.

    `pooling = "auto"` takes pooling, prompts and lower-casing from a sentence-transformers folder. Its
    maximum length is taken when `max_length` is 0 or left at its default; its prompts where the recipe's
    prefix is empty. `max_length = 0` otherwise means the model's own limit.

    Raises ModelError (files missing or not as expected) and ConfigError (a setting the model cannot follow).
    """
    if config.kind == "vectors":
        return _spec_of_vectors(config, folder, rules)
    if config.kind == "static":
        return _spec_of_table(config, folder, rules)
    located = locate(config.model, folder)
    files = find_model_files(located.folder)
    check_pinned(located.folder, located.pinned)
    settings = _auto_settings(config, files) if config.pooling == "auto" else _plain_settings(config, files)
    identity: dict[str, Any] = {
        "kind": config.kind,
        "rules": rules or RULES,
        "weights": hash_files(files.root, files.weights),
        "tokenizer": hash_files(files.root, files.tokenizer),
        "config": hash_files(files.root, ("config.json",)),
        "layers": resolve_layers(config.layers, layer_count(files)),
        **settings,
        "precision": config.precision,
        **_batch_plan(config, rules or RULES),
        **_of_pooling(config),
    }
    return _spec(config, located, identity)


def _spec(config: EncoderConfig, located: Located, identity: dict[str, Any]) -> EncoderSpec:
    return EncoderSpec(
        config.model, str(located.folder), identity, fingerprint(identity), located.local, trained=config.fitted
    )


def _spec_of_table(config: EncoderConfig, folder: str | Path | None, rules: int) -> EncoderSpec:
    located = locate_table(config.model, folder)
    unlimited = config.max_length in (0, EncoderConfig.max_length)
    identity: dict[str, Any] = {
        "kind": config.kind,
        "rules": rules or STATIC_RULES,
        **hash_table(table_files(located.folder)),
        "layers": [],
        "pooling": "mean" if config.pooling == "auto" else config.pooling,
        "max_length": NO_LIMIT if unlimited else config.max_length,
        "query_prefix": config.query_prefix,
        "document_prefix": config.document_prefix,
        "precision": "float32",
        **_of_pooling(config),
    }
    return _spec(config, located, identity)


def _of_pooling(config: EncoderConfig) -> dict[str, Any]:
    """What a fitted pooling adds to the identity: how it is fitted."""
    if config.pooling == "sif":
        return {"sif_a": config.sif_a}
    if config.pooling == "latte-mix":
        return {"latte_mix": dataclasses.asdict(config.latte_mix)}
    return {}


def _spec_of_vectors(config: EncoderConfig, folder: str | Path | None, rules: int) -> EncoderSpec:
    if folder:
        raise ConfigError(
            f"{folder}: these embeddings came with the corpus and no model is run, so there is none to point to. "
            "Leave out --model."
        )
    identity = {"kind": config.kind, "rules": rules or VECTOR_RULES, "model": config.model}
    return EncoderSpec(config.model, "", identity, fingerprint(identity))


def with_state(spec: EncoderSpec, folder: str | Path, files: dict[str, str]) -> EncoderSpec:
    """The encoder with a fitted state: `files` (name -> sha256) in `folder`."""
    identity = spec.identity | {"state": files}
    return dataclasses.replace(
        spec, identity=identity, fingerprint=fingerprint(identity), state=str(folder), without_state=spec.unfitted
    )


def _batch_plan(config: EncoderConfig, rules: int) -> dict[str, int]:
    if rules > 1:
        return {"batch_tokens": config.batch_tokens}
    return _FIRST_PLAN | ({"batch_tokens": config.batch_tokens} if config.batch_tokens else {})


def mismatch(expected: dict[str, Any], found: EncoderSpec) -> str:
    """One line naming every file and setting in which `found` differs from `expected`; empty if in none."""
    differences = []
    for key in sorted({*expected, *found.identity}):
        before, now = expected.get(key), found.identity.get(key)
        if key in _FILE_GROUPS:
            differences += _file_differences(before or {}, now or {})
        elif before != now:
            differences.append(f"{key} is {_plain(now)}, expected {_plain(before)}")
    return "; ".join(differences)


def _plain_settings(config: EncoderConfig, files: ModelFiles) -> dict[str, Any]:
    return {
        "pooling": config.pooling,
        "max_length": check_max_length(config.max_length or own_limit(files), files),
        "query_prefix": config.query_prefix,
        "document_prefix": config.document_prefix,
        "lowercase": False,
    }


def _auto_settings(config: EncoderConfig, files: ModelFiles) -> dict[str, Any]:
    stated = read_folder_settings(files.folder)
    return {
        "pooling": stated.pooling,
        "max_length": _auto_length(config, files, stated),
        "query_prefix": config.query_prefix or stated.query_prompt,
        "document_prefix": config.document_prefix or stated.document_prompt,
        "lowercase": stated.lowercase,
    }


def _auto_length(config: EncoderConfig, files: ModelFiles, stated: FolderSettings) -> int:
    if config.max_length not in (0, EncoderConfig.max_length):
        return check_max_length(config.max_length, files)
    # sentence-transformers does not count RoBERTa's unused positions: some folders state 514 where 512 fit.
    limits = [stated.max_length or own_limit(files), position_limit(files)]
    return min(limit for limit in limits if limit > 0)


def _file_differences(before: dict[str, str], now: dict[str, str]) -> list[str]:
    return [
        f"{name} has sha256 {_short(now.get(name))}, expected {_short(before.get(name))}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]


def _short(sha256: str | None) -> str:
    return f"{sha256[:16]}..." if sha256 else "(no such file)"


def _plain(value: Any) -> str:
    return "unset" if value is None else json.dumps(value, ensure_ascii=False)
