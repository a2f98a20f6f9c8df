"""The OpenVINO backend: the fast way on a CPU. Imports neither torch nor transformers once a model is converted.

A graph takes token ids and their mask and gives the pooled states asked for, so that neither layers nor tokens leave
it. It is converted once by torch, and kept only after it has given what torch gives, to float32 rounding, for several
shapes.

bfloat16 where the processor computes in it, float32 elsewhere; int8 runs a graph that was calibrated on the corpus
and lies in the index. Each lane has its own stream of one thread and takes whole batches, so the bits of a batch do
not depend on how many lanes there are.
"""

import json
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from indexer.arrays import Float32Array
from indexer.cache import cached_folder, read_cached
from indexer.config import Precision
from indexer.encoders.batching import AHEAD, CPU_TOKENS, Batch, BatchedEncoder, BatchPlan, PooledBatch, retry_halved
from indexer.encoders.identity import PoolingKey
from indexer.encoders.protocol import EncoderSpec
from indexer.encoders.spec import num_layers
from indexer.encoders.tokenizer import open_model_tokenizer
from indexer.errors import ConfigError, MachineError, ModelError
from indexer.parallel import available_cores, ordered_map
from indexer.run_options import RunOptions
from indexer.versions import version_of

if TYPE_CHECKING:
    from indexer.encoders.hf_model import KeyedModel


_CONVERTER = "openvino.tools.ovc"
_REPORTING = "openvino_telemetry"
RULES = 1  # bump when the same model would give another graph
GRAPH = "graph.xml"
_FACTS = "facts.json"
_SHAPES = ((2, 5), (1, 1), (3, 17), (1, 64))  # (rows, tokens) that a graph is proved with; traced with the first
_AGREEMENT = 1e-4  # largest difference from torch, of the largest value
# The bindings set things up when they first see an array. Two lanes that did so at the same time waited for one another
# for ever: one for the GIL, the other, holding it, for the set-up. So one thread uses each graph before the lanes do.
_FIRST_USE = threading.Lock()
_IMPORTING = threading.Lock()


@cache
def openvino() -> Any:
    """OpenVINO, imported so that it reports to nobody and brings no converter of other frameworks' models.

    `import openvino` sends "imported" to its makers through openvino_telemetry, where that is installed, from a process
    of its own; and it imports the converter that does so, which is two thirds of the time. Neither is wanted: `_traced`
    converts graphs. NNCF asks openvino_telemetry too, so that stays out for the life of the process.
    """
    modules: dict[str, Any] = sys.modules
    with _IMPORTING:
        modules.setdefault(_REPORTING, None)  # an import of it now fails; what asks for it has a way out
        if "openvino" in modules:
            return modules["openvino"]
        modules.setdefault(_CONVERTER, None)
        try:
            return import_module("openvino")
        finally:
            if modules.get(_CONVERTER) is None:
                del modules[_CONVERTER]


@dataclass(frozen=True)
class OpenVinoGraph:
    """A graph on disk and what is known of its model."""

    folder: Path
    dim: int
    vocabulary: int
    takes_types: bool

    @property
    def path(self) -> Path:
        """The graph's file; its weights lie beside it."""
        return self.folder / GRAPH


class OpenVinoEncoder(BatchedEncoder):
    """An `Encoder` (see `protocol`) run by OpenVINO on the CPU."""

    runner: "OpenVinoRunner"

    def __init__(self, spec: EncoderSpec, options: RunOptions) -> None:
        if options.device not in ("auto", "cpu"):
            raise ConfigError(f'device is "{options.device}", but the backend openvino runs on the CPU.')
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as in the torch backend on a CPU
        super().__init__(spec, open_model_tokenizer(spec), OpenVinoRunner(spec, options), num_layers(spec.files))


class OpenVinoRunner:
    """A `ModelRunner` (see `batching`). Threads share its requests, of which there is one a lane."""

    turn = nullcontext()

    def __init__(self, spec: EncoderSpec, options: RunOptions) -> None:
        self._spec = spec
        self.lanes = options.threads or available_cores()
        self._core = openvino().Core()
        self.number_type = inference_precision(self._core, spec.identity.precision)
        self._compiled: dict[tuple[PoolingKey, ...], _Compiled] = {}
        self._graph = self._of((spec.identity.key,)).graph

    @property
    def backend(self) -> str:
        """What runs it, and in what numbers."""
        precision = self._spec.identity.precision
        return f"openvino, {f'int8 and {self.number_type}' if precision == 'int8' else self.number_type}"

    def width(self, pooling: str) -> int:
        """Numbers in a row, whatever the pooling."""
        return self._graph.dim

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding table."""
        return self._graph.vocabulary

    def plan(self, budget: int) -> BatchPlan:
        """Exact lengths as far as they go."""
        return BatchPlan(budget or CPU_TOKENS, exact=True)

    def run(self, batches: Iterable[Batch], keys: Sequence[PoolingKey]) -> Iterator[PooledBatch]:
        """Pooled rows of each batch, in order."""
        compiled = self._of(tuple(keys))
        yield from ordered_map(
            lambda batch: retry_halved(compiled.rows, batch, "the CPU", _nothing_to_release),
            batches,
            self.lanes,
            AHEAD * self.lanes,
        )

    def _of(self, keys: tuple[PoolingKey, ...]) -> "_Compiled":
        if keys not in self._compiled:
            self._compiled[keys] = self._compile(self._open(keys))
        return self._compiled[keys]

    def _open(self, keys: tuple[PoolingKey, ...]) -> OpenVinoGraph:
        if self._spec.identity.precision != "int8":
            return open_graph(self._spec, keys)
        if self._compiled:
            raise ConfigError(
                'encoder.precision is "int8", which is calibrated for one average of layers and one pooling; '
                'other ones can be compared with "bfloat16".'
            )
        if self._spec.state is None:
            raise ConfigError(
                'encoder.precision is "int8", which is calibrated on a corpus: build an index with it and name that '
                'index, or take "bfloat16".'
            )
        return open_stored_graph(Path(self._spec.state), self._spec)

    def _compile(self, graph: OpenVinoGraph) -> "_Compiled":
        settings = {
            "INFERENCE_PRECISION_HINT": self.number_type,
            "NUM_STREAMS": self.lanes,
            "INFERENCE_NUM_THREADS": self.lanes,
            "ENABLE_CPU_PINNING": False,  # two processes would pin their threads to the same cores
        }
        try:
            model = self._core.compile_model(str(graph.path), "CPU", settings)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise MachineError(
                f"OpenVINO cannot run {graph.path} here: {reason}. Take --backend torch, or delete the file."
            ) from error
        compiled = _Compiled(graph, model, self.lanes)
        one = np.zeros((1, 1), np.int64)
        with _FIRST_USE:
            compiled.rows(Batch(one, None, np.ones(1, np.int64)))
        return compiled


class _Compiled:
    """A compiled graph with one request a lane."""

    def __init__(self, graph: OpenVinoGraph, model: Any, lanes: int) -> None:
        self.graph = graph
        self._requests: SimpleQueue[Any] = SimpleQueue()
        for _ in range(lanes):
            self._requests.put(model.create_infer_request())

    def rows(self, batch: Batch) -> Float32Array:
        """Pooled rows (states, batch, d) float32."""
        mask = batch.mask
        inputs: dict[str, npt.NDArray[np.int64]] = {
            "input_ids": batch.ids,
            "attention_mask": mask if mask is not None else np.ones_like(batch.ids),
        }
        if self.graph.takes_types:
            inputs["token_type_ids"] = batch.types if batch.types is not None else np.zeros_like(batch.ids)
        with self._request() as request:
            request.infer(inputs, share_inputs=True)
            return np.array(request.get_output_tensor(0).data, np.float32)

    @contextmanager
    def _request(self) -> Iterator[Any]:
        request = self._requests.get()
        try:
            yield request
        finally:
            self._requests.put(request)


@dataclass(frozen=True)
class _Facts:
    """What is kept of a graph beside itself; only why, where there is none."""

    dim: int = 0
    vocabulary: int = 0
    takes_types: bool = False
    refused: str | None = None


def open_graph(spec: EncoderSpec, keys: Sequence[PoolingKey]) -> OpenVinoGraph:
    """The graph that gives `keys` (resolved: non-negative, sorted layers), from the cache or converted now.

    Raises ModelError, saying what to do, when the model cannot be converted; that too is kept.
    """
    key = {
        "rules": RULES,
        "weights": spec.identity.weights,
        "config": spec.identity.config,
        "tokenizer": spec.identity.tokenizer,
        "states": [[list(layers), pooling] for layers, pooling in keys],
        "versions": {name: version_of(name) for name in ("openvino", "torch", "transformers")},
    }
    return _read(cached_folder("openvino", key, lambda folder: _convert(spec, keys, folder)), spec)


def open_stored_graph(folder: Path, spec: EncoderSpec) -> OpenVinoGraph:
    """A graph that lies in a folder of its own, such as a calibrated one in an index."""
    return _read(folder, spec)


def write_graph_info(graph: OpenVinoGraph, folder: Path) -> None:
    """Write into `folder` what `open_stored_graph` needs to know beside the graph itself."""
    facts = {name: value for name, value in asdict(graph).items() if name != "folder"}
    (folder / _FACTS).write_text(json.dumps(facts), encoding="utf-8")


def _read(folder: Path, spec: EncoderSpec) -> OpenVinoGraph:
    facts = read_cached(folder / _FACTS, _Facts)
    if facts.refused is not None:
        raise ModelError(f"{spec.folder}: OpenVINO cannot run this model ({facts.refused}). Take --backend torch.")
    return OpenVinoGraph(folder, facts.dim, facts.vocabulary, facts.takes_types)


def _convert(spec: EncoderSpec, keys: Sequence[PoolingKey], folder: Path) -> None:
    import torch

    from indexer.encoders.hf_model import KeyedModel, PooledModel, load_model

    layers = sorted({layer for average, _ in keys for layer in average})
    loaded = load_model(spec.files, layers, torch.float32)
    model = KeyedModel(PooledModel(loaded, layers, spec), keys).eval()
    types = open_model_tokenizer(spec).facts.types != "none"  # where it knows none, the model is given none: not even 0
    graph = OpenVinoGraph(folder, loaded.dim, loaded.vocabulary, loaded.takes_types and types)
    reason = _write_proved(model, graph)
    if reason:
        (folder / _FACTS).write_text(json.dumps({"refused": reason}), encoding="utf-8")
        for left in folder.glob("graph.*"):
            left.unlink()
        return
    write_graph_info(graph, folder)


def _write_proved(model: "KeyedModel", graph: OpenVinoGraph) -> str:
    """Convert, write and compare with torch; returns why it cannot be used, or nothing."""
    import torch

    runtime = openvino()
    with torch.inference_mode(False), torch.no_grad(), _quiet():
        try:
            converted = _traced(model, _inputs(graph, _SHAPES[0]))
            runtime.save_model(converted, graph.path, compress_to_fp16=False)
            compiled = runtime.Core().compile_model(converted, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
            return "; ".join(filter(None, (_difference(model, compiled, graph, shape) for shape in _SHAPES)))
        # Frontend and plugin raise RuntimeError, tracing nearly anything: none of it is the user's mistake, and
        # whatever it is, torch still runs the model.
        except Exception as error:  # noqa: BLE001
            return f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}"


def _traced(model: "KeyedModel", example: dict[str, Any]) -> Any:
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


def _difference(model: "KeyedModel", compiled: Any, graph: OpenVinoGraph, shape: tuple[int, int]) -> str:
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


def inference_precision(core: Any, precision: Precision) -> str:
    """What OpenVINO calls the type that a class of results is computed in on this processor."""
    if precision == "float32":
        return "f32"
    return "bf16" if "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES") else "f32"


def _nothing_to_release() -> None:
    """OpenVINO keeps no cache that could be given back."""
