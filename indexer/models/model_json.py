"""The JSON files of a model's folder, as types: what is read of each, and which sizes it may state.

A library builds a model of whatever size config.json states, and asks for the memory first. So the sizes have bounds
here, far above those of any text encoder, and `hf_model` compares a model with the weights before it is built.
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
_MOST_EXTRA = 1 << 20  # tokens and the like that a tokenizer's settings ask for
_BLOCKS = (1, 1000)
_WIDTH = (1, 1 << 20)
_COUNT = (0, 1 << 20)
# Lowest and highest value of what decides how large a model is, and how long building it takes. -1 where that stands
# for none.
_BOUNDS = {
    "num_hidden_layers": _BLOCKS,
    "n_layers": _BLOCKS,
    "n_layer": _BLOCKS,
    "num_layers": _BLOCKS,
    "num_hidden_groups": (1, 64),
    "inner_group_num": (1, 64),
    "hidden_size": _WIDTH,
    "d_model": _WIDTH,
    "n_embd": _WIDTH,
    "dim": _WIDTH,
    "emb_dim": _WIDTH,
    "embedding_size": _WIDTH,
    "num_attention_heads": _WIDTH,
    "n_heads": _WIDTH,
    "n_head": _WIDTH,
    "num_heads": _WIDTH,
    "vocab_size": (1, 1 << 24),
    "max_position_embeddings": (-1, 1 << 27),
    "n_positions": (-1, 1 << 27),
    "num_labels": _COUNT,
}


class ModelConfig(msgspec.Struct, frozen=True):
    """What is read of config.json; see transformers for what each means."""

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
    """What is read of tokenizer_config.json. Tokenizers without a limit state 1e30."""

    model_max_length: int | float | None = None


class AddedToken(msgspec.Struct, frozen=True):
    """A token beside the vocabulary of a tokenizer.json."""

    id: int = 0


class TokenizerModel(msgspec.Struct, frozen=True):
    """The model in a tokenizer.json. Unigram lists its tokens, whose ids are their places; others number them."""

    vocab: dict[str, int] | list[Any] | None = None
    unk_token: str | None = None
    unk_id: int | None = None


class TokenizerFile(msgspec.Struct, frozen=True):
    """What is read of a tokenizer.json."""

    model: TokenizerModel
    added_tokens: list[AddedToken] | None = None

    @property
    def ids(self) -> Iterable[int]:
        """Every id that it states."""
        numbered = self.model.vocab.values() if isinstance(self.model.vocab, dict) else ()
        return (*numbered, *(token.id for token in self.added_tokens or ()))


class WeightIndex(msgspec.Struct, frozen=True):
    """model.safetensors.index.json and its like: the file of each tensor."""

    weight_map: dict[str, str] = {}


class ModuleEntry(msgspec.Struct, frozen=True):
    """A module in modules.json of sentence-transformers."""

    type: str = ""
    path: str = ""

    @property
    def kind(self) -> str:
        """Its class, without the package."""
        return self.type.rpartition(".")[2]


def read_json(path: Path, kind: type[T]) -> T:
    """A JSON file of a model's folder as type `kind`. Raises ModelError for one that is no such JSON."""
    try:
        return decode_json(read_regular(path, _MOST_BYTES), kind)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise ModelError(f"{path}: cannot be read as JSON of its kind: {error}.") from error


def read_config(path: Path) -> ModelConfig:
    """A config.json. Raises ModelError, also for a size out of bounds."""
    config = read_json(path, ModelConfig)
    for name, (low, high) in _BOUNDS.items():
        value = getattr(config, name)
        if value is not None and not low <= value <= high:
            raise ModelError(f"{path}: {name} is {value:,}; expected {low:,} to {high:,}.")
    return config


def read_tokenizer_config(path: Path) -> TokenizerConfig:
    """A tokenizer_config.json. Raises ModelError, also for a number of tokens out of bounds."""
    for name, value in read_json(path, dict[str, Any]).items():
        if isinstance(value, int) and "max" not in name and abs(value) > _MOST_EXTRA:
            raise ModelError(f"{path}: {name} is {value:,}; expected at most {_MOST_EXTRA:,}.")
    return read_json(path, TokenizerConfig)


def read_tokenizer(path: Path) -> TokenizerFile:
    """A tokenizer.json. Raises ModelError, also for an id out of bounds: the library makes a list as long as that."""
    found = read_json(path, TokenizerFile)
    largest = max(found.ids, default=0)
    if not 0 <= largest < _BOUNDS["vocab_size"][1]:
        raise ModelError(
            f"{path}: has a token with the id {largest:,}; expected ids below {_BOUNDS['vocab_size'][1]:,}."
        )
    return found


def read_modules(folder: Path) -> list[ModuleEntry]:
    """The modules of a sentence-transformers folder; none where it has no modules.json."""
    path = folder / "modules.json"
    return read_json(path, list[ModuleEntry]) if path.exists() else []
