"""The OpenVINO backend, the fastest on a CPU. Imports neither torch nor transformers.

A graph maps token ids and their mask to pooled states, so that neither layers nor tokens leave it. A child process
converts a model once (`conversion`). A folder's ONNX file runs as it is (`onnx`).

The number type is bfloat16 if that is faster on the processor, else float32; int8 runs a graph that was calibrated on
the corpus and is stored in the index. Each lane has a stream of one thread and encodes whole batches, so the bits of a
batch do not depend on the number of lanes.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from indexer.arrays import Float32Array
from indexer.encoders.batching import AHEAD, CPU_TOKENS, Batch, BatchedEncoder, BatchPlan, PooledBatch, retry_halved
from indexer.encoders.openvino.conversion import convert_in_child
from indexer.encoders.openvino.graph import OpenVinoGraph, open_stored_graph, openvino
from indexer.encoders.openvino.onnx import OnnxGraph, open_onnx
from indexer.errors import ConfigError
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.identity import PoolingKey
from indexer.models.model_files import is_onnx
from indexer.recipe.config import Precision
from indexer.recipe.run_options import RunOptions
from indexer.system.cache import cached_folder
from indexer.system.processor import bfloat16_is_faster
from indexer.system.threads import available_cores, ordered_map
from indexer.system.versions import version_of

RULES = 2  # bump when the same model would give another graph
# The bindings initialise when they first see an array. Two lanes at the same time deadlock: one waits for the GIL, the
# other holds it and waits for the initialisation. So one thread uses each graph before the lanes do.
_FIRST_USE = threading.Lock()
_PROBE = Batch(np.zeros((2, 2), np.int64), None, np.array([2, 1]))


class OpenVinoEncoder(BatchedEncoder):
    """An `Encoder` run by OpenVINO on the CPU."""

    runner: "OpenVinoRunner"

    def __init__(self, spec: EncoderSpec, options: RunOptions) -> None:
        if options.device not in ("auto", "cpu"):
            raise ConfigError(f'device is "{options.device}", but the backend openvino runs on the CPU.')
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as in the torch backend on a CPU
        super().__init__(spec, OpenVinoRunner(spec, options))


class OpenVinoRunner:
    """A `ModelRunner`. Threads share its requests, one per lane."""

    turn = nullcontext()

    def __init__(self, spec: EncoderSpec, options: RunOptions) -> None:
        self._spec = spec
        self.lanes = options.threads or available_cores()
        self._core = openvino().Core()
        self.number_type = inference_precision(self._core, spec.identity.precision)
        self._compiled: dict[tuple[PoolingKey, ...], _Compiled] = {}
        self.backend = f"openvino, {'int8 and ' * (spec.identity.precision == 'int8')}{self.number_type}"
        self._graph = self._of((spec.identity.key,)).graph
        self.vocabulary = self._graph.vocabulary

    def width(self, pooling: str) -> int:
        return self._graph.dim

    def plan(self, budget: int) -> BatchPlan:
        return BatchPlan(budget or CPU_TOKENS, exact=True)

    def run(self, batches: Iterable[Batch], keys: Sequence[PoolingKey]) -> Iterator[PooledBatch]:
        compiled = self._of(tuple(keys))

        def encode(batch: Batch) -> PooledBatch:
            return retry_halved(compiled.rows, batch, "the CPU", lambda: None)  # OpenVINO has no cache to release

        yield from ordered_map(encode, batches, self.lanes, AHEAD * self.lanes)

    def _of(self, keys: tuple[PoolingKey, ...]) -> "_Compiled":
        if keys not in self._compiled:
            self._compiled[keys] = self._compile(self._open(keys))
        return self._compiled[keys]

    def _open(self, keys: tuple[PoolingKey, ...]) -> OpenVinoGraph | OnnxGraph:
        if is_onnx(self._spec.identity.weights):
            return open_onnx(self._core, self._spec, keys)
        if self._spec.identity.precision != "int8":
            return open_graph(self._spec, keys)
        if self._compiled:
            raise ConfigError(
                'encoder.precision is "int8", which is calibrated for a single average of layers and a single pooling. '
                'Fix: compare others with "bfloat16".'
            )
        if self._spec.state is None:
            raise ConfigError(
                'encoder.precision is "int8", which is calibrated on a corpus. Fix: build an index with it and name '
                'that index, or set "bfloat16".'
            )
        return open_stored_graph(Path(self._spec.state), self._spec)

    def _compile(self, graph: OpenVinoGraph | OnnxGraph) -> "_Compiled":
        settings = {
            "INFERENCE_PRECISION_HINT": self.number_type,
            "NUM_STREAMS": self.lanes,
            "INFERENCE_NUM_THREADS": self.lanes,
            "ENABLE_CPU_PINNING": False,  # two processes would pin their threads to the same cores
        }
        try:
            compiled = _Compiled(graph, self._core.compile_model(graph.source, "CPU", settings), self.lanes)
            with _FIRST_USE:
                rows = compiled.rows(_PROBE)
        except RuntimeError as error:
            raise graph.unusable(str(error).strip().splitlines()[-1]) from error
        if rows.shape[2] != graph.dim:
            raise graph.unusable(f"a row has {rows.shape[2]} numbers; expected {graph.dim}")
        return compiled


class _Compiled:
    """A compiled graph with one request per lane."""

    def __init__(self, graph: OpenVinoGraph | OnnxGraph, model: Any, lanes: int) -> None:
        self.graph = graph
        self._requests: SimpleQueue[Any] = SimpleQueue()
        for _ in range(lanes):
            self._requests.put(model.create_infer_request())

    def rows(self, batch: Batch) -> Float32Array:
        """Return pooled rows (states, batch, d) float32."""
        request = self._requests.get()
        try:
            request.infer(self.graph.feed(batch), share_inputs=True)
            return np.array(self.graph.rows(request.get_output_tensor(0).data, batch), np.float32)
        finally:
            self._requests.put(request)


def open_graph(spec: EncoderSpec, keys: Sequence[PoolingKey] | None) -> OpenVinoGraph:
    """Return the graph that outputs `keys` (resolved: non-negative, sorted layers), from the cache or converted now.

    Without keys it outputs a classifier's logits. Raises ModelError with a fix if the model cannot be converted (the
    refusal is cached too), MachineError if the conversion is killed.
    """
    key = {
        "rules": RULES,
        "weights": spec.identity.weights,
        "config": spec.identity.config,
        "tokenizer": spec.identity.tokenizer,
        "versions": {name: version_of(name) for name in ("openvino", "torch", "transformers")},
        "states": "logits" if keys is None else [[list(layers), pooling] for layers, pooling in keys],
    }
    if keys is not None and spec.identity.modules:
        key["modules"] = spec.identity.modules
    folder = cached_folder("openvino", key, lambda folder: convert_in_child(spec, keys, folder))
    return open_stored_graph(folder, spec)


class OpenVinoClassifier(OpenVinoRunner):
    """The same for a classifier of one label, whose rows are logits, (1, batch, 1)."""

    def _open(self, keys: tuple[PoolingKey, ...]) -> OpenVinoGraph:
        return open_graph(self._spec, None)


def inference_precision(core: Any, precision: Precision) -> str:
    """Return OpenVINO's name of the number type for a precision class on this processor.

    With int8, all operations except int8 products use the type of the class bfloat16.
    """
    half = precision != "float32" and "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return "bf16" if half and bfloat16_is_faster() else "f32"
