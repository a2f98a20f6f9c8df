"""The torch backend: any Hugging Face text encoder, float32 or half precision, on a CPU, CUDA or MPS.

Texts are tokenised in groups, each group cut into batches of like length (`batches`), and the rows put back
into the order asked for. One thread tokenises the next group while the model works on this one. On a CPU each
thread takes whole batches, so no thread ever waits for another inside an operation, and the bits of a batch
do not depend on how many there are: a matrix product cut over threads adds up in another order.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from indexer.config import EncoderConfig, RunOptions
from indexer.encoders.batches import plan_batches
from indexer.encoders.device import choose_device, is_out_of_memory, number_type, release_memory
from indexer.encoders.identity import resolve_spec
from indexer.encoders.limits import layer_count, resolve_layers
from indexer.encoders.loading import load_model
from indexer.encoders.model_files import find_model_files
from indexer.encoders.protocol import EncodeLog, EncoderSpec, Role, StateKey
from indexer.encoders.tokens import TextTokenizer, Tokens
from indexer.errors import ConfigError, MachineError, ModelError
from indexer.pooling import Mode, average_layers, pool

_DEFAULTS = RunOptions()


def load_encoder(
    config: EncoderConfig, options: RunOptions = _DEFAULTS, folder: str | Path | None = None
) -> "TransformerEncoder":
    """Load the encoder a recipe names, onto the device asked for; see `resolve_spec` for `folder` and the
    settings.

    Raises ModelError, ConfigError, and MachineError when the device is missing or too small.
    """
    return TransformerEncoder(resolve_spec(config, folder), options)


@dataclass(frozen=True)
class _Encoded:
    """Pooled rows (states, batch, d) of one batch, and how often it had to be halved."""

    rows: torch.Tensor
    retries: int


class TransformerEncoder:
    """An `Encoder` (see `protocol`). `device` and `dtype` say where and in what numbers it runs."""

    def __init__(self, spec: EncoderSpec, options: RunOptions) -> None:
        settings, files = spec.identity, find_model_files(Path(spec.folder))
        self.spec, self._blocks = spec, layer_count(files)
        self.device = choose_device(options.device)
        self.dtype = number_type(settings["precision"], options.half, self.device)
        self.lanes = (options.threads or torch.get_num_threads()) if self.device.type == "cpu" else 1
        if self.device.type == "cpu":
            # One thread tokenises far faster than a CPU encodes; more would fight the model for cores, and
            # warn after a fork.
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._tokenize = TextTokenizer(files.root, settings["max_length"], settings["lowercase"])
        self._loaded = load_model(files.root, settings["layers"], self.dtype)
        self._model = self._moved(self._loaded.model)

    @property
    def dim(self) -> int:
        """Embedding size d."""
        return self._loaded.dim

    def encode(self, texts: Sequence[str], role: Role, log: EncodeLog | None = None) -> npt.NDArray[np.float32]:
        """Pooled embeddings, float32 (n, d), row i for texts[i]; not normalised, and non-finite where the
        model is.

        Raises MachineError when a single text does not fit into memory.
        """
        own: StateKey = (tuple(self.spec.identity["layers"]), self.spec.identity["pooling"])
        rows: npt.NDArray[np.float32] = self._states(texts, [own], role, log)[0]
        return rows

    def states(
        self,
        texts: Sequence[str],
        layers: Sequence[tuple[int, ...]],
        poolings: Sequence[Mode],
        role: Role = "document",
        log: EncodeLog | None = None,
    ) -> dict[StateKey, npt.NDArray[np.float32]]:
        """Several embeddings of each text from one forward pass: (layers, pooling) -> float32 (n, d).

        Raises ConfigError for layers the encoder was not loaded with, and MachineError as `encode` does.
        """
        keys: list[StateKey] = [(average, pooling) for average in layers for pooling in poolings]
        rows = self._states(texts, [(self._resolved(average), pooling) for average, pooling in keys], role, log)
        return dict(zip(keys, rows, strict=True))

    def _resolved(self, average: tuple[int, ...]) -> tuple[int, ...]:
        resolved, loaded = resolve_layers(average, self._blocks), self.spec.identity["layers"]
        if not resolved or not set(resolved) <= set(loaded):
            raise ConfigError(
                f"states of layers {list(average)} were asked for, but the encoder was loaded for {loaded}; load it "
                "with encoder.layers naming every layer that is wanted."
            )
        return tuple(resolved)

    def _states(
        self, texts: Sequence[str], keys: Sequence[StateKey], role: Role, log: EncodeLog | None
    ) -> npt.NDArray[np.float32]:
        """Rows (states, n, d) for resolved keys, in one forward pass a text."""
        log = log if log is not None else EncodeLog()
        rows = np.empty((len(keys), len(texts), self.dim), dtype=np.float32)
        start = 0
        for tokens in self._groups(texts, role):
            log.lengths.extend(tokens.lengths)
            log.truncated += tokens.truncated
            stop = start + len(tokens.ids)
            rows[:, start:stop] = self._encode_group(tokens, keys, log)
            start = stop
        return rows

    def _groups(self, texts: Sequence[str], role: Role) -> Iterator[Tokens]:
        """Tokens of each group of texts, the next one tokenised while this one is in use."""
        prefix, size = self.spec.identity[f"{role}_prefix"], self.spec.identity["group_texts"]
        groups = [range(start, min(start + size, len(texts))) for start in range(0, len(texts), size)]

        def tokenize(group: range) -> Tokens:
            return self._tokenize([prefix + texts[i] for i in group])

        if len(groups) < 2:
            yield from map(tokenize, groups)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="tokenize") as pool_of_one:
            ahead = pool_of_one.submit(tokenize, groups[0])
            for group in groups[1:]:
                tokens = ahead.result()
                ahead = pool_of_one.submit(tokenize, group)
                yield tokens
            yield ahead.result()

    def _encode_group(self, tokens: Tokens, keys: Sequence[StateKey], log: EncodeLog) -> npt.NDArray[np.float32]:
        batches = plan_batches([len(ids) for ids in tokens.ids], self.spec.identity["batch_tokens"])
        pooled = []
        for batch, encoded in zip(batches, self._encode_batches(tokens, batches, keys), strict=True):
            pooled.append(encoded.rows)
            log.retries += encoded.retries
            if log.on_batch is not None:
                log.on_batch(len(batch), sum(len(tokens.ids[i]) for i in batch))
        rows = np.empty((len(keys), len(tokens.ids), self.dim), dtype=np.float32)
        # One copy from the device a group: fetching each batch would make the device wait for the CPU.
        rows[:, [i for batch in batches for i in batch]] = torch.cat(pooled, dim=1).cpu().numpy()
        return rows

    def _encode_batches(
        self, tokens: Tokens, batches: list[list[int]], keys: Sequence[StateKey]
    ) -> Iterator["_Encoded"]:
        """The batches in order, several at a time on a CPU."""
        if self.device.type != "cpu":
            yield from (self._encode_batch(tokens, batch, keys) for batch in batches)
            return
        with _one_thread_an_operation(), ThreadPoolExecutor(self.lanes, thread_name_prefix="encode") as pool_of_lanes:
            try:
                yield from pool_of_lanes.map(lambda batch: self._encode_batch(tokens, batch, keys), batches)
            except BaseException:
                pool_of_lanes.shutdown(wait=False, cancel_futures=True)  # do not finish what nobody waits for
                raise

    def _encode_batch(self, tokens: Tokens, batch: list[int], keys: Sequence[StateKey]) -> "_Encoded":
        """One batch; in halves when it does not fit into memory."""
        try:
            return _Encoded(self._forward(tokens, batch, keys), 0)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        # Outside the handler, so that the failed attempt's tensors are gone.
        release_memory(self.device)
        if len(batch) == 1:
            raise MachineError(
                f"a text of {len(tokens.ids[batch[0]])} tokens does not fit into memory on {self.device}: "
                "lower encoder.max_length, set encoder.precision to bfloat16, or take another --device."
            )
        half = (len(batch) + 1) // 2
        first, second = (self._encode_batch(tokens, part, keys) for part in (batch[:half], batch[half:]))
        return _Encoded(torch.cat([first.rows, second.rows], dim=1), 1 + first.retries + second.retries)

    def _forward(self, tokens: Tokens, batch: list[int], keys: Sequence[StateKey]) -> torch.Tensor:
        """Token ids to pooled rows (states, batch, d) float32, on the device."""
        inputs = self._inputs(tokens, batch)
        with torch.inference_mode(), self._exact_convolutions():
            states = self._layers(self._model(**inputs, output_hidden_states=bool(self._loaded.picked)))
            mask = inputs["attention_mask"]
            return torch.stack(
                [pool(average_layers([states[layer] for layer in average]), mask, pooling) for average, pooling in keys]
            )

    def _layers(self, output: object) -> dict[int, torch.Tensor]:
        """Token states (batch, tokens, d) of every layer the encoder was loaded for, by layer."""
        layers = self.spec.identity["layers"]
        if not self._loaded.picked:
            return {layers[0]: output.last_hidden_state}  # type: ignore[attr-defined]
        states = output.hidden_states  # type: ignore[attr-defined]
        if len(states) != self._loaded.states:
            raise ModelError(
                f"{self.spec.folder}: the model gives {len(states)} hidden states instead of "
                f"{self._loaded.states}; use encoder.layers = [-1] with it."
            )
        return {layer: states[layer] for layer in layers}

    def _inputs(self, tokens: Tokens, batch: list[int]) -> dict[str, torch.Tensor]:
        inputs = {
            "input_ids": _padded([tokens.ids[i] for i in batch], self._tokenize.padding),
            "attention_mask": _padded([[1] * len(tokens.ids[i]) for i in batch], 0),
        }
        if tokens.types is not None and self._loaded.takes_types:
            inputs["token_type_ids"] = _padded([tokens.types[i] for i in batch], 0)
        largest = int(inputs["input_ids"].max())
        if largest >= self._loaded.vocabulary:
            raise ModelError(
                f"{self.spec.folder}: the tokenizer gives token {largest}, but the model has embeddings for "
                f"{self._loaded.vocabulary}; the tokenizer does not belong to the model."
            )
        return {name: tensor.to(self.device) for name, tensor in inputs.items()}

    def _exact_convolutions(self) -> AbstractContextManager[None]:
        """CUDA rounds convolutions to TF32 unless told not to; SqueezeBERT and DeBERTa-v2 use them."""
        if self.device.type != "cuda":
            return nullcontext()
        return torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)

    def _moved(self, model: torch.nn.Module) -> torch.nn.Module:
        try:
            return model.to(self.device)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise MachineError(f"the model does not fit into the memory of {self.device}: {error}") from error


@contextmanager
def _one_thread_an_operation() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _padded(rows: list[list[int]], padding: int) -> torch.Tensor:
    """Rows of unequal length as one int64 tensor, padded on the right."""
    filled = np.full((len(rows), max(map(len, rows))), padding, dtype=np.int64)
    for target, row in zip(filled, rows, strict=True):
        target[: len(row)] = row
    return torch.from_numpy(filled)
