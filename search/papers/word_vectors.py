"""Vectors of words: rows of a static table, or what a transformer makes of a word wherever a corpus has it.

Words are matched whole and whatever their case. In each place a word's vector is the mean of those of its pieces; the
first places of the corpus count. Only texts that have a word still wanted pass through the model.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from indexer.arrays import Embeddings, Float64Array
from indexer.encoders.chunking import TokenOffsets
from indexer.errors import EvaluationError
from indexer.system.threads import single_blas_thread

Contexts = Iterable[tuple[str, Embeddings]]

_GROUP_TEXTS = 1024  # that pass through the model together
_RUN = re.compile(r"\w+")
Place = tuple[str, int, int]
"""A word, lower-cased, and the characters it stands from and to."""


class TokenEncoder(Protocol):
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
class ContextOptions:
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


class WordFinder:
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
    outputs: TokenEncoder,
    texts: Iterable[str],
    words: Iterable[str],
    reading: ContextOptions,
    log: ReadingLog | None = None,
) -> Iterator[tuple[str, Embeddings]]:
    """Each word that occurs, lower-cased, with its vectors (places, d) float32, as soon as it has all it may have.

    Reads no further than needed, and holds the vectors of words that are not complete.
    """
    log, finder = log or ReadingLog(), WordFinder(words)
    held: dict[str, list[Embeddings]] = {}
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
    texts: Iterable[str], finder: WordFinder, most: int, log: ReadingLog
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
    outputs: TokenEncoder, group: Sequence[tuple[str, list[Place]]], reading: ContextOptions, log: ReadingLog
) -> Iterator[tuple[str, Embeddings]]:
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


"""Words, lower-cased and each once, with the vectors (occurrences, d) they have in their contexts."""


class WordTable(Protocol):
    """A table of word vectors (V, d), the most frequent words first, as far as it is needed here."""

    @property
    def vectors(self) -> npt.NDArray[np.float32]: ...

    def row_of(self, word: str) -> int | None:
        """The row of a word; None for one that has none."""
        ...


@dataclass(frozen=True)
class WordVectors:
    """Vectors (n, d), any of which may be the answer to an analogy, and the row of each word that has one.

    Words that are spelt alike but for upper and lower case may share a row. `notes` say how they were come by.
    """

    vectors: Embeddings
    rows: Mapping[str, int]
    notes: tuple[str, ...] = ()

    def places(self, words: Iterable[str]) -> npt.NDArray[np.intp]:
        """The row of each word, (words,); -1 for one without."""
        return np.fromiter((self.rows.get(word, -1) for word in words), np.intp)


def table_vectors(table: WordTable, words: Iterable[str], candidates: int = 0) -> WordVectors:
    """Vectors of words from a table, as they are written or, where that has none, lower-cased.

    The first `candidates` rows of the table are among the vectors too.
    """
    found: dict[str, int] = {}
    for word in dict.fromkeys(words):
        row = table.row_of(word)
        row = table.row_of(word.lower()) if row is None else row
        if row is not None:
            found[word] = row
    kept = sorted({*found.values(), *range(min(candidates, len(table.vectors)))})
    places = {row: place for place, row in enumerate(kept)}
    return WordVectors(table.vectors[kept], {word: places[row] for word, row in found.items()})


def context_vectors(contexts: Contexts, words: Iterable[str]) -> WordVectors:
    """A vector for each word of `contexts`: the first principal component of those it has there, of length 1.

    `words` are found whatever their case. Raises EvaluationError for vectors that are not finite or all zero.
    """
    places: dict[str, int] = {}
    vectors: list[Float64Array] = []
    for word, rows in contexts:
        places[word] = len(vectors)
        vectors.append(principal_component(rows, word))
    found = {word: places[word.lower()] for word in dict.fromkeys(words) if word.lower() in places}
    return WordVectors(np.array(vectors) if vectors else np.empty((0, 0)), found)


def principal_component(rows: Embeddings, word: str = "") -> Float64Array:
    """The direction (d,) that tells most of rows (n, d): their first right singular vector, turned towards their mean.

    After Ethayarajh, "How Contextual are Contextualized Word Representations?" (EMNLP 2019, section 3.3), who says of
    it how much of a word's vectors it explains. The rows are not centred: what is wanted is where they lie, not how
    they differ, and one row is its own direction. (The code that goes with the paper does centre them.)
    """
    exact = np.asarray(rows, np.float64)
    if not np.isfinite(exact).all() or not exact.any():
        raise EvaluationError(
            f'the vectors of "{word}" hold NaN or infinity, or are all zero, so nothing can be ranked. The model '
            "overflows or is damaged: try --set encoder.precision=float32, or another model."
        )
    with single_blas_thread():
        component: Float64Array = np.linalg.svd(exact, full_matrices=False)[2][0]
    towards = float(component @ exact.mean(axis=0))
    return -component if towards < 0 else component
