"""Sizes of a plan's encoder: of a well-known model (`constants.json`), or of a model's folder.

Both are given by the settings of a config.json. The weights of a folder are counted exactly, from the headers of their
files.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from indexer.encoders.memory import parameter_count
from indexer.errors import ConfigError, ModelError
from indexer.models.model_files import ModelFiles, find_model_files
from indexer.models.model_json import WIDTHS, ModelConfig, TokenizerConfig, read_config
from indexer.models.output_modules import output_width
from indexer.models.resolution import own_max_length
from indexer.models.sentence_transformers_folder import FolderSettings, read_folder_settings
from indexer.recipe.config import EncoderConfig
from indexer.recipe.loading import did_you_mean
from indexer.typed_json import convert_json
from search.plan.ledger import read_constants

_LAYERS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
_INNER = ("intermediate_size", "hidden_dim", "d_ff", "n_inner")
_HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads")
# Encoders with a gated MLP, of three matrices, and rotary positions, without a table. Decoders, which have both, state
# num_key_value_heads.
_GATED = ("gte", "modernbert", "new", "nomic_bert")
_PER_TOKEN = 4  # states of a token that a block holds besides those in its MLP


@dataclass(frozen=True)
class ModelShape:
    """Sizes of an encoder; a static table has no blocks."""

    name: str
    hidden: int  # size of a token state
    dim: int  # of an embedding
    blocks: int = 0
    queries: int = 0  # of all heads of a block
    keys: int = 0  # as many are values
    mlp: int = 0  # inner sizes of the MLP's matrices, together
    weights: int = 0  # parameters in memory, with the embedding table
    limit: int = 0  # tokens of a text; 0: no limit

    @property
    def block(self) -> int:
        """Parameters of the matrices of a block."""
        return self.hidden * (2 * self.queries + 2 * self.keys + self.mlp)

    @property
    def parameters(self) -> int:
        """Parameters of the matrices of all blocks."""
        return self.blocks * self.block

    @property
    def activations(self) -> int:
        """Numbers that a token takes in memory, at most, while a block runs: counted as the tensors of torch."""
        return _PER_TOKEN * self.hidden + self.mlp


def model_shape(encoder: EncoderConfig) -> ModelShape:
    """Return the shape of a recipe's encoder, up to the highest layer that the recipe uses, without downloads.

    Raises ConfigError for an unknown name and for a setting that does not fit the model, ModelError for a folder whose
    config.json lacks the sizes.
    """
    if encoder.kind == "vectors":
        raise ConfigError("a plan needs an encoder, but encoder.kind is vectors. Fix: name an encoder with --model.")
    if encoder.traits.is_remote:
        return _behind_server(encoder)
    shape = _whole_shape(encoder)
    if encoder.truncate_dim > shape.dim:
        raise ConfigError(
            f"encoder.truncate_dim is {encoder.truncate_dim:,}, but {shape.name} has {shape.dim:,} dimensions; "
            "expected at most that, or 0 for all."
        )
    return replace(shape, dim=encoder.truncate_dim or shape.dim)


def _behind_server(encoder: EncoderConfig) -> ModelShape:
    if not encoder.truncate_dim:
        raise ConfigError(
            f"a plan does not ask the server for the dimensions of {encoder.model}. Fix: state the number that the "
            "index keeps, such as --set encoder.truncate_dim=1024."
        )
    return ModelShape(encoder.model, encoder.truncate_dim, encoder.truncate_dim)


def _whole_shape(encoder: EncoderConfig) -> ModelShape:
    folder, is_table = Path(encoder.model).expanduser(), encoder.kind == "static"
    name = folder.name
    if (folder / "config.json").is_file():
        return _of_folder(folder, encoder)
    models: dict[str, dict[str, Any]] = read_constants()["models"]  # settings as in config.json, or those of another
    known = {each: models.get(sizes.get("like", ""), {}) | sizes for each, sizes in models.items()}
    if is_table:
        known = {each: sizes for each, sizes in known.items() if "num_hidden_layers" not in sizes}
    if name.lower() in known:
        sizes = known[name.lower()]
        config = convert_json(sizes, ModelConfig)
        if "num_hidden_layers" not in sizes:
            return _table(folder, config)
        limit = sizes.get("max_length") or config.max_position_embeddings or 0
        return replace(_shape(folder, config, encoder.layers), limit=limit)
    if folder.is_dir():
        raise ConfigError(
            f"--model: {folder} is a folder without config.json; expected the folder of a model, or a name such as "
            "bert-base-uncased or potion-base-4M."
        )
    raise ConfigError(f"--model: {did_you_mean('model', name.lower(), known)} Or name a folder with config.json.")


def _of_folder(folder: Path, encoder: EncoderConfig) -> ModelShape:
    """Return the shape of a folder's model, which may lack weights and tokenizer. Raises ModelError."""
    try:
        files = find_model_files(folder)
    except ModelError:
        files = ModelFiles(folder, folder, (), (), read_config(folder / "config.json"), TokenizerConfig())
    if encoder.kind == "static" or files.config.model_type == "model2vec":
        return _table(folder, files.config)
    stated = read_folder_settings(folder) if encoder.model_settings else FolderSettings()
    stored = 0 if _has_decoder(files.config) else parameter_count(files)
    shape = _shape(folder, files.config, encoder.layers, stored)
    dim = output_width([module.load() for module in stated.modules], shape.dim)
    return replace(shape, dim=dim, limit=own_max_length(files, stated))


def _has_decoder(config: ModelConfig) -> bool:
    """Return whether the weights contain a decoder, which is not loaded."""
    return "t5" in (config.model_type or "")


def _table(folder: Path, config: ModelConfig) -> ModelShape:
    size = _size(folder, config, ("hidden_dim", *WIDTHS))
    return ModelShape(folder.name, size, size)


def _shape(folder: Path, config: ModelConfig, layers: tuple[int, ...], stored: int = 0) -> ModelShape:
    """Return the shape of a model whose weights contain `stored` parameters; 0: count them by the settings."""
    hidden, blocks = _size(folder, config, WIDTHS), _size(folder, config, _LAYERS)
    heads = _first(config, _HEADS)
    head = config.head_dim or config.d_kv or (hidden // heads if heads else 0)
    gated = _is_gated(config)
    whole = ModelShape(
        name=folder.name,
        hidden=hidden,
        dim=hidden,
        blocks=blocks,
        queries=heads * head or hidden,
        keys=(config.num_key_value_heads or heads) * head or hidden,
        mlp=(3 if gated else 2) * (_first(config, _INNER) or 4 * hidden),
    )
    positions = 0 if gated else _first(config, ("max_position_embeddings", "n_positions"))
    tables = (config.vocab_size or 0) * (config.embedding_size or hidden) + positions * hidden
    groups = config.num_hidden_groups or 0  # ALBERT's blocks share weights
    kept = min(blocks, max(blocks + 1 + layer if layer < 0 else layer for layer in layers))
    weights = (stored or tables + (groups or blocks) * whole.block) - (0 if groups else (blocks - kept) * whole.block)
    return replace(whole, blocks=kept, weights=weights)


def _is_gated(config: ModelConfig) -> bool:
    return (
        config.num_key_value_heads is not None
        or config.model_type in _GATED
        or (config.feed_forward_proj or "").startswith("gated")
    )


def _size(folder: Path, config: ModelConfig, fields: tuple[str, ...]) -> int:
    if size := _first(config, fields):
        return size
    raise ModelError(f"{folder / 'config.json'}: has no {fields[0]}; expected a whole number above 0.")


def _first(config: ModelConfig, fields: tuple[str, ...]) -> int:
    """Return the first of some settings that is stated; 0 without any."""
    return next((value for field in fields if (value := getattr(config, field))), 0)
