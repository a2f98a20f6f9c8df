"""The encoder of a fitted Latte-Mix as a torch module, for inside a transformer's pooling."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from indexer.lattemix.model import LatteMix


class LatteMixHead(torch.nn.Module):
    """Token states (..., d) to posteriors (..., width), float32, as `LatteMix.posterior` gives them.

    The weights are buffers, frozen. They belong in float32 also where the model is in half precision.
    """

    def __init__(self, latte: LatteMix) -> None:
        super().__init__()
        self.width = latte.width
        self._config, self._scale = latte.config, latte.scale
        for layer in range(latte.config.encoder_layers):
            last = layer == latte.config.encoder_layers - 1
            for kind in ("weight", "bias"):
                array = latte.parameters[f"encoder.{layer}.{kind}"]
                kept = array[: latte.width] if last else array  # a normal latent's variances have no part in it
                self.register_buffer(f"{kind}{layer}", torch.from_numpy(np.array(kept)))

    def forward(self, states: Tensor) -> Tensor:
        state = states.float() / self._scale
        for layer in range(self._config.encoder_layers):
            state = state.relu() if layer else state
            state = linear(state, self.get_buffer(f"weight{layer}"), self.get_buffer(f"bias{layer}"))
        if self._config.latent == "categorical":
            logits = state.reshape(*state.shape[:-1], self._config.dims, self._config.classes)
            state = logits.softmax(dim=-1).flatten(-2)
        return state
