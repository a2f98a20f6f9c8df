"""Token ids: flat arrays of many texts, and the tokenizer that makes them with neither torch nor transformers.

A tokenizer's own truncation hides how long a text was, and tokenizer.json files carry truncation and padding
of their own (all-MiniLM-L6-v2: 128 tokens). Both are switched off (see `tokenizer_loading`); ids are cut afterwards,
keeping the closing special tokens, which gives what `AutoTokenizer(text, truncation=True, max_length=m)` gives.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from indexer.chunking import Marks
from indexer.errors import ConfigError, CorpusError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ints = npt.NDArray[np.int32]
Encoded = tuple[list[list[int]], list[list[int]] | None]
"""Token ids of each text, and its token types where they are not all 0."""


@dataclass(frozen=True)
class Tokens:
    """Token ids of some texts, cut at the maximum length, end to end in one array."""

    ids: Ints  # (total,)
    types: Ints | None  # token_type_ids (total,); None: all 0, or the tokenizer has none
    starts: npt.NDArray[np.int64]  # (n + 1,): text i is ids[starts[i]:starts[i + 1]]
    lengths: Ints  # (n,): before the cut, special tokens included

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def cut_lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each text after the cut, (n,)."""
        return np.diff(self.starts)

    def part(self, start: int, stop: int) -> "Tokens":
        """Texts `start` to `stop`, as views."""
        first, last = self.starts[start], self.starts[stop]
        types = self.types[first:last] if self.types is not None else None
        starts = self.starts[start : stop + 1] - first
        return Tokens(self.ids[first:last], types, starts, self.lengths[start:stop])


@dataclass(frozen=True)
class TokenizerFacts:
    """What must be known of a tokenizer beside its own file. JSON types."""

    head: int  # special tokens that open a text
    tail: int  # special tokens that close it
    from_left: bool  # truncation cuts the beginning
    padding: int  # id
    stand_in: int  # id for a text without any token
    types: Literal["none", "zero", "given"]  # token_type_ids: unknown to the tokenizer, always 0, or its own


class TextTokenizer:
    """Texts to `Tokens`. `run` gives the ids of a list of texts, uncut."""

    def __init__(self, run: Callable[[list[str]], Encoded], facts: TokenizerFacts, max_length: int) -> None:
        self.facts, self.run, self._max_length = facts, run, max_length
        if max_length <= facts.head + facts.tail:
            raise ConfigError(
                f"encoder.max_length is {max_length}, but {facts.head + facts.tail} tokens are special ones; "
                f"expected at least {facts.head + facts.tail + 1}."
            )

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """Token ids for each text. A text without any token gets one (end of text, or what stands for it).

        Raises CorpusError for a text that is not valid Unicode (a lone surrogate).
        """
        ids, types = self.run(list(texts))
        lengths = np.fromiter(map(len, ids), np.int32, len(ids))
        ids = [self._cut(row) if row else [self.facts.stand_in] for row in ids]
        starts = np.fromiter(accumulate(map(len, ids), initial=0), np.int64, len(ids) + 1)
        flat_types = _flat([self._cut(row) if row else [0] for row in types], starts[-1]) if types else None
        return Tokens(_flat(ids, starts[-1]), flat_types, starts, lengths)

    def marks(self, texts: Sequence[str]) -> list[Marks]:
        """Where the tokens of each text begin, uncut and without special tokens.

        Raises ConfigError for a tokenizer that does not say, CorpusError for a text that is not valid Unicode.
        """
        if not isinstance(self.run, RustTokenizer):
            raise ConfigError(
                "chunk.tokens needs to know which characters a token stands for, which this model's tokenizer, "
                "written in Python, does not say. Set chunk.tokens=0, or choose a model with a tokenizer.json."
            )
        return self.run.marks(list(texts))

    def _cut(self, row: list[int]) -> list[int]:
        """The first tokens (the last, where the tokenizer truncates on the left) between the special ones."""
        if len(row) <= self._max_length:
            return row
        head, tail = self.facts.head, self.facts.tail
        if self.facts.from_left:
            return row[:head] + row[len(row) - self._max_length + head :]
        return row[: self._max_length - tail] + row[len(row) - tail :]


@dataclass(frozen=True)
class RustTokenizer:
    """The `run` of a tokenizer of the `tokenizers` library."""

    tokenizer: "Tokenizer"
    types: bool  # whether it has types that are not always 0

    def __call__(self, texts: list[str]) -> Encoded:
        try:
            encodings: list[Any] = self.tokenizer.encode_batch_fast(texts)
        except TypeError as error:
            raise CorpusError(_not_unicode(texts)) from error
        return [row.ids for row in encodings], [row.type_ids for row in encodings] if self.types else None

    def marks(self, texts: list[str]) -> list[Marks]:
        """Where the tokens of each text begin, in characters of the text as it is before it is normalised."""
        try:
            encodings: list[Any] = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        except TypeError as error:
            raise CorpusError(_not_unicode(texts)) from error
        return [
            Marks(
                np.fromiter((start for start, _ in row.offsets), np.int32, len(row)),
                np.fromiter((-1 if word is None else word for word in row.word_ids), np.int32, len(row)),
            )
            for row in encodings
        ]


def parse_tokenizer(text: str, max_length: int) -> TextTokenizer:
    """What `tokenizer_loading.dump_tokenizer` kept; loads neither torch nor transformers."""
    from tokenizers import Tokenizer

    kept = json.loads(text)
    facts = TokenizerFacts(**kept["facts"])
    return TextTokenizer(
        RustTokenizer(Tokenizer.from_str(kept["tokenizer"]), facts.types == "given"), facts, max_length
    )


def _flat(rows: list[list[int]], total: int) -> Ints:
    return np.fromiter(chain.from_iterable(rows), np.int32, total)


def _not_unicode(texts: list[str]) -> str:
    broken = next((text for text in texts if any("\ud800" <= character <= "\udfff" for character in text)), "")
    shown = ascii(broken[:60])
    return f"the text {shown} is not valid Unicode (it holds a lone surrogate); decode it with the right encoding."
