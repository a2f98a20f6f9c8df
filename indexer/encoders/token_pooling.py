"""Token states to rows, by poolings that need more than a mask: the encoder's fitted state, or all layers apart.

cls, mean, max   see `indexer.pooling`
sif              the mean of tokens weighted by their rarity (`indexer.encoders.sif`)
sbert-wk         layers weighted by alignment and novelty, tokens by variance (`indexer.sbert_wk`)
latte-mix        the mean of the tokens' categorical posteriors (`indexer.lattemix`)
"""

from collections.abc import Mapping
from functools import cached_property

import torch

from indexer.encoders.protocol import EncoderSpec, StateKey
from indexer.encoders.sif import read_counts, weights_of
from indexer.encoders.static import require_state
from indexer.errors import ModelError
from indexer.lattemix import LatteMix, load_latte_mix
from indexer.lattemix.head import LatteMixHead
from indexer.pooling import average_layers, pool
from indexer.sbert_wk import sbert_wk

Tensor = torch.Tensor


class TokenPooling:
    """Pools the states of an encoder's layers; what a pooling needs is read when it is first asked for.

    No torch module, for torch traces those with tensors for arguments only.
    """

    def __init__(self, spec: EncoderSpec, vocabulary: int) -> None:
        self._spec, self._vocabulary = spec, vocabulary

    def __call__(self, states: Mapping[int, Tensor], key: StateKey, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Rows (texts, width) float32, given (texts, tokens, d) of each layer; `mask` None: every token counts."""
        layers, pooling = key
        if pooling == "sbert-wk":
            return sbert_wk([states[layer] for layer in layers], mask)
        averaged = average_layers([states[layer] for layer in layers])
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
    def _sif(self) -> Tensor:
        counts = read_counts(require_state(self._spec, "sif"))
        if len(counts) != self._vocabulary:
            raise ModelError(
                f"{self._spec.state}: counts of {len(counts):,} tokens for a model of {self._vocabulary:,}."
            )
        return torch.from_numpy(weights_of(counts, self._spec.identity["sif_a"]))

    @cached_property
    def _latte_mix(self) -> LatteMix:
        return load_latte_mix(require_state(self._spec, "latte-mix"))

    @cached_property
    def _head(self) -> LatteMixHead:
        return LatteMixHead(self._latte_mix)
