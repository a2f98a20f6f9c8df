"""Token ids: flat arrays of many texts, and the tokenizer that makes them with neither torch nor transformers.

A tokenizer's own truncation hides how long a text was, and tokenizer.json files carry truncation and padding
of their own (all-MiniLM-L6-v2: 128 tokens). Both are switched off (see `tokenizer_loading`); ids are cut afterwards,
keeping the closing special tokens, which gives what `AutoTokenizer(text, truncation=True, max_length=m)` gives.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from indexer.chunking import TokenOffsets
from indexer.errors import ConfigError, CorpusError, IsotropeError, ModelError
from indexer.typed_json import decode_json

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

    def marks(self, texts: Sequence[str]) -> list[TokenOffsets]:
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
class KeptTokenizer:
    """What is kept of a tokenizer of the `tokenizers` library, as JSON."""

    facts: TokenizerFacts
    tokenizer: str


@dataclass(frozen=True)
class RustTokenizer:
    """The `run` of a tokenizer of the `tokenizers` library.

    A model brings its own patterns, and one may need more steps for a text than the library allows: ModelError.
    """

    tokenizer: "Tokenizer"
    types: bool  # whether it has types that are not always 0
    name: str = "the tokenizer"

    def __call__(self, texts: list[str]) -> Encoded:
        encodings = self._run(self.tokenizer.encode_batch_fast, texts)
        return [row.ids for row in encodings], [row.type_ids for row in encodings] if self.types else None

    def marks(self, texts: list[str]) -> list[TokenOffsets]:
        """Where the tokens of each text begin, in characters of the text as it is before it is normalised."""
        encodings = self._run(lambda some: self.tokenizer.encode_batch(some, add_special_tokens=False), texts)
        return [
            TokenOffsets(
                np.fromiter((start for start, _ in row.offsets), np.int32, len(row)),
                np.fromiter((-1 if word is None else word for word in row.word_ids), np.int32, len(row)),
            )
            for row in encodings
        ]

    def _run(self, encode: Callable[[list[str]], list[Any]], texts: list[str]) -> list[Any]:
        try:
            with tokenizer_errors(self.name):
                return self._encoded(encode, texts)
        except ModelError as error:
            if len(texts) > 1:  # the library does not say which of them it was
                for text in texts:
                    self._run(encode, [text])
                raise
            way_out = "Leave that text out, or take another model."
            raise ModelError(f'{error} The text begins "{_beginning(texts[0])}". {way_out}') from error

    def _encoded(self, encode: Callable[[list[str]], list[Any]], texts: list[str]) -> list[Any]:
        try:
            return encode(texts)
        except TypeError as error:
            raise CorpusError(_not_unicode(texts)) from error


def tokenizer_errors(name: str) -> AbstractContextManager[None]:
    """Turn whatever a tokenizer raises into a ModelError that begins with `name`."""
    return library_errors(lambda error: f"{name}: the tokenizer failed: {first_line(error)}.")


@contextmanager
def library_errors(told: Callable[[BaseException], str]) -> Iterator[None]:
    """Turn whatever a library raises about foreign files into a ModelError, `told` of it.

    Libraries raise nearly anything, from KeyError to a panic in Rust; what memory is short of is another matter.
    """
    try:
        yield
    except (IsotropeError, MemoryError):
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        raise ModelError(told(error)) from error


def is_failure(error: BaseException) -> bool:
    """Whether a library failed. The `tokenizers` library may panic, which is no Exception."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def first_line(error: BaseException) -> str:
    """The first line of what an error says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def parse_tokenizer(data: bytes, max_length: int, name: str = "the tokenizer") -> TextTokenizer:
    """What `tokenizer_loading.dump_tokenizer` kept; loads neither torch nor transformers. `name` is for errors, of
    which it raises ModelError."""
    from tokenizers import Tokenizer

    try:
        kept = decode_json(data, KeptTokenizer)
    except ValueError as error:
        raise ModelError(f"{name}: not a tokenizer that was kept: {error}.") from error
    with tokenizer_errors(name):
        tokenizer = Tokenizer.from_str(kept.tokenizer)
    return TextTokenizer(RustTokenizer(tokenizer, kept.facts.types == "given", name), kept.facts, max_length)


def _flat(rows: list[list[int]], total: int) -> Ints:
    try:
        return np.fromiter(chain.from_iterable(rows), np.int32, total)
    except OverflowError as error:
        raise ModelError(f"the tokenizer gives token {max(map(max, rows)):,}, which no model has.") from error


def _beginning(text: str) -> str:
    return ascii(text[:60])[1:-1] + ("..." if len(text) > 60 else "")


def _not_unicode(texts: list[str]) -> str:
    broken = next((text for text in texts if any("\ud800" <= character <= "\udfff" for character in text)), "")
    shown = ascii(broken[:60])
    return f"the text {shown} is not valid Unicode (it holds a lone surrogate); decode it with the right encoding."
