"""Conversion of a model to an OpenVINO graph: traced by torch, and kept only if its results equal those of torch.

Several shapes are compared, to float32 rounding. The conversion runs in a child process, so that neither torch nor
transformers stay in the memory of a build or a search.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.encoders.openvino.graph import (
    OpenVinoGraph,
    openvino,
    without_reports,
    write_graph_info,
    write_refusal,
)
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.identity import EncoderIdentity, PoolingKey
from indexer.models.tokenizer import open_model_tokenizer
from indexer.recipe.config import PoolingMode
from indexer.system.child_process import call_in_child

if TYPE_CHECKING:
    from indexer.encoders.hf_model import LoadedModel

_SHAPES = ((2, 5), (1, 1), (3, 17), (1, 64))  # (rows, tokens) that a graph is proved with; traced with the first
_AGREEMENT = 1e-4  # largest difference from torch, of the largest value


def convert_in_child(spec: EncoderSpec, keys: Sequence[PoolingKey], folder: Path) -> None:
    """Fill `folder` with the graph that gives `keys` (resolved: non-negative, sorted layers), or say there why not.

    Raises ModelError for a model that torch cannot load either, MachineError when the process is killed.
    """
    keys_plain = [[list(layers), pooling] for layers, pooling in keys]
    _call("convert", spec, {"keys": keys_plain, "folder": str(folder)})


def convert_classifier_in_child(spec: EncoderSpec, folder: Path) -> None:
    """Fill `folder` with the graph that gives a classifier's logits, as `convert_in_child` does."""
    _call("convert_classifier", spec, {"folder": str(folder)})


def _call(function: str, spec: EncoderSpec, arguments: dict[str, Any]) -> None:
    model = {"model": spec.model, "folder": spec.folder, "identity": spec.identity.to_dict()}
    call_in_child(f"{__name__}:{function}", {"model": model, **arguments}, f"converting {spec.folder} for OpenVINO")


def convert(model: dict[str, Any], keys: Sequence[tuple[Sequence[int], PoolingMode]], folder: str) -> None:
    """What `convert_in_child` does, from JSON types."""
    _convert(_spec(model), [(tuple(layers), pooling) for layers, pooling in keys], Path(folder))


def convert_classifier(model: dict[str, Any], folder: str) -> None:
    """What `convert_classifier_in_child` does, from JSON types."""
    import torch

    from indexer.encoders.hf_model import Classifier, load_classifier

    spec = _spec(model)
    loaded = load_classifier(spec.files, torch.float32)
    _write(Classifier(loaded).eval(), loaded, spec, Path(folder))


def _spec(model: dict[str, Any]) -> EncoderSpec:
    identity = EncoderIdentity.from_dict(model["identity"])
    return EncoderSpec(model["model"], model["folder"], identity, identity.fingerprint)


def _convert(spec: EncoderSpec, keys: Sequence[PoolingKey], folder: Path) -> None:
    import torch

    from indexer.encoders.hf_model import KeyedModel, PooledModel, load_model

    layers = sorted({layer for average, _ in keys for layer in average})
    loaded = load_model(spec.files, layers, torch.float32)
    _write(KeyedModel(PooledModel(loaded, layers, spec), keys).eval(), loaded, spec, folder)


def _write(model: Callable[..., Any], loaded: "LoadedModel", spec: EncoderSpec, folder: Path) -> None:
    """The graph of a model, or why there is none."""
    types = open_model_tokenizer(spec).facts.types != "none"  # where it knows none, the model is given none: not even 0
    graph = OpenVinoGraph(folder, loaded.dim, loaded.vocabulary, loaded.takes_types and types)
    reason = _write_proved(model, graph)
    if reason:
        write_refusal(folder, reason)
    else:
        write_graph_info(graph, folder)


def _write_proved(model: Callable[..., Any], graph: OpenVinoGraph) -> str:
    """Convert, write and compare with torch; returns why it cannot be used, or nothing."""
    import torch

    runtime = openvino()
    with torch.inference_mode(False), torch.no_grad(), _quiet(), without_reports():
        try:
            converted = _traced(model, _inputs(graph, _SHAPES[0]))
            runtime.save_model(converted, graph.path, compress_to_fp16=False)
            compiled = runtime.Core().compile_model(converted, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
            return "; ".join(filter(None, (_difference(model, compiled, graph, shape) for shape in _SHAPES)))
        # Frontend and plugin raise RuntimeError, tracing nearly anything: none of it is the user's mistake, and
        # whatever it is, torch still runs the model.
        except Exception as error:  # noqa: BLE001
            return f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}"


def _traced(model: Callable[..., Any], example: dict[str, Any]) -> Any:
    """The graph of a model. `openvino.convert_model` would do the same, and report its use to its makers."""
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    frontend = FrontEndManager().load_by_framework("pytorch")
    decoder = TorchScriptPythonDecoder(model, example_input=example)
    converted = frontend.convert(frontend.load(decoder))
    for tensor in converted.inputs:
        tensor.get_node().set_partial_shape(openvino().PartialShape([-1, -1]))
    converted.validate_nodes_and_infer_types()
    return converted


def _difference(model: Callable[..., Any], compiled: Any, graph: OpenVinoGraph, shape: tuple[int, int]) -> str:
    inputs = _inputs(graph, shape)
    want = model(**inputs).numpy()
    found = compiled({name: tensor.numpy() for name, tensor in inputs.items()})[0]
    off = float(np.abs(found - want).max() / np.abs(want).max()) if found.shape == want.shape else np.inf
    return "" if off <= _AGREEMENT else f"for {shape[0]} texts of {shape[1]} tokens it is off by {off:.1e}"


def _inputs(graph: OpenVinoGraph, shape: tuple[int, int]) -> dict[str, Any]:
    import torch

    ids = torch.from_numpy(np.random.default_rng(0).integers(0, graph.vocabulary, shape))
    mask = torch.ones_like(ids)
    mask[1:, shape[1] // 2 + 1 :] = 0  # the first text is whole, the others are padded
    inputs = {"input_ids": ids, "attention_mask": mask}
    return inputs | ({"token_type_ids": torch.zeros_like(ids)} if graph.takes_types else {})


@contextmanager
def _quiet() -> Iterator[None]:
    """Tracing warns of every Python branch it passes; whether that matters is what the proof shows."""
    loggers = [logging.getLogger(name) for name in ("openvino", "transformers")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
