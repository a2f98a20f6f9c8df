"""Where a corpus has the words of some data sets, and the vectors that a transformer gives them there.

Words are matched whole and whatever their case. In each place a word's vector is the mean of those of its pieces; the
first places of the corpus count. Only texts that have a word still wanted pass through the model.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from indexer.chunking import TokenOffsets
from search.evaluation.words.vectors import Rows

_GROUP_TEXTS = 1024  # that pass through the model together
_RUN = re.compile(r"\w+")
Place = tuple[str, int, int]
"""A word, lower-cased, and the characters it stands from and to."""


class Outputs(Protocol):
    """Token vectors of a transformer, special tokens aside (`indexer.encoders.token_embeddings.TokenEmbeddings`)."""

    def offsets(self, texts: Sequence[str]) -> list[TokenOffsets]:
        """Where the tokens of each text begin, before any cut."""
        ...

    def __call__(
        self, texts: Sequence[str], layers: Sequence[int]
    ) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
        """The average of `layers`, a group of texts at a time: (tokens, d) end to end, and where each text begins."""
        ...


@dataclass(frozen=True)
class Reading:
    """How texts are encoded: `layers` (non-negative) are averaged, and a word is followed to `most` places.

    `prefix` is what the encoder puts before each text, and `from_left` whether it cuts the beginning of a long one.
    """

    layers: tuple[int, ...]
    most: int = 100
    prefix: str = ""
    from_left: bool = False


@dataclass
class ReadingLog:
    """What was read: texts of the corpus, those that passed through the model, and those of them that were cut."""

    texts: int = 0
    encoded: int = 0
    truncated: int = 0
    places: Counter[str] = field(default_factory=Counter)  # of each word, lower-cased


class Finder:
    """Finds words in texts, whole and whatever their case."""

    def __init__(self, words: Iterable[str]) -> None:
        self.words = {word.lower() for word in words}
        others = sorted((word for word in self.words if not _RUN.fullmatch(word)), key=lambda word: (-len(word), word))
        written = "|".join(map(re.escape, others))
        self._others = re.compile(rf"(?<!\w)(?:{written})(?!\w)", re.IGNORECASE) if others else None

    def __call__(self, text: str) -> list[Place]:
        """Where a text has a word; in the word "new-york" it has "york" as well."""
        matches = list(_RUN.finditer(text))
        if self._others is not None:
            matches += self._others.finditer(text)
        found = [(match[0].lower(), *match.span()) for match in matches]
        return [place for place in found if place[0] in self.words]


def read_contexts(
    outputs: Outputs, texts: Iterable[str], words: Iterable[str], reading: Reading, log: ReadingLog | None = None
) -> Iterator[tuple[str, Rows]]:
    """Each word that occurs, lower-cased, with its vectors (places, d) float32, as soon as it has all it may have.

    Reads no further than needed, and holds the vectors of words that are not complete.
    """
    log, finder = log or ReadingLog(), Finder(words)
    held: dict[str, list[Rows]] = {}
    for group in _groups(texts, finder, reading.most, log):
        for word, vector in _vectors(outputs, group, reading, log):
            if log.places[word] < reading.most:
                log.places[word] += 1
                held.setdefault(word, []).append(vector)
                if log.places[word] == reading.most:
                    yield word, np.stack(held.pop(word))
    for word in sorted(held):
        yield word, np.stack(held.pop(word))


def _groups(
    texts: Iterable[str], finder: Finder, most: int, log: ReadingLog
) -> Iterator[list[tuple[str, list[Place]]]]:
    """Texts that have a word with too few places so far, counting those ahead in the group; none after the last one."""
    group: list[tuple[str, list[Place]]] = []
    ahead: Counter[str] = Counter()
    wanted = set(finder.words)
    for text in texts:
        log.texts += 1
        places = finder(text)
        if any(word in wanted for word, _, _ in places):
            ahead.update(word for word, _, _ in places)
            wanted -= {word for word, _, _ in places if log.places[word] + ahead[word] >= most}
            group.append((text, places))
        if len(group) == _GROUP_TEXTS or not wanted:
            yield group
            group, ahead = [], Counter()
            wanted = {word for word in finder.words if log.places[word] < most}  # some may lie behind a cut
            if not wanted:
                return
    if group:
        yield group


def _vectors(
    outputs: Outputs, group: Sequence[tuple[str, list[Place]]], reading: Reading, log: ReadingLog
) -> Iterator[tuple[str, Rows]]:
    """The word and its vector (d,) of each place whose pieces all came through."""
    texts, prefix = [text for text, _ in group], reading.prefix
    marks = outputs.offsets([prefix + text for text in texts])
    rows = (found[a:b] for found, starts in outputs(texts, reading.layers) for a, b in pairwise(starts.tolist()))
    for (_, places), mark, vectors in zip(group, marks, rows, strict=True):
        cut = max(len(mark.starts) - len(vectors), 0)
        log.encoded += 1
        log.truncated += cut > 0
        shift = cut if reading.from_left else 0
        for word, start, end in places:
            first, stop = _pieces(mark, start + len(prefix), end + len(prefix))
            if shift <= first < stop <= shift + len(vectors):
                yield word, vectors[first - shift : stop - shift].mean(axis=0)


def _pieces(marks: TokenOffsets, start: int, end: int) -> tuple[int, int]:
    """The tokens that hold characters `start` to `end`: from the one that the first character is in."""
    starts = np.maximum.accumulate(marks.starts)
    before = int(np.searchsorted(starts, start, side="right"))  # a token may begin with the space before the word
    first = int(np.searchsorted(starts, starts[before - 1])) if before else 0
    return first, int(np.searchsorted(starts, end))
