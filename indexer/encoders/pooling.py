"""Poolings of a model's token states to a row per text: a token, a mean, or the maximum of each dimension.

All arithmetic is float32, independent of the model's number type. Layers are averaged before the tokens are pooled: for
linear poolings the order makes no difference, for `max` it does. Every token under the mask counts, including special
tokens ([CLS], [SEP]), as in the paper. Other poolings come from papers (`indexer.recipe.paper_methods`) and follow the
same protocols.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from indexer.arrays import Float32Array, Int32Array, Int64Array
from indexer.recipe.config import PoolingMode

if TYPE_CHECKING:
    from torch import Tensor

TokenVectors = Callable[[Int32Array], Float32Array]


class Pooler(Protocol):
    """Pools the token states of a model. A pooler keeps no state between calls, so threads may share it."""

    def __call__(self, states: "Sequence[Tensor]", ids: "Tensor", mask: "Tensor | None") -> "Tensor":
        """Return rows (texts, width) float32 of some layers, each (texts, tokens, d).

        `ids` are the tokens (texts, tokens). With `mask` None every token counts.
        """

    def width(self, size: int) -> int:
        """Return the size of a row, given the size of a token state."""
        return size


class TablePooler(Protocol):
    """Pools token vectors that are rows of a table."""

    def __call__(self, ids: Int32Array, starts: Int64Array, vectors: TokenVectors) -> Float32Array:
        """Return rows (texts, width); text i has the tokens ids[starts[i]:starts[i + 1]]."""

    def width(self, size: int) -> int:
        """Return the size of a row, given the size of a token vector."""
        return size


class BasicPooler(Pooler):
    """Pools averaged layers by `pool`."""

    def __init__(self, mode: PoolingMode) -> None:
        self._mode = mode

    def __call__(self, states: "Sequence[Tensor]", ids: "Tensor", mask: "Tensor | None") -> "Tensor":
        return pool(average_layers(states), mask, self._mode)


def average_layers(layers: "Sequence[Tensor]") -> "Tensor":
    """Return the unweighted mean of one or more layers, each (rows, tokens, d), as float32."""
    total = layers[0].float()
    for layer in layers[1:]:
        total = total + layer.float()
    return total / len(layers) if len(layers) > 1 else total


def pool(states: "Tensor", mask: "Tensor | None", mode: PoolingMode) -> "Tensor":
    """Pool (rows, tokens, d) over the tokens where `mask` (rows, tokens) is not 0, into (rows, d) float32.

    Without a mask every token counts. `cls` is the first token and `lasttoken` the last, `mean` the average,
    `mean_sqrt_len_tokens` the sum over the square root of the number of tokens, `weightedmean` the average with the
    weights 1, 2, 3, ... in the order of the text, `max` the largest value of each dimension. Every row must have at
    least one token, and padding must be on the right. Padded places never count, not even with NaN or infinity; a
    non-finite value in a real token shows in the result (for `cls` and `lasttoken` in that token).
    """
    states = states.float()
    if mode == "cls":
        return states[:, 0]
    if mode == "lasttoken":
        return states[:, -1] if mask is None else _last(states, mask)
    if mode == "max":
        return (states if mask is None else states.masked_fill(_padding(mask), float("-inf"))).amax(dim=1)
    counted = states if mask is None else states.masked_fill(_padding(mask), 0.0)
    if mode == "weightedmean":
        return _weighted_mean(counted, mask)
    count = states.shape[1] if mask is None else mask.ne(0).sum(dim=1, keepdim=True)
    return counted.sum(dim=1) / (count if mode == "mean" else count**0.5)


def pool_arrays(states: Float32Array, lengths: Int64Array, mode: PoolingMode) -> Float32Array:
    """Pool as `pool` does, with numpy: the first `lengths[i]` tokens of row i of (rows, tokens, d) count."""
    if mode == "cls":
        return states[:, 0]
    if mode == "lasttoken":
        return states[np.arange(len(states)), lengths - 1]
    real = (np.arange(states.shape[1]) < lengths[:, None])[..., None]
    if mode == "max":
        return np.asarray(np.max(states, axis=1, where=real, initial=-np.inf), np.float32)
    counted, count = np.where(real, states, np.float32(0)), lengths[:, None].astype(np.float32)
    if mode == "weightedmean":
        counted *= np.arange(1, states.shape[1] + 1, dtype=np.float32)[:, None]
        count *= (count + 1) / 2  # the sum of the weights
    rows: Float32Array = counted.sum(axis=1) / (np.sqrt(count) if mode == "mean_sqrt_len_tokens" else count)
    return rows


def _padding(mask: "Tensor") -> "Tensor":
    return (mask == 0).unsqueeze(-1)


def _last(states: "Tensor", mask: "Tensor") -> "Tensor":
    last = mask.ne(0).sum(dim=1) - 1
    return states.gather(1, last.view(-1, 1, 1).expand(-1, 1, states.shape[2])).squeeze(1)


def _weighted_mean(counted: "Tensor", mask: "Tensor | None") -> "Tensor":
    """Return the mean of (rows, tokens, d), 0 where padded, by weights that grow with the place in the text."""
    import torch

    weights = torch.arange(1, counted.shape[1] + 1, device=counted.device, dtype=counted.dtype).unsqueeze(0)
    total = weights.sum() if mask is None else (weights * mask.ne(0)).sum(dim=1, keepdim=True)
    return (counted * weights.unsqueeze(-1)).sum(dim=1) / total
