"""The token vectors behind an encoder's embeddings, the input of the poolings of papers and of word vectors.

They are in the order of the texts, a group of texts at a time. Each text has the encoder's document prefix.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from indexer.arrays import Float32Array, Int64Array
from indexer.encoders.protocol import Encoder
from indexer.encoders.windows import TokenOffsets
from indexer.errors import ConfigError
from indexer.models.encoder_spec import EncoderSpec, Tokens
from indexer.models.tokenizer import TextTokenizer
from indexer.recipe.run_options import RunOptions

TokenGroup = tuple[Float32Array, Int64Array]
"""Token vectors (tokens, d) of some texts, concatenated, and the start of each text, (texts + 1,)."""
Texts = Callable[[], Iterator[list[str]]]
"""The texts to fit on, block by block, any number of times."""
OnStep = Callable[[int, int], None]
_DEFAULTS = RunOptions()
GROUP_TEXTS = 1024
GROUP_TOKENS = 1 << 17  # limit of a group of fewer texts


class TokenEncoder(Encoder, Protocol):
    """An encoder that returns the vectors that it pools."""

    tokenizer: TextTokenizer

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""

    def token_vectors(self, tokens: Tokens, layers: Sequence[int]) -> Float32Array:
        """Return vectors of tokens, float32 (tokens, d): the average of `layers` (non-negative; none: its own)."""


class TokenEmbeddings:
    """Token vectors of an encoder, without special tokens if `special` is False."""

    def __init__(self, spec: EncoderSpec, options: RunOptions = _DEFAULTS, special: bool = True) -> None:
        self.encoder: TokenEncoder
        self._special = special
        if spec.traits.has_table:
            from indexer.encoders.static.encoder import StaticEncoder

            self.encoder = StaticEncoder(spec, options)
        elif spec.traits.has_layers:
            from indexer.encoders.transformer import TransformerEncoder

            self.encoder = TransformerEncoder(spec, options)
        else:
            raise ConfigError(f'encoder.kind is "{spec.identity.kind}", which has no token vectors.')

    def offsets(self, texts: Sequence[str]) -> list[TokenOffsets]:
        """Return the first characters of the tokens of each text, without special tokens and before any cut."""
        return self.encoder.tokenizer.offsets(texts)

    def __call__(self, texts: Sequence[str], layers: Sequence[int] = ()) -> Iterator[TokenGroup]:
        """Yield the token vectors of each group of texts, averaged over `layers` (non-negative; default: its own)."""
        for start in range(0, len(texts), GROUP_TEXTS):
            whole = self.encoder.tokenize(texts[start : start + GROUP_TEXTS], "document")
            for part in whole.ranges(GROUP_TOKENS):
                tokens = whole.part(part.start, part.stop)
                rows = self.encoder.token_vectors(tokens, layers)
                yield (rows, tokens.starts) if self._special else self._without_special(rows, tokens)

    def _without_special(self, rows: Float32Array, tokens: Tokens) -> TokenGroup:
        facts = self.encoder.tokenizer.facts
        inside = np.arange(len(rows)) - np.repeat(tokens.starts[:-1], tokens.cut_lengths)
        kept = (inside >= facts.head) & (inside < np.repeat(tokens.cut_lengths - facts.tail, tokens.cut_lengths))
        counts = np.add.reduceat(kept, tokens.starts[:-1], dtype=np.int64)
        return rows[kept], np.concatenate([[0], np.cumsum(counts)])
