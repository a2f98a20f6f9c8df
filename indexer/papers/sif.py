"""SIF weights: a token of probability p in the corpus weighs a / (a + p).

After Arora, Liang and Ma (A Simple but Tough-to-Beat Baseline for Sentence Embeddings, ICLR 2017), algorithm 1. The
probabilities are the corpus's own, counted in the encoder's tokens, special ones included where it has some. The
paper's second step, the removal of the first principal direction, is part of the transform (`whitening.remove`).
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
from indexer.encoders.pooling import TokenVectors, average_layers, pool
from indexer.encoders.static.encoder import pool_table
from indexer.encoders.token_embeddings import FitRequest, TokenEmbeddings
from indexer.errors import ConfigError, ModelError
from indexer.models.encoder_spec import EncoderSpec
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

    a: float = 1e-3  # a token of probability p weighs a / (a + p)

    def __post_init__(self) -> None:
        if not 0 < self.a < float("inf"):
            raise ConfigError(f"papers.sif.a is {self.a}; expected a number above 0, such as 0.001.")
        object.__setattr__(self, "a", float(self.a))  # 1 and 1.0 are one setting, and one hash


def identity_value(settings: SifConfig) -> float:
    """Return what an encoder's identity states of the settings."""
    return settings.a


def fit(request: FitRequest) -> dict[str, Any]:
    """Count the tokens of a corpus and write the counts; return facts. Raises ConfigError where there is no text."""
    outputs, tokens = TokenEmbeddings(request.spec, request.options), 0

    def ids() -> Iterable[Int32Array]:
        nonlocal tokens
        for block in request.texts():
            found = outputs.tokens(block).ids
            tokens += len(found)
            yield found

    write_counts(request.folder, count_tokens(ids(), outputs.vocabulary))
    return {"tokens": tokens}


def check_state(spec: EncoderSpec, folder: Path) -> None:
    """Counts fit every value of `a`: there is nothing to compare."""


def token_weights(spec: EncoderSpec) -> Weights:
    """Return the weight of each token, (vocabulary,), by the fitted counts. Raises ModelError, ConfigError."""
    return sif_weights(read_counts(spec.fitted_folder("sif")), spec.identity.of_pooling["sif_a"])


class SifPooler:
    """The mean of a model's token states, averaged over layers and weighted."""

    def __init__(self, weights: "Tensor") -> None:
        self._weights = weights

    def __call__(self, states: "Sequence[Tensor]", ids: "Tensor", mask: "Tensor | None") -> "Tensor":
        return pool(average_layers(states) * self._weights.to(ids.device)[ids].unsqueeze(-1), mask, "mean")

    def width(self, size: int) -> int:
        return size


def open_pooler(spec: EncoderSpec, vocabulary: int) -> SifPooler:
    """Return the pooler of a model of so many tokens. Raises ModelError for counts of another number."""
    import torch

    weights = token_weights(spec)
    if len(weights) != vocabulary:
        raise ModelError(f"{spec.state}: counts of {len(weights):,} tokens for a model of {vocabulary:,}.")
    return SifPooler(torch.from_numpy(weights))


class SifTablePooler:
    """The same for a table of token vectors; a text without known tokens gets their mean, with weight 1."""

    def __init__(self, weights: Weights) -> None:
        self._weights = np.append(weights, np.float32(1))

    def __call__(self, ids: Int32Array, starts: Int64Array, vectors: TokenVectors) -> Float32Array:
        def weighted(some: Int32Array) -> Float32Array:
            rows: Float32Array = np.multiply(vectors(some), self._weights[some][:, None], dtype=np.float32)
            return rows

        return pool_table(ids, starts, weighted, "mean")

    def width(self, size: int) -> int:
        return size


def open_table_pooler(spec: EncoderSpec) -> SifTablePooler:
    """Return the pooler of a table."""
    return SifTablePooler(token_weights(spec))


def count_tokens(ids: Iterable[npt.NDArray[np.integer]], vocabulary: int) -> Counts:
    """How often each token occurs in arrays of ids, (vocabulary,). Raises ConfigError where there is none."""
    counts = np.zeros(vocabulary, np.int64)
    for some in ids:
        counts += np.bincount(some, minlength=vocabulary)[:vocabulary]
    if not counts.any():
        raise ConfigError('encoder.pooling is "sif", but there is no text whose tokens could be counted.')
    return counts


def sif_weights(counts: Counts, a: float) -> Weights:
    """The weight of each token, (vocabulary,); 1 for one that does not occur."""
    weights: Weights = (a / (a + counts / counts.sum())).astype(np.float32)
    return weights


def write_counts(folder: Path, counts: Counts) -> None:
    """Keep the counts of a corpus in a folder."""
    seen = np.flatnonzero(counts)
    arrays = {"tokens": seen.astype(np.int64), "counts": counts[seen], "vocabulary": np.array([len(counts)])}
    (folder / FILE).write_bytes(save_tensors(arrays))


def read_counts(folder: Path) -> Counts:
    """What `write_counts` kept, (vocabulary,). Raises ModelError."""
    path = folder / FILE
    try:
        arrays = load_tensors(read_regular(path))
        vocabulary, tokens, found = int(arrays["vocabulary"][0]), arrays["tokens"], arrays["counts"]
        if not 0 < vocabulary <= _MOST_TOKENS or tokens.min() < 0 or found.min() < 1:
            raise ValueError(f"a vocabulary of {vocabulary:,}, or counts below 1")
        counts = np.zeros(vocabulary, np.int64)
        counts[tokens] = found
    except (OSError, SafetensorError, KeyError, IndexError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: not the token counts of a corpus: {error}.") from error
    return counts
