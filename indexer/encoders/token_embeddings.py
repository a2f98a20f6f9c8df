"""The token vectors behind an encoder's embeddings: what Latte-Mix is trained on and word vectors are made of.

They come in the order of the texts, a group of texts at a time. The encoder's own prefix for documents stands before
each text where it has one.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from indexer.chunking import TokenOffsets
from indexer.config import RunOptions
from indexer.encoders.batching import Batch
from indexer.encoders.protocol import EncoderSpec, Tokens
from indexer.encoders.static import StaticEncoder
from indexer.encoders.tokenizer import TextTokenizer
from indexer.errors import ConfigError
from indexer.hashing import fingerprint

if TYPE_CHECKING:
    from indexer.encoders.transformer import TransformerEncoder


Rows = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
TokenGroup = tuple[Rows, Ints]
"""Token vectors (tokens, d) of some texts end to end, and where each text's begin, (texts + 1,)."""
_DEFAULTS = RunOptions()
GROUP_TEXTS = 1024
GROUP_TOKENS = 1 << 17  # of a group, if need be of fewer texts
_OF_TOKENS = ("kind", "weights", "tokenizer", "config", "layers", "max_length", "document_prefix", "lowercase")


class TokenEmbeddings:
    """Token vectors of an encoder, its special tokens among them unless `special` is False."""

    def __init__(self, spec: EncoderSpec, options: RunOptions = _DEFAULTS, special: bool = True) -> None:
        self.spec, self._special = spec, special
        self._encoder = _open(spec, options)

    @property
    def tokenizer(self) -> TextTokenizer:
        return self._encoder.tokenizer

    @property
    def backend(self) -> str:
        """What computes them."""
        return self._encoder.backend

    @property
    def vocabulary(self) -> int:
        """Tokens there are."""
        if isinstance(self._encoder, StaticEncoder):
            return len(self._encoder.table.vectors)
        return self._encoder.runner.vocabulary

    def tokens(self, texts: Sequence[str]) -> Tokens:
        """Token ids of texts."""
        return self._encoder.tokenize(texts, "document")

    def marks(self, texts: Sequence[str]) -> list[TokenOffsets]:
        """Where the tokens of each text begin, special ones aside and before any cut."""
        return self.tokenizer.marks(texts)

    def __call__(self, texts: Sequence[str], layers: Sequence[int] = ()) -> Iterator[TokenGroup]:
        """Token vectors of each group of texts; `layers` (non-negative) are averaged, by default the encoder's own."""
        average = tuple(layers) or tuple(self.spec.identity["layers"])
        for start in range(0, len(texts), GROUP_TEXTS):
            whole = self.tokens(texts[start : start + GROUP_TEXTS])
            for part in _parts(whole):
                tokens = whole.part(part.start, part.stop)
                rows = self._rows(tokens, average)
                yield (rows, tokens.starts) if self._special else self._bare(rows, tokens)

    def _rows(self, tokens: Tokens, average: tuple[int, ...]) -> Rows:
        encoder = self._encoder
        if isinstance(encoder, StaticEncoder):
            return encoder.token_vectors(tokens.ids)
        lengths, padding = tokens.cut_lengths, encoder.tokenizer.facts.padding
        plan = encoder.plan(lengths)
        rows = np.empty((len(tokens.ids), encoder.runner.width("mean")), np.float32)
        batches = (
            Batch.of(tokens, positions, padding, encoder.plan.padded(int(lengths[positions[0]]))) for positions in plan
        )
        for positions, found in zip(plan, encoder.runner.run_tokens(batches, average), strict=True):
            for position, states in zip(positions.tolist(), found, strict=True):
                rows[tokens.starts[position] : tokens.starts[position + 1]] = states[: lengths[position]]
        return rows

    def _bare(self, rows: Rows, tokens: Tokens) -> TokenGroup:
        """The same without special tokens."""
        facts = self.tokenizer.facts
        inside = np.arange(len(rows)) - np.repeat(tokens.starts[:-1], tokens.cut_lengths)
        kept = (inside >= facts.head) & (inside < np.repeat(tokens.cut_lengths - facts.tail, tokens.cut_lengths))
        counts = np.add.reduceat(kept, tokens.starts[:-1], dtype=np.int64)
        return rows[kept], np.concatenate([[0], np.cumsum(counts)])


def _parts(tokens: Tokens) -> Iterator[range]:
    """Texts whose token vectors are in memory together: all, unless they are long."""
    start = 0
    while start < len(tokens):
        stop = int(np.searchsorted(tokens.starts, tokens.starts[start] + GROUP_TOKENS, side="right")) - 1
        stop = max(stop, start + 1)
        yield range(start, stop)
        start = stop


def token_fingerprint(spec: EncoderSpec) -> str:
    """What the token vectors of an encoder depend on: its files, layers and cut, not how they are pooled."""
    return fingerprint({name: spec.identity[name] for name in _OF_TOKENS if name in spec.identity})


def _open(spec: EncoderSpec, options: RunOptions) -> "StaticEncoder | TransformerEncoder":
    if spec.identity["kind"] == "static":
        return StaticEncoder(spec, options)
    if spec.identity["kind"] != "transformer":
        raise ConfigError(f'encoder.kind is "{spec.identity["kind"]}", which has no token vectors.')
    from indexer.encoders.transformer import TransformerEncoder

    return TransformerEncoder(spec, options)
