"""`encoder.kind = "static"`: token vectors looked up in a table, and pooled. No model is run.

Tokens without a vector, or with a zero vector, are left out. A text without known tokens gets the mean vector of the
table and a length of 0; `isotrope inspect` shows the number of such texts.
"""

import os
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from indexer.arrays import Float32Array, Int32Array, Int64Array
from indexer.encoders.pooling import TablePooler, TokenVectors
from indexer.encoders.protocol import EncodeStats
from indexer.encoders.static.tables import load_table, table_tokenizer
from indexer.encoders.static.word_cache import remember_words
from indexer.errors import ConfigError, as_argument
from indexer.models.encoder_spec import EncoderSpec, Tokens
from indexer.models.identity import PoolingKey
from indexer.recipe.config import PoolingMode, Role
from indexer.recipe.paper_methods import POOLINGS, load_method
from indexer.recipe.run_options import RunOptions

_LONG_TOKENS = 1 << 18  # in a text; longer texts are pooled piece by piece
_BLOCK_BYTES = 1 << 21  # of vectors looked up together, to stay in the processor's cache


class StaticEncoder:
    """An `Encoder` over a table of token vectors (vocabulary, d). Raises MachineError for a missing device."""

    backend = "static, float32"

    def __init__(self, spec: EncoderSpec, options: RunOptions) -> None:
        if options.backend != "auto":
            raise ConfigError(
                f"the backend {options.backend} runs models, not tables. Fix: leave out {as_argument('backend')}."
            )
        if options.device not in ("auto", "cpu"):  # a table runs on the CPU, but FAISS may use the device
            from indexer.encoders.device import choose_device

            choose_device(options.device)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # no model needs the cores
        self.spec, self.table = spec, load_table(Path(spec.folder))
        spec.require_dimensions(self.table.dim)
        self.notes, self.vocabulary = self.table.notes, len(self.table.vectors)
        self.tokenizer = table_tokenizer(self.table, spec.folder)
        self.cached_tokenizer = remember_words(self.tokenizer)
        self._known_rows = np.zeros(self.vocabulary + 1, np.int8)  # 0: not yet checked; 1: known, -1: unknown
        self._known_rows[[self.table.unknown, -1]] = -1
        self._poolers: dict[str, TablePooler] = {}

    @property
    def dim(self) -> int:
        return self._width(self.spec.identity.pooling)

    def encode(self, texts: Sequence[str], role: Role, log: EncodeStats | None = None) -> Float32Array:
        return self.embed(self.tokenize(texts, role), log)

    def tokenize(self, texts: Sequence[str], role: Role) -> Tokens:
        """Return the ids of known tokens. Raises CorpusError for a text that is not Unicode."""
        prefix = self.spec.identity.prefix(role)
        tokens = self.cached_tokenizer([prefix + text for text in texts] if prefix else texts)
        return drop_unknown_tokens(tokens, self._known(tokens.ids), self.vocabulary, self.spec.identity.max_length)

    def embed(self, tokens: Tokens, log: EncodeStats | None = None) -> Float32Array:
        return self._pooled(tokens, [self.spec.identity.pooling], log)[0]

    def states(
        self, texts: Sequence[str], keys: Sequence[PoolingKey], role: Role = "document", log: EncodeStats | None = None
    ) -> dict[PoolingKey, Float32Array]:
        if any(layers for layers, _ in keys):
            raise ConfigError(f"layers {[layers for layers, _ in keys]} were requested, but a static table has none.")
        rows = self._pooled(self.tokenize(texts, role), [pooling for _, pooling in keys], log)
        return dict(zip(keys, rows, strict=True))

    def token_vectors(self, tokens: Tokens, layers: Sequence[int]) -> Float32Array:
        return self._vectors(tokens.ids)

    def _vectors(self, ids: Int32Array) -> Float32Array:
        vectors = self.table.vectors.take(ids, axis=0, mode="clip")
        stand_ins = ids == self.vocabulary
        if stand_ins.any():
            vectors[stand_ins] = self._mean
        return vectors

    def _known(self, ids: Int32Array) -> npt.NDArray[np.bool_]:
        """Return which tokens have a vector that is not all zero, (tokens,)."""
        known = self._known_rows[ids]
        if not known.all():
            present = np.zeros(len(self._known_rows), np.bool_)
            present[ids] = True
            distinct = np.flatnonzero(present & (self._known_rows == 0))
            self._known_rows[distinct] = np.where(self.table.vectors[distinct].any(axis=1), 1, -1)
            known = self._known_rows[ids]
        return known > 0

    def _pooled(self, tokens: Tokens, poolings: Sequence[PoolingMode], log: EncodeStats | None) -> list[Float32Array]:
        log = log if log is not None else EncodeStats()
        log.lengths.extend(tokens.lengths.tolist())
        log.truncated += int(np.count_nonzero(tokens.lengths > self.spec.identity.max_length))
        pooled = [np.empty((len(tokens), self._width(pooling)), np.float32) for pooling in poolings]
        for block in tokens.ranges(_BLOCK_BYTES // (4 * self.table.dim)):
            part = tokens.part(block.start, block.stop)
            for rows, pooling in zip(pooled, poolings, strict=True):
                rows[block.start : block.stop] = self._pool(part, pooling)[:, : rows.shape[1]]
            if log.on_batch is not None:
                log.on_batch(len(part), len(part.ids))
        return pooled

    def _pool(self, tokens: Tokens, pooling: PoolingMode) -> Float32Array:
        if pooling == "max" or pooling == "mean":
            return pool_table(tokens.ids, tokens.starts, self._vectors, pooling)
        return self._pooler(pooling)(tokens.ids, tokens.starts, self._vectors)

    def _pooler(self, pooling: str) -> TablePooler:
        """Return the pooler of a paper; its fitted state is read at the first call."""
        paper = POOLINGS.get(pooling)
        if paper is None or not paper.in_tables:
            raise ConfigError(f'pooling is "{pooling}", which is not available for a static table.')
        if pooling not in self._poolers:
            self._poolers[pooling] = load_method(paper).open_table_pooler(self.spec)
        return self._poolers[pooling]

    def _width(self, pooling: str) -> int:
        size = self.table.dim
        return self.spec.identity.width(self._pooler(pooling).width(size) if pooling in POOLINGS else size)

    @cached_property
    def _mean(self) -> Float32Array:
        mean: Float32Array = self.table.vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
        return mean


def drop_unknown_tokens(tokens: Tokens, known: npt.NDArray[np.bool_], stand_in: int, most: int) -> Tokens:
    """Return the first `most` tokens of each text that are `known` (tokens,). A text without any gets `stand_in` and
    the length 0."""
    lengths = np.add.reduceat(known, tokens.starts[:-1], dtype=np.int32) if len(tokens) else tokens.lengths
    cut = np.minimum(lengths, most)
    ids = tokens.ids if known.all() else tokens.ids[known]
    if len(tokens) and lengths.max() > most:
        ids = ids[np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths) < most]
    if not lengths.all():
        ids = np.insert(ids, np.cumsum(cut)[lengths == 0], stand_in)
    starts = np.concatenate([[0], np.cumsum(np.maximum(cut, 1))]).astype(np.int64)
    return Tokens(ids, None, starts, lengths)


def pool_table(
    ids: Int32Array, starts: Int64Array, vectors: TokenVectors, mode: Literal["max", "mean"]
) -> Float32Array:
    """Return the mean or the maximum of the token vectors of each text, (n, d); text i has the tokens
    ids[starts[i]:starts[i + 1]]."""
    ufunc = np.maximum if mode == "max" else np.add
    if len(starts) > 2 or len(ids) <= _LONG_TOKENS:
        reduced = reduce_segments(ufunc, vectors(ids), starts)
    else:
        reduced = _reduced_in_pieces(ufunc, ids, vectors)
    if mode == "max":
        return reduced
    return np.divide(reduced, np.diff(starts)[:, None].astype(np.float32), dtype=np.float32)


def _reduced_in_pieces(ufunc: np.ufunc, ids: Int32Array, vectors: TokenVectors) -> Float32Array:
    """Return the row (1, d) of a text whose token vectors may not fit into memory, in the order of `reduce_segments`,
    so the result is identical."""
    row = vectors(ids[:0]).astype(np.float32)
    step = _BLOCK_BYTES // (4 * row.shape[1])
    for start in range(0, len(ids), step):
        piece = np.concatenate([row, vectors(ids[start : start + step])])
        row = reduce_segments(ufunc, piece, np.array([0, len(piece)]))
    return row


def reduce_segments(ufunc: np.ufunc, vectors: Float32Array, starts: npt.NDArray[np.int64]) -> Float32Array:
    """Reduce the vectors (tokens, d) of each text to a row, in order; `starts` (n + 1,) as in `Tokens`.

    With one call per text numpy adds whole rows; `reduceat` would process a column at a time.
    """
    rows = np.empty((len(starts) - 1, vectors.shape[1]), np.float32)
    for row, (start, stop) in zip(rows, pairwise(starts.tolist()), strict=True):
        ufunc.reduce(vectors[start:stop], axis=0, out=row)
    return rows
