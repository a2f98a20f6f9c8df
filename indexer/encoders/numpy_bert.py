"""The numpy backend: BERT in plain numpy, for a first answer without the import of a larger library.

Encoding a short text takes less time than importing torch or OpenVINO, so `isotrope query` uses this backend. It
computes in float32 (which also suits the class bfloat16) and maps the file of weights instead of reading it. For many
texts the other backends are several times faster. It runs BERT, the architecture of most sentence encoders, only.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.arrays import Float32Array
from indexer.encoders.batching import CPU_TOKENS, Batch, BatchedEncoder, BatchPlan, PooledBatch
from indexer.encoders.output_layers import apply_layers, gelu, layer_norm
from indexer.encoders.pooling import pool_arrays
from indexer.errors import ConfigError, ModelError
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.identity import PoolingKey
from indexer.models.model_files import ModelFiles, is_onnx
from indexer.models.model_json import ModelConfig
from indexer.models.output_modules import OutputLayer, output_width
from indexer.recipe.run_options import RunOptions
from indexer.system.safetensors_file import SafetensorsFile
from indexer.system.threads import single_blas_thread

_PLAIN = {"hidden_act": ("gelu",), "position_embedding_type": (None, "absolute"), "is_decoder": (None, False)}
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "type_vocab_size",
    "vocab_size",
)


class NumpyEncoder(BatchedEncoder):
    """An `Encoder` run by numpy. Raises ModelError for a model that is not plain BERT."""

    def __init__(self, spec: EncoderSpec, options: RunOptions) -> None:
        if options.device not in ("auto", "cpu"):
            raise ConfigError(f'device is "{options.device}", but the backend numpy runs on the CPU.')
        if spec.identity.precision == "int8":
            raise ConfigError('encoder.precision is "int8", which only the backend openvino computes.')
        super().__init__(spec, NumpyRunner(spec.files, spec.output_layers))


class NumpyRunner:
    """A `ModelRunner` of plain BERT."""

    backend = "numpy, float32"
    turn = nullcontext()  # it keeps no state between batches

    def __init__(self, files: ModelFiles, layers: Sequence[OutputLayer] = ()) -> None:
        if reason := unsuited(files):
            raise ModelError(f"{files.root}: the backend numpy runs plain BERT in float32, but {reason}.")
        self._heads, self._epsilon = files.config.num_attention_heads or 1, files.config.layer_norm_eps or 0.0
        self._size, self.vocabulary = files.config.hidden_size or 0, files.config.vocab_size or 0
        self._weights, self._layers = _Weights(files.root / files.weights[0]), layers

    def width(self, pooling: str) -> int:
        return output_width(self._layers, self._size)

    def plan(self, budget: int) -> BatchPlan:
        return BatchPlan(budget or CPU_TOKENS, exact=True)

    def run(self, batches: Iterable[Batch], keys: Sequence[PoolingKey]) -> Iterator[PooledBatch]:
        for batch in batches:
            with single_blas_thread():  # small products wait longer for a second thread than it saves
                states = self._states(batch, {layer for average, _ in keys for layer in average})
            averages = [np.mean([states[layer] for layer in average], axis=0) for average, _ in keys]
            rows = [pool_arrays(each, batch.lengths, mode) for each, (_, mode) in zip(averages, keys, strict=True)]
            yield PooledBatch(np.stack([apply_layers(self._layers, each) for each in rows]).astype(np.float32), 0)

    def _states(self, batch: Batch, wanted: set[int]) -> dict[int, Float32Array]:
        """Return token states (rows, tokens, d) of the wanted layers; blocks above them are not computed."""
        mask = batch.mask
        bias = None if mask is None else np.where(mask[:, None, None, :], np.float32(0), np.float32(-np.inf))
        types = batch.types if batch.types is not None else np.zeros_like(batch.ids)
        embedded = (
            self._weights.rows("embeddings.word_embeddings.weight", batch.ids)
            + self._weights.rows("embeddings.token_type_embeddings.weight", types)
            + self._weights.rows("embeddings.position_embeddings.weight", np.arange(batch.ids.shape[1]))
        )
        state = self._normalised("embeddings.LayerNorm", embedded)
        states = {0: state}
        for block in range(max(wanted)):
            state = self._block(f"encoder.layer.{block}", state, bias)
            if block + 1 in wanted:
                states[block + 1] = state
        return states

    def _block(self, name: str, state: Float32Array, bias: Float32Array | None) -> Float32Array:
        attended = self._linear(f"{name}.attention.output.dense", self._attended(name, state, bias))
        state = self._normalised(f"{name}.attention.output.LayerNorm", attended + state)
        inner = gelu(self._linear(f"{name}.intermediate.dense", state))
        return self._normalised(f"{name}.output.LayerNorm", self._linear(f"{name}.output.dense", inner) + state)

    def _attended(self, name: str, state: Float32Array, bias: Float32Array | None) -> Float32Array:
        rows, tokens, dim = state.shape

        def heads(part: str) -> Float32Array:
            flat = self._linear(f"{name}.attention.self.{part}", state)
            return flat.reshape(rows, tokens, self._heads, -1).transpose(0, 2, 1, 3)

        query, key, value = heads("query"), heads("key"), heads("value")
        scores = query @ key.transpose(0, 1, 3, 2) / np.float32(math.sqrt(dim // self._heads))
        if bias is not None:
            scores += bias
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed: Float32Array = scores / scores.sum(axis=-1, keepdims=True) @ value
        return mixed.transpose(0, 2, 1, 3).reshape(rows, tokens, dim)

    def _linear(self, name: str, state: Float32Array) -> Float32Array:
        return state @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _normalised(self, name: str, state: Float32Array) -> Float32Array:
        return layer_norm(state, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"], self._epsilon)


class _Weights:
    """The tensors of a BERT, by their names in a bare model; a model saved with a head has the prefix "bert."."""

    def __init__(self, path: Path) -> None:
        self._file = SafetensorsFile(path)
        self._prefix = "bert." if "bert.embeddings.word_embeddings.weight" in self._file else ""

    def __getitem__(self, name: str) -> Float32Array:
        return self._file.floats(self._prefix + name)

    def misfit(self, name: str, shape: tuple[int, ...]) -> str:
        """Return why a tensor does not fit the expected shape; empty if it fits."""
        if self._prefix + name not in self._file:
            return f"its weights have no {name}"
        entry = self._file.entry(self._prefix + name)
        if entry.dtype != "F32":
            return "its weights are stored in another type"
        return "" if entry.shape == shape else f"{name} has the shape {entry.shape}; config.json expects {shape}"

    def rows(self, name: str, numbers: npt.NDArray[np.integer[Any]]) -> Float32Array:
        try:
            return np.asarray(self[name][numbers])
        except IndexError as error:
            reason = f"{error}. The tokenizer does not belong to the model."
            raise ModelError(f"{self._file.path}: {name}: {reason}") from error


def unsuited(files: ModelFiles) -> str:
    """Return why this backend cannot run a model; empty if it can."""
    config = files.config
    if config.model_type != "bert":
        return f'the model type in config.json is "{config.model_type}"'
    for name, plain in _PLAIN.items():
        if getattr(config, name) not in plain:
            return f'{name} is "{getattr(config, name)}"'
    if missing := [name for name in (*_SIZES, "layer_norm_eps") if getattr(config, name) is None]:
        return f"config.json lacks {', '.join(missing)}"
    if (config.hidden_size or 0) % (config.num_attention_heads or 1):
        return f"num_attention_heads is {config.num_attention_heads}, which does not divide {config.hidden_size}"
    if is_onnx(files.weights):
        return f"its weights are {files.weights[0]}"
    if len(files.weights) > 1:
        return "its weights are in several files"
    try:
        weights = _Weights(files.root / files.weights[0])
    except (ModelError, OSError, ValueError) as error:
        return f"its weights cannot be read ({error})"
    return next(filter(None, (weights.misfit(name, shape) for name, shape in _shapes(config))), "")


def _shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield each tensor that is used, with its expected shape."""
    sizes = {name: int(getattr(config, name)) for name in _SIZES}
    size, inner = sizes["hidden_size"], sizes["intermediate_size"]
    yield "embeddings.word_embeddings.weight", (sizes["vocab_size"], size)
    yield "embeddings.token_type_embeddings.weight", (sizes["type_vocab_size"], size)
    yield "embeddings.position_embeddings.weight", (sizes["max_position_embeddings"], size)
    norms, dense = ["embeddings.LayerNorm"], []
    for block in range(sizes["num_hidden_layers"]):
        name = f"encoder.layer.{block}"
        norms += [f"{name}.attention.output.LayerNorm", f"{name}.output.LayerNorm"]
        dense += [(f"{name}.attention.{part}", size, size) for part in ("self.query", "self.key", "self.value")]
        dense += [(f"{name}.attention.output.dense", size, size)]
        dense += [(f"{name}.intermediate.dense", inner, size), (f"{name}.output.dense", size, inner)]
    for name, out, into in dense:
        yield f"{name}.weight", (out, into)
        yield f"{name}.bias", (out,)
    for name in norms:
        yield f"{name}.weight", (size,)
        yield f"{name}.bias", (size,)
