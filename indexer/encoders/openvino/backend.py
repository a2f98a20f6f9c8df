"""The OpenVINO backend: the fast way on a CPU. Imports neither torch nor transformers.

A graph takes token ids and their mask and gives the pooled states asked for, so that neither layers nor tokens leave
it. A process of its own converts it, once (`openvino_conversion`).

bfloat16 where the processor multiplies it, float32 elsewhere; int8 runs a graph that was calibrated on the corpus
and lies in the index. Each lane has its own stream of one thread and takes whole batches, so the bits of a batch do
not depend on how many lanes there are.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.arrays import Float32Array
from indexer.encoders.batching import AHEAD, CPU_TOKENS, Batch, BatchedEncoder, BatchPlan, PooledBatch, retry_halved
from indexer.encoders.openvino.conversion import convert_classifier_in_child, convert_in_child
from indexer.encoders.openvino.graph import OpenVinoGraph, open_stored_graph, openvino
from indexer.errors import ConfigError, MachineError
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.identity import PoolingKey
from indexer.models.resolution import num_layers
from indexer.models.tokenizer import open_model_tokenizer
from indexer.recipe.config import Precision
from indexer.recipe.run_options import RunOptions
from indexer.system.cache import cached_folder
from indexer.system.processor import multiplies_bfloat16
from indexer.system.threads import available_cores, ordered_map
from indexer.system.versions import version_of

RULES = 1  # bump when the same model would give another graph
# The bindings set things up when they first see an array. Two lanes that did so at the same time waited for one another
# for ever: one for the GIL, the other, holding it, for the set-up. So one thread uses each graph before the lanes do.
_FIRST_USE = threading.Lock()


class OpenVinoEncoder(BatchedEncoder):
    """An `Encoder` (see `protocol`) run by OpenVINO on the CPU."""

    runner: "OpenVinoRunner"

    def __init__(self, spec: EncoderSpec, options: RunOptions) -> None:
        if options.device not in ("auto", "cpu"):
            raise ConfigError(f'device is "{options.device}", but the backend openvino runs on the CPU.')
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as in the torch backend on a CPU
        runner = OpenVinoRunner(spec, options)  # first: the process that converts a model prepares the tokenizer too
        super().__init__(spec, open_model_tokenizer(spec), runner, num_layers(spec.files))


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


def open_graph(spec: EncoderSpec, keys: Sequence[PoolingKey]) -> OpenVinoGraph:
    """The graph that gives `keys` (resolved: non-negative, sorted layers), from the cache or converted now.

    Raises ModelError, saying what to do, when the model cannot be converted; that too is kept. MachineError when
    converting is killed.
    """
    key = _graph_key(spec) | {"states": [[list(layers), pooling] for layers, pooling in keys]}
    folder = cached_folder("openvino", key, lambda folder: convert_in_child(spec, keys, folder))
    return open_stored_graph(folder, spec)


class OpenVinoClassifier(OpenVinoRunner):
    """The same for a classifier of one label: its rows are logits, (1, batch, 1)."""

    def _open(self, keys: tuple[PoolingKey, ...]) -> OpenVinoGraph:
        return open_classifier_graph(self._spec)


def open_classifier_graph(spec: EncoderSpec) -> OpenVinoGraph:
    """The graph of a classifier, as `open_graph`."""
    key = _graph_key(spec) | {"states": "logits"}
    folder = cached_folder("openvino", key, lambda folder: convert_classifier_in_child(spec, folder))
    return open_stored_graph(folder, spec)


def _graph_key(spec: EncoderSpec) -> dict[str, Any]:
    """What decides the bytes of a graph, beside what it gives."""
    return {
        "rules": RULES,
        "weights": spec.identity.weights,
        "config": spec.identity.config,
        "tokenizer": spec.identity.tokenizer,
        "versions": {name: version_of(name) for name in ("openvino", "torch", "transformers")},
    }


def inference_precision(core: Any, precision: Precision) -> str:
    """Return OpenVINO's name of the type that computes a precision class on this processor.

    With int8, everything but the products of int8 is computed in the type of the class bfloat16.
    """
    half = precision != "float32" and "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return "bf16" if half and multiplies_bfloat16() else "f32"


def _nothing_to_release() -> None:
    """OpenVINO keeps no cache that could be given back."""
