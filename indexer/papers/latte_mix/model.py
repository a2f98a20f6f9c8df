"""A fitted Latte-Mix in numpy, which maps token vectors to posteriors, and its two files.

At test time q(z|u) is the softmax of the unchanged logits: the noise and temperature of training belong to the relaxed
sample, not to the distribution. Layers are separated by a ReLU (the paper names no activation).

latte-mix.safetensors contains the weights, latte-mix.json the settings, the scale, facts about the training, and the
sha256 of the weights, so that files of two trainings are never combined.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from indexer.arrays import Embeddings, Float32Array
from indexer.errors import ConfigError, ModelError
from indexer.papers.latte_mix.settings import LatteMixConfig
from indexer.recipe.loading import from_mapping
from indexer.system.regular_files import read_regular
from indexer.system.threads import single_blas_thread
from indexer.typed_json import decode_json

WEIGHTS, FACTS = FILES = ("latte-mix.safetensors", "latte-mix.json")
_FORMAT = 1
BLOCK_TOKENS = 256  # a block of logits stays in the processor's cache


@dataclass(frozen=True)
class LatteMix:
    """Encoder and decoder, fitted or (`epochs = 0`) initialised.

    `parameters`: float32 arrays by the names and shapes of `layer_shapes`. `scale`: the standard deviation that token
    vectors are divided by. `about`: facts about the training, JSON types; see `training.train_latte_mix`.
    """

    config: LatteMixConfig
    size: int  # d, of a token vector
    scale: float
    parameters: Mapping[str, Float32Array]
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Size of a posterior."""
        return self.config.width

    def posterior(self, tokens: Embeddings) -> Float32Array:
        """Return q(z|u) of token vectors (n, d), float32 (n, width): the class probabilities of each dimension, for a
        normal latent its mean, without a latent the code. Not finite for tokens that are not finite.

        A row depends on the others only by float32 rounding. Raises ModelError for vectors of another size.
        """
        return self._encoded(tokens, self.width)

    def normal(self, tokens: Embeddings) -> tuple[Float32Array, Float32Array]:
        """Return mean and deviation of q(z|u), float32 (n, dims) each. Raises ConfigError for another latent."""
        if self.config.latent != "normal":
            raise ConfigError(
                f'papers.latte_mix.latent is "{self.config.latent}", which has no mean and standard deviation; '
                'expected "normal".'
            )
        encoded, dims = self._encoded(tokens, 2 * self.config.dims), self.config.dims
        return encoded[:, :dims], np.exp(encoded[:, dims:] / 2)

    def _encoded(self, tokens: Embeddings, width: int) -> Float32Array:
        """Return the first `width` outputs of the encoder; logits become probabilities."""
        if tokens.ndim != 2 or tokens.shape[1] != self.size:
            raise ModelError(
                f"token vectors have shape {tokens.shape}, but this Latte-Mix was trained on vectors of {self.size} "
                f"numbers; expected (tokens, {self.size}). It belongs to another encoder."
            )
        encoded = np.empty((len(tokens), width), dtype=np.float32)
        with single_blas_thread(), np.errstate(invalid="ignore", over="ignore"):
            for start in range(0, len(tokens), BLOCK_TOKENS):
                self._encode_block(tokens[start : start + BLOCK_TOKENS], encoded[start : start + BLOCK_TOKENS])
        return encoded

    def _encode_block(self, tokens: Embeddings, into: Float32Array) -> None:
        state = tokens.astype(np.float32) / np.float32(self.scale)
        for layer in range(self.config.encoder_layers):
            if layer:
                np.maximum(state, 0, out=state)
            weight, bias = self.parameters[f"encoder.{layer}.weight"], self.parameters[f"encoder.{layer}.bias"]
            if layer == self.config.encoder_layers - 1:
                state = np.matmul(state, weight[: into.shape[1]].T, out=into)
                state += bias[: into.shape[1]]
            else:
                state = state @ weight.T + bias
        if self.config.latent == "categorical":
            logits = into.reshape(len(into), self.config.dims, self.config.classes)  # a view: softmax in place
            logits -= logits.max(axis=-1, keepdims=True)
            np.exp(logits, out=logits)
            logits /= logits.sum(axis=-1, keepdims=True)


def layer_shapes(config: LatteMixConfig, size: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters: `encoder.0.weight` (outputs, inputs), `encoder.0.bias` (outputs,) and so on.

    The encoder returns the logits of every class; or `dims` means, then `dims` logarithms of the variance; or `dims`
    numbers. The decoder maps `width` numbers to `size`.
    """
    hidden = config.hidden or size
    outputs = 2 * config.dims if config.latent == "normal" else config.width
    widths = {
        "encoder": [size, *[hidden] * (config.encoder_layers - 1), outputs],
        "decoder": [config.width, *[hidden] * (config.decoder_layers - 1), size],
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for part, sizes in widths.items():
        for layer, (before, after) in enumerate(pairwise(sizes)):
            shapes[f"{part}.{layer}.weight"] = (after, before)
            shapes[f"{part}.{layer}.bias"] = (after,)
    return shapes


@dataclass(frozen=True)
class _Facts:
    """The contents of latte-mix.json."""

    format: int
    sha256: str
    config: dict[str, Any]
    size: int
    scale: float
    about: dict[str, Any]


def save_latte_mix(latte: LatteMix, folder: Path) -> None:
    """Write both files into the folder. The same state gives the same bytes."""
    weights = save_tensors({name: np.ascontiguousarray(latte.parameters[name]) for name in sorted(latte.parameters)})
    digest, config = hashlib.sha256(weights).hexdigest(), dataclasses.asdict(latte.config)
    facts = dataclasses.asdict(_Facts(_FORMAT, digest, config, latte.size, latte.scale, latte.about))
    (folder / WEIGHTS).write_bytes(weights)
    (folder / FACTS).write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load_latte_mix(folder: Path) -> LatteMix:
    """Load the files of `save_latte_mix`. Raises ModelError for missing, damaged, mixed or foreign files."""
    facts, data = _facts(folder / FACTS), _bytes(folder / WEIGHTS)
    if facts.sha256 != hashlib.sha256(data).hexdigest():
        raise ModelError(
            f"{folder / WEIGHTS}: its sha256 differs from the sha256 in {FACTS}: the file was changed, or the files "
            "belong to different trainings. Fix: train again."
        )
    tensors = _tensors(data, folder / WEIGHTS)
    try:
        config: LatteMixConfig = from_mapping(LatteMixConfig, facts.config, "config")
    except ConfigError as error:
        raise ModelError(f"{folder / FACTS}: not the settings of a Latte-Mix: {error}") from error
    latte = LatteMix(config, facts.size, facts.scale, tensors, facts.about)
    if not 0 < facts.scale < float("inf"):
        raise ModelError(f"{folder / FACTS}: the scale is {facts.scale}; expected a number above 0.")
    if config.decoder_layers > len(tensors):
        raise ModelError(
            f"{folder / FACTS}: has {config.decoder_layers:,} layers, but {WEIGHTS} has {len(tensors)} arrays."
        )
    shapes = {name: array.shape for name, array in tensors.items()}
    expected = layer_shapes(config, facts.size)
    for name in sorted(shapes.keys() | expected.keys()):
        if shapes.get(name) != expected.get(name):
            raise ModelError(
                f"{folder / WEIGHTS}: {name} has shape {shapes.get(name)}; expected {expected.get(name)} by {FACTS} "
                "(None: no such array)."
            )
    return latte


def _facts(path: Path) -> _Facts:
    try:
        facts = decode_json(_bytes(path), _Facts)
    except ValueError as error:
        raise ModelError(f"{path}: not the description of a Latte-Mix: {error}.") from error
    if facts.format != _FORMAT:
        raise ModelError(f"{path}: a Latte-Mix in format {facts.format}; expected format {_FORMAT}.")
    return facts


def _tensors(data: bytes, path: Path) -> Mapping[str, Float32Array]:
    try:
        tensors: Mapping[str, Float32Array] = load_tensors(data)
    except (SafetensorError, KeyError) as error:  # KeyError: a type that numpy does not have
        raise ModelError(f"{path}: not a safetensors file of float32 numbers: {error}.") from error
    if any(array.dtype != np.float32 or not np.isfinite(array).all() for array in tensors.values()):
        raise ModelError(f"{path}: contains numbers that are not finite float32.")
    return tensors


def _bytes(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); expected a trained Latte-Mix there.") from error
