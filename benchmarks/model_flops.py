"""The arithmetic a transformer encoder cannot do without: products with the weights of its blocks, and attention."""

from collections.abc import Sequence
from typing import Any


def model_flops(config: dict[str, Any], lengths: Sequence[int]) -> float:
    """FLOPs of one forward pass over texts of these lengths (tokens), for a model of BERT's shape, without padding.

    2 x parameters of the blocks x tokens, and 4 x hidden x tokens squared a block for queries with keys and weights
    with values.
    """
    hidden, blocks = config["hidden_size"], config["num_hidden_layers"]
    weights = blocks * (4 * hidden * hidden + 2 * hidden * config["intermediate_size"])
    return float(sum(2 * weights * length + 4 * blocks * hidden * length * length for length in lengths))
