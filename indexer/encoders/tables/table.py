"""A static table: a row for each word or token, and the tokenizer that finds them in a text."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from indexer.encoders.tokens import tokenizer_errors

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Table:
    """Row i of `vectors` is that of token i. The rows may be mapped from a file, and are then not writable."""

    vectors: Vectors  # (vocabulary, d)
    tokenizer: str  # JSON of a `tokenizers.Tokenizer` without truncation, padding and special tokens
    unknown: int  # the token for what is not in the table, left out of a mean; -1: none. It need not have a row
    words: bool  # rows are those of whole words; else of a tokenizer's tokens
    lowercase: bool = False  # texts are lower-cased, because the table's words are
    notes: tuple[str, ...] = ()  # what was passed over or repaired, in words

    @property
    def dim(self) -> int:
        """Vector size d."""
        return int(self.vectors.shape[1])

    def row_of(self, word: str) -> int | None:
        """The row of a word; None for one that has none.

        In a table of words it is looked up as it is, in the form `word_tokenizer.written` gives and lower-cased where
        texts are: "new york" or "U.S." are found if they are rows. In a table of tokens it has a row if it is one
        token.
        """
        with tokenizer_errors(f'the word "{word[:60]}"'):
            if self.words:
                found = self._cutter.token_to_id(self._cutter.normalizer.normalize_str(word))
                ids = [] if found is None else [found]
            else:
                ids = self._cutter.encode(word, add_special_tokens=False).ids
        return int(ids[0]) if len(ids) == 1 and ids[0] != self.unknown else None

    @cached_property
    def _cutter(self) -> Tokenizer:
        return Tokenizer.from_str(self.tokenizer)
