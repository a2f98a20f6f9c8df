"""Vectors of words: rows of a static table, or of a transformer wherever a corpus contains the word.

Whole words are matched, in any case. In each place a word's vector is the mean of the vectors of its pieces; the first
places in the corpus count. Only texts with a word that needs more places pass through the model.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from indexer.arrays import Embeddings, Float64Array
from indexer.encoders.static.tables import EmbeddingTable
from indexer.encoders.token_embeddings import TokenEmbeddings
from indexer.encoders.windows import TokenOffsets
from indexer.errors import EvaluationError
from indexer.system.threads import single_blas_thread

Contexts = Iterable[tuple[str, Embeddings]]
"""Distinct words, lower-cased, with their vectors (occurrences, d) in context."""
_GROUP_TEXTS = 1024  # texts that pass through the model together
_RUN = re.compile(r"\w+")
Place = tuple[str, int, int]
"""A word, lower-cased, and its first and last character."""


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
    """Counts of texts in the corpus, encoded texts, cut texts, and the places of each word."""

    texts: int = 0
    encoded: int = 0
    truncated: int = 0
    places: Counter[str] = field(default_factory=Counter)  # of each word, lower-cased


class WordFinder:
    """Finds whole words in texts, in any case."""

    def __init__(self, words: Iterable[str]) -> None:
        self.words = {word.lower() for word in words}
        others = sorted((word for word in self.words if not _RUN.fullmatch(word)), key=lambda word: (-len(word), word))
        written = "|".join(map(re.escape, others))
        self._others = re.compile(rf"(?<!\w)(?:{written})(?!\w)", re.IGNORECASE) if others else None

    def __call__(self, text: str) -> list[Place]:
        """Return the places of words in a text; "new-york" contains "york" too."""
        matches = list(_RUN.finditer(text))
        if self._others is not None:
            matches += self._others.finditer(text)
        return [(word, *match.span()) for match in matches if (word := match[0].lower()) in self.words]


def read_contexts(
    outputs: TokenEmbeddings,
    texts: Iterable[str],
    words: Iterable[str],
    reading: ContextOptions,
    log: ReadingLog | None = None,
) -> Iterator[tuple[str, Embeddings]]:
    """Yield each word that occurs, lower-cased, with its vectors (places, d) float32, as soon as they are complete.

    Reads no further than needed, and holds the vectors of incomplete words.
    """
    log, finder = log or ReadingLog(), WordFinder(words)
    incomplete: dict[str, list[Embeddings]] = {}
    for group in _groups(texts, finder, reading.most, log):
        for word, vector in _vectors(outputs, group, reading, log):
            if log.places[word] < reading.most:
                log.places[word] += 1
                incomplete.setdefault(word, []).append(vector)
                if log.places[word] == reading.most:
                    yield word, np.stack(incomplete.pop(word))
    for word in sorted(incomplete):
        yield word, np.stack(incomplete.pop(word))


def _groups(
    texts: Iterable[str], finder: WordFinder, most: int, log: ReadingLog
) -> Iterator[list[tuple[str, list[Place]]]]:
    """Yield groups of texts with a word that needs more places, until no word does."""
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
            wanted = {word for word in finder.words if log.places[word] < most}  # places behind a cut do not count
            if not wanted:
                return
    if group:
        yield group


def _vectors(
    outputs: TokenEmbeddings, group: Sequence[tuple[str, list[Place]]], reading: ContextOptions, log: ReadingLog
) -> Iterator[tuple[str, Embeddings]]:
    """Yield the word and its vector (d,) for each place without cut pieces."""
    texts, prefix = [text for text, _ in group], reading.prefix
    marks = outputs.offsets([prefix + text for text in texts])
    rows = (block[a:b] for block, starts in outputs(texts, reading.layers) for a, b in pairwise(starts.tolist()))
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
    """Return the first and last token of the characters `start` to `end`."""
    starts = np.maximum.accumulate(marks.starts)
    before = int(np.searchsorted(starts, start, side="right"))  # a token may begin with the space before the word
    first = int(np.searchsorted(starts, starts[before - 1])) if before else 0
    return first, int(np.searchsorted(starts, end))


@dataclass(frozen=True)
class WordVectors:
    """Vectors (n, d), all possible answers to analogies, and the row of each word that has one.

    Words that differ only in case may share a row. `notes` describe the origin of the vectors.
    """

    vectors: Embeddings
    rows: Mapping[str, int]
    notes: tuple[str, ...] = ()

    def places(self, words: Iterable[str]) -> npt.NDArray[np.intp]:
        """Return the row of each word, (words,); -1 for none."""
        return np.fromiter((self.rows.get(word, -1) for word in words), np.intp)


def table_vectors(table: EmbeddingTable, words: Iterable[str], candidates: int = 0) -> WordVectors:
    """Return vectors of words from a table: of the word as written, else lower-cased.

    The vectors include the first `candidates` rows of the table.
    """
    rows: dict[str, int] = {}
    for word in dict.fromkeys(words):
        row = table.row_of(word)
        row = table.row_of(word.lower()) if row is None else row
        if row is not None:
            rows[word] = row
    kept = sorted({*rows.values(), *range(min(candidates, len(table.vectors)))})
    places = {row: place for place, row in enumerate(kept)}
    return WordVectors(table.vectors[kept], {word: places[row] for word, row in rows.items()})


def context_vectors(contexts: Contexts, words: Iterable[str]) -> WordVectors:
    """Return a vector for each word of `contexts`: the first principal component of its vectors, of length 1.

    `words` match in any case. Raises EvaluationError for vectors that are not finite or all zero.
    """
    places: dict[str, int] = {}
    vectors: list[Float64Array] = []
    for word, rows in contexts:
        places[word] = len(vectors)
        vectors.append(principal_component(rows, word))
    rows_of = {word: places[word.lower()] for word in dict.fromkeys(words) if word.lower() in places}
    return WordVectors(np.array(vectors) if vectors else np.empty((0, 0)), rows_of)


def principal_component(rows: Embeddings, word: str = "") -> Float64Array:
    """Return the first right singular vector (d,) of rows (n, d), in the direction of their mean.

    After Ethayarajh, "How Contextual are Contextualized Word Representations?" (EMNLP 2019, section 3.3), which
    measures how much of a word's vectors it explains. The rows are not centred, because their position matters, not
    their differences; a single row is its own direction. (The paper's code does centre them.)
    """
    exact = np.asarray(rows, np.float64)
    if not np.isfinite(exact).all() or not exact.any():
        raise EvaluationError(
            f'the vectors of "{word}" contain NaN or infinity, or are all zero: the model overflows or is damaged. '
            "Fix: try --set encoder.precision=float32, or another model."
        )
    with single_blas_thread():
        component: Float64Array = np.linalg.svd(exact, full_matrices=False)[2][0]
    towards = float(component @ exact.mean(axis=0))
    return -component if towards < 0 else component
