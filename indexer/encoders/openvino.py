"""The OpenVINO backend: the fast way on a CPU. Imports neither torch nor transformers once a model is converted.

bfloat16 where the processor computes in it, float32 elsewhere; int8 runs a graph that was calibrated on the corpus
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

from indexer.config import Precision, RunOptions
from indexer.encoders.batched import BatchedEncoder, Pooled, Rows
from indexer.encoders.batches import AHEAD, CPU_TOKENS, Batch, BatchPlan
from indexer.encoders.graphs import Graph, open_graph, open_stored_graph
from indexer.encoders.kept_tokenizer import open_tokenizer
from indexer.encoders.limits import layer_count
from indexer.encoders.memory import halving
from indexer.encoders.model_files import find_model_files
from indexer.encoders.openvino_import import openvino
from indexer.encoders.protocol import EncoderSpec, PoolingKey
from indexer.errors import ConfigError, MachineError
from indexer.parallel import available_cores, ordered_map

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
        tokenizer = open_tokenizer(spec)
        blocks = layer_count(find_model_files(Path(spec.folder)))
        super().__init__(spec, tokenizer, OpenVinoRunner(spec, options), blocks)


class OpenVinoRunner:
    """A `Runner` (see `batched`). Threads share its requests, of which there is one a lane."""

    turn = nullcontext()

    def __init__(self, spec: EncoderSpec, options: RunOptions) -> None:
        self._spec = spec
        self.lanes = options.threads or available_cores()
        self._core = openvino.Core()
        self.number_type = number_type(self._core, spec.identity["precision"])
        own: PoolingKey = (tuple(spec.identity["layers"]), spec.identity["pooling"])
        self._compiled: dict[tuple[PoolingKey, ...], _Compiled] = {}
        self._graph = self._of((own,)).graph

    @property
    def backend(self) -> str:
        """What runs it, and in what numbers."""
        precision = self._spec.identity["precision"]
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

    def run(self, batches: Iterable[Batch], keys: Sequence[PoolingKey]) -> Iterator[Pooled]:
        """Pooled rows of each batch, in order."""
        compiled = self._of(tuple(keys))
        yield from ordered_map(
            lambda batch: halving(compiled.rows, batch, "the CPU", _nothing_to_release),
            batches,
            self.lanes,
            AHEAD * self.lanes,
        )

    def _of(self, keys: tuple[PoolingKey, ...]) -> "_Compiled":
        if keys not in self._compiled:
            self._compiled[keys] = self._compile(self._open(keys))
        return self._compiled[keys]

    def _open(self, keys: tuple[PoolingKey, ...]) -> Graph:
        if self._spec.identity["precision"] != "int8":
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

    def _compile(self, graph: Graph) -> "_Compiled":
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

    def __init__(self, graph: Graph, model: Any, lanes: int) -> None:
        self.graph = graph
        self._requests: SimpleQueue[Any] = SimpleQueue()
        for _ in range(lanes):
            self._requests.put(model.create_infer_request())

    def rows(self, batch: Batch) -> Rows:
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


def number_type(core: Any, precision: Precision) -> str:
    """What OpenVINO calls the type that a class of results is computed in on this processor."""
    if precision == "float32":
        return "f32"
    return "bf16" if "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES") else "f32"


def _nothing_to_release() -> None:
    """OpenVINO keeps no cache that could be given back."""
