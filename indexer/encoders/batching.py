"""An `Encoder` out of a tokenizer and a `ModelRunner`: groups, batches, order, counting. What computes is the runner's.

Texts are tokenised in groups, one thread tokenising the next group while the model works on this one. Each group is cut
into batches of like length, under a budget of tokens and the same for any thread count; a batch that does not fit into
memory is halved; and the rows go back into the order asked for.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from indexer.arrays import Float32Array, Int64Array
from indexer.encoders.protocol import EncodeStats
from indexer.errors import ConfigError, MachineError, ModelError
from indexer.models.encoder_spec import EncoderSpec, Tokens
from indexer.models.identity import PoolingKey
from indexer.models.resolution import resolve_layers
from indexer.models.tokenizer import TextTokenizer
from indexer.recipe.config import Role

GROUP_TEXTS = 8192  # texts tokenised and cut into batches together
CPU_TOKENS = 1024  # a budget that suits the caches of a CPU core
AHEAD = 4  # batches a lane that wait, so that a long one holds nobody up
# What the allocators of torch and OpenVINO say.
_OOM_WORDS = ("bad allocation", "bad_alloc", "can't allocate memory", "not enough memory", "out of memory")


@dataclass(frozen=True)
class BatchPlan:
    """How the texts of a group become batches: neighbours in length together, padded to the longest.

    `exact`: as many batches as can be filled hold texts of one length only, so that nothing is padded and attention
    needs no mask; what is left of each length goes together. That suits a CPU, where small batches are as fast as
    large ones; a GPU wants batches far larger than the texts of one length.
    """

    budget: int  # tokens in a batch, padding included
    exact: bool
    multiple: int = 1  # padded lengths are multiples of this

    def __call__(self, lengths: Sequence[int] | Int64Array) -> list[Int64Array]:
        """Positions 0..n-1 cut into batches of at most `budget` tokens; longest texts first.

        A text longer than the budget is a batch of its own. Ties keep their order, so the plan depends on the
        lengths alone.
        """
        lengths = np.asarray(lengths, np.int64)
        order = np.argsort(-lengths, kind="stable")
        if not self.exact:
            return self._cut(order, lengths)
        filled, left = [], []
        for same in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
            rows = max(1, self.budget // max(1, self.padded(int(lengths[same[0]])))) if len(same) else 1
            whole = len(same) - len(same) % rows
            filled += np.split(same[:whole], whole // rows) if whole else []
            left.append(same[whole:])
        batches = filled + self._cut(np.concatenate(left), lengths)
        return sorted(batches, key=lambda batch: -int(lengths[batch[0]]))

    def _cut(self, order: Int64Array, lengths: Int64Array) -> list[Int64Array]:
        batches, start = [], 0
        while start < len(order):
            longest = self.padded(int(lengths[order[start]]))
            rows = max(1, self.budget // max(1, longest))
            batches.append(order[start : start + rows])
            start += rows
        return batches

    def padded(self, length: int) -> int:
        """The length that texts of at most `length` tokens are padded to."""
        return -(-length // self.multiple) * self.multiple


@dataclass(frozen=True)
class Batch:
    """Token ids of some texts as one rectangle, padded on the right; all integers int64."""

    ids: Int64Array  # (rows, tokens)
    types: Int64Array | None  # (rows, tokens); None: all 0, or the tokenizer has none
    lengths: Int64Array  # (rows,)

    @classmethod
    def of(cls, tokens: Tokens, positions: Int64Array, padding: int, width: int = 0) -> "Batch":
        """The texts at some positions, filled up with the token `padding` to the longest, or to `width`."""
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
        """1 for tokens, 0 for padding, (rows, tokens); None when nothing is padded."""
        width = self.ids.shape[1]
        if (self.lengths == width).all():
            return None
        return (np.arange(width) < self.lengths[:, None]).astype(np.int64)

    def halves(self) -> "tuple[Batch, Batch]":
        """The first and the second half of the rows."""
        middle = (len(self) + 1) // 2
        return self._rows(slice(None, middle)), self._rows(slice(middle, None))

    def _rows(self, rows: slice) -> "Batch":
        lengths = self.lengths[rows]
        types = None if self.types is None else self.types[rows]
        return Batch(self.ids[rows], types, lengths)


@dataclass(frozen=True)
class PooledBatch:
    """Pooled rows (states, batch, d) of one batch, float32, and how often it had to be halved."""

    rows: Float32Array
    retries: int


def is_oom(error: BaseException) -> bool:
    """Whether an error of torch or OpenVINO means that memory, of the GPU or of the machine, ran out."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    message = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in message for words in _OOM_WORDS)


def retry_halved(
    forward: Callable[[Batch], Float32Array], batch: Batch, where: str, release: Callable[[], None]
) -> PooledBatch:
    """`forward` on a batch; in halves when it does not fit into memory.

    `release` waits for copies under way and gives cached memory back; `where` names the device. Raises MachineError
    when a single text does not fit.
    """
    try:
        return PooledBatch(forward(batch), 0)
    except (RuntimeError, MemoryError) as error:
        if not is_oom(error):
            raise
    # Outside the handler, so that the failed attempt's tensors are gone.
    release()
    if len(batch) == 1:
        raise MachineError(
            f"a text of {batch.lengths[0]} tokens does not fit into memory on {where}: "
            "lower encoder.max_length, set encoder.precision to bfloat16, or take another --device."
        )
    first, second = (retry_halved(forward, half, where, release) for half in batch.halves())
    release()  # only now are the rows of both halves there
    return PooledBatch(np.concatenate([first.rows, second.rows], axis=1), 1 + first.retries + second.retries)


class ModelRunner(Protocol):
    """A loaded model. `backend` says what runs it, and in what numbers, such as "openvino, bf16"."""

    @property
    def backend(self) -> str: ...

    @property
    def turn(self) -> AbstractContextManager[object]:
        """Held while it runs: a lock where it cannot run for several threads at once, else nothing."""
        ...

    def width(self, pooling: str) -> int:
        """Numbers in a row pooled so."""
        ...

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding table."""
        ...

    def plan(self, budget: int) -> BatchPlan:
        """The batch plan that suits it; `budget` tokens, 0 for its own default."""
        ...

    def run(self, batches: Iterable[Batch], keys: Sequence[PoolingKey]) -> Iterator[PooledBatch]:
        """Pooled rows of each batch, in order. `keys` are resolved: non-negative layers, sorted.

        Raises MachineError when a single text does not fit into memory.
        """
        ...


class BatchedEncoder:
    """An `Encoder`; see `protocol`. `blocks` is the model's number of blocks. Safe to share between threads."""

    notes: tuple[str, ...] = ()

    def __init__(self, spec: EncoderSpec, tokenizer: TextTokenizer, runner: ModelRunner, blocks: int) -> None:
        self.spec, self.tokenizer, self.runner, self._blocks = spec, tokenizer, runner, blocks
        self.plan = runner.plan(spec.identity.batch_tokens)
        self._group = spec.identity.group_texts or GROUP_TEXTS

    @property
    def dim(self) -> int:
        """Embedding size d."""
        return self.runner.width(self.spec.identity.pooling)

    @property
    def backend(self) -> str:
        """What runs it, and in what numbers."""
        return self.runner.backend

    def encode(self, texts: Sequence[str], role: Role, log: EncodeStats | None = None) -> Float32Array:
        """Pooled embeddings, float32 (n, d), row i for texts[i]; not normalised, and non-finite where the
        model is.

        Raises MachineError when a single text does not fit into memory.
        """
        rows: Float32Array = self._run(self._groups(texts, role), len(texts), [self.spec.identity.key], log)[0]
        return rows

    def tokenize(self, texts: Sequence[str], role: Role) -> Tokens:
        """Token ids, with the prefix of the role. CorpusError for a text that is not Unicode; ModelError for a
        token that the model does not have."""
        prefix = self.spec.identity.prefix(role)
        tokens = self.tokenizer([prefix + text for text in texts] if prefix else texts)
        largest = int(tokens.ids.max(initial=0))
        if largest >= self.runner.vocabulary:
            raise ModelError(
                f"{self.spec.folder}: the tokenizer gives token {largest}, but the model has embeddings for "
                f"{self.runner.vocabulary}; the tokenizer does not belong to the model."
            )
        return tokens

    def embed(self, tokens: Tokens, log: EncodeStats | None = None) -> Float32Array:
        """Pooled embeddings of tokenised texts: the same bits as `encode` gives."""
        groups = (tokens.part(group.start, group.stop) for group in self._ranges(len(tokens)))
        rows: Float32Array = self._run(groups, len(tokens), [self.spec.identity.key], log)[0]
        return rows

    def states(
        self,
        texts: Sequence[str],
        keys: Sequence[PoolingKey],
        role: Role = "document",
        log: EncodeStats | None = None,
    ) -> dict[PoolingKey, Float32Array]:
        """Several embeddings of each text, (layers, pooling) -> float32 (n, d), from one forward pass for each d.

        Raises ConfigError for layers the encoder was not loaded with, and MachineError as `encode` does.
        """
        found: dict[PoolingKey, Float32Array] = {}
        for width in dict.fromkeys(self.runner.width(pooling) for _, pooling in keys):
            alike = [key for key in keys if self.runner.width(key[1]) == width]
            resolved: list[PoolingKey] = [(self._resolved(average), pooling) for average, pooling in alike]
            rows = self._run(self._groups(texts, role), len(texts), resolved, None if found else log)
            found |= zip(alike, rows, strict=True)
        return found

    def _resolved(self, average: tuple[int, ...]) -> tuple[int, ...]:
        resolved, loaded = resolve_layers(average, self._blocks), self.spec.identity.layers
        if not resolved or not set(resolved) <= set(loaded):
            raise ConfigError(
                f"states of layers {list(average)} were asked for, but the encoder was loaded for {list(loaded)}; "
                "load it with encoder.layers naming every layer that is wanted."
            )
        return tuple(resolved)

    def _run(
        self, groups: Iterable[Tokens], count: int, keys: Sequence[PoolingKey], log: EncodeStats | None
    ) -> Float32Array:
        """Rows (states, n, d) for resolved keys, in one forward pass a text."""
        log = log if log is not None else EncodeStats()
        rows = np.empty((len(keys), count, self.runner.width(keys[0][1])), dtype=np.float32)
        start = 0
        for tokens in groups:
            log.lengths.extend(tokens.lengths.tolist())
            log.truncated += int(np.count_nonzero(tokens.lengths > self.spec.identity.max_length))
            with self.runner.turn:
                self._run_group(tokens, keys, log, rows[:, start : start + len(tokens)])
            start += len(tokens)
        return rows

    def _run_group(self, tokens: Tokens, keys: Sequence[PoolingKey], log: EncodeStats, rows: Float32Array) -> None:
        lengths, padding = tokens.cut_lengths, self.tokenizer.facts.padding
        plan = self.plan(lengths)
        batches = (
            Batch.of(tokens, positions, padding, self.plan.padded(int(lengths[positions[0]]))) for positions in plan
        )
        for positions, pooled in zip(plan, self.runner.run(batches, keys), strict=True):
            rows[:, positions] = pooled.rows
            log.retries += pooled.retries
            if log.on_batch is not None:
                log.on_batch(len(positions), int(lengths[positions].sum()))

    def _ranges(self, count: int) -> list[range]:
        return [range(start, min(start + self._group, count)) for start in range(0, count, self._group)]

    def _groups(self, texts: Sequence[str], role: Role) -> Iterator[Tokens]:
        """Tokens of each group of texts, the next one tokenised while this one is in use."""
        groups = [texts[group.start : group.stop] for group in self._ranges(len(texts))]
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
