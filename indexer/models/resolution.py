"""Resolution of the encoder that a recipe names, and of the encoder of an index.

The numbers of layers and tokens come from the model's config.json and tokenizer_config.json. The encoder of a published
index is located, hashed, and refused if it has changed (`spec_of_index`).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from indexer.errors import ConfigError, IsotropeError, MismatchError, ModelError, as_argument
from indexer.hashing import fingerprint
from indexer.models.encoder_spec import EncoderSpec, prompt_text
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
    is_onnx,
)
from indexer.models.model_json import WIDTHS
from indexer.models.output_modules import module_hashes
from indexer.models.sentence_transformers_folder import FolderSettings, read_folder_settings, read_prompts
from indexer.recipe.config import AUTO, BasicPooling, BuildConfig, EncoderConfig, PoolingMode
from indexer.recipe.paper_methods import POOLINGS, load_method
from indexer.store import layout
from indexer.store.manifest import Manifest
from indexer.store.stores import store_at
from indexer.system.urls import require_server_url

RULES = 2  # bump when the same files and settings would give other embeddings
STATIC_RULES = 1  # of kind "static"
VECTOR_RULES = 1  # of kind "vectors"
SERVER_RULES = 1  # of kind "server"
_FIRST_TOKENS, _FIRST_GROUP = 1024, 2048  # the default batch plan of rules 1, which recorded it

_LAYER_COUNTS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")  # names in transformers' attribute maps
_POSITIONS = ("max_position_embeddings", "n_positions")
_RELATIVE = ("t5", "mt5", "umt5", "longt5", "xlnet")  # relative positions: without limit, whatever config.json states
# Positions counted from pad_token_id + 1, as in fairseq, so that the table rows before are never used.
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
_WITHOUT_LIMIT = 512  # used if neither the model nor its tokenizer has a limit
_SLASHES = re.compile(r"^(https?):/+")  # Path makes one slash of two
_OF_SERVERS = ("token counts are estimates, because a server does not return the tokens of each text",)
_UNSET = 10**9  # tokenizers without a limit state 1e30


def resolve_spec(recipe: BuildConfig | EncoderConfig, folder: str | Path | None = None, rules: int = 0) -> EncoderSpec:
    """Find the model's files, hash them and resolve every "auto" and 0; loads no model.

    Settings of papers come from the recipe; for an `EncoderConfig` they are the defaults. `folder` is the location of
    the model's files if they have moved. `rules` are the rules of an existing index; 0 for the current rules.

    What the recipe leaves open ("auto" and 0) comes from the settings in the model's folder; a plain transformer gets
    the mean of all tokens. `notes` of the result name each setting of the folder that the recipe changes.

    Raises ModelError (files missing or not as expected) and ConfigError (a setting that the model does not support).
    """
    config, of_pooling = _settings(recipe)
    if not config.traits.encodes_texts:
        if folder:
            raise ConfigError(
                f"{folder}: the embeddings came with the corpus and no model runs, so there is no model to name. "
                f"Fix: leave out {as_argument('model')}."
            )
        identity = EncoderIdentity(config.kind, rules or VECTOR_RULES, model=config.model)
        return EncoderSpec(config.model, "", identity, identity.fingerprint)
    if config.traits.has_table:
        return _spec_of_table(config, of_pooling, folder, rules)
    if config.traits.is_remote:
        return _spec_of_server(config, folder, rules)
    located = locate_model(config.model, folder)
    files = find_model_files(located.folder)
    check_pinned(located.folder, located.pinned)
    stated = read_folder_settings(files.folder) if config.model_settings else FolderSettings()
    settings = _text_settings(config, files, stated)
    layers = tuple(resolve_layers(config.layers, num_layers(files)))
    if is_onnx(files.weights):
        _require_onnx_settings(config, files, layers)
    identity = EncoderIdentity(
        kind=config.kind,
        rules=rules or RULES,
        weights=hash_files(files.root, files.weights),
        tokenizer=hash_files(files.root, files.tokenizer),
        config=hash_files(files.root, ("config.json",)),
        layers=layers,
        precision=config.precision,
        batch_tokens=config.batch_tokens or (_FIRST_TOKENS if rules == 1 else 0),
        group_texts=_FIRST_GROUP if rules == 1 else None,
        truncate_dim=config.truncate_dim or None,
        of_pooling=of_pooling,
        **settings,
    )
    notes = tuple(_notes(config, files, stated, settings))
    return _spec(config, located, identity, found=files, prompts=stated.prompts, notes=notes)


def _spec(config: EncoderConfig, located: ModelLocation, identity: EncoderIdentity, **informative: Any) -> EncoderSpec:
    folder, fingerprint = str(located.folder), identity.fingerprint
    return EncoderSpec(config.model, folder, identity, fingerprint, located.local, fitted=config.fitted, **informative)


def _spec_of_table(
    config: EncoderConfig, of_pooling: dict[str, Any], folder: str | Path | None, rules: int
) -> EncoderSpec:
    located = locate_table(config.model, folder)
    stated = read_prompts(located.folder) if config.model_settings and located.folder.is_dir() else FolderSettings()
    identity = EncoderIdentity(
        kind=config.kind,
        rules=rules or STATIC_RULES,
        pooling=_pooling(config, stated),
        max_length=config.max_length or UNLIMITED,
        truncate_dim=config.truncate_dim or None,
        of_pooling=of_pooling,
        **_prefixes(config, stated),
        **hash_table_files(find_table_files(located.folder)),
    )
    return _spec(config, located, identity, prompts=stated.prompts)


def _spec_of_server(config: EncoderConfig, url: str | Path | None, rules: int) -> EncoderSpec:
    """Return the encoder of a server, at another `url` if it has moved. Its folder is the URL."""
    at = _SLASHES.sub(r"\1://", str(url)) if url else config.url
    require_server_url(at, as_argument("model") if url else "encoder.url")
    prefixes = _prefixes(config, FolderSettings())
    identity = EncoderIdentity(
        config.kind, rules or SERVER_RULES, model=config.model, truncate_dim=config.truncate_dim or None, **prefixes
    )
    return EncoderSpec(config.model, at, identity, identity.fingerprint, notes=_OF_SERVERS)


def _settings(recipe: BuildConfig | EncoderConfig) -> tuple[EncoderConfig, dict[str, Any]]:
    """Return the encoder's settings, and the settings of its pooling's paper that are part of the identity."""
    whole = recipe if isinstance(recipe, BuildConfig) else BuildConfig(encoder=recipe)
    config, paper = whole.encoder, POOLINGS.get(whole.encoder.pooling)
    if paper is None or not paper.identity:
        return config, {}
    return config, {paper.identity: load_method(paper).identity_value(whole.paper(paper.section))}


def with_fitted_state(spec: EncoderSpec, folder: str | Path, files: dict[str, str]) -> EncoderSpec:
    """Return the encoder with a fitted state: `files` (name -> sha256) in `folder`."""
    identity = replace(spec.identity, state=files)
    return replace(spec, identity=identity, fingerprint=identity.fingerprint, state=str(folder))


def _text_settings(config: EncoderConfig, files: ModelFiles, stated: FolderSettings) -> dict[str, Any]:
    """Return the settings of the identity that the recipe or, where it leaves them open, the model's folder states."""
    own, asked = own_max_length(files, stated), config.max_length
    pooling = _pooling(config, stated)
    return {
        "pooling": pooling,
        "max_length": check_max_length(asked, files) if asked else own,
        "lowercase": stated.lowercase,
        "modules": None if pooling in POOLINGS else module_hashes(stated.modules),
        **_prefixes(config, stated),
    }


def _require_onnx_settings(config: EncoderConfig, files: ModelFiles, layers: tuple[int, ...]) -> None:
    """Raise ConfigError for settings that need more than the token states of the last layer."""
    fault = ""
    if layers != (num_layers(files),):
        fault = f"encoder.layers is {list(config.layers)}; expected [-1]"
    elif config.pooling in POOLINGS:
        fault = f'encoder.pooling is "{config.pooling}"; expected one of {", ".join(get_args(BasicPooling))}'
    elif config.precision == "int8":
        fault = 'encoder.precision is "int8"; expected "bfloat16" or "float32"'
    if fault:
        raise ConfigError(
            f"{fault}, because {files.root} has only {files.weights[0]}, which returns only the last layer. Fix: "
            "change the setting, or name a folder of the model with model.safetensors."
        )


def _pooling(config: EncoderConfig, stated: FolderSettings) -> PoolingMode:
    return stated.pooling or "mean" if config.pooling == "auto" else config.pooling


def _prefixes(config: EncoderConfig, stated: FolderSettings) -> dict[str, Any]:
    chosen = {"query": (config.query_prompt, stated.query_prompt),
              "document": (config.document_prompt, stated.document_prompt)}  # fmt: skip
    any_word = not config.traits.is_remote  # as in recipes from before prompts had names
    return {
        f"{role}_prefix": own
        if prompt == AUTO
        else prompt_text(prompt, stated.prompts, f"encoder.{role}_prompt", any_word)
        for role, (prompt, own) in chosen.items()
    }


def _notes(
    config: EncoderConfig, files: ModelFiles, stated: FolderSettings, settings: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a sentence on each setting of the model's folder that the recipe changes, and on a missing pooling."""
    if not config.model_settings:
        return
    if stated.pooling is None:
        if config.pooling == AUTO:
            yield "the model's folder states no pooling, so the mean of all tokens is used"
        return
    own = {"pooling": stated.pooling, "max_length": own_max_length(files, stated),
           "query_prefix": stated.query_prompt, "document_prefix": stated.document_prompt}  # fmt: skip
    for name, value in own.items():
        if settings[name] != value:
            shown = (json.dumps(each, ensure_ascii=False) for each in (value, settings[name]))
            setting = name.replace("prefix", "prompt")
            yield f"the model's folder says encoder.{setting} = {next(shown)}; the recipe says {next(shown)}"
    if stated.modules and settings["modules"] is None and settings["pooling"] in POOLINGS:
        kinds = ", ".join(module.kind for module in stated.modules)
        yield f'pooling "{settings["pooling"]}" leaves out the model\'s modules after its own pooling: {kinds}'


def num_layers(files: ModelFiles) -> int:
    """Return the model's number of blocks. Raises ModelError if config.json does not state it."""
    for name in _LAYER_COUNTS:
        value: int | None = getattr(files.config, name)
        if value:
            return value
    raise ModelError(
        f"{files.root / 'config.json'}: has no number of layers ({', '.join(_LAYER_COUNTS)}); "
        "expected the config of a text encoder."
    )


def hidden_size(files: ModelFiles) -> int:
    """Return the dimensions of a token state. Raises ModelError if config.json does not state them."""
    for name in WIDTHS:
        value: int | None = getattr(files.config, name)
        if value:
            return value
    raise ModelError(f"{files.root / 'config.json'}: has no size of token states; expected one of {', '.join(WIDTHS)}.")


def resolve_layers(layers: Iterable[int], count: int) -> list[int]:
    """Return layers non-negative, sorted and distinct: [1, -1] of 12 blocks is [1, 12]; 0 is the embeddings."""
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
    """Return the limit of the model's position embeddings in tokens, special tokens included; 0 without a limit."""
    config = files.config
    kind = config.model_type
    if kind in _RELATIVE or (kind in ("deberta", "deberta-v2") and config.position_biased_input is False):
        return 0
    stated = (getattr(config, name) for name in _POSITIONS)
    rows: int = next((value for value in stated if value is not None), 0)
    if rows <= 0:
        return 0
    padding = config.pad_token_id
    offset = first_position(files)
    if not 0 <= offset < rows:
        raise ModelError(
            f"{files.root / 'config.json'}: pad_token_id is {padding}, and positions are counted from the next number; "
            f"expected an id below {rows - 1}, because there are {rows} positions."
        )
    return rows - offset


def first_position(files: ModelFiles) -> int:
    """Return the position of a text's first token."""
    padding = files.config.pad_token_id
    return (1 if padding is None else padding) + 1 if files.config.model_type in _OFFSET else 0


def model_max_length(files: ModelFiles) -> int:
    """Return the maximum length of the model's tokenizer, capped by its position embeddings; without limits 512."""
    stated = files.tokenizer_config.model_max_length
    tokenizer = int(stated) if stated is not None and 0 < stated < _UNSET else 0
    limits = [limit for limit in (tokenizer, max_positions(files)) if limit > 0]
    return min(limits) if limits else _WITHOUT_LIMIT


def own_max_length(files: ModelFiles, stated: FolderSettings) -> int:
    """Return the maximum length that a model's folder states, capped by the model's position embeddings."""
    # sentence-transformers ignores RoBERTa's unused positions: some folders state 514 where 512 fit
    limits = [stated.max_length or model_max_length(files), max_positions(files)]
    return min(limit for limit in limits if limit > 0)


def check_max_length(max_length: int, files: ModelFiles, setting: str = "encoder.max_length") -> int:
    """Return `max_length`. Raises ConfigError if it exceeds the model's limit."""
    limit = max_positions(files)
    if limit and max_length > limit:
        raise ConfigError(
            f"{setting} is {max_length}, but the model in {files.root} has position embeddings for {limit} tokens; "
            f"expected at most {limit}, or 0 for the model's own limit."
        )
    return max_length


def spec_of_index(index: Path, manifest: Manifest, model: str | Path | None = None) -> EncoderSpec:
    """Return the encoder of an index; `model` is its folder, or the server's URL, if it has moved.

    Raises ModelError if it is missing, and MismatchError if it has changed.
    """
    folder = model or manifest.encoder["folder"] or None
    if not model and folder and not Path(folder).exists():
        raise ModelError(
            f"{index}: the model folder {folder} no longer exists. Fix: set {as_argument('model')} to its new location."
        )
    if not folder and (spec := _cached_spec(index, manifest)) is not None:
        return spec
    spec = _resolved(index, manifest, folder)
    if spec.fingerprint != manifest.fingerprint:
        expected = manifest.encoder["identity"]
        if spec.identity.state is None:  # differs before it is fitted, so a missing state is no difference
            expected = {key: value for key, value in expected.items() if key != "state"}
        difference = identity_difference(expected, spec.identity)
        raise MismatchError(
            f"{index}: the encoder differs from the one this index was built with: {difference}. "
            f"Fix: set {as_argument('model')} to the original model folder, or build the index again with this encoder."
        )
    return spec


def _cached_spec(index: Path, manifest: Manifest) -> EncoderSpec | None:
    """Return the encoder in the Hugging Face cache if its hashes match the index; without the hub's library."""
    encoder = BuildConfig.from_dict(manifest.config).encoder
    snapshot = None if encoder.traits.is_remote else cached_snapshot(encoder.model)
    if snapshot is None:
        return None
    try:
        spec = _resolved(index, manifest, snapshot)
    except IsotropeError:  # incomplete: the regular search reports the fault
        return None
    return replace(spec, local=False) if spec.fingerprint == manifest.fingerprint else None


def _resolved(index: Path, manifest: Manifest, folder: str | Path | None) -> EncoderSpec:
    """Return the encoder in `folder` by the rules of the index, with the fitted state in the index, hashed again."""
    identity = manifest.encoder["identity"]
    spec = resolve_spec(BuildConfig.from_dict(manifest.config), folder, identity["rules"])
    unfitted = {key: value for key, value in identity.items() if key != "state"}
    spec = replace(spec, fitted="")  # the index contains the state
    if "state" not in identity or spec.fingerprint != fingerprint(unfitted):
        return spec
    name = layout.state_folder(spec.fingerprint)
    state, files = index / name, manifest.files
    store_at(index).copy_out({file: digest for file, digest in files.items() if file.startswith(f"{name}/")})
    return with_fitted_state(spec, state, {name: file_sha256(state / name) for name in identity["state"]})
