"""SIF weights: a token of probability p in the corpus weighs a / (a + p).

After Arora, Liang and Ma (A Simple but Tough-to-Beat Baseline for Sentence Embeddings, ICLR 2017), algorithm 1. The
probabilities are the corpus's own, counted in the encoder's tokens, special ones included where it has some. The
paper's second step, the removal of the first principal direction, is part of the transform (`whitening.remove`).
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from indexer.errors import ConfigError, ModelError
from indexer.regular_files import read_regular

FILE = "sif.safetensors"
_MOST_TOKENS = 1 << 27  # of a vocabulary
Counts = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32]


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
