"""The numpy backend: BERT written out, for a first answer before anything larger could be imported.

One short text costs less than importing torch or OpenVINO does, so `isotrope query` answers by this. It computes in
float32 (which belongs to the class bfloat16 too) and maps the weights' file instead of reading it; for many texts the
other backends are several times as fast. BERT's architecture is that of most sentence encoders; others are refused.
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
from indexer.errors import ConfigError, ModelError
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.identity import PoolingKey
from indexer.models.model_files import ModelFiles
from indexer.models.model_json import ModelConfig
from indexer.models.resolution import num_layers
from indexer.models.tokenizer import open_model_tokenizer
from indexer.recipe.run_options import RunOptions
from indexer.system.safetensors_file import SafetensorsFile
from indexer.system.threads import single_blas_thread

_ERF = np.frompyfunc(math.erf, 1, 1)
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
    """An `Encoder` (see `protocol`) computed by numpy. Raises ModelError for a model it cannot run."""

    def __init__(self, spec: EncoderSpec, options: RunOptions) -> None:
        if options.device not in ("auto", "cpu"):
            raise ConfigError(f'device is "{options.device}", but the backend numpy runs on the CPU.')
        if spec.identity.precision == "int8":
            raise ConfigError('encoder.precision is "int8", which the backend openvino computes; numpy does not.')
        super().__init__(spec, open_model_tokenizer(spec), NumpyRunner(spec.files), num_layers(spec.files))


class NumpyRunner:
    """A `ModelRunner` (see `batching`)."""

    backend = "numpy, float32"
    turn = nullcontext()  # it keeps nothing from one batch to the next

    def __init__(self, files: ModelFiles) -> None:
        why = _unsuited(files)
        if why:
            raise ModelError(f"{files.root}: the backend numpy runs plain BERT in float32, but {why}.")
        self._heads, self._epsilon = files.config.num_attention_heads or 1, files.config.layer_norm_eps or 0.0
        self._weights = _Weights(files.root / files.weights[0])

    def width(self, pooling: str) -> int:
        """Numbers in a row, whatever the pooling."""
        return int(self._weights.shape("embeddings.word_embeddings.weight")[1])

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding table."""
        return int(self._weights.shape("embeddings.word_embeddings.weight")[0])

    def plan(self, budget: int) -> BatchPlan:
        """Exact lengths as far as they go."""
        return BatchPlan(budget or CPU_TOKENS, exact=True)

    def run(self, batches: Iterable[Batch], keys: Sequence[PoolingKey]) -> Iterator[PooledBatch]:
        """Pooled rows of each batch, in order."""
        for batch in batches:
            with single_blas_thread():  # small products wait longer for a second thread than it saves
                states = self._states(batch, {layer for average, _ in keys for layer in average})
            averages = [np.mean([states[layer] for layer in average], axis=0) for average, _ in keys]
            rows = [_pool(average, batch, mode) for average, (_, mode) in zip(averages, keys, strict=True)]
            yield PooledBatch(np.stack(rows).astype(np.float32), 0)

    def _states(self, batch: Batch, wanted: set[int]) -> dict[int, Float32Array]:
        """Token states (rows, tokens, d) of the wanted layers; blocks above them are not computed."""
        mask = batch.mask
        bias = None if mask is None else np.where(mask[:, None, None, :], np.float32(0), np.float32(-np.inf))
        state = self._embedded(batch)
        found = {0: state}
        for block in range(max(wanted)):
            state = self._block(f"encoder.layer.{block}", state, bias)
            if block + 1 in wanted:
                found[block + 1] = state
        return found

    def _embedded(self, batch: Batch) -> Float32Array:
        types = batch.types if batch.types is not None else np.zeros_like(batch.ids)
        state = (
            self._weights.rows("embeddings.word_embeddings.weight", batch.ids)
            + self._weights.rows("embeddings.token_type_embeddings.weight", types)
            + self._weights.rows("embeddings.position_embeddings.weight", np.arange(batch.ids.shape[1]))
        )
        return self._normalised("embeddings.LayerNorm", state)

    def _block(self, name: str, state: Float32Array, bias: Float32Array | None) -> Float32Array:
        attended = self._linear(f"{name}.attention.output.dense", self._attended(name, state, bias))
        state = self._normalised(f"{name}.attention.output.LayerNorm", attended + state)
        inner = _gelu(self._linear(f"{name}.intermediate.dense", state))
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
        product: Float32Array = state @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return product

    def _normalised(self, name: str, state: Float32Array) -> Float32Array:
        centred = state - state.mean(axis=-1, keepdims=True)
        scale = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(self._epsilon))
        rows: Float32Array = centred / scale * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return rows


class _Weights:
    """The tensors of a BERT, by their names in a bare model; where it was saved with a head, "bert." stands before."""

    def __init__(self, path: Path) -> None:
        self._file = SafetensorsFile(path)
        self._prefix = "bert." if "bert.embeddings.word_embeddings.weight" in self._file else ""

    def __getitem__(self, name: str) -> Float32Array:
        return self._file.floats(self._prefix + name)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.entry(self._prefix + name).shape

    def misfit(self, name: str, shape: tuple[int, ...]) -> str:
        """What is wrong with a tensor that is to have this shape; nothing if it has."""
        if self._prefix + name not in self._file:
            return f"its weights have no {name}"
        entry = self._file.entry(self._prefix + name)
        if entry.dtype != "F32":
            return "its weights are stored in another type"
        return "" if entry.shape == shape else f"{name} has the shape {entry.shape}; config.json calls for {shape}"

    def rows(self, name: str, numbers: npt.NDArray[np.integer[Any]]) -> Float32Array:
        try:
            return np.asarray(self[name][numbers])
        except IndexError as error:
            raise ModelError(
                f"{self._file.path}: {name}: {error}; the tokenizer does not belong to the model."
            ) from error


def suits_numpy(files: ModelFiles) -> bool:
    """Whether a model is one that this backend runs."""
    return not _unsuited(files)


def _unsuited(files: ModelFiles) -> str:
    """Why this backend cannot run a model; empty if it can."""
    config = files.config
    if config.model_type != "bert":
        return f'config.json says "{config.model_type}"'
    for name, plain in (
        ("hidden_act", ("gelu",)),
        ("position_embedding_type", (None, "absolute")),
        ("is_decoder", (None, False)),
    ):
        if getattr(config, name) not in plain:
            return f'{name} is "{getattr(config, name)}"'
    if missing := [name for name in (*_SIZES, "layer_norm_eps") if getattr(config, name) is None]:
        return f"config.json lacks {', '.join(missing)}"
    if (config.hidden_size or 0) % (config.num_attention_heads or 1):
        return f"num_attention_heads is {config.num_attention_heads}, which does not divide {config.hidden_size}"
    if len(files.weights) > 1:
        return "its weights lie in several files"
    try:
        weights = _Weights(files.root / files.weights[0])
    except (ModelError, OSError, ValueError) as error:
        return f"its weights cannot be read ({error})"
    return next(filter(None, (weights.misfit(name, shape) for name, shape in _shapes(config))), "")


def _shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor that is looked at, with the shape it must have."""
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


def _gelu(state: Float32Array) -> Float32Array:
    """x * Phi(x), exactly: numpy has no erf, and Python's is quick enough for a few texts."""
    erf: Float32Array = _ERF(state * np.float32(math.sqrt(0.5))).astype(np.float32)
    return state * np.float32(0.5) * (1 + erf)


def _pool(states: Float32Array, batch: Batch, mode: str) -> Float32Array:
    """As `indexer.encoders.pooling.pool`."""
    if mode == "cls":
        return states[:, 0]
    mask = batch.mask
    real = np.ones(states.shape[:2], bool) if mask is None else mask.astype(bool)
    if mode == "max":
        largest: Float32Array = np.where(real[..., None], states, -np.inf).max(axis=1)
        return largest
    total: Float32Array = np.where(real[..., None], states, np.float32(0)).sum(axis=1)
    counts: Float32Array = batch.lengths[:, None].astype(np.float32)
    mean: Float32Array = total / counts
    return mean
