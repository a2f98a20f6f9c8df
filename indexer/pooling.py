"""Token states to one row a text: pure functions over torch tensors.

All arithmetic is float32, whatever type the model ran in. Layers are averaged before the tokens are pooled:
for `mean` and `cls` the order makes no difference, for `max` it does. Every token under the mask counts, the
special ones ([CLS], [SEP]) included, as in the paper.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from indexer.config import BasicPooling

if TYPE_CHECKING:
    from torch import Tensor


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
