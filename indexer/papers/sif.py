"""SIF weights: a token of probability p in the corpus weighs a / (a + p).

After Arora, Liang and Ma (A Simple but Tough-to-Beat Baseline for Sentence Embeddings, ICLR 2017), algorithm 1. The
probabilities are estimated from the corpus, in the encoder's tokens including special tokens. The paper's second step,
the removal of the first principal direction, is part of the transform (`whitening.remove`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from indexer.arrays import Float32Array, Int32Array, Int64Array
from indexer.encoders.pooling import Pooler, TablePooler, TokenVectors, average_layers, pool
from indexer.encoders.static.encoder import pool_table
from indexer.encoders.token_embeddings import OnStep, Texts, TokenEmbeddings
from indexer.errors import ConfigError, ModelError
from indexer.models.encoder_spec import EncoderSpec
from indexer.recipe.run_options import RunOptions
from indexer.system.regular_files import read_regular

if TYPE_CHECKING:
    from torch import Tensor

FILE = "sif.safetensors"
STATE_FILES = (FILE,)
_MOST_TOKENS = 1 << 27  # of a vocabulary
Counts = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SifConfig:
    """The section [papers.sif] of a recipe."""

    a: float = 1e-3
    """A token of probability p weighs a / (a + p)."""

    def __post_init__(self) -> None:
        if not 0 < self.a < float("inf"):
            raise ConfigError(f"papers.sif.a is {self.a}; expected a number above 0, such as 0.001.")
        object.__setattr__(self, "a", float(self.a))  # 1 and 1.0 are one setting, and one hash


def identity_value(settings: SifConfig) -> float:
    return settings.a


def fit(spec: EncoderSpec, texts: Texts, folder: Path, options: RunOptions, on_step: OnStep | None) -> dict[str, Any]:
    """Count the tokens of a corpus and write the counts; return facts. Raises ConfigError for a corpus without text."""
    encoder, tokens = TokenEmbeddings(spec, options).encoder, 0

    def ids() -> Iterable[Int32Array]:
        nonlocal tokens
        for block in texts():
            token_ids = encoder.tokenize(block, "document").ids
            tokens += len(token_ids)
            yield token_ids

    write_counts(folder, count_tokens(ids(), encoder.vocabulary))
    return {"tokens": tokens}


def check_state(spec: EncoderSpec, folder: Path) -> None:
    """Accept any state: counts fit every value of `a`."""


def token_weights(spec: EncoderSpec) -> Weights:
    """Return the weight of each token, (vocabulary,), from the fitted counts. Raises ModelError, ConfigError."""
    return sif_weights(read_counts(spec.fitted_folder("sif")), spec.identity.of_pooling["sif_a"])


class SifPooler(Pooler):
    """The weighted mean of a model's token states, averaged over layers."""

    def __init__(self, weights: "Tensor") -> None:
        self._weights = weights

    def __call__(self, states: "Sequence[Tensor]", ids: "Tensor", mask: "Tensor | None") -> "Tensor":
        return pool(average_layers(states) * self._weights.to(ids.device)[ids].unsqueeze(-1), mask, "mean")


def open_pooler(spec: EncoderSpec, vocabulary: int) -> SifPooler:
    """Return the pooler of a model with `vocabulary` tokens. Raises ModelError for counts of another size."""
    import torch

    weights = token_weights(spec)
    if len(weights) != vocabulary:
        raise ModelError(f"{spec.state}: counts of {len(weights):,} tokens for a model of {vocabulary:,}.")
    return SifPooler(torch.from_numpy(weights))


class SifTablePooler(TablePooler):
    """The weighted mean of table vectors; a text without known tokens gets the table's mean with weight 1."""

    def __init__(self, weights: Weights) -> None:
        self._weights = np.append(weights, np.float32(1))

    def __call__(self, ids: Int32Array, starts: Int64Array, vectors: TokenVectors) -> Float32Array:
        def weighted(tokens: Int32Array) -> Float32Array:
            return np.multiply(vectors(tokens), self._weights[tokens][:, None], dtype=np.float32)

        return pool_table(ids, starts, weighted, "mean")


def open_table_pooler(spec: EncoderSpec) -> SifTablePooler:
    """Return the pooler of a table."""
    return SifTablePooler(token_weights(spec))


def count_tokens(ids: Iterable[npt.NDArray[np.integer]], vocabulary: int) -> Counts:
    """Count each token in arrays of ids, (vocabulary,). Raises ConfigError if there are no tokens."""
    counts = np.zeros(vocabulary, np.int64)
    for tokens in ids:
        counts += np.bincount(tokens, minlength=vocabulary)[:vocabulary]
    if not counts.any():
        raise ConfigError('encoder.pooling is "sif", but the corpus has no tokens to count.')
    return counts


def sif_weights(counts: Counts, a: float) -> Weights:
    """Return the weight of each token, (vocabulary,); 1 for a token that does not occur."""
    weights: Weights = (a / (a + counts / counts.sum())).astype(np.float32)
    return weights


def write_counts(folder: Path, counts: Counts) -> None:
    seen = np.flatnonzero(counts)
    arrays = {"tokens": seen.astype(np.int64), "counts": counts[seen], "vocabulary": np.array([len(counts)])}
    (folder / FILE).write_bytes(save_tensors(arrays))


def read_counts(folder: Path) -> Counts:
    """Read the counts of `write_counts`, (vocabulary,). Raises ModelError."""
    path = folder / FILE
    try:
        arrays = load_tensors(read_regular(path))
        vocabulary, tokens, stored = int(arrays["vocabulary"][0]), arrays["tokens"], arrays["counts"]
        if not 0 < vocabulary <= _MOST_TOKENS or tokens.min() < 0 or stored.min() < 1:
            raise ValueError(f"a vocabulary of {vocabulary:,}, or counts below 1")
        counts = np.zeros(vocabulary, np.int64)
        counts[tokens] = stored
    except (OSError, SafetensorError, KeyError, IndexError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: not the token counts of a corpus: {error}.") from error
    return counts
