"""The torch backend: any Hugging Face text encoder, float32 or half precision, on a CPU, CUDA or MPS.

On a CPU each thread encodes whole batches. No thread waits for another inside an operation, and the bits of a batch do
not depend on the thread count, because a matrix product split over threads sums in another order. On a GPU, copies
overlap with computation (`device.AsyncCopies`).
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import numpy as np
import torch

from indexer.arrays import Float32Array
from indexer.encoders.batching import (
    AHEAD,
    CPU_TOKENS,
    GPU_TOKENS,
    Batch,
    BatchedEncoder,
    BatchPlan,
    PooledBatch,
    is_oom,
    retry_halved,
)
from indexer.encoders.device import AsyncCopies, choose_device, compute_dtype
from indexer.encoders.hf_model import Classifier, KeyedModel, PooledModel, load_classifier, load_model
from indexer.encoders.memory import parameter_count
from indexer.errors import ConfigError, IsotropeError, MachineError, ModelError
from indexer.models.encoder_spec import EncoderSpec, Tokens
from indexer.models.hub import first_line
from indexer.models.identity import PoolingKey
from indexer.recipe.run_options import RunOptions
from indexer.system.threads import ordered_map, single_torch_thread

_GPU_MULTIPLE = 8  # lengths that suit tensor cores
_TURN = threading.Lock()  # the number of threads per operation is a setting of the process, not of a model


class TransformerEncoder(BatchedEncoder):
    """An `Encoder` (see `protocol`) run by torch."""

    runner: "TorchRunner"

    def __init__(self, spec: EncoderSpec, options: RunOptions) -> None:
        if spec.identity.precision == "int8":
            raise ConfigError('encoder.precision is "int8", which only the backend openvino computes.')
        if choose_device(options.device).type == "cpu":
            # One thread tokenises far faster than a CPU encodes. More threads would compete with the model for cores,
            # and warn after a fork.
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        super().__init__(spec, TorchRunner(spec, options))
        self.vocabulary = self.runner.vocabulary

    def token_vectors(self, tokens: Tokens, layers: Sequence[int]) -> Float32Array:
        """Return token vectors (tokens, d) float32: the average of `layers` (non-negative; none: the encoder's).

        Raises MachineError as `encode`.
        """
        lengths = tokens.cut_lengths
        plan = self.plan(lengths)
        rows = np.empty((len(tokens.ids), self.runner.width("mean")), np.float32)
        with self.runner.turn:
            batches = self.runner.run_tokens(self.batches(tokens, plan), tuple(layers) or self.spec.identity.layers)
            for positions, states in zip(plan, batches, strict=True):
                for position, vectors in zip(positions.tolist(), states, strict=True):
                    rows[tokens.starts[position] : tokens.starts[position + 1]] = vectors[: lengths[position]]
        return rows


class TorchRunner:
    """A `ModelRunner` on the device `device` with the number type `dtype`."""

    turn = _TURN

    def __init__(self, spec: EncoderSpec, options: RunOptions) -> None:
        self._spec, self._compiles = spec, options.compile
        self.device = choose_device(options.device)
        self.lanes = (options.threads or torch.get_num_threads()) if self.device.type == "cpu" else 1
        parameters = parameter_count(spec.files)
        self._load(compute_dtype(spec.identity.precision, options.half, self.device, parameters))
        if self.dtype != torch.float32 and not self._computes():
            self._load(torch.float32)
        self.backend = f"torch, {str(self.dtype).removeprefix('torch.')} on {self.device}"
        self.vocabulary = self._loaded.vocabulary
        self._forwards: dict[tuple[PoolingKey, ...], Callable[..., torch.Tensor]] = {}

    def width(self, pooling: str) -> int:
        return self.model.width(pooling)

    def plan(self, budget: int) -> BatchPlan:
        """Return a plan of exact lengths on a CPU, of large padded batches elsewhere."""
        if self.device.type == "cpu":
            return BatchPlan(budget or CPU_TOKENS, exact=True)
        return BatchPlan(budget or GPU_TOKENS, exact=False, multiple=_GPU_MULTIPLE)

    def run(self, batches: Iterable[Batch], keys: Sequence[PoolingKey]) -> Iterator[PooledBatch]:
        return self._run(self._forward(tuple(keys)), batches)

    def run_tokens(self, batches: Iterable[Batch], average: Sequence[int]) -> Iterator[Float32Array]:
        """Yield the average of some layers for every token of each batch, (batch, tokens, d) float32, in order."""
        for states in self._run(partial(self.model.tokens, average), batches):
            yield states.rows[0]

    def _forward(self, keys: tuple[PoolingKey, ...]) -> Callable[..., torch.Tensor]:
        if keys not in self._forwards:
            model = self._tensors_only(keys)
            self._forwards[keys] = torch.compile(model, dynamic=True) if self._compiles else model
        return self._forwards[keys]

    def _tensors_only(self, keys: tuple[PoolingKey, ...]) -> torch.nn.Module:
        return KeyedModel(self.model, keys)

    def _run(self, forward: Callable[..., torch.Tensor], batches: Iterable[Batch]) -> Iterator[PooledBatch]:
        transfers = AsyncCopies(self.device)
        compute = partial(self._computed, forward, transfers)

        def encode(batch: Batch) -> PooledBatch:
            return retry_halved(compute, batch, str(self.device), transfers.release)

        if self.device.type != "cpu":
            yield from transfers.settled(map(encode, batches))
            return
        with single_torch_thread():
            yield from ordered_map(encode, batches, self.lanes, AHEAD * self.lanes)

    def _computed(self, forward: Callable[..., torch.Tensor], transfers: AsyncCopies, batch: Batch) -> Float32Array:
        """Return the result of `forward`, float32; on CUDA the copy may still be running."""
        inputs = {"input_ids": batch.ids}
        if batch.types is not None and self._loaded.takes_types:
            inputs["token_type_ids"] = batch.types
        if (mask := batch.mask) is not None:
            inputs["attention_mask"] = mask
        try:
            with torch.inference_mode(), self._exact_convolutions():
                moved = {name: transfers.to_device(array) for name, array in inputs.items()}
                return transfers.to_host(forward(**moved))
        except Exception as error:  # some wrong settings of a config.json only fail here, with any type of error
            if isinstance(error, IsotropeError) or is_oom(error):
                raise
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise ModelError(f"{self._spec.files.root}: the model cannot run on {self.device}: {reason}.") from error

    def _exact_convolutions(self) -> AbstractContextManager[None]:
        """Turn off CUDA's default rounding of convolutions to TF32; SqueezeBERT and DeBERTa-v2 use convolutions."""
        if self.device.type != "cuda":
            return nullcontext()
        return torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)

    def _load(self, dtype: torch.dtype) -> None:
        layers = self._spec.identity.layers
        self.dtype, self._loaded = dtype, load_model(self._spec.files, layers, dtype, self.device)
        self.model = PooledModel(self._loaded, layers, self._spec)
        self._move(self.model)

    def _computes(self) -> bool:
        """Return whether the model runs in its number type: DeBERTa's code mixes types. float32 suits every class."""
        try:
            with torch.inference_mode():
                self._loaded.model(input_ids=torch.ones((2, 3), dtype=torch.int64, device=self.device))
        except RuntimeError as error:
            if "dtype" not in str(error) and "scalar type" not in str(error):
                raise
            return False
        return True

    def _move(self, model: torch.nn.Module) -> None:
        try:
            model.to(self.device)
        except RuntimeError as error:
            if not is_oom(error):
                raise
            raise MachineError(f"the model does not fit into the memory of {self.device}: {error}") from error


class TorchClassifier(TorchRunner):
    """The same for a classifier of one label, whose rows are logits, (1, batch, 1)."""

    def width(self, pooling: str) -> int:
        return 1

    def _load(self, dtype: torch.dtype) -> None:
        self.dtype, self._loaded = dtype, load_classifier(self._spec.files, dtype, self.device)
        self._classifier = Classifier(self._loaded).eval()
        self._move(self._classifier)

    def _tensors_only(self, keys: tuple[PoolingKey, ...]) -> torch.nn.Module:
        return self._classifier
