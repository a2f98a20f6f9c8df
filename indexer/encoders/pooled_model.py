"""A transformer that gives pooled rows: what the torch backend runs, and what OpenVINO's graph is made from."""

from collections.abc import Sequence

import torch

from indexer.encoders.loading import LoadedModel
from indexer.encoders.protocol import StateKey
from indexer.errors import ModelError
from indexer.pooling import average_layers, pool


class PooledModel(torch.nn.Module):
    """Token ids (rows, tokens) to pooled rows (states, rows, d), float32.

    `layers` are those it was loaded for, `keys` the states wanted (they may be changed between calls).
    """

    def __init__(self, loaded: LoadedModel, layers: Sequence[int], keys: Sequence[StateKey], folder: str) -> None:
        super().__init__()
        self.model, self.keys = loaded.model, keys
        self._loaded, self._layers, self._folder = loaded, layers, folder

    def forward(
        self,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """No types: the model's default. No mask: every token counts."""
        given = {"token_type_ids": token_type_ids, "attention_mask": attention_mask}
        inputs = {name: tensor for name, tensor in given.items() if tensor is not None}
        states = self._states(self.model(input_ids=input_ids, output_hidden_states=bool(self._loaded.picked), **inputs))
        return torch.stack(
            [
                pool(average_layers([states[layer] for layer in average]), attention_mask, pooling)
                for average, pooling in self.keys
            ]
        )

    def _states(self, output: object) -> dict[int, torch.Tensor]:
        """Token states (rows, tokens, d) of every layer the model was loaded for, by layer."""
        if not self._loaded.picked:
            return {self._layers[0]: output.last_hidden_state}  # type: ignore[attr-defined]
        states = output.hidden_states  # type: ignore[attr-defined]
        if len(states) != self._loaded.states:
            raise ModelError(
                f"{self._folder}: the model gives {len(states)} hidden states instead of "
                f"{self._loaded.states}; use encoder.layers = [-1] with it."
            )
        return {layer: states[layer] for layer in self._layers}
