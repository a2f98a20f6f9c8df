"""The `Encoder` of a server: batches of texts in parallel requests, each with a probe text that is compared.

Before the first text of a process all probes are asked, together with it if it is one of a few, such as a question.
Then every request of a larger amount of texts carries one probe, so that no batch of another model is accepted, not
even behind a load balancer.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy as np

from indexer.arrays import Float32Array
from indexer.encoders.protocol import EncodeStats
from indexer.encoders.server.client import EmbeddingClient, Patience, TooLargeError
from indexer.encoders.server.probes import PROBES, read_probes, require_same_model
from indexer.encoders.server.words import WordTokenizer, texts_of
from indexer.errors import ConfigError, as_argument, spelled
from indexer.models.encoder_spec import EncoderSpec, Tokens
from indexer.models.identity import PoolingKey
from indexer.recipe.config import Role
from indexer.recipe.run_options import RunOptions

BATCH_TEXTS = 31  # with the probe 32, the limit of TEI's default settings
BATCH_TOKENS = 16_384  # estimated
_FEW = len(PROBES)  # texts that are sent together with all probes
_BLANK = "."  # sent instead of a blank text, which servers refuse
_SECONDS = 10.0  # of pauses while a question waits


class _Reference:
    """The embeddings of the probes, stored or of the first use, and whether the server gave them in this process."""

    def __init__(self, rows: Float32Array | None) -> None:
        self.rows, self.checked, self.lock = rows, False, threading.Lock()


class ServerEncoder:
    """An `Encoder` over an OpenAI-compatible server. Copies with another prompt share what was checked.

    Without stored probes (a recipe, not an index) the first answers are the reference. Raises ConfigError as
    `EmbeddingClient`, and ModelError for unreadable probes.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, spec: EncoderSpec, options: RunOptions) -> None:
        if options.backend != "auto":
            raise ConfigError(
                f"the backend {options.backend} runs models, not servers. Fix: leave out {as_argument('backend')}."
            )
        if options.device not in ("auto", "cpu"):  # the server chooses its own, but FAISS may use the device
            from indexer.encoders.device import choose_device

            choose_device(options.device)
        self.spec, self._parallel = spec, options.requests
        self.client = EmbeddingClient(spec.folder, spec.model)
        self.backend = f"server {self.client.host}"
        self._tokenizer = WordTokenizer()
        self._reference = _Reference(read_probes(Path(spec.state)) if spec.state else None)

    @property
    def dim(self) -> int:
        return self.spec.identity.width(self.probes().shape[1])

    def probes(self) -> Float32Array:
        """Return the reference (16, d), asked now if there is none. Raises as `encode`."""
        if self._reference.rows is None:
            with self._reference.lock:
                self._check_all([], Patience())
        rows = self._reference.rows
        if rows is None:
            raise RuntimeError("the probes were not asked")
        return rows

    def encode(self, texts: Sequence[str], role: Role, log: EncodeStats | None = None) -> Float32Array:
        """Return the server's embeddings, cut to encoder.truncate_dim.

        Raises MismatchError if the server has another model than at the first use, MachineError if it fails,
        ModelError and ConfigError if it refuses.
        """
        return self._embed(self.tokenize(texts, role), log, watched=False)

    def tokenize(self, texts: Sequence[str], role: Role) -> Tokens:
        """Return the bytes of texts, with the prompt of the role; lengths are estimates. Raises CorpusError."""
        prefix = self.spec.identity.prefix(role)
        return self._tokenizer([prefix + text for text in texts] if prefix else texts)

    def embed(self, tokens: Tokens, log: EncodeStats | None = None) -> Float32Array:
        return self._embed(tokens, log, watched=True)

    def states(
        self, texts: Sequence[str], keys: Sequence[PoolingKey], role: Role = "document", log: EncodeStats | None = None
    ) -> dict[PoolingKey, Float32Array]:
        own = self.spec.identity.key
        if set(keys) != {own}:
            raise ConfigError(
                f"{self.spec.folder}: a server returns whole embeddings; its layers and poolings cannot be chosen. "
                f"Fix: leave out {spelled('layers and poolings', '--layers and --pooling')}."
            )
        return {own: self.encode(texts, role, log)}

    def _embed(self, tokens: Tokens, log: EncodeStats | None, watched: bool) -> Float32Array:
        """Return the rows of the texts; `watched`: each request carries a probe, also a single one."""
        log = log if log is not None else EncodeStats()
        log.lengths.extend(tokens.lengths.tolist())
        texts = [text if text.strip() else _BLANK for text in texts_of(tokens)]
        batches = list(_batches(tokens.lengths.tolist()))
        watched = watched or len(batches) > 1
        patience = Patience() if watched else Patience(_SECONDS)
        with self._reference.lock:
            if texts and not self._reference.checked:
                together = texts if len(texts) <= _FEW else []
                rows = self._check_all(together, patience)
                if together:
                    _report(log, tokens, slice(0, len(texts)))
                    return self._cut(rows)
        first = len(tokens.ids) if watched else None
        embeddings = np.empty((len(texts), self.dim), np.float32)
        with ThreadPoolExecutor(self._parallel, "requests") as pool:
            futures = {
                pool.submit(self._ask, texts[batch], None if first is None else first + number, patience): batch
                for number, batch in enumerate(batches)
            }
            try:
                for done in as_completed(futures):
                    embeddings[futures[done]] = self._cut(done.result())
                    _report(log, tokens, futures[done])
            except BaseException:
                patience.stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return embeddings

    def _check_all(self, texts: Sequence[str], patience: Patience) -> Float32Array:
        """Ask for all probes and some texts in one request; return the rows of the texts. Raises MismatchError."""
        rows = self.client.embed([*PROBES, *texts], patience)
        probes, stored = rows[: len(PROBES)], self._reference.rows
        if stored is None:
            self.spec.require_dimensions(probes.shape[1])
            stored = self._reference.rows = probes
        require_same_model(self.spec, stored, probes, range(len(PROBES)))
        self._reference.checked = True
        return rows[len(PROBES) :]

    def _ask(self, texts: Sequence[str], probe: int | None, patience: Patience) -> Float32Array:
        """Return the rows of a batch. The number of its probe depends on the texts alone, and so does its content."""
        numbers = [] if probe is None else [probe % len(PROBES)]
        sent = [*(PROBES[number] for number in numbers), *texts]
        try:
            rows = self.client.embed_at_once(sent, patience)
        except TooLargeError:
            if len(texts) > 1:  # each half with the probe
                half = len(texts) // 2
                return np.concatenate([self._ask(part, probe, patience) for part in (texts[:half], texts[half:])])
            rows = self.client.embed(sent, patience)
        require_same_model(self.spec, self.probes(), rows[: len(numbers)], numbers)
        return rows[len(numbers) :]

    def _cut(self, rows: Float32Array) -> Float32Array:
        return rows[:, : self.spec.identity.width(rows.shape[1])]


def _report(log: EncodeStats, tokens: Tokens, batch: slice) -> None:
    if log.on_batch is not None:
        log.on_batch(batch.stop - batch.start, int(tokens.lengths[batch].sum()))


def _batches(lengths: Sequence[int]) -> Iterator[slice]:
    """Yield consecutive texts with at most `BATCH_TOKENS` together; a longer text is a batch of its own."""
    start = size = 0
    for number, length in enumerate(lengths):
        if number > start and (number - start == BATCH_TEXTS or size + length > BATCH_TOKENS):
            yield slice(start, number)
            start, size = number, 0
        size += length
    if lengths:
        yield slice(start, len(lengths))
