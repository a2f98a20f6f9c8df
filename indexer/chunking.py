"""A long text as overlapping windows of tokens: where each begins and ends, in characters of the text itself.

    chunker = Chunker(tokenizer.offsets, ChunkConfig(tokens=128, overlap=32))
    windows = chunker(texts)            # which text, start, end of every window
    pieces = windows.texts(texts)       # what is encoded, one row each

Windows of a text are alike in length, so that none is a mere tail. They begin and end where a token begins: at white
space if there is some near, else at another word's start, else between any two characters.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from indexer.arrays import Int32Array
from indexer.config import ChunkConfig

_GROUP_CHARACTERS = 4 << 20  # tokenised together; what the tokenizer notes of each token is large
_SEARCHED = 8  # the last eighth of a step is searched for a better place to cut
_LONGEST_GRAPHEME = 32  # characters; Unicode's stream-safe texts have no more than 30 marks in a row
_VIRAMA = 9  # the combining class of what joins two consonants of an Indic script
# Two characters that are one to the reader, beside a mark on its base: Unicode Standard Annex 29, shortened.
_INSIDE_GRAPHEME = re.compile(
    "\u200d.|.[\u200d\u1160-\u11ff\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]|[\U0001f1e6-\U0001f1ff]{2}",
    re.DOTALL,
)


class TokenOffsets(NamedTuple):
    """Where the tokens of a text begin, special tokens aside."""

    starts: Int32Array  # (tokens,) characters
    words: Int32Array  # (tokens,) number of the word each token is of


@dataclass(frozen=True)
class Windows:
    """Windows of some texts, in the order of the texts and of what they hold; every text has at least one."""

    document: Int32Array  # (n,): position of the text, ascending
    start: Int32Array  # (n,): first character
    end: Int32Array  # (n,): the character after the last

    def __len__(self) -> int:
        return len(self.document)

    def texts(self, texts: Sequence[str]) -> list[str]:
        """The text of every window, without the white space around it, given the texts they were cut from."""
        spans = zip(self.document.tolist(), self.start.tolist(), self.end.tolist(), strict=True)
        return [texts[document][start:end].strip() for document, start, end in spans]


class Chunker:
    """Texts to `Windows`. `offsets` gives the `TokenOffsets` of each of a list of texts."""

    def __init__(self, offsets: Callable[[list[str]], list[TokenOffsets]], config: ChunkConfig) -> None:
        self._offsets, self._tokens, self._overlap = offsets, config.tokens, config.overlap

    def __call__(self, texts: Sequence[str]) -> Windows:
        """The windows of each text. Raises CorpusError for a text that is not valid Unicode."""
        document, spans = [], []
        for group in _groups(texts):
            for number, offsets in zip(group, self._offsets([texts[number] for number in group]), strict=True):
                found = split_text(texts[number], offsets, self._tokens, self._overlap)
                spans += found
                document += [number] * len(found)
        edges = np.array(spans, np.int32).reshape(-1, 2)
        return Windows(np.array(document, np.int32), edges[:, 0].copy(), edges[:, 1].copy())


def split_text(text: str, offsets: TokenOffsets, tokens: int, overlap: int) -> list[tuple[int, int]]:
    """(start, end) in characters of each window of a text.

    A window has at most `tokens` tokens (more only where it would cut through a character), and shares at least
    `overlap` tokens with the one before: up to an eighth of `tokens - overlap` more where it is moved to a better
    place. A text of no more than `tokens` is one window. Every character of the text is in one, starts and ends rise
    strictly, and every window adds something that is not white space.
    """
    count, step = len(offsets.starts), tokens - overlap
    if count <= tokens:
        return [(0, len(text))]
    places = _Places(text, offsets, step // _SEARCHED)
    spans: list[tuple[int, int]] = []
    first = 0
    while count - first > tokens:  # the rest is cut evenly, and evenly again after each move
        rest = count - first - overlap
        last = places.best(first + overlap + -(-rest // -(-rest // step)))
        _append(spans, text, places.start(first), places.end(last))
        first = places.best(last - overlap)
    _append(spans, text, places.start(first), len(text))
    return spans


def _append(spans: list[tuple[int, int]], text: str, start: int, end: int) -> None:
    """Add a window, or let the last one end later where a new one would differ from it by nothing or white space."""
    if not spans or (start > spans[-1][0] and not _is_blank(text[spans[-1][1] : end])):
        spans.append((start, end))
    else:
        spans[-1] = (spans[-1][0], max(end, spans[-1][1]))


class _Places:
    """Where a text may be cut. A place is the number of the token that would come after the cut."""

    def __init__(self, text: str, offsets: TokenOffsets, searched: int) -> None:
        starts = np.maximum.accumulate(np.clip(offsets.starts, 0, len(text)))
        self._text, self._searched = text, searched
        self._starts: list[int] = starts.tolist()
        self._words: list[int] = offsets.words.tolist()
        self._starts[0] = 0

    def start(self, place: int) -> int:
        """The first character of a window that begins here; earlier where the cut would go through a character."""
        at = self._starts[place]
        for _ in range(_LONGEST_GRAPHEME):
            if not inside_grapheme(self._text, at):
                break
            at -= 1
        return at

    def end(self, place: int) -> int:
        """The character after the last of a window that ends here; later where the cut would go through one."""
        at = self._starts[place]
        for _ in range(_LONGEST_GRAPHEME):
            if not inside_grapheme(self._text, at):
                break
            at += 1
        return at

    def best(self, place: int) -> int:
        """`place` or one a little before it: at white space, else between words, else between characters."""
        found, rank = place, 0
        for candidate in range(place, place - self._searched - 1, -1):
            better = self._rank(candidate)
            if better > rank:
                found, rank = candidate, better
            if rank == _AT_SPACE:
                break
        return found

    def _rank(self, place: int) -> int:
        at, text = self._starts[place], self._text
        if at == self._starts[place - 1] or at == len(text) or inside_grapheme(text, at):
            return 0
        if text[at].isspace() or text[at - 1].isspace():
            return _AT_SPACE
        return _AT_WORD if self._words[place] != self._words[place - 1] else _AT_CHARACTER


_AT_CHARACTER, _AT_WORD, _AT_SPACE = 1, 2, 3


def _is_blank(text: str) -> bool:
    return not text or text.isspace()


def inside_grapheme(text: str, at: int) -> bool:
    """Whether the characters on both sides of a place are shown as one: an accent, part of an emoji or of a flag."""
    if not 0 < at < len(text):
        return False
    if unicodedata.category(text[at]).startswith("M") or unicodedata.combining(text[at - 1]) == _VIRAMA:
        return True
    return _INSIDE_GRAPHEME.fullmatch(text, at - 1, at + 1) is not None


def _groups(texts: Sequence[str]) -> Iterator[list[int]]:
    """Positions of texts to tokenise together, in order."""
    group: list[int] = []
    size = 0
    for number, text in enumerate(texts):
        if group and size + len(text) > _GROUP_CHARACTERS:
            yield group
            group, size = [], 0
        group.append(number)
        size += len(text)
    if group:
        yield group
