"""The layers between the pooling and the embedding, by numpy and by torch: rows (n, d) to rows (n, k), float32."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from indexer.arrays import Float32Array
from indexer.models.output_modules import OutputLayer

if TYPE_CHECKING:
    from torch.nn import Module

_ERF = np.frompyfunc(math.erf, 1, 1)
_SHORTEST = np.float32(1e-12)  # length of a row that Normalize divides by, as in torch
_EPSILON = 1e-5  # of LayerNorm, as in torch


def gelu(rows: Float32Array) -> Float32Array:
    """Return x * Phi(x), exactly: numpy has no erf, and Python's is fast enough for a few texts."""
    erf: Float32Array = _ERF(rows * np.float32(math.sqrt(0.5))).astype(np.float32)
    return rows * np.float32(0.5) * (1 + erf)


def layer_norm(rows: Float32Array, weight: Float32Array, bias: Float32Array, epsilon: float) -> Float32Array:
    """Return (..., d) with mean 0 and variance 1, scaled and shifted."""
    centred = rows - rows.mean(axis=-1, keepdims=True)
    scale = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(epsilon))
    normalised: Float32Array = centred / scale * weight + bias
    return normalised


def _sigmoid(rows: Float32Array) -> Float32Array:
    half: Float32Array = np.float32(0.5) * (1 + np.tanh(rows * np.float32(0.5)))  # does not overflow
    return half


_ACTIVATIONS: dict[str, Callable[[Float32Array], Float32Array]] = {
    "Identity": lambda rows: rows,
    "Tanh": np.tanh,
    "ReLU": lambda rows: np.maximum(rows, np.float32(0)),
    "GELU": gelu,
    "Sigmoid": _sigmoid,
    "SiLU": lambda rows: rows * _sigmoid(rows),
}


def apply_layers(layers: Sequence[OutputLayer], rows: Float32Array) -> Float32Array:
    """Apply the layers with numpy."""
    for layer in layers:
        rows = _applied(layer, rows)
    return rows


def _applied(layer: OutputLayer, rows: Float32Array) -> Float32Array:
    tensors = layer.tensors
    if layer.kind == "Dense":
        linear = rows @ tensors["linear.weight"].T + tensors.get("linear.bias", np.float32(0))
        out = _ACTIVATIONS[layer.activation](linear)
        residual = rows @ tensors["residual.weight"].T if "residual.weight" in tensors else rows
        return out + residual if layer.residual else out
    if layer.kind == "LayerNorm":
        return layer_norm(rows, tensors["norm.weight"], tensors["norm.bias"], _EPSILON)
    if layer.kind == "Normalize":
        lengths = np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), _SHORTEST)
        return np.asarray(rows / lengths, np.float32)
    return rows


def torch_layers(layers: Sequence[OutputLayer]) -> "Module":
    """Return the same as a module of torch."""
    import torch
    from torch import Tensor, nn
    from torch.nn import functional

    class Layer(nn.Module):
        def __init__(self, layer: OutputLayer) -> None:
            super().__init__()
            self.kind, self.is_residual = layer.kind, layer.residual
            self.activation: nn.Module = getattr(nn, layer.activation)()
            for name, array in layer.tensors.items():
                self.register_buffer(name.replace(".", "_"), torch.from_numpy(np.array(array)))

        def forward(self, rows: Tensor) -> Tensor:
            tensors: dict[str, Tensor] = dict(self.named_buffers(recurse=False))
            if self.kind == "Dense":
                out: Tensor = self.activation(
                    functional.linear(rows, tensors["linear_weight"], tensors.get("linear_bias"))
                )
                projection = tensors.get("residual_weight")
                residual = rows if projection is None else functional.linear(rows, projection)
                return out + residual if self.is_residual else out
            if self.kind == "LayerNorm":
                weight, bias = tensors["norm_weight"], tensors["norm_bias"]
                return functional.layer_norm(rows, weight.shape, weight, bias, _EPSILON)
            return functional.normalize(rows, p=2.0, dim=-1) if self.kind == "Normalize" else rows

    return nn.Sequential(*map(Layer, layers))
