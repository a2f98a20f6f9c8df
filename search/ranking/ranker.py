"""What a question may ask for, and the documents that answer it: filtered, one hit a document, one a group.

Candidates come from one of three sources: rows by inner product, rows by Jensen-Shannon divergence, or documents by
reciprocal rank fusion with BM25. ONE loop (`collect`) asks a source for more until k documents are there.
"""

import dataclasses
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from indexer.arrays import Embeddings, Int64Array, Mask, RowIds, Scores, Vectors
from indexer.errors import ConfigError
from indexer.progress import Progress
from search.hits import Answer
from search.index import Index
from search.ranking.divergence import first_reach, rank_by_divergence, require_mixtures, require_probabilities
from search.ranking.documents import Groups, RankedDocument, best_rows, break_ties, group_codes
from search.ranking.options import SearchOptions as SearchOptions
from search.ranking.options import Similarity as Similarity
from search.ranking.options import require_texts as require_texts
from search.segments import MissingRows

if TYPE_CHECKING:
    from search.filters import MetadataFilter
    from search.ranking.bm25 import BM25Index
    from search.ranking.folding import Folding

_GROUPINGS = 4  # columns whose values are kept
_SPARE = 2  # times k rows are asked for first where some may be folded
_WIDER = 4  # times as many candidates, when the first gave too few documents
_BATCH = 256  # queries answered at once


@dataclass(frozen=True)
class EncodedQueries:
    """Queries as they are compared: unit `vectors` (n, k), made of raw `embeddings` (n, d) and those of `texts`.

    None stands for what was not given.
    """

    vectors: Vectors
    embeddings: Embeddings | None = None
    texts: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, some: slice) -> "EncodedQueries":
        raw, texts = self.embeddings, self.texts
        return EncodedQueries(
            self.vectors[some], None if raw is None else raw[some], None if texts is None else texts[some]
        )

    def require_for(self, options: SearchOptions) -> None:
        """Raises ConfigError where these options need what was not given."""
        if options.similarity == "js":
            _ = self.mixtures
        if options.hybrid:
            _ = self.words

    @property
    def mixtures(self) -> Embeddings:
        """The raw embeddings, to compare as distributions. Raises ConfigError where there are only vectors."""
        if self.embeddings is None:
            raise ConfigError('similarity "js" compares raw embeddings: give encoder.encode(texts, "query").')
        return self.embeddings

    @property
    def words(self) -> Sequence[str]:
        """The texts, for BM25. Raises ConfigError where there are none."""
        if self.texts is None:
            raise ConfigError("hybrid search needs the text of a query, not its vector.")
        return self.texts


@dataclass(frozen=True)
class Candidates:
    """Documents found for one query, best first, ties by id.

    `complete`: a further reach would find nothing more. No row that was not compared scores more than `bound`.
    """

    documents: list[RankedDocument]
    complete: bool
    bound: float = -math.inf


Source = Callable[[list[int], int], list[Candidates]]
"""Candidates of some queries, by their numbers, at a reach: how many are asked for."""


@dataclass(frozen=True)
class Wanted:
    """The best `k` documents, one of each of the `groups`; `proved` that no other is better.

    With `folding`, near-duplicates among the first of their groups are folded under the better one, and k stay.
    """

    k: int
    groups: Groups
    proved: bool = False
    folding: "Folding | None" = None

    def choose(self, query: int, found: Candidates) -> tuple[list[RankedDocument], bool]:
        """Those that are wanted of the candidates of a query, and whether further candidates would change nothing."""
        chosen = firsts = self.groups.first_of(found.documents)
        needed = self.k
        if self.folding is not None:
            chosen, needed = self.folding.hits(query, firsts, self.k)
        needed = min(needed, self.groups.count)
        met = len(firsts) >= needed and (not self.proved or not needed or firsts[needed - 1].score >= found.bound)
        return chosen, met or found.complete


def collect(queries: int, source: Source, reach: int, wanted: Wanted) -> list[list[RankedDocument]]:
    """What is wanted of each query, or all there is: more is asked for until it is there. THE widening loop.

    An answer may hold more than k documents: those that the last step found.
    """
    answers: list[list[RankedDocument]] = [[] for _ in range(queries)]
    pending = list(range(queries))
    while pending:
        short = []
        for query, found in zip(pending, source(pending, reach), strict=True):
            answers[query], done = wanted.choose(query, found)
            if not done:
                short.append(query)
        pending, reach = short, reach * _WIDER
    return answers


class DocumentRanker:
    """Ranks the documents of an open index; what filters and groupings have read stays for the next question.

    Safe to share between threads.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._codes: OrderedDict[str, Int64Array] = OrderedDict()
        self._bm25: BM25Index | None = None
        self._filters: MetadataFilter | None = None
        # Of what is made by the first who needs it. None of them is held while another is waited for.
        self._codes_lock, self._bm25_lock, self._filters_lock = (threading.Lock() for _ in range(3))

    def allowed(self, options: SearchOptions) -> Mask | None:
        """Which documents may be found, (documents,); None: all. Raises ConfigError."""
        if options.similarity == "js":
            require_probabilities(self._index)
        if options.group_by is not None:
            self._codes_of(options.group_by)
        if options.where is None:
            return None
        mask = np.zeros(self._index.manifest.documents, bool)
        mask[self._matching(options.where)] = True
        return mask

    def bm25(self, progress: Progress | None = None) -> "BM25Index":
        """BM25 of the documents: read from the cache, or made at the first call."""
        from search.ranking.bm25 import BM25Index

        with self._bm25_lock:
            if self._bm25 is None:
                self._bm25 = BM25Index(self._index, progress)
            return self._bm25

    def rank(
        self, queries: EncodedQueries, options: SearchOptions, allowed: Mask | None = None
    ) -> list[Answer[RankedDocument]]:
        """The best documents of each query, at most k, best first, ties by id. `allowed` as that method gives it.

        Raises ConfigError for queries that `options` cannot be asked of.
        """
        if options.similarity == "js":
            require_mixtures(self._index, queries.mixtures)
        groups = self._groups(options, allowed)
        answers: list[list[RankedDocument]] = []
        missing = MissingRows() if options.partial else None
        for start in range(0, len(queries), _BATCH):
            some = queries[start : start + _BATCH]
            source, reach = self._source(some, options, allowed, missing)
            wanted = Wanted(options.k, groups, options.exact, self._folding(options, some.vectors))
            answers += collect(len(some), source, reach, wanted)
        cut = [_above(documents, options.min_score)[: options.k] for documents in answers]
        ranked = self._with_rows(cut, queries.vectors) if options.hybrid else cut
        return [Answer(documents, missing.segments if missing else ()) for documents in ranked]

    def neighbours(self, document: int, options: SearchOptions, allowed: Mask | None) -> Answer[RankedDocument]:
        """The best documents for a stored one, without itself: each by its best pair of rows."""
        others = np.ones(self._index.manifest.documents, bool) if allowed is None else allowed.copy()
        others[document] = False
        rows = self._index.numbering.rows_of(np.array([document]))
        own = EncodedQueries(self._index.vectors(rows), self._index.embeddings(rows))
        if options.fold is None:
            return self._nearest(own, options, others)
        found = Answer[RankedDocument]()

        def candidates(_: list[int], reach: int) -> list[Candidates]:
            nonlocal found
            found = self._nearest(own, dataclasses.replace(options, k=reach, fold=None), others)
            return [Candidates(found, len(found) < reach)]

        wanted = Wanted(options.k, self._groups(options, others), folding=self._folding(options, own.vectors))
        (chosen,) = collect(1, candidates, _SPARE * options.k, wanted)
        return Answer(chosen, found.missing)

    def _nearest(self, own: EncodedQueries, options: SearchOptions, others: Mask) -> Answer[RankedDocument]:
        """The best documents for any of these queries, each by the one that it is closest to."""
        best: dict[int, RankedDocument] = {}
        answers = self.rank(own, options, others)
        for found in (found for answer in answers for found in answer):
            if found.document not in best or found.score > best[found.document].score:
                best[found.document] = found
        ranked = break_ties(sorted(best.values(), key=lambda found: -found.score), self._index.documents.ids)
        return Answer(self._groups(options, others).first_of(ranked)[: options.k], answers[0].missing)

    # --- sources of candidates, each with its first reach

    def _source(
        self, queries: EncodedQueries, options: SearchOptions, allowed: Mask | None, missing: MissingRows | None
    ) -> tuple[Source, int]:
        if options.hybrid:
            from search.ranking.fusion import list_depth

            return self._by_fusion(queries, options.exact, allowed, missing), list_depth(options.k)
        if options.similarity == "js":
            return self._by_divergence(queries.mixtures, options.exact, allowed, missing), first_reach(options.k)
        reach = options.k if options.fold is None else _SPARE * options.k
        return self._by_vector(queries.vectors, options.exact, allowed, missing), reach

    def _by_vector(self, vectors: Vectors, exact: bool, allowed: Mask | None, missing: MissingRows | None) -> Source:
        """Documents by the inner product of their rows."""
        rows, count = self._rows(allowed)

        def candidates(pending: list[int], reach: int) -> list[Candidates]:
            found = self._index.search(vectors[pending], reach, rows, exact, missing)
            return [Candidates(self._documents(scores, best), reach >= count) for scores, best in found]

        return candidates

    def _by_divergence(
        self, mixtures: Embeddings, exact: bool, allowed: Mask | None, missing: MissingRows | None
    ) -> Source:
        """Documents by the Jensen-Shannon divergence of their rows."""
        rows, count = self._rows(allowed)

        def candidates(pending: list[int], reach: int) -> list[Candidates]:
            found = rank_by_divergence(self._index, mixtures[pending], reach, rows, exact, missing)
            return [Candidates(self._documents(one.scores, one.rows), reach >= count, one.bound) for one in found]

        return candidates

    def _by_fusion(
        self, queries: EncodedQueries, exact: bool, allowed: Mask | None, missing: MissingRows | None
    ) -> Source:
        """Documents by reciprocal rank fusion of the vectors' ranking and that of BM25, each as deep as the reach."""
        from search.ranking.fusion import reciprocal_rank_fusion

        words, bm25 = queries.words, self.bm25()
        apart = Groups(None, self._index.manifest.documents, allowed)

        def candidates(pending: list[int], reach: int) -> list[Candidates]:
            near_source = self._by_vector(queries.vectors[pending], exact, allowed, missing)
            by_vector = collect(len(pending), near_source, reach, Wanted(reach, apart))
            by_words = bm25.search([words[query] for query in pending], reach, allowed)
            found = []
            for near, (_, numbers) in zip(by_vector, by_words, strict=True):
                rows = {one.document: one.row for one in near}
                fused = reciprocal_rank_fusion([[one.document for one in near], numbers.tolist()], reach)
                documents = [RankedDocument(number, score, rows.get(number, -1)) for score, number in fused]
                complete = max(len(near), len(numbers)) < reach
                found.append(Candidates(break_ties(documents, bm25.places), complete))
            return found

        return candidates

    def _documents(self, scores: Scores, rows: RowIds) -> list[RankedDocument]:
        return best_rows(scores, rows, self._index.numbering, self._index.documents.ids)

    def _with_rows(self, answers: list[list[RankedDocument]], vectors: Vectors) -> list[list[RankedDocument]]:
        """The same; documents that only their words brought there get the row that is closest to the query's vector."""
        if self._index.numbering.one_to_one:
            return answers
        return [
            [dataclasses.replace(found, row=self._row_of(found, vector)) for found in answer]
            for answer, vector in zip(answers, vectors, strict=True)
        ]

    def _row_of(self, found: RankedDocument, vector: Vectors) -> int:
        """The row that brought a document there; where only its words did, the one closest to the query's vector."""
        if found.row >= 0:
            return found.row
        rows = self._index.numbering.rows_of(np.array([found.document]))
        return int(rows[np.argmax(self._index.vectors(rows) @ vector)] if len(rows) > 1 else rows[0])

    def _folding(self, options: SearchOptions, queries: Vectors) -> "Folding | None":
        """How the answers to some queries, vectors (n, k), are folded; None: they are not."""
        if options.fold is None:
            return None
        from search.ranking.folding import Folding

        def vectors_of(query: int, documents: Sequence[RankedDocument]) -> Vectors:
            rows = [self._row_of(found, queries[query]) for found in documents]
            return self._index.vectors(np.array(rows, np.int64))

        return Folding(options.fold, vectors_of, options.min_score)

    def _rows(self, allowed: Mask | None) -> tuple[Mask | None, int]:
        """Which rows may be found, (rows,), None all; and how many those are."""
        numbering = self._index.numbering
        if allowed is None:
            return None, numbering.rows
        mask = allowed
        if not numbering.one_to_one:
            mask = np.zeros(numbering.rows, bool)
            mask[numbering.rows_of(np.flatnonzero(allowed))] = True
        return mask, int(np.count_nonzero(mask))

    # --- filters and groups, made by the first question that needs them

    def _groups(self, options: SearchOptions, allowed: Mask | None) -> Groups:
        codes = None if options.group_by is None else self._codes_of(options.group_by)
        return Groups(codes, self._index.manifest.documents, allowed)

    def _codes_of(self, column: str) -> Int64Array:
        with self._codes_lock:
            if column not in self._codes:
                self._codes[column] = group_codes(self._index, column)
                if len(self._codes) > _GROUPINGS:
                    self._codes.popitem(last=False)
            return self._codes[column]

    def _matching(self, where: str) -> RowIds:
        """The numbers of the documents that meet a condition."""
        from search.filters import MetadataFilter

        with self._filters_lock:
            if self._filters is None:
                self._filters = MetadataFilter(self._index)
        return self._filters.documents(where)


def _above(documents: list[RankedDocument], least: float | None) -> list[RankedDocument]:
    """Those that score at least so much."""
    return documents if least is None else [found for found in documents if found.score >= least]
