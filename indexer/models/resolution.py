"""Which encoder is this? The one a recipe names, resolved; the one an index was built with.

How many layers and how many tokens a model takes is read from its config.json and tokenizer_config.json. The encoder of
a published index is found, hashed, and refused if it is another one now (`spec_of_index`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from indexer.errors import ConfigError, IsotropeError, MismatchError, ModelError
from indexer.hashing import fingerprint
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.hub import ModelLocation, cached_snapshot, locate_model, locate_table
from indexer.models.identity import UNLIMITED, EncoderIdentity, identity_difference
from indexer.models.model_files import (
    ModelFiles,
    check_pinned,
    file_sha256,
    find_model_files,
    find_table_files,
    hash_files,
    hash_table_files,
)
from indexer.models.sentence_transformers_folder import FolderSettings, read_folder_settings
from indexer.recipe.config import BuildConfig, EncoderConfig
from indexer.recipe.paper_methods import POOLINGS, load_method
from indexer.store import layout
from indexer.store.manifest import Manifest
from indexer.store.stores import store_at

RULES = 2  # bump when the same files and settings would give other embeddings
STATIC_RULES = 1  # those of kind "static"
VECTOR_RULES = 1  # those of kind "vectors"
_FIRST_TOKENS, _FIRST_GROUP = 1024, 2048  # the default batch plan of rules 1, which wrote it out

# What transformers' attribute maps call the number of blocks.
_LAYER_COUNTS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
_POSITIONS = ("max_position_embeddings", "n_positions")

# Positions relative between tokens: config.json may state a number, but no text is too long for the model.
_RELATIVE = ("t5", "mt5", "umt5", "longt5", "xlnet")

# Positions counted from pad_token_id + 1, as fairseq did, so that that many table rows are never used.
_OFFSET = (
    "camembert",
    "data2vec-text",
    "ibert",
    "longformer",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
)
_WITHOUT_LIMIT = 512  # taken when neither the model nor its tokenizer has a limit
_UNSET = 10**9  # tokenizers without a limit state 1e30


def resolve_spec(recipe: BuildConfig | EncoderConfig, folder: str | Path | None = None, rules: int = 0) -> EncoderSpec:
    """Find the model's files, hash them and resolve every "auto" and 0; loads no model.

    Settings of papers come from the recipe; with an `EncoderConfig` alone they are the defaults.

    `folder`, when given, is where the model's files lie now, if they have moved. `rules` are those an existing index
    was built by; 0 for the present ones.

    `pooling = "auto"` takes pooling, prompts and lower-casing from a sentence-transformers folder. Its
    maximum length is taken when `max_length` is 0 or left at its default; its prompts where the recipe's
    prefix is empty. `max_length = 0` otherwise means the model's own limit.

    Raises ModelError (files missing or not as expected) and ConfigError (a setting the model cannot follow).
    """
    config, of_pooling = _settings(recipe)
    if not config.traits.encodes_texts:
        return _spec_of_vectors(config, folder, rules)
    if config.traits.has_table:
        return _spec_of_table(config, of_pooling, folder, rules)
    located = locate_model(config.model, folder)
    files = find_model_files(located.folder)
    check_pinned(located.folder, located.pinned)
    settings = _auto_settings(config, files) if config.pooling == "auto" else _plain_settings(config, files)
    identity = EncoderIdentity(
        kind=config.kind,
        rules=rules or RULES,
        weights=hash_files(files.root, files.weights),
        tokenizer=hash_files(files.root, files.tokenizer),
        config=hash_files(files.root, ("config.json",)),
        layers=tuple(resolve_layers(config.layers, num_layers(files))),
        precision=config.precision,
        batch_tokens=config.batch_tokens or (_FIRST_TOKENS if rules == 1 else 0),
        group_texts=_FIRST_GROUP if rules == 1 else None,
        of_pooling=of_pooling,
        **settings,
    )
    return _spec(config, located, identity, files)


def _spec(
    config: EncoderConfig, located: ModelLocation, identity: EncoderIdentity, files: ModelFiles | None = None
) -> EncoderSpec:
    return EncoderSpec(
        config.model,
        str(located.folder),
        identity,
        identity.fingerprint,
        located.local,
        trained=config.fitted,
        found=files,
    )


def _spec_of_table(
    config: EncoderConfig, of_pooling: dict[str, Any], folder: str | Path | None, rules: int
) -> EncoderSpec:
    located = locate_table(config.model, folder)
    unlimited = config.max_length in (0, EncoderConfig.max_length)
    hashes = hash_table_files(find_table_files(located.folder))
    identity = EncoderIdentity(
        kind=config.kind,
        rules=rules or STATIC_RULES,
        weights=hashes["weights"],
        tokenizer=hashes["tokenizer"],
        config=hashes["config"],
        pooling="mean" if config.pooling == "auto" else config.pooling,
        max_length=UNLIMITED if unlimited else config.max_length,
        query_prefix=config.query_prefix,
        document_prefix=config.document_prefix,
        of_pooling=of_pooling,
    )
    return _spec(config, located, identity)


def _settings(recipe: BuildConfig | EncoderConfig) -> tuple[EncoderConfig, dict[str, Any]]:
    """Return the encoder's settings, and those of its pooling's paper that are part of the identity."""
    whole = recipe if isinstance(recipe, BuildConfig) else BuildConfig(encoder=recipe)
    config, paper = whole.encoder, POOLINGS.get(whole.encoder.pooling)
    if paper is None or not paper.identity:
        return config, {}
    return config, {paper.identity: load_method(paper).identity_value(whole.paper(paper.section))}


def _spec_of_vectors(config: EncoderConfig, folder: str | Path | None, rules: int) -> EncoderSpec:
    if folder:
        raise ConfigError(
            f"{folder}: these embeddings came with the corpus and no model is run, so there is none to point to. "
            "Leave out --model."
        )
    identity = EncoderIdentity(config.kind, rules or VECTOR_RULES, model=config.model)
    return EncoderSpec(config.model, "", identity, identity.fingerprint)


def with_fitted_state(spec: EncoderSpec, folder: str | Path, files: dict[str, str]) -> EncoderSpec:
    """The encoder with a fitted state: `files` (name -> sha256) in `folder`."""
    identity = replace(spec.identity, state=files)
    return replace(spec, identity=identity, fingerprint=identity.fingerprint, state=str(folder))


def spec_difference(expected: EncoderIdentity | Mapping[str, Any], found: EncoderSpec) -> str:
    """One line naming every file and setting in which `found` differs from what is expected; empty if in none.

    `expected` may be the identity as a manifest holds it.
    """
    plain = expected.to_dict() if isinstance(expected, EncoderIdentity) else expected
    return identity_difference(plain, found.identity.to_dict())


def _plain_settings(config: EncoderConfig, files: ModelFiles) -> dict[str, Any]:
    return {
        "pooling": config.pooling,
        "max_length": check_max_length(config.max_length or model_max_length(files), files),
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
    limits = [stated.max_length or model_max_length(files), max_positions(files)]
    return min(limit for limit in limits if limit > 0)


def num_layers(files: ModelFiles) -> int:
    """Blocks of the model. ModelError when config.json does not say."""
    for name in _LAYER_COUNTS:
        value: int | None = getattr(files.config, name)
        if value:
            return value
    raise ModelError(
        f"{files.root / 'config.json'}: states no number of layers ({', '.join(_LAYER_COUNTS)}); "
        "expected the config of a text encoder."
    )


def resolve_layers(layers: Iterable[int], count: int) -> list[int]:
    """Non-negative, sorted, without repetition: [1, -1] of 12 blocks is [1, 12]; 0 is the embeddings."""
    resolved = set()
    for layer in layers:
        if not -(count + 1) <= layer <= count:
            raise ConfigError(
                f"encoder.layers has {layer}, but the model has {count} blocks; expected 0 (the embedding "
                f"output) to {count}, or -1 (the last) to {-(count + 1)}."
            )
        resolved.add(layer if layer >= 0 else layer + count + 1)
    return sorted(resolved)


def max_positions(files: ModelFiles) -> int:
    """Most tokens the model's position embeddings take, special tokens included; 0: no such limit."""
    config = files.config
    kind = config.model_type
    if kind in _RELATIVE or (kind in ("deberta", "deberta-v2") and config.position_biased_input is False):
        return 0
    stated = (getattr(config, name) for name in _POSITIONS)
    rows: int = next((value for value in stated if value is not None), 0)
    if rows <= 0:
        return 0
    padding = config.pad_token_id
    offset = (1 if padding is None else padding) + 1 if kind in _OFFSET else 0
    if not 0 <= offset < rows:
        raise ModelError(
            f"{files.root / 'config.json'}: pad_token_id is {padding}, and positions are counted from the next number; "
            f"expected one below {rows - 1}, as there are {rows} positions."
        )
    return rows - offset


def model_max_length(files: ModelFiles) -> int:
    """The model's own maximum length: its tokenizer's, capped by its position embeddings; else 512."""
    stated = files.tokenizer_config.model_max_length
    tokenizer = int(stated) if stated is not None and 0 < stated < _UNSET else 0
    limits = [limit for limit in (tokenizer, max_positions(files)) if limit > 0]
    return min(limits) if limits else _WITHOUT_LIMIT


def check_max_length(max_length: int, files: ModelFiles) -> int:
    """`max_length`, if the model can take it; else ConfigError with the limit."""
    limit = max_positions(files)
    if limit and max_length > limit:
        raise ConfigError(
            f"encoder.max_length is {max_length}, but the model in {files.root} has position embeddings for "
            f"{limit} tokens; expected at most {limit}, or 0 for the model's own limit."
        )
    return max_length


def spec_of_index(index: Path, manifest: Manifest, model: str | Path | None = None) -> EncoderSpec:
    """The encoder an index was built with; `model` is its folder if it has moved.

    Raises ModelError when it is not to be found, and MismatchError if it is another one now.
    """
    folder = model or _known_folder(index, manifest.encoder["folder"])
    if not folder and (spec := _spec_at_hand(index, manifest)) is not None:
        return spec
    spec = _resolved(index, manifest, folder)
    if spec.fingerprint != manifest.fingerprint:
        raise MismatchError(
            f"{index}: the encoder at hand is not the one this index was built with: "
            f"{_difference(manifest, spec)}. "
            "Point --model to the original model folder, or build the index again with this one."
        )
    return spec


def _difference(manifest: Manifest, found: EncoderSpec) -> str:
    """In what the encoder differs; of one that differs before it is fitted, the state says nothing."""
    expected = manifest.encoder["identity"]
    if found.identity.state is None:
        expected = {key: value for key, value in expected.items() if key != "state"}
    return spec_difference(expected, found)


def _known_folder(index: Path, folder: str) -> str | None:
    """Where the model lay when the index was built; None for a model that is looked up by its hub id."""
    if folder and not Path(folder).exists():
        raise ModelError(f"{index}: its model lay at {folder}, which is gone. Point --model to where it is now.")
    return folder or None


def _spec_at_hand(index: Path, manifest: Manifest) -> EncoderSpec | None:
    """The encoder in the Hugging Face cache, if its hashes say that it is the index's; without the hub's library."""
    snapshot = cached_snapshot(BuildConfig.from_dict(manifest.config).encoder.model)
    if snapshot is None:
        return None
    try:
        spec = _resolved(index, manifest, snapshot)
    except IsotropeError:  # not whole: the ordinary way says what is wrong
        return None
    return replace(spec, local=False) if spec.fingerprint == manifest.fingerprint else None


def _resolved(index: Path, manifest: Manifest, folder: str | Path | None) -> EncoderSpec:
    """The encoder in `folder` by the rules of the index, with the fitted state that lies in the index, hashed anew."""
    identity = manifest.encoder["identity"]
    spec = resolve_spec(BuildConfig.from_dict(manifest.config), folder, identity["rules"])
    unfitted = {key: value for key, value in identity.items() if key != "state"}
    spec = replace(spec, trained="")  # the index has the state by now
    if "state" not in identity or spec.fingerprint != fingerprint(unfitted):
        return spec
    name = layout.state_folder(spec.fingerprint)
    state, files = index / name, manifest.files
    store_at(index).copy_out({file: digest for file, digest in files.items() if file.startswith(f"{name}/")})
    return with_fitted_state(spec, state, {name: file_sha256(state / name) for name in identity["state"]})
