"""Splitting of long texts into overlapping windows of tokens, with start and end in characters of the text.

    chunker = Chunker(tokenizer.offsets, tokens=128, overlap=32)
    windows = chunker(texts)            # text number, start and end of every window
    pieces = windows.texts(texts)       # the texts to encode, one row each

The windows of a text have similar lengths, so that the last one is never a short rest. They begin and end where a token
begins: at nearby white space, else at the start of a word, else between any two characters.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from indexer.arrays import Int32Array

_GROUP_CHARACTERS = 4 << 20  # tokenised together; the tokenizer needs much memory for each token
_BLOCK_CHARACTERS = 1 << 20  # of a longer text
_SEARCHED = 8  # the last eighth of a step is searched for a better place to cut
_LONGEST_GRAPHEME = 32  # characters; Unicode's stream-safe texts have at most 30 marks in a row
_VIRAMA = 9  # combining class of the sign that joins two consonants of an Indic script
# Two characters shown as one, except a base with a mark: Unicode Standard Annex 29, abridged.
_INSIDE_GRAPHEME = re.compile(
    "\u200d.|.[\u200d\u1160-\u11ff\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]|[\U0001f1e6-\U0001f1ff]{2}",
    re.DOTALL,
)


class TokenOffsets(NamedTuple):
    """Positions of the tokens of a text, without special tokens."""

    starts: Int32Array  # (tokens,) first character of each token
    words: Int32Array  # (tokens,) number of each token's word


@dataclass(frozen=True)
class Windows:
    """Windows of some texts, in the order of the texts and of their content; every text has at least one window."""

    document: Int32Array  # (n,): position of the text, ascending
    start: Int32Array  # (n,): first character
    end: Int32Array  # (n,): the character after the last

    def __len__(self) -> int:
        return len(self.document)

    def texts(self, texts: Sequence[str]) -> list[str]:
        """Return the text of every window, stripped of white space, from the texts that were split."""
        spans = zip(self.document.tolist(), self.start.tolist(), self.end.tolist(), strict=True)
        return [texts[document][start:end].strip() for document, start, end in spans]


Split = Callable[[int, TokenOffsets], list[tuple[int, int]]]
"""The number of a text and its tokens to (start, end) in characters of each window."""


class Chunker:
    """A splitter of texts into `Windows`. `offsets` returns the `TokenOffsets` of each text of a list."""

    def __init__(self, offsets: Callable[[list[str]], list[TokenOffsets]], tokens: int, overlap: int) -> None:
        self.offsets, self.tokens, self.overlap = offsets, tokens, overlap

    def __call__(self, texts: Sequence[str], split: Split | None = None) -> Windows:
        """Return the windows of each text, by `split_text` unless another `split` is given.

        Raises CorpusError for a text that is not valid Unicode.
        """
        document, spans = [], []
        for group in group_texts(texts, _GROUP_CHARACTERS):
            for number, offsets in zip(group, self._offsets(list(texts[group.start : group.stop])), strict=True):
                if split is None:
                    text_spans = split_text(texts[number], offsets, self.tokens, self.overlap)
                else:
                    text_spans = split(number, offsets)
                spans += text_spans
                document += [number] * len(text_spans)
        edges = np.array(spans, np.int32).reshape(-1, 2)
        return Windows(np.array(document, np.int32), edges[:, 0].copy(), edges[:, 1].copy())

    def _offsets(self, texts: list[str]) -> list[TokenOffsets]:
        """Return the offsets of a group; a text that is a group by itself is tokenised in blocks of lines or words."""
        if len(texts) > 1 or len(texts[0]) <= _GROUP_CHARACTERS:
            return self.offsets(texts)
        starts, words, at, word = list[Int32Array](), list[Int32Array](), 0, 0
        for block in _blocks(texts[0], _BLOCK_CHARACTERS):
            (found,) = self.offsets([block])
            starts.append(found.starts + at)
            words.append(found.words + word)
            at += len(block)
            word = int(words[-1].max()) + 1 if len(found.words) else word
        return [TokenOffsets(np.concatenate(starts), np.concatenate(words))]


def _blocks(text: str, most: int) -> Iterator[str]:
    """Yield a text in blocks that end at a line or, without one, at a space, if there is one in their last half."""
    start = 0
    while len(text) - start > most:
        low, high = start + most // 2, start + most
        cuts = (text.rfind(sign, low, high) for sign in "\n ")
        end = next((cut for cut in cuts if cut >= 0), high)
        yield text[start:end]
        start = end
    yield text[start:]


def split_text(text: str, offsets: TokenOffsets, tokens: int, overlap: int) -> list[tuple[int, int]]:
    """Return (start, end) in characters of each window of a text.

    A window has at most `tokens` tokens (more only to avoid a cut within a character). It shares at least `overlap`
    tokens with the previous window, and up to an eighth of `tokens - overlap` more to reach a better place to cut. A
    text of at most `tokens` tokens is one window. Every character of the text is in a window, starts and ends increase
    strictly, and every window adds text other than white space.
    """
    count, step = len(offsets.starts), tokens - overlap
    if count <= tokens:
        return [(0, len(text))]
    places = _Places(text, offsets, step // _SEARCHED)
    spans: list[tuple[int, int]] = []
    first = 0
    while count - first > tokens:  # the rest is divided evenly again after each cut
        rest = count - first - overlap
        last = places.best(first + overlap + -(-rest // -(-rest // step)))
        add_span(spans, text, places.character(first, -1), places.character(last, 1))
        first = places.best(last - overlap)
    add_span(spans, text, places.character(first, -1), len(text))
    return spans


def add_span(spans: list[tuple[int, int]], text: str, start: int, end: int) -> None:
    """Add a window, or extend the last window if a new one would add nothing or only white space."""
    if not spans or (start > spans[-1][0] and text[spans[-1][1] : end].strip()):
        spans.append((start, end))
    else:
        spans[-1] = (spans[-1][0], max(end, spans[-1][1]))


class _Places:
    """The places where a text can be cut. A place is the number of the token after the cut."""

    def __init__(self, text: str, offsets: TokenOffsets, searched: int) -> None:
        starts = np.maximum.accumulate(np.clip(offsets.starts, 0, len(text)))
        self._text, self._searched = text, searched
        self._starts: list[int] = starts.tolist()
        self._words: list[int] = offsets.words.tolist()
        self._starts[0] = 0

    def character(self, place: int, step: int) -> int:
        """Return the position of a cut, moved out of a grapheme to the left (step -1) or right (step 1)."""
        at = self._starts[place]
        for _ in range(_LONGEST_GRAPHEME):
            if not inside_grapheme(self._text, at):
                break
            at += step
        return at

    def best(self, place: int) -> int:
        """Return `place` or a place shortly before it: at white space, else between words, else between characters."""
        best, best_rank = place, 0
        for candidate in range(place, place - self._searched - 1, -1):
            rank = self._rank(candidate)
            if rank > best_rank:
                best, best_rank = candidate, rank
            if best_rank == _AT_SPACE:
                break
        return best

    def _rank(self, place: int) -> int:
        at, text = self._starts[place], self._text
        if at == self._starts[place - 1] or at == len(text) or inside_grapheme(text, at):
            return 0
        if text[at].isspace() or text[at - 1].isspace():
            return _AT_SPACE
        return _AT_WORD if self._words[place] != self._words[place - 1] else _AT_CHARACTER


_AT_CHARACTER, _AT_WORD, _AT_SPACE = 1, 2, 3


def inside_grapheme(text: str, at: int) -> bool:
    """Return whether the characters on both sides of `at` are shown as one: an accent, an emoji or a flag."""
    if not 0 < at < len(text):
        return False
    if unicodedata.category(text[at]).startswith("M") or unicodedata.combining(text[at - 1]) == _VIRAMA:
        return True
    return _INSIDE_GRAPHEME.fullmatch(text, at - 1, at + 1) is not None


def group_texts(texts: Sequence[str], most: int) -> Iterator[range]:
    """Yield consecutive ranges of texts with at most `most` characters together; a longer text is a separate range."""
    start = size = 0
    for number, text in enumerate(texts):
        if number > start and size + len(text) > most:
            yield range(start, number)
            start, size = number, 0
        size += len(text)
    if texts:
        yield range(start, len(texts))
