"""Models with random weights and texts of known lengths: for speed, no trained weights are needed."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
_SPECIAL = 2  # tokens that open and close a text
SHORTEST, LONGEST = 8, 256


@dataclass(frozen=True)
class Shape:
    """Sizes of a BERT."""

    hidden: int
    blocks: int
    heads: int
    inner: int


SHAPES = {"bert-base": Shape(768, 12, 12, 3072), "MiniLM": Shape(384, 6, 12, 1536)}
TINY = {"tiny": Shape(32, 2, 4, 64)}


def write_model(folder: Path, shape: Shape, tokenizer: Path) -> Path:
    """A BERT with random weights and the tokenizer of another model's folder. Returns `folder`, which it makes."""
    import torch
    from transformers import BertConfig, BertModel

    folder.mkdir(parents=True)
    for name in _TOKENIZER:
        if (tokenizer / name).is_file():
            shutil.copy(tokenizer / name, folder / name)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(_vocabulary(tokenizer)),
        hidden_size=shape.hidden,
        num_hidden_layers=shape.blocks,
        num_attention_heads=shape.heads,
        intermediate_size=shape.inner,
    )
    BertModel(config).save_pretrained(folder)
    return folder


def normal_lengths(count: int, mean: int = 128, deviation: int = 40) -> list[int]:
    """Lengths in tokens, normally distributed and cut at `SHORTEST` and `LONGEST`, by a fixed seed."""
    drawn = np.random.default_rng(0).normal(mean, deviation, count)
    lengths: list[int] = np.clip(np.rint(drawn), SHORTEST, LONGEST).astype(int).tolist()
    return lengths


def texts_of(lengths: list[int], tokenizer: Path) -> list[str]:
    """Random words, each one token, so that every text has the tokens asked for, special ones included."""
    words = [word for word in _vocabulary(tokenizer) if word.isascii() and word.isalpha() and word.islower()]
    chance = np.random.default_rng(1)
    return [" ".join(words[i] for i in chance.integers(0, len(words), length - _SPECIAL)) for length in lengths]


def _vocabulary(tokenizer: Path) -> list[str]:
    from tokenizers import Tokenizer

    return sorted(Tokenizer.from_file(str(tokenizer / "tokenizer.json")).get_vocab())
