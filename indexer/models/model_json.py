"""The JSON files of a model's folder as types: the fields that are read, and the bounds of sizes.

A library allocates a model of any size that config.json states. So sizes have bounds here, far above those of any text
encoder, and `hf_model` compares a model with its weights before it is built.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from indexer.errors import ModelError
from indexer.system.regular_files import read_regular
from indexer.typed_json import decode_json

T = TypeVar("T")
_MOST_BYTES = 1 << 29  # of a JSON file; a tokenizer.json of a million tokens has a tenth of that
_MOST_EXTRA = 1 << 20  # largest number, such as of extra tokens, in a tokenizer's settings
WIDTHS = ("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embedding_size")
_HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads")
# Lowest and highest values of the settings that determine a model's size and the time to build it; -1 can mean none.
_BOUNDS = {
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer", "num_layers"), (1, 1000)),
    **dict.fromkeys(("num_hidden_groups", "inner_group_num"), (1, 64)),
    **dict.fromkeys((*WIDTHS, *_HEADS), (1, 1 << 20)),
    "vocab_size": (1, 1 << 24),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), (-1, 1 << 27)),
    "num_labels": (0, 1 << 20),
}


class ModelConfig(msgspec.Struct, frozen=True):
    """The fields that are read from config.json; their meanings are those of transformers."""

    model_type: str | None = None
    num_hidden_layers: int | None = None
    n_layers: int | None = None
    n_layer: int | None = None
    num_layers: int | None = None
    num_hidden_groups: int | None = None
    inner_group_num: int | None = None
    hidden_size: int | None = None
    d_model: int | None = None
    n_embd: int | None = None
    dim: int | None = None
    emb_dim: int | None = None
    embedding_size: int | None = None
    intermediate_size: int | None = None
    num_attention_heads: int | None = None
    n_heads: int | None = None
    n_head: int | None = None
    num_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    d_kv: int | None = None
    d_ff: int | None = None
    hidden_dim: int | None = None
    n_inner: int | None = None
    feed_forward_proj: str | None = None
    vocab_size: int | None = None
    max_position_embeddings: int | None = None
    n_positions: int | None = None
    type_vocab_size: int | None = None
    num_labels: int | None = None
    pad_token_id: int | None = None
    layer_norm_eps: float | None = None
    hidden_act: str | None = None
    position_embedding_type: str | None = None
    position_biased_input: bool | None = None
    is_decoder: bool | None = None


class TokenizerConfig(msgspec.Struct, frozen=True):
    """The field that is read from tokenizer_config.json. Tokenizers without a limit state 1e30."""

    model_max_length: int | float | None = None


class AddedToken(msgspec.Struct, frozen=True):
    """A token outside the vocabulary of a tokenizer.json."""

    id: int = 0


class TokenizerModel(msgspec.Struct, frozen=True):
    """The model in a tokenizer.json. Unigram lists its tokens in the order of their ids; other models number them."""

    vocab: dict[str, int] | list[Any] | None = None
    unk_token: str | None = None
    unk_id: int | None = None


class TokenizerFile(msgspec.Struct, frozen=True):
    """The fields that are read from a tokenizer.json."""

    model: TokenizerModel
    added_tokens: list[AddedToken] | None = None

    @property
    def ids(self) -> Iterable[int]:
        """All ids in the file."""
        numbered = self.model.vocab.values() if isinstance(self.model.vocab, dict) else ()
        return (*numbered, *(token.id for token in self.added_tokens or ()))


class WeightIndex(msgspec.Struct, frozen=True):
    """model.safetensors.index.json and similar files: the file of each tensor."""

    weight_map: dict[str, str] = {}


class ModuleEntry(msgspec.Struct, frozen=True):
    """A module in modules.json of sentence-transformers."""

    type: str = ""
    path: str = ""

    @property
    def kind(self) -> str:
        """The name of the class, without the package."""
        return self.type.rpartition(".")[2]


def read_json(path: Path, kind: type[T]) -> T:
    """Return a JSON file of a model's folder as type `kind`. Raises ModelError if it is no such JSON."""
    try:
        return decode_json(read_regular(path, _MOST_BYTES), kind)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise ModelError(f"{path}: cannot be read as JSON of its type: {error}.") from error


def read_config(path: Path) -> ModelConfig:
    """Return a config.json. Raises ModelError, also for a size out of bounds."""
    config = read_json(path, ModelConfig)
    for name, (low, high) in _BOUNDS.items():
        value = getattr(config, name)
        if value is not None and not low <= value <= high:
            raise ModelError(f"{path}: {name} is {value:,}; expected {low:,} to {high:,}.")
    return config


def read_tokenizer_config(path: Path) -> TokenizerConfig:
    """Return a tokenizer_config.json. Raises ModelError, also for a number of tokens out of bounds."""
    for name, value in read_json(path, dict[str, Any]).items():
        if isinstance(value, int) and "max" not in name and abs(value) > _MOST_EXTRA:
            raise ModelError(f"{path}: {name} is {value:,}; expected at most {_MOST_EXTRA:,}.")
    return read_json(path, TokenizerConfig)


def read_tokenizer(path: Path) -> TokenizerFile:
    """Return a tokenizer.json. Raises ModelError, also for an id out of bounds (the library allocates up to it)."""
    tokenizer, most = read_json(path, TokenizerFile), _BOUNDS["vocab_size"][1]
    largest = max(tokenizer.ids, default=0)
    if not 0 <= largest < most:
        raise ModelError(f"{path}: has a token with the id {largest:,}; expected ids below {most:,}.")
    return tokenizer


def read_modules(folder: Path) -> list[ModuleEntry]:
    """Return the modules of a sentence-transformers folder; empty without a modules.json."""
    path = folder / "modules.json"
    return read_json(path, list[ModuleEntry]) if path.exists() else []
