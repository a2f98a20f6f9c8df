"""Measurement of settings without labels: a piece of a document is the query, the rest of the document the answer.

    sentence   the first sentence is the query, the other sentences are the answer
    title      the title is the query, a text of one sentence the answer
    window     up to ten successive words of any other document are the query; one in ten of them also stays in the
               answer, because real queries share words with their answers, and BM25 needs shared words
    copy       one word in four, picked at random, is the query; a second such pick from the document is the answer

The first three are for retrieval: like queries, they are short compared with their answers. Two halves of a document
have the same length, so they do not show the offset between queries and documents. The first sentence tends to name
the subject of a document; sentences from the middle favour early layers, which represent words, over late layers,
which represent meaning. `copy` is for similarity, where both sides are alike.

The documents are those with the smallest hashes of their ids, so the pairs do not depend on the order of the corpus.
Only the pairs are encoded. The score of a setting is the mean reciprocal rank of the document of each question.
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
from indexer.encoders.document_windows import DocumentChunker
from indexer.errors import EvaluationError, as_argument
from indexer.hashing import hash_id
from indexer.models.identity import PoolingKey
from indexer.moments import Moments
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import Role
from indexer.recipe.ranking import HybridConfig
from indexer.transforms import Transform
from search.evaluation.sweep import Setting, fit_setting, state_keys, transform_hash
from search.evaluation.target import Target
from search.evaluation.tune.choice import MeasuredSetting
from search.evaluation.tune.rerank_depth import QUESTIONS, FirstHits
from search.formatting import counted
from search.index import Index
from search.ranking.bm25 import BM25Ranking
from search.ranking.exact import id_order
from search.ranking.fusion import BothScores, Spread, drawn_rows

Kind = Literal["sentence", "title", "window", "copy"]
Objective = Literal["retrieval", "sts"]
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])\s*|\n+")  # also East Asian full stops
# Scripts without spaces: each character counts as a word, and pieces are joined without spaces.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_WORD = re.compile(f"{_UNSPACED.pattern}|(?:(?!{_UNSPACED.pattern})\\S)+")
_SENTENCE_WORDS = range(4, 41)  # shorter is a heading, longer is unlike a query
_WINDOW_WORDS, _LEAST_WORDS = 10, 8
_LEFT_SHARE = 0.1  # of a window's words
_COPIED_SHARE = 0.25
LEAST_PAIRS = 50
CENTRE_MARGIN = 0.04  # of mean reciprocal rank; see docs/benchmarks.md, "The centre without labels"


@dataclass(frozen=True)
class DrawnPair:
    """A query-like text and the rest of its document (`id`)."""

    id: str
    kind: Kind
    query: str
    document: str
    whole: str = ""  # the whole text, if `document` is unlike the texts of the corpus

    @property
    def fitted_on(self) -> str:
        """The text that transforms are fitted on."""
        return self.whole or self.document


def draw_pairs(
    documents: Iterable[Document], columns: Sequence[str], size: int, objective: Objective = "retrieval"
) -> list[DrawnPair]:
    """Return at most `size` pairs, one per document: a piece, of the first possible kind, and the rest.

    For "sts" they are two broken copies of a document. `columns` are the encoded ones (`corpus.text`). Documents with
    the same rest give one pair. The documents are read once and at most `size` pairs are held. Raises EvaluationError
    for fewer than `LEAST_PAIRS` pairs.
    """
    cut = _piece if objective == "retrieval" else _copies
    heap: list[tuple[int, str, DrawnPair]] = []  # negated hashes: the largest hash is on top
    read = 0
    for document in documents:
        read += 1
        value = hash_id(document.id)
        if len(heap) == size and value >= -heap[0][0]:
            continue
        # All random choices derive from the id, so every run in any order of the corpus gives the same pairs.
        if pair := cut(document, columns, random.Random(value)):  # noqa: S311
            heapq.heappush(heap, (-value, pair.id, pair))
            if len(heap) > size:
                heapq.heappop(heap)
    drawn = [pair for _, _, pair in sorted(heap, key=lambda entry: (-entry[0], entry[1]))]
    pairs = list({pair.document: pair for pair in drawn}.values())
    if len(pairs) < LEAST_PAIRS:
        repeated = f", and {len(drawn) - len(pairs):,} repeat another" if len(drawn) > len(pairs) else ""
        raise EvaluationError(
            f"only {len(pairs):,} of {read:,} documents can be split into a question and its answer (at least "
            f"{_LEAST_WORDS} words, or characters of a script without spaces{repeated}), too few to tune on; expected "
            f"{LEAST_PAIRS}. Fix: keep the default recipe, or tune with your own judgements ({as_argument('beir')})."
        )
    return pairs


def pairs_of_index(index: Index, size: int, too_few_to: str) -> list[DrawnPair]:
    """Return at most `size` pairs of the index's documents.

    Raises EvaluationError if there are too few; `too_few_to` ends its first sentence, and says what to do instead.
    """
    try:
        return draw_pairs(index.documents.all_documents(), index.config.corpus.text, size)
    except EvaluationError as error:
        found = str(error).partition(", too few")[0]
        raise EvaluationError(f"{index.path}: {found}, too few to {too_few_to}") from error


def _piece(document: Document, columns: Sequence[str], chance: random.Random) -> DrawnPair | None:
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
    return _WORD.findall(text)


def _joined(words: Sequence[str]) -> str:
    return re.sub(f"(?<={_UNSPACED.pattern}) (?={_UNSPACED.pattern})", "", " ".join(words))


_BLOCK = 1024  # questions compared at once
_FUSED_BLOCK = 128  # questions fused with BM25 at once


@dataclass(frozen=True)
class Questions:
    """Embeddings of pairs for every (layers, pooling): the answer of row i of `queries` is document i.

    The rows of document i in `documents` start at `starts[i]`: one, or one for each window. `fits` are the moments
    that each transform is fitted on. With `role` "document" both sides are treated alike, as in STS and
    de-duplication; with "query" the questions are centred by their own mean.
    """

    queries: Mapping[PoolingKey, Float32Array]
    documents: Mapping[PoolingKey, Float32Array]
    starts: npt.NDArray[np.int64]
    fits: Mapping[PoolingKey, Moments]
    role: Role


def reciprocal_ranks(
    queries: Float32Array,
    documents: Float32Array,
    starts: npt.NDArray[np.int64] | None = None,
    answers: npt.NDArray[np.int64] | None = None,
) -> Float64Array:
    """Return 1 / rank of document i (or `answers[i]`) for row i of `queries` (n, k) by its best row, (n,).

    `documents` (rows, k) has one row for each document, or the rows of document i from `starts[i]` on. Documents that
    tie with the answer count half, so duplicates favour no setting.
    """
    ranks = []
    for start in range(0, len(queries), _BLOCK):
        scores = queries[start : start + _BLOCK] @ documents.T
        if starts is not None and len(starts) < len(documents):
            scores = np.maximum.reduceat(scores, starts, axis=1)
        right = np.arange(start, start + len(scores)) if answers is None else answers[start : start + _BLOCK]
        ranks.append(_answer_ranks(scores, right))
    return np.concatenate(ranks)


def _answer_ranks(scores: Float32Array | Float64Array, answers: npt.NDArray[np.int64]) -> Float64Array:
    """Return 1 / rank of document `answers[i]` in row i of the scores (m, n)."""
    wide: Float64Array = np.asarray(scores, np.float64)
    answer = np.take_along_axis(wide, answers[:, None], axis=1)
    better, equal = (wide > answer).sum(axis=1), (wide == answer).sum(axis=1)
    ranks: Float64Array = 1 / (better + (equal + 1) / 2)
    return ranks


def fused_ranks(
    questions: Questions, setting: Setting, words: Iterator[Scores], fusions: Sequence[HybridConfig]
) -> list[Float64Array]:
    """Return `reciprocal_ranks` (n,) of the setting for each fusion with BM25.

    `words` yields the BM25 scores of all documents (n,) for each question.
    """
    _, (queries, documents) = _vectors(questions, setting)
    by_fusion: list[list[Float64Array]] = [[] for _ in fusions]
    for start in range(0, len(queries), _FUSED_BLOCK):
        rows = queries[start : start + _FUSED_BLOCK] @ documents.T
        near = np.maximum.reduceat(rows, questions.starts, axis=1)
        bm25 = np.stack([next(words) for _ in rows])
        both = BothScores(near, bm25, Spread.of(rows[:, drawn_rows(len(documents))]), Spread.of(bm25))
        for ranks, fusion in zip(by_fusion, fusions, strict=True):
            ranks.append(_answer_ranks(both.combined(fusion), np.arange(start, start + len(rows))))
    return [np.concatenate(ranks) for ranks in by_fusion]


def _best_rows(scores: Scores, starts: npt.NDArray[np.int64]) -> RowIds:
    """Return the best row of each document for each question, (questions, documents), by scores (questions, rows)."""
    ends = [*starts[1:].tolist(), scores.shape[1]]
    best = [scores[:, start:end].argmax(axis=1) + start for start, end in zip(starts.tolist(), ends, strict=True)]
    return np.stack(best, axis=1)


def _vectors(questions: Questions, setting: Setting) -> tuple[Transform, tuple[Vectors, Vectors]]:
    """Return the fitted transform, and the vectors of the questions and of the answers."""
    queries, answers = questions.queries[setting.key], questions.documents[setting.key]
    # Only the mean of the queries is used; their scatter would cost as much as the fit.
    mean = Moments(len(queries), queries.mean(axis=0, dtype=np.float64), np.zeros((0, 0)))
    transform = fit_setting(setting, questions.fits[setting.key], mean)
    return transform, (transform.transform(queries, questions.role), transform.transform(answers, "document"))


@dataclass
class UnlabelledJudge:
    """Pairs drawn from a corpus, encoded once for every layer and pooling of `settings`.

    For retrieval they are a piece and the rest of a document; for STS two broken copies of a document, both treated
    as documents. In a chunked corpus answers are chunked and score by their best window; broken copies stay whole.
    """

    subject: Target
    documents: Callable[[], Iterable[Document]]
    objective: Objective
    size: int
    cache: Path | None = None
    progress: Progress = field(default_factory=NoProgress)
    data: dict[str, str] = field(default_factory=dict, init=False)  # hashes of files besides the corpus

    def prepare(self, settings: Sequence[Setting]) -> None:
        """Draw the pairs and encode them."""
        self.progress.phase("reading", None)
        self.pairs = draw_pairs(self._watched(), self.subject.config.corpus.text, self.size, self.objective)
        role: Role = "query" if self.objective == "retrieval" else "document"
        self.source = self.subject.states(list(settings), self.cache, self.progress)
        queries, answers = [pair.query for pair in self.pairs], [pair.document for pair in self.pairs]
        starts = np.arange(len(answers))
        if self.objective == "retrieval":
            answers, starts = self._rows(answers)
        query_states, answer_states = self.source.encode(queries, role), self.source.encode(answers, "document")
        keys = state_keys(settings)
        documents = {key: answer_states.of(answers, key) for key in keys}
        fits = self._fits(keys, documents)
        self.questions = Questions({key: query_states.of(queries, key) for key in keys}, documents, starts, fits, role)

    @property
    def protocol(self) -> dict[str, Any]:
        """The measure, for provenance."""
        return {"measure": "MRR", "kind": "questions drawn from the documents", "questions": len(self.pairs)}

    @property
    def notes(self) -> list[str]:
        """Deviations from the request."""
        notes = []
        if len(self.pairs) < self.size:
            short = "the other documents cannot be split, or repeat a drawn document"
            notes.append(f"{len(self.pairs):,} questions instead of {self.size:,}: {short}")
        if cut := self.source.log.truncated:
            notes.append(f"{counted(cut, 'text')} truncated at {self.source.spec.identity.max_length} tokens")
        return notes

    def measure(self, settings: Sequence[Setting]) -> Iterator[MeasuredSetting]:
        """Yield the scores of every setting on the same pairs."""
        self.progress.phase("comparing settings", len(settings))
        for setting in settings:
            transform, sides = _vectors(self.questions, setting)
            values = reciprocal_ranks(*sides, self.questions.starts)
            digest = None if setting.raw else transform_hash(transform)
            yield MeasuredSetting(setting, values, transform.dim, digest, transform.settings()["note"])
            self.progress.advance(1)

    def weigh(self, setting: Setting, fusions: Sequence[HybridConfig]) -> list[Float64Array]:
        """Return the scores of the setting on each question, fused with BM25 by each of `fusions`."""
        self.progress.phase("comparing weights", None)
        config, texts = self.subject.config.hybrid, [pair.document for pair in self.pairs]
        cut, starts = self._rows(texts) if config.unit == "window" else (texts, None)
        words = BM25Ranking.of(cut, np.arange(len(texts)), config, "hybrid", starts)
        return fused_ranks(self.questions, setting, words.scores([pair.query for pair in self.pairs]), fusions)

    @property
    def centre_margin(self) -> float:
        """`CENTRE_MARGIN` for retrieval; 0 for STS, whose pairs favour no centre because both sides are alike."""
        return CENTRE_MARGIN if self.objective == "retrieval" else 0.0

    def first_hits(self, setting: Setting) -> FirstHits:
        """Return the hits (answers or windows) of the setting for the first `QUESTIONS` questions, to be reranked.

        The score of a ranking is the reciprocal rank of the answer.
        """
        pairs = self.pairs[:QUESTIONS]
        texts, starts = self._rows([pair.document for pair in self.pairs])
        _, (queries, rows) = _vectors(self.questions, setting)
        scores = queries[: len(pairs)] @ rows.T
        best = _best_rows(scores, starts)
        near = np.take_along_axis(scores, best, axis=1)
        places = id_order([pair.id for pair in self.pairs])
        orders = [np.lexsort((places, -row)) for row in near]
        hits = [(row[order], order) for row, order in zip(near, orders, strict=True)]

        def read(query: int, documents: RowIds) -> list[str]:
            return [texts[row] for row in best[query, documents].tolist()]

        def judge(rankings: Sequence[SearchResult]) -> Float64Array:
            ranks = [1 + np.flatnonzero(ranked == query)[0] for query, (_, ranked) in enumerate(rankings)]
            return np.array([1 / rank for rank in ranks], np.float64)

        return FirstHits([pair.query for pair in pairs], hits, read, places, judge)

    def _fits(
        self, keys: Sequence[PoolingKey], documents: Mapping[PoolingKey, Float32Array]
    ) -> dict[PoolingKey, Moments]:
        """Return moments of the index's embeddings if it has them, else of the answers or the whole documents."""
        index, own = self.subject.index, self.subject.own.key
        fits = {own: self.subject.moments} if index is not None and own in keys else {}
        if missing := [key for key in keys if key not in fits]:
            texts, _ = self._rows([pair.fitted_on for pair in self.pairs])
            rows = self.source.encode(texts).rows if self.pairs[0].whole else documents
            fits |= {key: Moments.of(rows[key]) for key in missing}
        return fits

    def _rows(self, texts: list[str]) -> tuple[list[str], npt.NDArray[np.int64]]:
        """Return the texts or their windows, as a build encodes them, and the start of each text's rows."""
        config = self.subject.config
        cut = DocumentChunker(self.subject.spec, config.chunk, ("text",))([Document("", text) for text in texts])
        if cut.windows is None:
            return cut.texts, np.arange(len(texts))
        return cut.texts, np.searchsorted(cut.windows.document, np.arange(len(texts)))

    def _watched(self) -> Iterator[Document]:
        for document in self.documents():
            self.progress.advance(1)
            yield document
