"""Poolings of a model's token states to a row per text: the first token, the mean or the maximum of each dimension.

All arithmetic is float32, independent of the model's number type. Layers are averaged before the tokens are pooled: for
`mean` and `cls` the order makes no difference, for `max` it does. Every token under the mask counts, including special
tokens ([CLS], [SEP]), as in the paper. Other poolings come from papers (`indexer.recipe.paper_methods`) and follow the
same protocols.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from indexer.arrays import Float32Array, Int32Array, Int64Array
from indexer.recipe.config import BasicPooling

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

    def __init__(self, mode: BasicPooling) -> None:
        self._mode = mode

    def __call__(self, states: "Sequence[Tensor]", ids: "Tensor", mask: "Tensor | None") -> "Tensor":
        return pool(average_layers(states), mask, self._mode)


def average_layers(layers: "Sequence[Tensor]") -> "Tensor":
    """Return the unweighted mean of one or more layers, each (rows, tokens, d), as float32."""
    total = layers[0].float()
    for layer in layers[1:]:
        total = total + layer.float()
    return total / len(layers) if len(layers) > 1 else total


def pool(states: "Tensor", mask: "Tensor | None", mode: BasicPooling) -> "Tensor":
    """Pool (rows, tokens, d) over the tokens where `mask` (rows, tokens) is not 0, into (rows, d) float32.

    Without a mask every token counts. `cls` is the first token, `mean` the average, `max` the largest value of each
    dimension. Every row must have at least one token, and padding must be on the right. Padded places never count, not
    even with NaN or infinity; a non-finite value in a real token shows in the result.
    """
    states = states.float()
    if mode == "cls":
        return states[:, 0]
    if mask is None:
        return states.amax(dim=1) if mode == "max" else states.sum(dim=1) / states.shape[1]
    padding = (mask == 0).unsqueeze(-1)
    if mode == "max":
        return states.masked_fill(padding, float("-inf")).amax(dim=1)
    counts = mask.ne(0).sum(dim=1, keepdim=True)
    return states.masked_fill(padding, 0.0).sum(dim=1) / counts
