"""The `Encoder` that combines a tokenizer with a `ModelRunner`: groups, batches, order and statistics.

Texts are tokenised in groups; one thread tokenises the next group while the model encodes the current group. Each group
is cut into batches of similar length under a token budget, independent of the thread count. A batch that does not fit
into memory is halved. Rows are returned in the order of the texts.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from indexer.arrays import Float32Array, Int64Array
from indexer.encoders.protocol import EncodeStats
from indexer.errors import ConfigError, MachineError, ModelError, as_argument
from indexer.models.encoder_spec import EncoderSpec, Tokens
from indexer.models.identity import PoolingKey
from indexer.models.resolution import num_layers, resolve_layers
from indexer.models.tokenizer import open_model_tokenizer
from indexer.recipe.config import Role

GROUP_TEXTS = 8192  # texts tokenised and cut into batches together
CPU_TOKENS = 1024  # a budget that suits the caches of a CPU core
GPU_TOKENS = 32_768  # with fewer, launching the operations takes longer than the computation
AHEAD = 4  # waiting batches per lane, so that a long batch delays no other lane
# Messages of the allocators of torch and OpenVINO.
_OOM_WORDS = ("bad allocation", "bad_alloc", "can't allocate memory", "not enough memory", "out of memory")


@dataclass(frozen=True)
class BatchPlan:
    """The rule that cuts a group of texts into batches: neighbours in length together, padded to the longest.

    With `exact`, as many batches as possible hold texts of a single length, without padding and attention mask; the
    remaining texts share batches. This suits a CPU, where small batches are as fast as large batches. A GPU needs
    batches far larger than the number of texts of a single length.
    """

    budget: int  # tokens in a batch, padding included
    exact: bool
    multiple: int = 1  # padded lengths are multiples of this

    def __call__(self, lengths: Sequence[int] | Int64Array) -> list[Int64Array]:
        """Return positions 0..n-1 cut into batches of at most `budget` tokens, longest texts first.

        A text longer than the budget is a separate batch. Ties keep their order, so the plan depends on the lengths
        alone.
        """
        lengths = np.asarray(lengths, np.int64)
        order = np.argsort(-lengths, kind="stable")
        if not self.exact:
            return self._cut(order, lengths)
        filled, left = [], []
        for same in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
            rows = self._rows(int(lengths[same[0]])) if len(same) else 1
            whole = len(same) - len(same) % rows
            filled += np.split(same[:whole], whole // rows) if whole else []
            left.append(same[whole:])
        batches = filled + self._cut(np.concatenate(left), lengths)
        return sorted(batches, key=lambda batch: -int(lengths[batch[0]]))

    def _cut(self, order: Int64Array, lengths: Int64Array) -> list[Int64Array]:
        batches, start = [], 0
        while start < len(order):
            rows = self._rows(int(lengths[order[start]]))
            batches.append(order[start : start + rows])
            start += rows
        return batches

    def _rows(self, length: int) -> int:
        return max(1, self.budget // max(1, self.padded(length)))

    def padded(self, length: int) -> int:
        """Return the padded length of a batch whose longest text has `length` tokens."""
        return -(-length // self.multiple) * self.multiple


@dataclass(frozen=True)
class Batch:
    """Token ids of some texts as one rectangle, padded on the right; all integers int64."""

    ids: Int64Array  # (rows, tokens)
    types: Int64Array | None  # (rows, tokens); None: all 0, or the tokenizer has none
    lengths: Int64Array  # (rows,)

    @classmethod
    def of(cls, tokens: Tokens, positions: Int64Array, padding: int, width: int = 0) -> "Batch":
        """Build the batch of the texts at `positions`, padded with the token `padding` to the longest or to `width`."""
        lengths = tokens.starts[positions + 1] - tokens.starts[positions]
        places = tokens.starts[positions][:, None] + np.arange(max(width, int(lengths.max())))
        real = np.arange(places.shape[1]) < lengths[:, None]
        places = np.minimum(places, len(tokens.ids) - 1)
        ids = np.where(real, tokens.ids[places], padding).astype(np.int64)
        types = None if tokens.types is None else np.where(real, tokens.types[places], 0).astype(np.int64)
        return cls(ids, types, lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def mask(self) -> Int64Array | None:
        """1 for tokens, 0 for padding, (rows, tokens); None for a batch without padding."""
        width = self.ids.shape[1]
        if (self.lengths == width).all():
            return None
        return (np.arange(width) < self.lengths[:, None]).astype(np.int64)

    def graph_inputs(self, takes_types: bool) -> dict[str, Int64Array]:
        """Return the inputs of an OpenVINO graph, which always takes a mask."""
        mask = self.mask
        inputs = {"input_ids": self.ids, "attention_mask": mask if mask is not None else np.ones_like(self.ids)}
        if takes_types:
            inputs["token_type_ids"] = self.types if self.types is not None else np.zeros_like(self.ids)
        return inputs

    def halves(self) -> "list[Batch]":
        """Return the first and the second half of the rows."""
        middle = (len(self) + 1) // 2
        return [
            Batch(self.ids[rows], None if self.types is None else self.types[rows], self.lengths[rows])
            for rows in (slice(None, middle), slice(middle, None))
        ]


@dataclass(frozen=True)
class PooledBatch:
    """Pooled rows (states, batch, d) of one batch, float32, and the number of times it was halved."""

    rows: Float32Array
    retries: int


def is_oom(error: BaseException) -> bool:
    """Return whether an error of torch or OpenVINO means that GPU or main memory ran out."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    message = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in message for words in _OOM_WORDS)


def retry_halved(
    forward: Callable[[Batch], Float32Array], batch: Batch, where: str, release: Callable[[], None]
) -> PooledBatch:
    """Run `forward` on a batch, in halves if it does not fit into memory.

    `release` waits for running copies and frees cached memory; `where` names the device. Raises MachineError if a
    single text does not fit.
    """
    try:
        return PooledBatch(forward(batch), 0)
    except (RuntimeError, MemoryError) as error:
        if not is_oom(error):
            raise
    release()  # outside the handler, so that the tensors of the failed attempt are freed
    if len(batch) == 1:
        raise MachineError(
            f"a text of {batch.lengths[0]} tokens does not fit into memory on {where}. "
            "Fix: lower encoder.max_length, set encoder.precision to bfloat16, or choose another "
            f"{as_argument('device', of='RunOptions')}."
        )
    first, second = (retry_halved(forward, half, where, release) for half in batch.halves())
    release()  # waits until the rows of both halves are copied
    return PooledBatch(np.concatenate([first.rows, second.rows], axis=1), 1 + first.retries + second.retries)


class ModelRunner(Protocol):
    """A loaded model. `backend` names the library and its number type, such as "openvino, bf16"."""

    @property
    def backend(self) -> str: ...

    @property
    def turn(self) -> AbstractContextManager[object]:
        """The context to hold during a run: a lock if several threads cannot run at the same time."""

    def width(self, pooling: str) -> int:
        """Return the size of a row of this pooling."""

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding table."""

    def plan(self, budget: int) -> BatchPlan:
        """Return a suitable batch plan of `budget` tokens; 0 means the runner's default."""

    def run(self, batches: Iterable[Batch], keys: Sequence[PoolingKey]) -> Iterator[PooledBatch]:
        """Yield the pooled rows of each batch, in order. `keys` are resolved: non-negative layers, sorted.

        Raises MachineError if a single text does not fit into memory.
        """


class BatchedEncoder:
    """An `Encoder` (see `protocol`) of a model with layers. Safe to share between threads."""

    def __init__(self, spec: EncoderSpec, runner: ModelRunner) -> None:
        self.spec, self.runner, self.tokenizer = spec, runner, open_model_tokenizer(spec)
        self.notes = spec.notes
        if spec.identity.truncate_dim:  # else no need to open the pooling, which may not be fitted yet
            spec.require_dimensions(runner.width(spec.identity.pooling))
        self.backend = runner.backend
        self.plan = runner.plan(spec.identity.batch_tokens)
        self._group = spec.identity.group_texts or GROUP_TEXTS

    @property
    def dim(self) -> int:
        return self._width(self.spec.identity.pooling)

    def _width(self, pooling: str) -> int:
        return self.spec.identity.width(self.runner.width(pooling))

    def encode(self, texts: Sequence[str], role: Role, log: EncodeStats | None = None) -> Float32Array:
        """Return embeddings that are not normalised, and non-finite where the model's results are.

        Raises MachineError if a single text does not fit into memory.
        """
        return self._run(self._groups(texts, role), len(texts), [self.spec.identity.key], log)[0]

    def tokenize(self, texts: Sequence[str], role: Role) -> Tokens:
        """Return token ids, with the prefix of the role. Raises CorpusError for a text that is not Unicode, ModelError
        for a token that the model does not have."""
        prefix = self.spec.identity.prefix(role)
        tokens = self.tokenizer([prefix + text for text in texts] if prefix else texts)
        largest = int(tokens.ids.max(initial=0))
        if largest >= self.runner.vocabulary:
            raise ModelError(
                f"{self.spec.folder}: the tokenizer returns token {largest}, but the model has embeddings for "
                f"{self.runner.vocabulary} tokens. The tokenizer does not belong to the model."
            )
        return tokens

    def embed(self, tokens: Tokens, log: EncodeStats | None = None) -> Float32Array:
        count = len(tokens)
        groups = (tokens.part(i, min(i + self._group, count)) for i in range(0, count, self._group))
        return self._run(groups, count, [self.spec.identity.key], log)[0]

    def states(
        self, texts: Sequence[str], keys: Sequence[PoolingKey], role: Role = "document", log: EncodeStats | None = None
    ) -> dict[PoolingKey, Float32Array]:
        states: dict[PoolingKey, Float32Array] = {}
        for width in dict.fromkeys(self._width(pooling) for _, pooling in keys):
            same_width = [key for key in keys if self._width(key[1]) == width]
            resolved: list[PoolingKey] = [(self._resolved(average), pooling) for average, pooling in same_width]
            rows = self._run(self._groups(texts, role), len(texts), resolved, None if states else log)
            states |= zip(same_width, rows, strict=True)
        return states

    def _resolved(self, average: tuple[int, ...]) -> tuple[int, ...]:
        resolved, loaded = resolve_layers(average, num_layers(self.spec.files)), self.spec.identity.layers
        if not resolved or not set(resolved) <= set(loaded):
            raise ConfigError(
                f"states of layers {list(average)} were requested, but the encoder was loaded for {list(loaded)}. "
                "Fix: name every layer in encoder.layers."
            )
        return tuple(resolved)

    def _run(
        self, groups: Iterable[Tokens], count: int, keys: Sequence[PoolingKey], log: EncodeStats | None
    ) -> list[Float32Array]:
        """Return rows (n, d) for each of the resolved keys, by one forward pass for each text."""
        log = log if log is not None else EncodeStats()
        rows = np.empty((len(keys), count, self._width(keys[0][1])), dtype=np.float32)
        start = 0
        for tokens in groups:
            log.lengths.extend(tokens.lengths.tolist())
            log.truncated += int(np.count_nonzero(tokens.lengths > self.spec.identity.max_length))
            with self.runner.turn:
                self._run_group(tokens, keys, log, rows[:, start : start + len(tokens)])
            start += len(tokens)
        return list(rows)

    def _run_group(self, tokens: Tokens, keys: Sequence[PoolingKey], log: EncodeStats, rows: Float32Array) -> None:
        lengths = tokens.cut_lengths
        plan = self.plan(lengths)
        for positions, pooled in zip(plan, self.runner.run(self.batches(tokens, plan), keys), strict=True):
            rows[:, positions] = pooled.rows[..., : rows.shape[2]]
            log.retries += pooled.retries
            if log.on_batch is not None:
                log.on_batch(len(positions), int(lengths[positions].sum()))

    def batches(self, tokens: Tokens, plan: Iterable[Int64Array]) -> Iterator[Batch]:
        """Yield the batch of each list of positions, longest text first."""
        lengths = tokens.cut_lengths
        for positions in plan:
            width = self.plan.padded(int(lengths[positions[0]]))
            yield Batch.of(tokens, positions, self.tokenizer.facts.padding, width)

    def _groups(self, texts: Sequence[str], role: Role) -> Iterator[Tokens]:
        """Yield the tokens of each group of texts; the next group is tokenised in the background."""
        groups = [texts[start : start + self._group] for start in range(0, len(texts), self._group)]
        if len(groups) < 2:
            yield from (self.tokenize(group, role) for group in groups)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="tokenize") as pool_of_one:
            ahead = pool_of_one.submit(self.tokenize, groups[0], role)
            for group in groups[1:]:
                tokens = ahead.result()
                ahead = pool_of_one.submit(self.tokenize, group, role)
                yield tokens
            yield ahead.result()
