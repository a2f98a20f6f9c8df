"""Settings measured without labels: a piece of a document asks for the rest of it.

    sentence   the first sentence of the text asks for the others
    title      the title asks for a text of one sentence
    window     up to ten successive words ask for what is left, where there is nothing else to take; one in ten of them
               is left too, since real queries share words with what they ask for, and without any BM25 would be lost
    copy       one word in four, picked at random, asks for another such pick from the same document

The first three are for retrieval: short beside what they ask for, as queries are. Two halves of a document would not
do there: they have the same length, so they say nothing about the offset between queries and documents. Nor would any
sentence do as well as the first, which says what a document is about: words from its middle favour early layers,
which know words, over late ones, which know meaning. `copy` is for similarity, where both sides are alike.

The documents are those with the smallest hash of their id, so the pairs are the same for any order of the corpus, and
nothing else is encoded. A setting scores the mean reciprocal rank of each question's own document among all of them.
"""

import heapq
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from indexer.arrays import Float32Array, Float64Array, RowIds, Scores, SearchResult, Vectors
from indexer.corpus.document import Document, joined_text
from indexer.encoders.chunker import DocumentChunker
from indexer.errors import EvaluationError
from indexer.hashing import hash_id
from indexer.models.identity import PoolingKey
from indexer.moments import Moments
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import Role
from indexer.recipe.ranking import HybridConfig
from indexer.transforms import Transform
from search.evaluation.settings import Setting, fit_setting, state_keys, transform_hash
from search.evaluation.target import Target
from search.evaluation.tune.choice import MeasuredSetting
from search.evaluation.tune.rerank_depth import QUESTIONS, FirstHits
from search.ranking.bm25 import BM25Ranking
from search.ranking.exact import id_order
from search.ranking.fusion import BothScores, Spread, drawn_rows
from search.text import counted

Kind = Literal["sentence", "title", "window", "copy"]
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])\s*|\n+")  # also the full stops of East Asia
# Scripts written without spaces: each character counts as a word, and pieces are joined without spaces again.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_WORD = re.compile(f"{_UNSPACED.pattern}|(?:(?!{_UNSPACED.pattern})\\S)+")
_SENTENCE_WORDS = range(4, 41)  # a heading asks for nothing, and a longer sentence is no query
_WINDOW_WORDS, _LEAST_WORDS = 10, 8
_LEFT_SHARE = 0.1  # of a window's words
_COPIED_SHARE = 0.25
LEAST_PAIRS = 50
CENTRE_MARGIN = 0.04  # of mean reciprocal rank; see docs/retrieval.md, "The centre without labels"


@dataclass(frozen=True)
class DrawnPair:
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


def draw_pairs(documents: Iterable[Document], columns: Sequence[str], size: int) -> list[DrawnPair]:
    """At most `size` pairs of a piece and its rest, one a document, of the first kind above that it allows.

    `columns` are those that are encoded (`corpus.text`). Of documents with the same rest only one is taken. One
    pass; at most `size` pairs are held. Raises EvaluationError when fewer than `LEAST_PAIRS` come out.
    """
    return _draw(documents, columns, size, _piece)


def draw_copies(documents: Iterable[Document], columns: Sequence[str], size: int) -> list[DrawnPair]:
    """At most `size` pairs of two broken copies of a document; else as `draw_pairs`."""
    return _draw(documents, columns, size, _copies)


_Cut = Callable[[Document, Sequence[str], random.Random], DrawnPair | None]


def _draw(documents: Iterable[Document], columns: Sequence[str], size: int, cut: _Cut) -> list[DrawnPair]:
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
            f"{LEAST_PAIRS}. Keep the default recipe, or tune with judgements of your own (--beir)."
        )
    return pairs


class _Smallest:
    """The pairs with the smallest hashes so far."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[tuple[int, str, DrawnPair]] = []  # the largest hash on top, so hashes are negative

    def takes(self, value: int) -> bool:
        return len(self._heap) < self._size or value < -self._heap[0][0]

    def add(self, value: int, pair: DrawnPair) -> None:
        heapq.heappush(self._heap, (-value, pair.id, pair))
        if len(self._heap) > self._size:
            heapq.heappop(self._heap)

    def pairs(self) -> Iterator[DrawnPair]:
        return (pair for _, _, pair in sorted(self._heap, key=lambda entry: (-entry[0], entry[1])))


def _piece(document: Document, columns: Sequence[str], chance: random.Random) -> DrawnPair | None:
    """A piece and the rest; None when the document is too short."""
    body = joined_text(document, [name for name in columns if name != "title"])
    title = (document.title or "").strip() if "title" in columns else ""
    sentences = [sentence.strip() for sentence in _SENTENCE_END.split(body) if sentence.strip()]
    for place, sentence in enumerate(sentences):
        if len(_words(sentence)) in _SENTENCE_WORDS and len(sentences) > 1:
            return DrawnPair(document.id, "sentence", sentence, " ".join(sentences[:place] + sentences[place + 1 :]))
    if title and len(_words(body)) >= _LEAST_WORDS:
        return DrawnPair(document.id, "title", title, body)
    return _window(document, columns, chance)


def _window(document: Document, columns: Sequence[str], chance: random.Random) -> DrawnPair | None:
    text = joined_text(document, columns)
    words = _words(text)
    if len(words) < _LEAST_WORDS:
        return None
    size = min(_WINDOW_WORDS, len(words) // 2)
    start = chance.randrange(len(words) - size + 1)
    question = words[start : start + size]
    left = [word for word in question if chance.random() < _LEFT_SHARE]
    rest = words[:start] + left + words[start + size :]
    return DrawnPair(document.id, "window", _joined(question), _joined(rest))


def _copies(document: Document, columns: Sequence[str], chance: random.Random) -> DrawnPair | None:
    text = joined_text(document, columns)
    words = _words(text)
    if len(words) < _LEAST_WORDS:
        return None
    first, second = (_joined([word for word in words if chance.random() < _COPIED_SHARE]) for _ in range(2))
    return DrawnPair(document.id, "copy", first, second, text) if first and second else None


def _words(text: str) -> list[str]:
    """Words, or single characters of a script that is written without spaces."""
    return _WORD.findall(text)


def _joined(words: Sequence[str]) -> str:
    """Words with spaces between them, except between two of a script without."""
    joined = " ".join(words)
    return re.sub(f"(?<={_UNSPACED.pattern}) (?={_UNSPACED.pattern})", "", joined)


_BLOCK = 1024  # questions compared at once
_FUSED_BLOCK = 128  # the same where they are fused with BM25, by one weight after another


@dataclass(frozen=True)
class Questions:
    """Embeddings of pairs under every (layers, pooling): row i of `queries` asks for document i.

    The rows of document i in `documents` start at `starts[i]`: one, or one for each of its windows.
    `fits` are the moments each transform is fitted on. With `role` "document" both sides are treated alike, as STS
    and de-duplication treat them; with "query" the questions are centred by their own mean, as queries are by that
    of query-like texts.
    """

    queries: Mapping[PoolingKey, Float32Array]
    documents: Mapping[PoolingKey, Float32Array]
    starts: npt.NDArray[np.int64]
    fits: Mapping[PoolingKey, Moments]
    role: Role


def measure(questions: Questions, settings: Sequence[Setting]) -> list[MeasuredSetting]:
    """Every setting's reciprocal ranks."""
    return [_measured(questions, setting) for setting in settings]


def reciprocal_ranks(
    queries: Float32Array, documents: Float32Array, starts: npt.NDArray[np.int64] | None = None
) -> Float64Array:
    """1 / rank of document i for row i of `queries` (n, k) by the inner product of its best row, (n,).

    `documents` (rows, k) has one row for each, or those of document i from `starts[i]` on. Documents that tie with
    the own one count half, so that duplicates favour nobody.
    """
    found = []
    for start in range(0, len(queries), _BLOCK):
        block = slice(start, start + _BLOCK)
        scores = queries[block] @ documents.T
        if starts is not None and len(starts) < len(documents):
            scores = np.maximum.reduceat(scores, starts, axis=1)
        found.append(_own_ranks(scores, start))
    return np.concatenate(found)


def _own_ranks(scores: Float32Array | Float64Array, first: int) -> Float64Array:
    """1 / rank of document first + i in row i of the scores (m, n)."""
    wide: Float64Array = np.asarray(scores, np.float64)
    own = np.take_along_axis(wide, np.arange(first, first + len(wide))[:, None], axis=1)
    better, equal = (wide > own).sum(axis=1), (wide == own).sum(axis=1)
    ranks: Float64Array = 1 / (better + (equal + 1) / 2)
    return ranks


def fused_ranks(
    questions: Questions, setting: Setting, words: Iterator[Scores], fusions: Sequence[HybridConfig]
) -> list[Float64Array]:
    """For each fusion `reciprocal_ranks` of the setting fused with BM25, (n,): `words` scores every document (n,) for
    one question after the other."""
    _, (queries, documents) = _vectors(questions, setting)
    found: list[list[Float64Array]] = [[] for _ in fusions]
    for start in range(0, len(queries), _FUSED_BLOCK):
        rows = queries[start : start + _FUSED_BLOCK] @ documents.T
        near = rows
        if len(questions.starts) < len(documents):
            near = np.maximum.reduceat(rows, questions.starts, axis=1)
        bm25 = np.stack([next(words) for _ in rows])
        both = BothScores(near, bm25, Spread.of(rows[:, drawn_rows(len(documents))]), Spread.of(bm25))
        for ranks, fusion in zip(found, fusions, strict=True):
            ranks.append(_own_ranks(both.combined(fusion), start))
    return [np.concatenate(ranks) for ranks in found]


def _best_rows(scores: Scores, starts: npt.NDArray[np.int64]) -> RowIds:
    """For each question the best row of each document, (questions, documents), by scores (questions, rows)."""
    ends = [*starts[1:].tolist(), scores.shape[1]]
    best = [scores[:, start:end].argmax(axis=1) + start for start, end in zip(starts.tolist(), ends, strict=True)]
    return np.stack(best, axis=1)


def _vectors(questions: Questions, setting: Setting) -> tuple[Transform, tuple[Vectors, Vectors]]:
    """The fitted transform, and what it makes of the questions and of what they ask for."""
    asked, answers = questions.queries[setting.key], questions.documents[setting.key]
    transform = _fitted(questions, setting, asked)
    return transform, (transform.transform(asked, questions.role), transform.transform(answers, "document"))


def _measured(questions: Questions, setting: Setting) -> MeasuredSetting:
    transform, sides = _vectors(questions, setting)
    values = reciprocal_ranks(*sides, questions.starts)
    digest = None if setting.raw else transform_hash(transform)
    return MeasuredSetting(setting, values, transform.dim, digest, transform.settings()["note"])


def _fitted(questions: Questions, setting: Setting, asked: Float32Array) -> Transform:
    # Of moments only the mean is used for queries; their scatter would cost as much as the fit.
    mean = Moments(len(asked), asked.mean(axis=0, dtype=np.float64), np.zeros((0, 0)))
    return fit_setting(setting, questions.fits[setting.key], mean)


Objective = Literal["retrieval", "sts"]


@dataclass
class UnlabelledJudge:
    """Pairs of a corpus, encoded once for every layer and pooling of `settings`.

    For retrieval a piece of a document asks for the rest of it; for STS two broken copies of a document ask for
    each other, and both sides are treated as documents. Where documents are chunked, what is asked for is, and counts
    by its best window; the broken copies stay whole.
    """

    subject: Target
    documents: Callable[[], Iterable[Document]]
    objective: Objective
    size: int
    cache: Path | None = None
    progress: Progress = field(default_factory=NoProgress)

    def prepare(self, settings: Sequence[Setting]) -> None:
        """Draw the pairs and encode them."""
        draw = draw_pairs if self.objective == "retrieval" else draw_copies
        self.progress.phase("reading", None)
        self.pairs: list[DrawnPair] = draw(self._watched(), self.subject.config.corpus.text, self.size)
        role: Role = "query" if self.objective == "retrieval" else "document"
        self.source = self.subject.states(list(settings), self.cache, self.progress)
        queries, answers = [pair.query for pair in self.pairs], [pair.document for pair in self.pairs]
        starts = np.arange(len(answers))
        if self.objective == "retrieval":
            answers, starts = self._rows(answers)
        asked, rest = self.source.encode(queries, role), self.source.encode(answers, "document")
        keys = state_keys(settings)
        documents = {key: rest.of(answers, key) for key in keys}
        fits = self._fits(keys, documents)
        self.questions = Questions({key: asked.of(queries, key) for key in keys}, documents, starts, fits, role)

    @property
    def protocol(self) -> dict[str, Any]:
        """What provenance says of the measure."""
        return {"measure": "MRR", "kind": "questions drawn from the documents", "questions": len(self.pairs)}

    @property
    def data(self) -> dict[str, str]:
        """Nothing but the corpus was read."""
        return {}

    @property
    def notes(self) -> list[str]:
        """What is not as asked."""
        found = []
        if len(self.pairs) < self.size:
            short = "the other documents cannot be cut in two, or repeat one that is taken"
            found.append(f"{len(self.pairs):,} questions instead of {self.size:,}: {short}")
        if cut := self.source.log.truncated:
            found.append(f"{counted(cut, 'text')} cut at {self.source.spec.identity.max_length} tokens")
        return found

    def measure(self, settings: Sequence[Setting]) -> Iterator[MeasuredSetting]:
        """Every setting on the same pairs."""
        self.progress.phase("comparing settings", len(settings))
        for setting in settings:
            yield from measure(self.questions, [setting])
            self.progress.advance(1)

    def weigh(self, setting: Setting, fusions: Sequence[HybridConfig]) -> list[Float64Array]:
        """What the setting scores on each question, fused with BM25 in each of these ways."""
        self.progress.phase("comparing weights", None)
        config, texts = self.subject.config.hybrid, [pair.document for pair in self.pairs]
        cut, starts = self._rows(texts) if config.unit == "window" else (texts, None)
        words = BM25Ranking.of(cut, np.arange(len(texts)), config, "hybrid", starts)
        return fused_ranks(self.questions, setting, words.scores([pair.query for pair in self.pairs]), fusions)

    @property
    def centre_margin(self) -> float:
        """`CENTRE_MARGIN` for retrieval; both sides of a pair for STS are alike, and favour no centre."""
        return CENTRE_MARGIN if self.objective == "retrieval" else 0.0

    def first_hits(self, setting: Setting) -> FirstHits:
        """What the setting finds for some of the questions, to be reranked: the rests of documents, or their windows.

        A ranking scores the reciprocal rank of the question's own document.
        """
        pairs = self.pairs[:QUESTIONS]
        texts, starts = self._rows([pair.document for pair in self.pairs])
        _, (queries, rows) = _vectors(self.questions, setting)
        scores = queries[: len(pairs)] @ rows.T
        best = _best_rows(scores, starts)
        near = np.take_along_axis(scores, best, axis=1)
        places = id_order([pair.id for pair in self.pairs])
        ranked = [np.lexsort((places, -own)) for own in near]
        found = [(own[order], order) for own, order in zip(near, ranked, strict=True)]

        def read(query: int, documents: RowIds) -> list[str]:
            return [texts[row] for row in best[query, documents].tolist()]

        def judge(rankings: Sequence[SearchResult]) -> Float64Array:
            return np.array(
                [1 / (1 + np.flatnonzero(ranked == own)[0]) for own, (_, ranked) in enumerate(rankings)], np.float64
            )

        return FirstHits([pair.query for pair in pairs], found, read, places, judge)

    def _fits(
        self, keys: Sequence[PoolingKey], documents: Mapping[PoolingKey, Float32Array]
    ) -> dict[PoolingKey, Moments]:
        """Of the index's own embeddings where it has them; else of what the pairs ask for, or of whole documents."""
        index, own = self.subject.index, self.subject.own.key
        found = {own: self.subject.moments} if index is not None and own in keys else {}
        if missing := [key for key in keys if key not in found]:
            texts, _ = self._rows([pair.fitted_on for pair in self.pairs])
            rows = self.source.encode(texts).rows if self.pairs[0].whole else documents
            found |= {key: Moments.of(rows[key]) for key in missing}
        return found

    def _rows(self, texts: list[str]) -> tuple[list[str], npt.NDArray[np.int64]]:
        """The texts, or their windows, as a build encodes them, and where those of each text start."""
        cut = DocumentChunker(self.subject.spec, self.subject.config.chunk)(texts)
        if cut.windows is None:
            return cut.texts, np.arange(len(texts))
        return cut.texts, np.searchsorted(cut.windows.document, np.arange(len(texts)))

    def _watched(self) -> Iterator[Document]:
        for document in self.documents():
            self.progress.advance(1)
            yield document
