"""A transformer that gives pooled rows: what the torch backend runs, and what OpenVINO's graph is made from."""

from collections.abc import Sequence

import torch

from indexer.encoders.loading import LoadedModel
from indexer.encoders.protocol import EncoderSpec, PoolingKey
from indexer.errors import ModelError
from indexer.pooling import Pooler, average_layers


class PooledModel(torch.nn.Module):
    """Token ids (rows, tokens) to pooled rows (states, rows, d), float32.

    `layers` are those it was loaded for, `keys` the states wanted (they may be changed between calls).
    """

    def __init__(
        self, loaded: LoadedModel, layers: Sequence[int], keys: Sequence[PoolingKey], spec: EncoderSpec
    ) -> None:
        super().__init__()
        self.model, self.keys = loaded.model, keys
        self.pooling = Pooler(spec.fitted_folder, spec.identity.get("sif_a", 0.0), loaded.vocabulary)
        self._loaded, self._layers, self._folder = loaded, layers, spec.folder

    def forward(
        self,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """No types: the model's default. No mask: every token counts."""
        states = self._states(input_ids, token_type_ids, attention_mask)
        return torch.stack(
            [
                self.pooling([states[layer] for layer in layers], pooling, input_ids, attention_mask)
                for layers, pooling in self.keys
            ]
        )

    def tokens(
        self,
        average: Sequence[int],
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The average of some layers for every token, (1, rows, tokens, d) float32; padding's mean nothing."""
        states = self._states(input_ids, token_type_ids, attention_mask)
        return average_layers([states[layer] for layer in average]).unsqueeze(0)

    def width(self, pooling: str) -> int:
        """Numbers in a row pooled so."""
        return self.pooling.width(pooling, self._loaded.dim)

    def _states(
        self, input_ids: torch.Tensor, token_type_ids: torch.Tensor | None, attention_mask: torch.Tensor | None
    ) -> dict[int, torch.Tensor]:
        """Token states (rows, tokens, d) of every layer the model was loaded for, by layer."""
        given = {"token_type_ids": token_type_ids, "attention_mask": attention_mask}
        inputs = {name: tensor for name, tensor in given.items() if tensor is not None}
        output = self.model(input_ids=input_ids, output_hidden_states=bool(self._loaded.picked), **inputs)
        if not self._loaded.picked:
            return {self._layers[0]: output.last_hidden_state}
        states = output.hidden_states
        if len(states) != self._loaded.states:
            raise ModelError(
                f"{self._folder}: the model gives {len(states)} hidden states instead of "
                f"{self._loaded.states}; use encoder.layers = [-1] with it."
            )
        return {layer: states[layer] for layer in self._layers}
