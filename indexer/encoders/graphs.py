"""A transformer as an OpenVINO graph from token ids to pooled rows: converted once by torch, proved, kept.

The graph takes token ids and their mask and gives the pooled states asked for, so that neither layers nor tokens leave
it. A graph is kept only after it has given what torch gives, to float32 rounding, for several shapes.
"""

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.cache import cached_folder, read_cached
from indexer.encoders.kept_tokenizer import open_tokenizer
from indexer.encoders.model_files import find_model_files
from indexer.encoders.protocol import EncoderSpec, PoolingKey
from indexer.errors import ModelError
from indexer.versions import version_of

if TYPE_CHECKING:
    from indexer.encoders.pooled_model import PooledModel

RULES = 1  # bump when the same model would give another graph
GRAPH = "graph.xml"
_FACTS = "facts.json"
_SHAPES = ((2, 5), (1, 1), (3, 17), (1, 64))  # (rows, tokens) that a graph is proved with; traced with the first
_AGREEMENT = 1e-4  # largest difference from torch, of the largest value


@dataclass(frozen=True)
class Graph:
    """A graph on disk and what is known of its model."""

    folder: Path
    dim: int
    vocabulary: int
    takes_types: bool

    @property
    def path(self) -> Path:
        """The graph's file; its weights lie beside it."""
        return self.folder / GRAPH


@dataclass(frozen=True)
class _Facts:
    """What is kept of a graph beside itself; only why, where there is none."""

    dim: int = 0
    vocabulary: int = 0
    takes_types: bool = False
    refused: str | None = None


def open_graph(spec: EncoderSpec, keys: Sequence[PoolingKey]) -> Graph:
    """The graph that gives `keys` (resolved: non-negative, sorted layers), from the cache or converted now.

    Raises ModelError, saying what to do, when the model cannot be converted; that too is kept.
    """
    identity = spec.identity
    key = {
        "rules": RULES,
        "weights": identity["weights"],
        "config": identity["config"],
        "tokenizer": identity["tokenizer"],
        "states": [[list(layers), pooling] for layers, pooling in keys],
        "versions": {name: version_of(name) for name in ("openvino", "torch", "transformers")},
    }
    return _read(cached_folder("openvino", key, lambda folder: _convert(spec, keys, folder)), spec)


def open_stored_graph(folder: Path, spec: EncoderSpec) -> Graph:
    """A graph that lies in a folder of its own, such as a calibrated one in an index."""
    return _read(folder, spec)


def copy_facts(graph: Graph, folder: Path) -> None:
    """Write into `folder` what `open_stored_graph` needs to know beside the graph itself."""
    facts = {name: value for name, value in asdict(graph).items() if name != "folder"}
    (folder / _FACTS).write_text(json.dumps(facts), encoding="utf-8")


def _read(folder: Path, spec: EncoderSpec) -> Graph:
    facts = read_cached(folder / _FACTS, _Facts)
    if facts.refused is not None:
        raise ModelError(f"{spec.folder}: OpenVINO cannot run this model ({facts.refused}). Take --backend torch.")
    return Graph(folder, facts.dim, facts.vocabulary, facts.takes_types)


def _convert(spec: EncoderSpec, keys: Sequence[PoolingKey], folder: Path) -> None:
    import torch

    from indexer.encoders.loading import load_model
    from indexer.encoders.pooled_model import PooledModel

    layers = sorted({layer for average, _ in keys for layer in average})
    loaded = load_model(find_model_files(Path(spec.folder)).root, layers, torch.float32)
    model = PooledModel(loaded, layers, keys, spec).eval()
    types = open_tokenizer(spec).facts.types != "none"  # where it knows none, the model is given none: not even 0
    graph = Graph(folder, loaded.dim, loaded.vocabulary, loaded.takes_types and types)
    reason = _write_proved(model, graph)
    if reason:
        (folder / _FACTS).write_text(json.dumps({"refused": reason}), encoding="utf-8")
        for left in folder.glob("graph.*"):
            left.unlink()
        return
    copy_facts(graph, folder)


def _write_proved(model: "PooledModel", graph: Graph) -> str:
    """Convert, write and compare with torch; returns why it cannot be used, or nothing."""
    import torch

    from indexer.encoders.openvino_import import openvino

    with torch.inference_mode(False), torch.no_grad(), _quiet():
        try:
            converted = _traced(model, _inputs(graph, _SHAPES[0]))
            openvino.save_model(converted, graph.path, compress_to_fp16=False)
            compiled = openvino.Core().compile_model(converted, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
            return "; ".join(filter(None, (_difference(model, compiled, graph, shape) for shape in _SHAPES)))
        # Frontend and plugin raise RuntimeError, tracing nearly anything: none of it is the user's mistake, and
        # whatever it is, torch still runs the model.
        except Exception as error:  # noqa: BLE001
            return f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}"


def _traced(model: "PooledModel", example: dict[str, Any]) -> Any:
    """The graph of a model. `openvino.convert_model` would do the same, and report its use to its makers."""
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    from indexer.encoders.openvino_import import openvino

    frontend = FrontEndManager().load_by_framework("pytorch")
    decoder = TorchScriptPythonDecoder(model, example_input=example)
    converted = frontend.convert(frontend.load(decoder))
    for tensor in converted.inputs:
        tensor.get_node().set_partial_shape(openvino.PartialShape([-1, -1]))
    converted.validate_nodes_and_infer_types()
    return converted


def _difference(model: "PooledModel", compiled: Any, graph: Graph, shape: tuple[int, int]) -> str:
    inputs = _inputs(graph, shape)
    want = model(**inputs).numpy()
    found = compiled({name: tensor.numpy() for name, tensor in inputs.items()})[0]
    off = float(np.abs(found - want).max() / np.abs(want).max()) if found.shape == want.shape else np.inf
    return "" if off <= _AGREEMENT else f"for {shape[0]} texts of {shape[1]} tokens it is off by {off:.1e}"


def _inputs(graph: Graph, shape: tuple[int, int]) -> dict[str, Any]:
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
