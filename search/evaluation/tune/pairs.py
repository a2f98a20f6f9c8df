"""Questions without a questioner: a piece of a document asks for the rest of it.

    sentence   the first sentence of the text asks for the others
    title      the title asks for a text of one sentence
    window     up to ten successive words ask for what is left, where there is nothing else to take
    copy       one word in four, picked at random, asks for another such pick from the same document

The first three are for retrieval: short beside what they ask for, as queries are. Two halves of a document would not
do there: they have the same length, so they say nothing about the offset between queries and documents. Nor would any
sentence do as well as the first, which says what a document is about: words from its middle favour early layers,
which know words, over late ones, which know meaning. `copy` is for similarity, where both sides are alike.
The documents are those with the smallest hash of their id, so the pairs are the same for any order of the corpus.
"""

import heapq
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from indexer.corpus.document import Document, joined_text
from indexer.errors import EvaluationError
from indexer.hashing import hash_id

Kind = Literal["sentence", "title", "window", "copy"]
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])\s*|\n+")  # also the full stops of East Asia
# Scripts written without spaces: each character counts as a word, and pieces are joined without spaces again.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_WORD = re.compile(f"{_UNSPACED.pattern}|(?:(?!{_UNSPACED.pattern})\\S)+")
_SENTENCE_WORDS = range(4, 41)  # a heading asks for nothing, and a longer sentence is no query
_WINDOW_WORDS, _LEAST_WORDS = 10, 8
_COPIED_SHARE = 0.25
LEAST_PAIRS = 50


@dataclass(frozen=True)
class Pair:
    """A query-like text and the rest of the document (`id`) it was taken from."""

    id: str
    kind: Kind
    query: str
    document: str
    whole: str = ""  # the document as it is, where a fit on `document` would be a fit on something else

    @property
    def fitted_on(self) -> str:
        """What stands for the document when a transform is fitted."""
        return self.whole or self.document


def draw_pairs(documents: Iterable[Document], columns: Sequence[str], size: int) -> list[Pair]:
    """At most `size` pairs of a piece and its rest, one a document, of the first kind above that it allows.

    `columns` are those that are encoded (`corpus.text`). Of documents with the same rest only one is taken. One
    pass; at most `size` pairs are held. Raises EvaluationError when fewer than `LEAST_PAIRS` come out.
    """
    return _draw(documents, columns, size, _piece)


def draw_copies(documents: Iterable[Document], columns: Sequence[str], size: int) -> list[Pair]:
    """At most `size` pairs of two broken copies of a document; else as `draw_pairs`."""
    return _draw(documents, columns, size, _copies)


_Cut = Callable[[Document, Sequence[str], random.Random], Pair | None]


def _draw(documents: Iterable[Document], columns: Sequence[str], size: int, cut: _Cut) -> list[Pair]:
    kept, read = _Smallest(size), 0
    for document in documents:
        read += 1
        value = hash_id(document.id)
        # Every choice within a document follows from its id, so the pairs are the same in any order and run.
        if kept.takes(value) and (pair := cut(document, columns, random.Random(value))):  # noqa: S311
            kept.add(value, pair)
    drawn = list(kept.pairs())
    pairs = list({pair.document: pair for pair in drawn}.values())
    if len(pairs) < LEAST_PAIRS:
        repeated = f", and {len(drawn) - len(pairs):,} repeat another" if len(drawn) > len(pairs) else ""
        raise EvaluationError(
            f"only {len(pairs):,} of {read:,} documents can be used as a question and its answer (it takes at least "
            f"{_LEAST_WORDS} words, or characters of a script without spaces{repeated}), too few to tune on; expected "
            f"{LEAST_PAIRS}. Keep the default recipe, or tune with judgements of your own (--qrels)."
        )
    return pairs


class _Smallest:
    """The pairs with the smallest hashes so far."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[tuple[int, str, Pair]] = []  # the largest hash on top, so hashes are negative

    def takes(self, value: int) -> bool:
        return len(self._heap) < self._size or value < -self._heap[0][0]

    def add(self, value: int, pair: Pair) -> None:
        heapq.heappush(self._heap, (-value, pair.id, pair))
        if len(self._heap) > self._size:
            heapq.heappop(self._heap)

    def pairs(self) -> Iterator[Pair]:
        return (pair for _, _, pair in sorted(self._heap, key=lambda entry: (-entry[0], entry[1])))


def _piece(document: Document, columns: Sequence[str], chance: random.Random) -> Pair | None:
    """A piece and the rest; None when the document is too short."""
    body = joined_text(document, [name for name in columns if name != "title"])
    title = (document.title or "").strip() if "title" in columns else ""
    sentences = [sentence.strip() for sentence in _SENTENCE_END.split(body) if sentence.strip()]
    for place, sentence in enumerate(sentences):
        if len(_words(sentence)) in _SENTENCE_WORDS and len(sentences) > 1:
            return Pair(document.id, "sentence", sentence, " ".join(sentences[:place] + sentences[place + 1 :]))
    if title and len(_words(body)) >= _LEAST_WORDS:
        return Pair(document.id, "title", title, body)
    return _window(document, columns, chance)


def _window(document: Document, columns: Sequence[str], chance: random.Random) -> Pair | None:
    text = joined_text(document, columns)
    words = _words(text)
    if len(words) < _LEAST_WORDS:
        return None
    size = min(_WINDOW_WORDS, len(words) // 2)
    start = chance.randrange(len(words) - size + 1)
    question, rest = words[start : start + size], words[:start] + words[start + size :]
    return Pair(document.id, "window", _joined(question), _joined(rest))


def _copies(document: Document, columns: Sequence[str], chance: random.Random) -> Pair | None:
    text = joined_text(document, columns)
    words = _words(text)
    if len(words) < _LEAST_WORDS:
        return None
    first, second = (_joined([word for word in words if chance.random() < _COPIED_SHARE]) for _ in range(2))
    return Pair(document.id, "copy", first, second, text) if first and second else None


def _words(text: str) -> list[str]:
    """Words, or single characters of a script that is written without spaces."""
    return _WORD.findall(text)


def _joined(words: Sequence[str]) -> str:
    """Words with spaces between them, except between two of a script without."""
    joined = " ".join(words)
    return re.sub(f"(?<={_UNSPACED.pattern}) (?={_UNSPACED.pattern})", "", joined)
