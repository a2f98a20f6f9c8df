"""Token states of a model to one row a text.

cls, mean, max   the first token, the average, the largest of each dimension
sif              the mean of tokens weighted by their rarity (`indexer.pooling.sif`)
sbert-wk         layers weighted by alignment and novelty, tokens by variance (`indexer.pooling.sbert_wk`)
latte-mix        the mean of the tokens' categorical posteriors (`indexer.pooling.latte_mix`)

All arithmetic is float32, whatever type the model ran in. Layers are averaged before the tokens are pooled:
for `mean` and `cls` the order makes no difference, for `max` it does. Every token under the mask counts, the
special ones ([CLS], [SEP]) included, as in the paper. Loads torch only where it pools.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from indexer.config import BasicPooling, PoolingMode
from indexer.errors import ModelError
from indexer.pooling.sif import read_counts, sif_weights

if TYPE_CHECKING:
    from torch import Tensor

    from indexer.pooling.latte_mix import LatteMix
    from indexer.pooling.latte_mix.network import LatteMixHead


def average_layers(layers: "Sequence[Tensor]") -> "Tensor":
    """Unweighted mean of one or more layers, each (rows, tokens, d), as float32."""
    total = layers[0].float()
    for layer in layers[1:]:
        total = total + layer.float()
    return total / len(layers) if len(layers) > 1 else total


def pool(states: "Tensor", mask: "Tensor | None", mode: BasicPooling) -> "Tensor":
    """Pool (rows, tokens, d) over the tokens where `mask` (rows, tokens) is not 0, into (rows, d) float32.

    Without a mask every token counts.

    `cls` is the first token, `mean` the average, `max` the largest value of each dimension. Every row must
    have at least one token, and padding must be on the right. What the model left in padded places never
    counts, not even NaN or infinity; a non-finite value in a real token shows in the result.
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


class Pooler:
    """Pools the states of a model's layers; what a pooling needs is read when it is first asked for.

    `fitted` gives the folder of the state that was fitted for a pooling, or raises; `sif_a` is that of pooling "sif",
    and `vocabulary` the number of tokens it knows. No torch module, for torch traces those with tensors for arguments
    only.
    """

    def __init__(self, fitted: Callable[[str], Path], sif_a: float, vocabulary: int) -> None:
        self._fitted, self._sif_a, self._vocabulary = fitted, sif_a, vocabulary

    def __call__(
        self, states: "Sequence[Tensor]", pooling: PoolingMode, ids: "Tensor", mask: "Tensor | None"
    ) -> "Tensor":
        """Rows (texts, width) float32 of some layers, each (texts, tokens, d); `mask` None: every token counts."""
        if pooling == "sbert-wk":
            from indexer.pooling.sbert_wk import sbert_wk

            return sbert_wk(states, mask)
        averaged = average_layers(states)
        if pooling == "sif":
            weights = self._sif.to(ids.device)[ids]
            return pool(averaged * weights.unsqueeze(-1), mask, "mean")
        if pooling == "latte-mix":
            return pool(self._head.to(ids.device)(averaged), mask, "mean")
        return pool(averaged, mask, pooling)

    def width(self, pooling: str, size: int) -> int:
        """Numbers in a row pooled so, of token states of `size`."""
        return self._latte_mix.width if pooling == "latte-mix" else size

    @cached_property
    def _sif(self) -> "Tensor":
        import torch

        folder = self._fitted("sif")
        counts = read_counts(folder)
        if len(counts) != self._vocabulary:
            raise ModelError(f"{folder}: counts of {len(counts):,} tokens for a model of {self._vocabulary:,}.")
        return torch.from_numpy(sif_weights(counts, self._sif_a))

    @cached_property
    def _latte_mix(self) -> "LatteMix":
        from indexer.pooling.latte_mix import load_latte_mix

        return load_latte_mix(self._fitted("latte-mix"))

    @cached_property
    def _head(self) -> "LatteMixHead":
        from indexer.pooling.latte_mix.network import LatteMixHead

        return LatteMixHead(self._latte_mix)
