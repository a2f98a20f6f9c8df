"""An `Encoder` out of a tokenizer and a `Runner`: groups, batches, order, counting. What computes is the runner's.

Texts are tokenised in groups, each group cut into batches of like length (`batches`), and the rows put back into
the order asked for. One thread tokenises the next group while the model works on this one.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from indexer.config import Role
from indexer.encoders.batches import Batch, BatchPlan
from indexer.encoders.limits import resolve_layers
from indexer.encoders.protocol import EncoderSpec, EncodeStats, PoolingKey
from indexer.encoders.tokens import TextTokenizer, Tokens
from indexer.errors import ConfigError, ModelError

Rows = npt.NDArray[np.float32]
GROUP_TEXTS = 8192  # texts tokenised and cut into batches together


@dataclass(frozen=True)
class Pooled:
    """Pooled rows (states, batch, d) of one batch, float32, and how often it had to be halved."""

    rows: Rows
    retries: int


class Runner(Protocol):
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

    def run(self, batches: Iterable[Batch], keys: Sequence[PoolingKey]) -> Iterator[Pooled]:
        """Pooled rows of each batch, in order. `keys` are resolved: non-negative layers, sorted.

        Raises MachineError when a single text does not fit into memory.
        """
        ...


class BatchedEncoder:
    """An `Encoder`; see `protocol`. `blocks` is the model's number of blocks. Safe to share between threads."""

    def __init__(self, spec: EncoderSpec, tokenizer: TextTokenizer, runner: Runner, blocks: int) -> None:
        self.spec, self.tokenizer, self.runner, self._blocks = spec, tokenizer, runner, blocks
        self.plan = runner.plan(spec.identity["batch_tokens"])
        self._group = spec.identity.get("group_texts", GROUP_TEXTS)

    @property
    def dim(self) -> int:
        """Embedding size d."""
        return self.runner.width(self.spec.identity["pooling"])

    @property
    def backend(self) -> str:
        """What runs it, and in what numbers."""
        return self.runner.backend

    def encode(self, texts: Sequence[str], role: Role, log: EncodeStats | None = None) -> Rows:
        """Pooled embeddings, float32 (n, d), row i for texts[i]; not normalised, and non-finite where the
        model is.

        Raises MachineError when a single text does not fit into memory.
        """
        rows: Rows = self._run(self._groups(texts, role), len(texts), [self._own], log)[0]
        return rows

    def tokenize(self, texts: Sequence[str], role: Role) -> Tokens:
        """Token ids, with the prefix of the role. CorpusError for a text that is not Unicode; ModelError for a
        token that the model does not have."""
        prefix = self.spec.identity[f"{role}_prefix"]
        tokens = self.tokenizer([prefix + text for text in texts] if prefix else texts)
        largest = int(tokens.ids.max(initial=0))
        if largest >= self.runner.vocabulary:
            raise ModelError(
                f"{self.spec.folder}: the tokenizer gives token {largest}, but the model has embeddings for "
                f"{self.runner.vocabulary}; the tokenizer does not belong to the model."
            )
        return tokens

    def embed(self, tokens: Tokens, log: EncodeStats | None = None) -> Rows:
        """Pooled embeddings of tokenised texts: the same bits as `encode` gives."""
        groups = (tokens.part(group.start, group.stop) for group in self._ranges(len(tokens)))
        rows: Rows = self._run(groups, len(tokens), [self._own], log)[0]
        return rows

    def states(
        self,
        texts: Sequence[str],
        keys: Sequence[PoolingKey],
        role: Role = "document",
        log: EncodeStats | None = None,
    ) -> dict[PoolingKey, Rows]:
        """Several embeddings of each text, (layers, pooling) -> float32 (n, d), from one forward pass for each d.

        Raises ConfigError for layers the encoder was not loaded with, and MachineError as `encode` does.
        """
        found: dict[PoolingKey, Rows] = {}
        for width in dict.fromkeys(self.runner.width(pooling) for _, pooling in keys):
            alike = [key for key in keys if self.runner.width(key[1]) == width]
            resolved: list[PoolingKey] = [(self._resolved(average), pooling) for average, pooling in alike]
            rows = self._run(self._groups(texts, role), len(texts), resolved, None if found else log)
            found |= zip(alike, rows, strict=True)
        return found

    @property
    def _own(self) -> PoolingKey:
        return tuple(self.spec.identity["layers"]), self.spec.identity["pooling"]

    def _resolved(self, average: tuple[int, ...]) -> tuple[int, ...]:
        resolved, loaded = resolve_layers(average, self._blocks), self.spec.identity["layers"]
        if not resolved or not set(resolved) <= set(loaded):
            raise ConfigError(
                f"states of layers {list(average)} were asked for, but the encoder was loaded for {loaded}; load it "
                "with encoder.layers naming every layer that is wanted."
            )
        return tuple(resolved)

    def _run(self, groups: Iterable[Tokens], count: int, keys: Sequence[PoolingKey], log: EncodeStats | None) -> Rows:
        """Rows (states, n, d) for resolved keys, in one forward pass a text."""
        log = log if log is not None else EncodeStats()
        rows = np.empty((len(keys), count, self.runner.width(keys[0][1])), dtype=np.float32)
        start = 0
        for tokens in groups:
            log.lengths.extend(tokens.lengths.tolist())
            log.truncated += int(np.count_nonzero(tokens.lengths > self.spec.identity["max_length"]))
            with self.runner.turn:
                self._run_group(tokens, keys, log, rows[:, start : start + len(tokens)])
            start += len(tokens)
        return rows

    def _run_group(self, tokens: Tokens, keys: Sequence[PoolingKey], log: EncodeStats, rows: Rows) -> None:
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
