"""A tokenizer with a cache of words: each distinct word is tokenised once.

A word is an unchanged run of characters between ASCII white space (space, tab, line feed, carriage return). The ids of
a text are the concatenated ids of its words if no step of the tokenizer looks across such white space (`is_local`):

- normalisers: mappings of single characters (lower case, BERT's clean-up, a replaced character) are local. Canonical
  and compatibility forms (NFC, NFD, NFKC, NFKD) and the removal of accents are local too, because white space is a
  starter that composes with nothing, so neither composition nor the order of marks crosses it;
- pre-tokenizers: local if they cut at white space and drop it, and their other cuts depend on characters of a word;
- models: WordPiece and WordLevel process one piece of a pre-tokenizer at a time.

Added tokens such as [CLS] are searched in the whole text and may contain white space: a text with an added token
bypasses the cache. So does a text with a NUL, which separates words here, and with a vertical tab or a form feed, where
Arrow cuts but BERT's clean-up does not. So do all texts of a group with long words (a script without spaces), which
are seldom repeated.

New words are tokenised many at a time, and words of printable ASCII without the normaliser: every normaliser that is
local leaves them unchanged or lower-cases them.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer

from indexer.arrays import Int32Array, Int64Array
from indexer.encoders.static.word_tokenizer import WORD_PATTERNS
from indexer.encoders.windows import group_texts
from indexer.errors import ModelError
from indexer.models.encoder_spec import Tokens
from indexer.models.tokenizer import FastTokenizer, TextTokenizer

MOST_WORDS, MOST_CHARACTERS = 1 << 18, 1 << 24  # limits of the cache: about 50 MB with the dict
_FEW_TEXTS = 16  # with fewer texts the tokenizer alone is as fast
_GROUP_CHARACTERS = 1 << 20  # of texts cut together
_LONG_TEXT = 1 << 22  # characters; longer texts are tokenised in pieces, because words take many times the text's size
_SPACES = " \t\n\r"
_LONG_WORDS = 16  # characters per word on average, with the space after it
_SPACE = re.compile(f"[{_SPACES}]")
_MARK = "\0"  # between words that are tokenised together
_TOGETHER = 64  # words
_RESERVED = (_MARK, "\x0b", "\x0c")
_NORMALIZERS = {None, "BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"}
_PRE_TOKENIZERS = {"BertPreTokenizer", "WhitespaceSplit"}
_MODELS = {"WordPiece", "WordLevel"}


def is_local(tokenizer: Tokenizer) -> bool:
    """Return whether the ids of a text are those of its words; False for a tokenizer with an unknown step."""
    return (
        _is_local_normalizer(_settings(tokenizer.normalizer))
        and _is_local_pre_tokenizer(_settings(tokenizer.pre_tokenizer))
        and type(tokenizer.model).__name__ in _MODELS
        and tokenizer.truncation is tokenizer.padding is tokenizer.post_processor is None
        and not any(token.normalized for token in tokenizer.get_added_tokens_decoder().values())
    )


def _settings(step: Any) -> dict[str, Any]:
    """Return a step of a tokenizer as in tokenizer.json; type None for a missing step."""
    return json.loads(step.__getstate__()) if step is not None else {"type": None}


def _is_local_normalizer(settings: Mapping[str, Any]) -> bool:
    if settings["type"] == "Sequence":
        return all(map(_is_local_normalizer, settings["normalizers"]))
    if settings["type"] == "Replace":  # local: a character beyond ASCII by an ASCII character other than white space
        before, after = settings["pattern"].get("String", ""), settings["content"]
        return len(before) == len(after) == 1 and not before.isascii() and after.isascii() and after > " "
    return settings["type"] in _NORMALIZERS


def _is_local_pre_tokenizer(settings: Mapping[str, Any]) -> bool:
    if settings["type"] == "Split":
        kept = settings["behavior"] == "Removed" and settings["invert"]
        return bool(kept and settings["pattern"].get("Regex", "") in WORD_PATTERNS.values())
    return settings["type"] in _PRE_TOKENIZERS


def remember_words(tokenizer: TextTokenizer) -> "TextTokenizer | WordCachedTokenizer":
    """Return the tokenizer with a cache of words if it is local, else unchanged."""
    run = tokenizer.run
    if not isinstance(run, FastTokenizer) or run.types or tokenizer.facts.head or tokenizer.facts.tail:
        return tokenizer
    return WordCachedTokenizer(tokenizer, run.tokenizer) if is_local(run.tokenizer) else tokenizer


class WordCachedTokenizer:
    """Returns the same `Tokens` as `tokenizer`, which runs `local` without special tokens and truncation.

    Safe to share between threads.
    """

    def __init__(self, tokenizer: TextTokenizer, local: Tokenizer) -> None:
        self.tokenizer = tokenizer
        added = (token.content for token in local.get_added_tokens_decoder().values())
        self._marks = [*_RESERVED, *filter(None, added)]
        self._reaches_across_spaces = any(space in mark for mark in self._marks for space in _SPACES)
        self._words, self._tokenize_words = _Words(), _WordTokenizer(local)

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """Return token ids for each text; raises as the tokenizer."""
        if any(len(text) > _LONG_TEXT for text in texts):
            return _joined(list(self._by_length(texts)))
        if len(texts) < _FEW_TEXTS:
            return self.tokenizer(texts)
        groups = group_texts(texts, _GROUP_CHARACTERS)
        return _joined([self._group(texts[group.start : group.stop]) for group in groups])

    def _by_length(self, texts: Sequence[str]) -> Iterator[Tokens]:
        """Yield tokens of the texts in order; long texts are tokenised piece by piece."""
        for is_long, same_kind in groupby(texts, lambda text: len(text) > _LONG_TEXT):
            if not is_long:
                yield self(list(same_kind))
                continue
            for text in same_kind:
                pieces = [text] if self._reaches_across_spaces else cut_at_spaces(text)
                yield _as_one_text([self._group([piece]) for piece in pieces], self.tokenizer.facts.stand_in)

    def _group(self, texts: Sequence[str]) -> Tokens:
        joined = "".join(texts)
        marks = [mark for mark in self._marks if mark in joined]
        whole = [number for number, text in enumerate(texts) if any(mark in text for mark in marks)] if marks else []
        cut = list(texts)
        for number in whole:
            cut[number] = ""
        try:
            tokens = self._by_words(cut)
        except (UnicodeEncodeError, ModelError):
            return self.tokenizer(texts)  # its error names the text
        if tokens is None:
            return self.tokenizer(texts)
        return _replaced(tokens, whole, self.tokenizer([texts[number] for number in whole])) if whole else tokens

    def _by_words(self, texts: Sequence[str]) -> Tokens | None:
        """Return tokens of texts, or None if their words are long."""
        import pyarrow as pa
        from pyarrow import compute

        cut = compute.ascii_split_whitespace(pa.array(texts, pa.string()))
        written = cut.values.dictionary_encode()  # "" for white space at the ends of a text
        if sum(map(len, texts)) > _LONG_WORDS * (len(written) + len(texts)):
            return None
        if self._words.is_full:
            self._words = _Words()
        words = self._words  # kept for this call, because another thread may replace it
        numbers = words.numbers(written.dictionary.to_pylist(), self._tokenize_words)[written.indices.to_numpy()]
        counts = words.counts[numbers]
        ends = _ends(counts)[cut.offsets.to_numpy()[1:]]
        ids = gather_segments(words.pieces, words.firsts[numbers], counts)
        return _of_texts(ids, ends, self.tokenizer.facts.stand_in)


class _WordTokenizer:
    """Tokenises each word on its own. Words contain no mark and no added token."""

    def __init__(self, local: Tokenizer) -> None:
        self._as_written, self._in_ascii = Tokenizer(local.model), Tokenizer(local.model)
        self._as_written.normalizer = local.normalizer
        self._is_lower = _lowers(_settings(local.normalizer))
        for tokenizer in (self._as_written, self._in_ascii):
            tokenizer.pre_tokenizer = local.pre_tokenizer
            tokenizer.add_special_tokens([AddedToken(_MARK, normalized=False)])

    def __call__(self, words: Sequence[str]) -> tuple[list[str], Int32Array, Int64Array]:
        """Return the words in another order, their tokens, concatenated, and the number of tokens of each."""
        in_ascii, others = list[str](), list[str]()
        for word in words:
            (in_ascii if word.isascii() and word.isprintable() else others).append(word)
        lowered = [word.lower() for word in in_ascii] if self._is_lower else in_ascii
        rows = _marked(self._in_ascii, lowered) + _marked(self._as_written, others)
        marked = np.fromiter(chain.from_iterable(rows), np.int32)
        is_mark = marked == self._as_written.token_to_id(_MARK)
        return [*in_ascii, *others], marked[~is_mark], np.diff(np.flatnonzero(is_mark), prepend=-1) - 1


def _lowers(normalizer: Mapping[str, Any]) -> bool:
    """Return whether a local normaliser lower-cases ASCII."""
    return (
        normalizer["type"] == "Lowercase"
        or normalizer.get("lowercase", False)
        or any(map(_lowers, normalizer.get("normalizers", ())))
    )


def _marked(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """Return the tokens of words, many in a row, each followed by the mark: a call per word takes twice the time."""
    together = (words[start : start + _TOGETHER] for start in range(0, len(words), _TOGETHER))
    return FastTokenizer(tokenizer, types=False)([_MARK.join([*some, ""]) for some in together])[0]


class _Words:
    """Words by number, with the tokens of each: `pieces[firsts[i] : firsts[i] + counts[i]]`.

    It only grows, so the tokens of a number are in every later state of the arrays.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._characters = 0
        self._lock = Lock()  # held by `_add`
        self.counts, self.firsts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.pieces: Int32Array = np.zeros(0, np.int32)

    @property
    def is_full(self) -> bool:
        return len(self._numbers) > MOST_WORDS or self._characters > MOST_CHARACTERS

    def numbers(self, words: Sequence[str], tokenize: _WordTokenizer) -> Int32Array:
        """Return the number of each of these distinct words; new words are tokenised."""
        if new := [word for word in words if word not in self._numbers]:
            self._add(new, tokenize)
        return np.fromiter(map(self._numbers.__getitem__, words), np.int32, len(words))

    def _add(self, words: Sequence[str], tokenize: _WordTokenizer) -> None:
        with self._lock:
            new, pieces, counts = tokenize([word for word in words if word not in self._numbers])
            self.firsts = np.concatenate([self.firsts, len(self.pieces) + _ends(counts)[:-1]])
            self.counts = np.concatenate([self.counts, counts])
            self.pieces = np.concatenate([self.pieces, pieces])
            self._characters += sum(map(len, new))
            first = len(self._numbers)
            self._numbers.update(zip(new, range(first, first + len(new)), strict=True))  # last, after the tokens


def gather_segments(values: Int32Array, firsts: Int64Array, counts: npt.NDArray[Any]) -> Int32Array:
    """Return values[firsts[i] : firsts[i] + counts[i]] of every i, concatenated."""
    ends = _ends(counts)
    segments: Int32Array = values[np.repeat(firsts - ends[:-1], counts) + np.arange(ends[-1])]
    return segments


def _ends(counts: npt.NDArray[Any]) -> Int64Array:
    """Return the starts of segments of these lengths, followed by their total, (n + 1,)."""
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def _of_texts(ids: Int32Array, ends: Int64Array, stand_in: int) -> Tokens:
    """Return the tokens of texts with these ends; a text without tokens gets one, as in `TextTokenizer`."""
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
        space = _SPACE.search(text, start + _GROUP_CHARACTERS)
        stop = space.start() if space else len(text)
        yield text[start:stop]
        start = stop


def _as_one_text(pieces: Sequence[Tokens], stand_in: int) -> Tokens:
    """Join the tokens of a text's pieces; the stand-in of pieces without tokens is left out."""
    ids = np.concatenate([np.zeros(0, np.int32), *(piece.ids for piece in pieces if piece.lengths.any())])
    return _of_texts(ids, np.array([len(ids)], np.int64), stand_in)


def _replaced(tokens: Tokens, texts: Sequence[int], others: Tokens) -> Tokens:
    """Return `tokens` with the tokens of some texts replaced by `others`."""
    firsts, counts, lengths = tokens.starts[:-1].copy(), tokens.cut_lengths, tokens.lengths.copy()
    firsts[texts], counts[texts] = len(tokens.ids) + others.starts[:-1], others.cut_lengths
    lengths[texts] = others.lengths
    ids = gather_segments(np.concatenate([tokens.ids, others.ids]), firsts, counts)
    return Tokens(ids, None, _ends(counts), lengths)


def _joined(groups: Sequence[Tokens]) -> Tokens:
    if len(groups) == 1:
        return groups[0]
    ids = np.concatenate([tokens.ids for tokens in groups])
    lengths = np.concatenate([tokens.lengths for tokens in groups])
    return Tokens(ids, None, _ends(np.concatenate([tokens.cut_lengths for tokens in groups])), lengths)
