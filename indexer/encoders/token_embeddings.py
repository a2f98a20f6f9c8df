"""The token vectors behind an encoder's embeddings, which poolings of papers and word vectors are made of.

They come in the order of the texts, a group of texts at a time. The encoder's own prefix for documents stands before
each text where it has one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from indexer.arrays import Float32Array, Int64Array
from indexer.encoders.chunking import TokenOffsets
from indexer.encoders.protocol import Encoder
from indexer.errors import ConfigError
from indexer.models.encoder_spec import EncoderSpec, Tokens
from indexer.models.tokenizer import TextTokenizer
from indexer.recipe.run_options import RunOptions

TokenGroup = tuple[Float32Array, Int64Array]
"""Token vectors (tokens, d) of some texts end to end, and where each text's begin, (texts + 1,)."""
_DEFAULTS = RunOptions()
GROUP_TEXTS = 1024
GROUP_TOKENS = 1 << 17  # of a group, if need be of fewer texts


@dataclass(frozen=True)
class FitRequest:
    """A state to fit for an encoder: `texts` gives the texts to fit on, block by block, any number of times."""

    spec: EncoderSpec
    texts: Callable[[], Iterator[list[str]]]
    folder: Path  # that the state's files are written into
    options: RunOptions = _DEFAULTS
    on_step: Callable[[int, int], None] | None = None


class TokenEncoder(Encoder, Protocol):
    """An encoder that gives the vectors it pools."""

    tokenizer: TextTokenizer

    @property
    def vocabulary(self) -> int:
        """Tokens there are."""
        ...

    def token_vectors(self, tokens: Tokens, layers: Sequence[int] = ()) -> Float32Array:
        """Vectors of tokens, float32 (tokens, d): the average of some `layers` (non-negative) where it has any, by
        default its own."""
        ...


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
        return self._encoder.vocabulary

    def tokens(self, texts: Sequence[str]) -> Tokens:
        """Token ids of texts."""
        return self._encoder.tokenize(texts, "document")

    def offsets(self, texts: Sequence[str]) -> list[TokenOffsets]:
        """Where the tokens of each text begin, special ones aside and before any cut."""
        return self.tokenizer.offsets(texts)

    def __call__(self, texts: Sequence[str], layers: Sequence[int] = ()) -> Iterator[TokenGroup]:
        """Token vectors of each group of texts; `layers` (non-negative) are averaged, by default the encoder's own."""
        for start in range(0, len(texts), GROUP_TEXTS):
            whole = self.tokens(texts[start : start + GROUP_TEXTS])
            for part in _parts(whole):
                tokens = whole.part(part.start, part.stop)
                rows = self._encoder.token_vectors(tokens, layers)
                yield (rows, tokens.starts) if self._special else self._bare(rows, tokens)

    def _bare(self, rows: Float32Array, tokens: Tokens) -> TokenGroup:
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


def _open(spec: EncoderSpec, options: RunOptions) -> TokenEncoder:
    if spec.traits.has_table:
        from indexer.encoders.static.encoder import StaticEncoder

        return StaticEncoder(spec, options)
    if not spec.traits.has_layers:
        raise ConfigError(f'encoder.kind is "{spec.identity.kind}", which has no token vectors.')
    from indexer.encoders.transformer import TransformerEncoder

    return TransformerEncoder(spec, options)
