"""A folder's ONNX file as a graph: read by OpenVINO without a conversion, its token states pooled with numpy."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.arrays import Float32Array, Int64Array
from indexer.encoders.batching import Batch
from indexer.encoders.openvino.graph import openvino
from indexer.encoders.output_layers import apply_layers
from indexer.encoders.pooling import pool_arrays
from indexer.errors import ModelError
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.hub import library_errors
from indexer.models.identity import PoolingKey
from indexer.models.model_files import own_file
from indexer.models.output_modules import OutputLayer, output_width
from indexer.models.resolution import first_position, hidden_size
from indexer.system.cache import cached_folder
from indexer.system.threads import single_blas_thread

_STATES = ("last_hidden_state", "token_embeddings")  # names that exporters give to the token states
_REQUIRED = ("input_ids", "attention_mask")
_INPUTS = (*_REQUIRED, "token_type_ids", "position_ids")


@dataclass(frozen=True)
class OnnxGraph:
    """A model from an ONNX file, its inputs with their number types, and the steps after the token states."""

    path: Path
    source: Any  # an openvino.Model with a single output, (rows, tokens, d)
    inputs: dict[str, npt.DTypeLike]
    dim: int
    vocabulary: int
    first_position: int
    keys: tuple[PoolingKey, ...]
    layers: tuple[OutputLayer, ...]

    def feed(self, batch: Batch) -> dict[str, npt.NDArray[Any]]:
        """Return the inputs for a batch."""
        given = batch.graph_inputs(takes_types=True)
        if "position_ids" in self.inputs:
            positions: Int64Array = self.first_position + np.arange(batch.ids.shape[1])
            given["position_ids"] = np.broadcast_to(positions, batch.ids.shape)
        return {name: np.ascontiguousarray(given[name], kind) for name, kind in self.inputs.items()}

    def rows(self, states: npt.NDArray[Any], batch: Batch) -> Float32Array:
        """Return pooled rows (keys, batch, d). Raises ModelError for states of another shape than (rows, tokens, d)."""
        if states.ndim != 3 or states.shape[:2] != batch.ids.shape:
            raise self.unusable(f"{batch.ids.shape} tokens have states of the shape {states.shape}")
        states = np.asarray(states, np.float32)
        with single_blas_thread():
            pooled = [apply_layers(self.layers, pool_arrays(states, batch.lengths, mode)) for _, mode in self.keys]
        return np.stack(pooled)

    def unusable(self, reason: str) -> ModelError:
        """Return the error for a model that OpenVINO reads but does not run."""
        return _unusable(self.path, reason)


def open_onnx(core: Any, spec: EncoderSpec, keys: Sequence[PoolingKey]) -> OnnxGraph:
    """Read the ONNX file of an encoder. Raises ModelError with its inputs and outputs if they are not as expected."""
    files = spec.files
    path, size = files.root / files.weights[0], hidden_size(files)
    with library_errors(lambda error: str(_unusable(path, str(error).strip().rpartition("\n")[2]))):
        model = core.read_model(str(_without_links(spec)))
        states = _states(path, model)
        inputs = {tensor.get_any_name(): tensor.get_element_type().to_dtype() for tensor in model.inputs}
        _require_inputs(path, model, list(inputs))
        if states.get_partial_shape()[2].is_static:
            size = states.get_partial_shape()[2].get_length()
        source = openvino().Model([states], model.get_parameters())
    if not files.config.vocab_size:
        raise ModelError(f"{files.root / 'config.json'}: has no vocab_size; expected the number of the model's tokens.")
    return OnnxGraph(path, source, inputs, output_width(spec.output_layers, size), files.config.vocab_size,
                     first_position(files), tuple(keys), spec.output_layers)  # fmt: skip


def _states(path: Path, model: Any) -> Any:
    """Return the output with the token states. Raises ModelError if there is none."""
    outputs = {name: output for output in model.outputs for name in sorted(output.get_names())}
    named = [outputs[name] for name in _STATES if name in outputs]
    if not named or named[0].get_partial_shape().rank.get_length() != 3:
        found = ", ".join(f"{name} {output.get_partial_shape()}" for name, output in outputs.items())
        raise ModelError(
            f"{path}: its outputs are {found or 'unnamed'}; expected {' or '.join(_STATES)}, (rows, tokens, d). "
            'Fix: export the model for the task "feature-extraction".'
        )
    return named[0]


def _require_inputs(path: Path, model: Any, names: Sequence[str]) -> None:
    shapes = {name: tensor.get_partial_shape() for name, tensor in zip(names, model.inputs, strict=True)}
    any_size = all(len(shape) == 2 and all(size.is_dynamic for size in shape) for shape in shapes.values())
    if not set(_REQUIRED) <= set(names) <= set(_INPUTS) or not any_size:
        found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ModelError(
            f"{path}: its inputs are {found}; expected {' and '.join(_REQUIRED)}, and at most "
            f"{' and '.join(_INPUTS[2:])}, each for any number of rows and tokens, [?,?]. Fix: export the model again."
        )


def _unusable(path: Path, reason: str) -> ModelError:
    return ModelError(
        f"{path}: OpenVINO cannot run this model ({reason}). Fix: name a folder of the model with model.safetensors."
    )


def _without_links(spec: EncoderSpec) -> Path:
    """Return the ONNX file in a folder without links: OpenVINO reads no tensors through a link.

    A snapshot in the Hugging Face cache consists of links to files in another folder.
    """
    files = spec.files
    paths = [files.root / name for name in files.weights]
    if not any(path.is_symlink() for path in paths[1:]):
        return paths[0]

    def link(folder: Path) -> None:
        for name, path in zip(files.weights, paths, strict=True):
            _link(own_file(files.root, name), folder / path.name)

    return cached_folder("onnx", {"weights": spec.identity.weights}, link) / paths[0].name


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)
