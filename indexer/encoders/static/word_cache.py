"""A tokenizer that remembers the ids of words: each word goes through the tokenizer once, however often it is met.

A word is a run of characters between ASCII white space (space, tab, line feed, carriage return), taken as it stands.
The ids of a text are those of its words, end to end, wherever each step of a tokenizer is blind to what lies beyond
such white space (`is_local` knows which are):

- normalisers: what maps each character by itself (lower case, BERT's clean-up, a character for another) is. Canonical
  and compatibility forms (NFC, NFD, NFKC, NFKD) and the removal of accents are too, for white space is a starter that
  composes with nothing, so that neither composition nor the order of marks reaches across it;
- pre-tokenizers: those that cut at white space and drop it, whose other cuts look at characters within a word;
- models: WordPiece and WordLevel see one piece of a pre-tokenizer at a time.

Added tokens such as [CLS] are looked for in the text as a whole, and may hold white space: a text with one inside goes
through the tokenizer as it is. So does one with a NUL, by which texts are told apart here, with a vertical tab or a
form feed, at which Python cuts and BERT's clean-up does not. So do all texts of a group whose words are long (a script
without spaces): such are seldom met again.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, repeat
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from indexer.arrays import Int32Array
from indexer.encoders.static.word_tokenizer import is_word_pattern
from indexer.errors import ModelError
from indexer.models.encoder_spec import Tokens
from indexer.models.tokenizer import FastTokenizer, TextTokenizer

MOST_WORDS, MOST_BYTES = 1 << 18, 1 << 24  # that are remembered: with the dict about 50 MB
_FEW_TEXTS = 16  # which the tokenizer is as quick with
_GROUP_CHARACTERS = 1 << 20  # of texts cut together
_LONG_TEXT = (
    1 << 22
)  # characters; longer texts are tokenised in pieces, because words take many times the size of a text
_SPACES = " \t\n\r"
_LONG_WORDS = 16  # characters a word on average, with the space behind it
_SPACE = re.compile(f"[{_SPACES}]")
_MARK = b"\0"  # stands behind each text
_RESERVED = ("\0", "\x0b", "\x0c")
_NORMALIZERS = {None, "BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"}
_PRE_TOKENIZERS = {"BertPreTokenizer", "WhitespaceSplit"}
_MODELS = {"WordPiece", "WordLevel"}


def is_local(tokenizer: Tokenizer) -> bool:
    """Whether the ids of a text are those of its words; False for a tokenizer with whatever is not known here."""
    return (
        _is_local_normalizer(_settings(tokenizer.normalizer))
        and _is_local_pre_tokenizer(_settings(tokenizer.pre_tokenizer))
        and type(tokenizer.model).__name__ in _MODELS
        and tokenizer.truncation is tokenizer.padding is tokenizer.post_processor is None
        and not any(token.normalized for token in tokenizer.get_added_tokens_decoder().values())
    )


def _settings(step: Any) -> dict[str, Any]:
    """A step of a tokenizer as tokenizer.json has it; of no type where there is none."""
    found: dict[str, Any] = json.loads(step.__getstate__()) if step is not None else {"type": None}
    return found


def _is_local_normalizer(settings: Mapping[str, Any]) -> bool:
    if settings["type"] == "Sequence":
        return all(map(_is_local_normalizer, settings["normalizers"]))
    if settings["type"] == "Replace":  # a character beyond ASCII by an ASCII one that is no white space
        before, after = settings["pattern"].get("String", ""), settings["content"]
        return len(before) == len(after) == 1 and not before.isascii() and after.isascii() and after > " "
    return settings["type"] in _NORMALIZERS


def _is_local_pre_tokenizer(settings: Mapping[str, Any]) -> bool:
    if settings["type"] == "Split":
        kept = settings["behavior"] == "Removed" and settings["invert"]
        return bool(kept and is_word_pattern(settings["pattern"].get("Regex", "")))
    return settings["type"] in _PRE_TOKENIZERS


def remember_words(tokenizer: TextTokenizer) -> "TextTokenizer | WordCachedTokenizer":
    """The tokenizer, with a memory for words if it is one that may have it."""
    run = tokenizer.run
    if not isinstance(run, FastTokenizer) or run.types or tokenizer.facts.head or tokenizer.facts.tail:
        return tokenizer
    return WordCachedTokenizer(tokenizer, run.tokenizer) if is_local(run.tokenizer) else tokenizer


class WordCachedTokenizer:
    """Gives the `Tokens` that `tokenizer` gives, which runs `local` and adds no special tokens and does not cut.

    Safe to share between threads.
    """

    def __init__(self, tokenizer: TextTokenizer, local: Tokenizer) -> None:
        self.tokenizer = tokenizer
        added = (token.content for token in local.get_added_tokens_decoder().values())
        self._marks = [*_RESERVED, *filter(None, added)]
        self._reaches_across_spaces = any(space in mark for mark in self._marks for space in _SPACES)
        self._words = _Words()
        # Without added tokens: a word that is a part of a text is none, whatever is written.
        of_words = Tokenizer(local.model)
        of_words.normalizer, of_words.pre_tokenizer = local.normalizer, local.pre_tokenizer
        self._word_tokenizer = FastTokenizer(of_words, types=False)

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """Token ids for each text; raises as the tokenizer does."""
        if any(len(text) > _LONG_TEXT for text in texts):
            return _joined(list(self._by_length(texts)))
        if len(texts) < _FEW_TEXTS:
            return self.tokenizer(texts)
        return _joined([self._group(group) for group in _groups(texts)])

    def _by_length(self, texts: Sequence[str]) -> Iterator[Tokens]:
        """Tokens of the texts in their order; long texts are tokenised piece by piece."""
        for is_long, some in groupby(texts, lambda text: len(text) > _LONG_TEXT):
            if not is_long:
                yield self(list(some))
                continue
            for text in some:
                pieces = [text] if self._reaches_across_spaces else cut_at_spaces(text)
                yield _as_one_text([self._group([piece]) for piece in pieces], self.tokenizer.facts.stand_in)

    def _group(self, texts: Sequence[str]) -> Tokens:
        whole = self._not_by_words(texts)
        cut = list(texts)
        for number in whole:
            cut[number] = ""
        try:
            words = " \0 ".join([*cut, ""]).encode().split()
            if sum(map(len, cut)) > _LONG_WORDS * len(words):
                return self.tokenizer(texts)
            tokens = self._by_words(words)
        except (UnicodeEncodeError, ModelError):
            return self.tokenizer(texts)  # which says of which text
        return _replaced(tokens, whole, self.tokenizer([texts[number] for number in whole])) if whole else tokens

    def _not_by_words(self, texts: Sequence[str]) -> list[int]:
        """The texts that go through the tokenizer as they are."""
        joined = "".join(texts)
        marks = [mark for mark in self._marks if mark in joined]
        return [number for number, text in enumerate(texts) if any(mark in text for mark in marks)] if marks else []

    def _by_words(self, written: Sequence[bytes]) -> Tokens:
        """Tokens of texts, given their words, with the mark behind each text's."""
        if self._words.is_full:
            self._words = _Words()
        words = self._words  # of this call, whatever another thread puts in its place
        numbers = words.numbers(written, self._encode)
        counts = words.counts[numbers]
        ends = _ends(counts)[np.flatnonzero(numbers == 0)]
        ids = gather_segments(words.pieces, words.firsts[numbers], counts)
        return _of_texts(ids, ends, self.tokenizer.facts.stand_in)

    def _encode(self, words: Sequence[bytes]) -> list[list[int]]:
        return self._word_tokenizer([word.decode() for word in words])[0]


class _Words:
    """Words by number, the tokens of each: `pieces[firsts[i] : firsts[i] + counts[i]]`. Number 0 is the mark.

    It only grows: whoever has a number finds its tokens in the arrays that are there now.
    """

    def __init__(self) -> None:
        self._numbers = {_MARK: 0}
        self._bytes = 0
        self._lock = Lock()  # of whatever adds to it
        self.counts, self.firsts = np.zeros(1, np.int32), np.zeros(1, np.int64)
        self.pieces: Int32Array = np.zeros(0, np.int32)

    @property
    def is_full(self) -> bool:
        return len(self._numbers) > MOST_WORDS or self._bytes > MOST_BYTES

    def numbers(self, words: Sequence[bytes], encode: Callable[[Sequence[bytes]], list[list[int]]]) -> Int32Array:
        """The number of each word; `encode` gives the tokens of those that are new."""
        numbers = np.fromiter(map(self._numbers.get, words, repeat(-1)), np.int32, len(words))
        unknown = np.flatnonzero(numbers < 0)
        if len(unknown):
            new = [words[place] for place in unknown.tolist()]
            self._add(dict.fromkeys(new), encode)
            numbers[unknown] = np.fromiter(map(self._numbers.__getitem__, new), np.int32, len(new))
        return numbers

    def _add(self, words: Mapping[bytes, None], encode: Callable[[Sequence[bytes]], list[list[int]]]) -> None:
        with self._lock:
            new = [word for word in words if word not in self._numbers]
            rows = encode(new) if new else []
            counts = np.fromiter(map(len, rows), np.int32, len(rows))
            pieces = np.fromiter((token for row in rows for token in row), np.int32, int(counts.sum()))
            self.firsts = np.concatenate([self.firsts, len(self.pieces) + _ends(counts)[:-1]])
            self.counts = np.concatenate([self.counts, counts])
            self.pieces = np.concatenate([self.pieces, pieces])
            self._bytes += sum(map(len, new))
            first = len(self._numbers)
            self._numbers.update(zip(new, range(first, first + len(new)), strict=True))  # last: its tokens are there


def gather_segments(values: Int32Array, firsts: npt.NDArray[np.int64], counts: npt.NDArray[Any]) -> Int32Array:
    """values[firsts[i] : firsts[i] + counts[i]] of every i, end to end."""
    ends = _ends(counts)
    found: Int32Array = values[np.repeat(firsts - ends[:-1], counts) + np.arange(ends[-1])]
    return found


def _ends(counts: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Where segments of these lengths start, and at the end the number of all, (n + 1,)."""
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def _of_texts(ids: Int32Array, ends: npt.NDArray[np.int64], stand_in: int) -> Tokens:
    """Tokens of texts that end there; a text without any gets one, as `TextTokenizer` says."""
    starts = np.concatenate([[0], ends])
    lengths = np.diff(starts).astype(np.int32)
    if not lengths.all():
        ids = np.insert(ids, starts[:-1][lengths == 0], stand_in)
        starts = _ends(np.maximum(lengths, 1))
    return Tokens(ids, None, starts, lengths)


def cut_at_spaces(text: str) -> Iterator[str]:
    """Cut a text into pieces of about `_GROUP_CHARACTERS`. All but the first begin with white space."""
    start = 0
    while start < len(text):
        found = _SPACE.search(text, start + _GROUP_CHARACTERS)
        stop = found.start() if found else len(text)
        yield text[start:stop]
        start = stop


def _as_one_text(pieces: Sequence[Tokens], stand_in: int) -> Tokens:
    """Join the tokens of a text's pieces; the stand-in of pieces without tokens is left out."""
    ids = np.concatenate([np.zeros(0, np.int32), *(piece.ids for piece in pieces if piece.lengths.any())])
    return _of_texts(ids, np.array([len(ids)], np.int64), stand_in)


def _replaced(tokens: Tokens, texts: Sequence[int], others: Tokens) -> Tokens:
    """The same, but with those tokens of some texts."""
    firsts, counts, lengths = tokens.starts[:-1].copy(), tokens.cut_lengths, tokens.lengths.copy()
    firsts[texts], counts[texts] = len(tokens.ids) + others.starts[:-1], others.cut_lengths
    lengths[texts] = others.lengths
    return Tokens(
        gather_segments(np.concatenate([tokens.ids, others.ids]), firsts, counts), None, _ends(counts), lengths
    )


def _joined(groups: Sequence[Tokens]) -> Tokens:
    if len(groups) == 1:
        return groups[0]
    ids = np.concatenate([tokens.ids for tokens in groups])
    lengths = np.concatenate([tokens.lengths for tokens in groups])
    return Tokens(ids, None, _ends(np.concatenate([tokens.cut_lengths for tokens in groups])), lengths)


def _groups(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Texts of about so many characters together."""
    start = size = 0
    for stop, text in enumerate(texts, 1):
        size += len(text)
        if size >= _GROUP_CHARACTERS or stop == len(texts):
            yield texts[start:stop]
            start, size = stop, 0
