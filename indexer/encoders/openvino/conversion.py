"""Conversion of a model to an OpenVINO graph: traced by torch, and kept only if its results equal those of torch.

Several shapes are compared, to float32 rounding. The conversion runs in a child process, so that neither torch nor
transformers stay in the memory of a build or a search.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from indexer.encoders.memory import CONVERSION, parameter_count, require_memory
from indexer.encoders.openvino.graph import OpenVinoGraph, openvino, without_reports, write_graph_info, write_refusal
from indexer.errors import as_argument
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.identity import EncoderIdentity, PoolingKey
from indexer.models.tokenizer import open_model_tokenizer
from indexer.recipe.config import PoolingMode
from indexer.system.child_process import call_in_child

_SHAPES = ((2, 5), (1, 1), (3, 17), (1, 64))  # (rows, tokens) compared with torch; the first is traced
_AGREEMENT = 1e-4  # largest difference from torch, relative to the largest value


def convert_in_child(spec: EncoderSpec, keys: Sequence[PoolingKey] | None, folder: Path) -> None:
    """Write the graph that outputs `keys` (resolved: non-negative, sorted layers), or a refusal, into `folder`.

    Without keys the graph outputs a classifier's logits. Raises ModelError for a model that torch cannot load either,
    MachineError if the memory does not suffice or the process is killed.
    """
    needed = CONVERSION * parameter_count(spec.files)
    fix = f"free some, or choose {as_argument('backend', 'torch', 'RunOptions')}"
    require_memory(f"{spec.folder}: converting the model for OpenVINO", needed, fix)
    model = {"model": spec.model, "folder": spec.folder, "identity": spec.identity.to_dict()}
    arguments = {"model": model, "keys": keys, "folder": str(folder)}
    call_in_child(f"{__name__}:convert", arguments, f"converting {spec.folder} for OpenVINO")


def convert(model: dict[str, Any], keys: Sequence[tuple[Sequence[int], PoolingMode]] | None, folder: str) -> None:
    """Convert a model, described by JSON types, for `convert_in_child`."""
    import torch

    from indexer.encoders.hf_model import Classifier, KeyedModel, PooledModel, load_classifier, load_model

    identity = EncoderIdentity.from_dict(model["identity"])
    spec = EncoderSpec(model["model"], model["folder"], identity, identity.fingerprint)
    run: KeyedModel
    if keys is None:
        loaded = load_classifier(spec.files, torch.float32)
        run, dim = Classifier(loaded), loaded.dim
    else:
        layers = sorted({layer for average, _ in keys for layer in average})
        loaded = load_model(spec.files, layers, torch.float32)
        pooled = PooledModel(loaded, layers, spec)
        run = KeyedModel(pooled, [(tuple(average), pooling) for average, pooling in keys])
        dim = pooled.width(keys[0][1])
    types = open_model_tokenizer(spec).facts.types != "none"  # without types in the tokenizer the model gets no input
    graph = OpenVinoGraph(Path(folder), dim, loaded.vocabulary, loaded.takes_types and types)
    if reason := _write_proved(run.eval(), graph):
        write_refusal(graph.folder, reason)
    else:
        write_graph_info(graph, graph.folder)


def _write_proved(model: Callable[..., Any], graph: OpenVinoGraph) -> str:
    """Convert, write and compare with torch. Return why the graph is unusable; empty if it is usable."""
    config, reason = getattr(getattr(model, "model", None), "config", None), ""
    # The faults of a window's mask show only in texts much longer than the window, which are not compared.
    slides = any(getattr(config, name, None) for name in ("sliding_window", "local_attention"))
    for masks in (_traceable_masks,) if slides else (nullcontext, _traceable_masks):
        if not (reason := _written(model, graph, masks)):
            break
    return reason


def _written(model: Callable[..., Any], graph: OpenVinoGraph, masks: Callable[[], AbstractContextManager[None]]) -> str:
    import torch

    runtime = openvino()
    with torch.inference_mode(False), torch.no_grad(), _quiet(), without_reports():
        try:
            with masks():
                converted = _traced(model, _inputs(graph, _SHAPES[0]))
            runtime.save_model(converted, graph.path, compress_to_fp16=False)
            compiled = runtime.Core().compile_model(converted, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
            return "; ".join(filter(None, (_difference(model, compiled, graph, shape) for shape in _SHAPES)))
        # The frontend and the plugin raise RuntimeError, tracing raises nearly any error. torch still runs the model.
        except Exception as error:  # noqa: BLE001
            return f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}"


def _traced(model: Callable[..., Any], example: dict[str, Any]) -> Any:
    """Return the graph of a model, without the usage report that `openvino.convert_model` sends."""
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
    expected = model(**inputs).numpy()
    rows = compiled({name: tensor.numpy() for name, tensor in inputs.items()})[0]
    off = float(np.abs(rows - expected).max() / np.abs(expected).max()) if rows.shape == expected.shape else np.inf
    return "" if off <= _AGREEMENT else f"for {shape[0]} texts of {shape[1]} tokens it is off by {off:.1e}"


def _inputs(graph: OpenVinoGraph, shape: tuple[int, int]) -> dict[str, Any]:
    import torch

    ids = torch.from_numpy(np.random.default_rng(0).integers(0, graph.vocabulary, shape))
    mask = torch.ones_like(ids)
    mask[1:, shape[1] // 2 + 1 :] = 0  # all texts but the first are padded
    inputs = {"input_ids": ids, "attention_mask": mask}
    return inputs | ({"token_type_ids": torch.zeros_like(ids)} if graph.takes_types else {})


@contextmanager
def _traceable_masks() -> Iterator[None]:
    """Let transformers build attention masks from plain operations, whatever the shape of the batch.

    Its own code leaves out masks that a shape does not need, calls `vmap`, which tracing cannot follow, and masks
    whole rows of padding in sliding attention, where OpenVINO returns NaN and torch 0. Here such a row attends to all.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

    plain = {"use_vmap": False, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}

    def mask(*arguments: Any, **settings: Any) -> Any:
        allowed: Any = sdpa_mask(*arguments, **{**settings, **plain})
        return allowed | ~allowed.any(dim=-1, keepdim=True)

    masks: Any = ALL_MASK_ATTENTION_FUNCTIONS
    masks["sdpa"] = mask
    try:
        yield
    finally:
        del masks["sdpa"]


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the warnings of tracing about Python branches; the comparison with torch detects wrong branches."""
    logging.disable(logging.CRITICAL)  # of the child process
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(logging.NOTSET)
