"""What a question may ask for, and the documents that answer it: filtered, one hit a document, one a group.

Candidates come from one of three sources: rows by inner product, rows by another similarity, or documents by fusion
with BM25. ONE loop (`collect`) asks a source for more until k documents are there.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from indexer.arrays import Embeddings, Int64Array, Mask, RowIds, Scores, Vectors
from indexer.errors import ConfigError
from indexer.progress import Progress
from indexer.recipe.ranking import HybridConfig
from search.abandonment import require_awaited
from search.hits import Answer
from search.index import Index
from search.ranking.documents import Groups, RankedDocument, best_rows, break_ties, group_codes
from search.ranking.options import WEIGHT, SearchOptions
from search.ranking.similarities import RowRanking, ranking_by
from search.segments import MissingRows

if TYPE_CHECKING:
    from search.filters.filters import MetadataFilter
    from search.ranking.folding import Folding
    from search.ranking.hybrid import HybridRanking

_GROUPINGS = 4  # columns whose values are kept
_SPARE = 2  # times k rows are asked for first where some may be folded
_WIDER = 4  # times as many candidates, when the first gave too few documents
_BATCH = 256  # queries answered at once


@dataclass(frozen=True)
class EncodedQueries:
    """Queries as they are compared: unit `vectors` (n, k), made of raw `embeddings` (n, d) and those of `texts`.

    None stands for what was not given. `lengths` are tokens of each, as `EncodeStats` has them.
    """

    vectors: Vectors
    embeddings: Embeddings | None = None
    texts: Sequence[str] | None = None
    lengths: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, some: slice) -> "EncodedQueries":
        raw, texts, lengths = self.embeddings, self.texts, self.lengths
        return EncodedQueries(
            self.vectors[some],
            None if raw is None else raw[some],
            None if texts is None else texts[some],
            None if lengths is None else lengths[some],
        )

    def is_unread(self, query: int) -> bool:
        """Whether the encoder knows nothing of a query, by its number, so that its vector means nothing."""
        return self.lengths is not None and not self.lengths[query]

    def require_for(self, options: SearchOptions) -> None:
        """Raises ConfigError where these options need what was not given."""
        if options.similarity != "cosine":
            _ = self.raw
        if options.hybrid:
            _ = self.words

    @property
    def raw(self) -> Embeddings:
        """The raw embeddings, which other similarities compare. Raises ConfigError where there are only vectors."""
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
        require_awaited()
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

    def __init__(self, index: Index, hybrid: HybridConfig | None = None) -> None:
        """`hybrid` says how rankings are fused in place of the recipe; its terms and its unit stay the recipe's."""
        self._index, self._fusion = index, hybrid or index.config.hybrid
        self._codes: OrderedDict[str, Int64Array] = OrderedDict()
        self._hybrid: HybridRanking | None = None
        self._filters: MetadataFilter | None = None
        # Of what is made by the first who needs it. None of them is held while another is waited for.
        self._codes_lock, self._hybrid_lock, self._filters_lock = (threading.Lock() for _ in range(3))

    def allowed(self, options: SearchOptions) -> Mask | None:
        """Which documents may be found, (documents,); None: all. Raises ConfigError."""
        if ranking := ranking_by(options.similarity):
            ranking.require_index(self._index)
        if options.hybrid:
            fusion_of(self._fusion, options)
        if options.group_by is not None:
            self._codes_of(options.group_by)
        if options.where is None:
            return None
        mask = np.zeros(self._index.manifest.documents, bool)
        mask[self._matching(options.where)] = True
        return mask

    def hybrid(self, progress: Progress | None = None) -> "HybridRanking":
        """The fusion with BM25, which is read from the cache, or made at the first call."""
        from search.ranking.hybrid import HybridRanking

        with self._hybrid_lock:
            if self._hybrid is None:
                self._hybrid = HybridRanking(self._index, progress)
            return self._hybrid

    def rank(
        self, queries: EncodedQueries, options: SearchOptions, allowed: Mask | None = None
    ) -> list[Answer[RankedDocument]]:
        """The best documents of each query, at most k, best first, ties by id. `allowed` as that method gives it.

        Raises ConfigError for queries that `options` cannot be asked of.
        """
        if ranking := ranking_by(options.similarity):
            ranking.require_queries(self._index, queries.raw)
        groups = self._groups(options, allowed)
        answers: list[list[RankedDocument]] = []
        missing = MissingRows() if options.partial else None
        for start in range(0, len(queries), _BATCH):
            some = queries[start : start + _BATCH]
            source, reach = self._source(some, options, allowed, missing)
            wanted = Wanted(options.k, groups, options.exact, self._folding(options))
            answers += collect(len(some), source, reach, wanted)
        least = _lowest_score(options)
        ranked = [_above(documents, least)[: options.k] for documents in answers]
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
            found = self._nearest(own, replace(options, k=reach, fold=None), others)
            return [Candidates(found, len(found) < reach)]

        wanted = Wanted(options.k, self._groups(options, others), folding=self._folding(options))
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

            return self._by_fusion(queries, options, allowed, missing), list_depth(options.k)
        if ranking := ranking_by(options.similarity):
            return self._by_raw(ranking, queries.raw, options.exact, allowed, missing), ranking.first_reach(options.k)
        reach = options.k if options.fold is None else _SPARE * options.k
        return self._by_vector(queries.vectors, options.exact, allowed, missing), reach

    def _by_vector(self, vectors: Vectors, exact: bool, allowed: Mask | None, missing: MissingRows | None) -> Source:
        """Documents by the inner product of their rows."""
        rows, count = self._rows(allowed)

        def candidates(pending: list[int], reach: int) -> list[Candidates]:
            found = self._index.search(vectors[pending], reach, rows, exact, missing)
            return [Candidates(self._documents(scores, best), reach >= count) for scores, best in found]

        return candidates

    def _by_raw(
        self, ranking: RowRanking, raw: Embeddings, exact: bool, allowed: Mask | None, missing: MissingRows | None
    ) -> Source:
        """Documents by the raw embeddings of their rows."""
        rows, count = self._rows(allowed)

        def candidates(pending: list[int], reach: int) -> list[Candidates]:
            found = ranking.rank(self._index, raw[pending], reach, rows, exact, missing)
            return [Candidates(self._documents(one.scores, one.rows), reach >= count, one.bound) for one in found]

        return candidates

    def _by_fusion(
        self, queries: EncodedQueries, options: SearchOptions, allowed: Mask | None, missing: MissingRows | None
    ) -> Source:
        """Documents by the fusion of the vectors' ranking and that of BM25, each as deep as the reach.

        Vectors are not searched if words alone decide: at weight 0, or for a query without known tokens. They would
        keep returning documents that contain no word of the query.
        """
        texts, hybrid, config = queries.words, self.hybrid(), fusion_of(self._fusion, options)
        apart, of_words = Groups(None, self._index.manifest.documents, allowed), replace(config, weight=0.0)
        most = options.k if options.group_by is None and options.fold is None else None
        by_words_alone = config.fusion == "convex" and not config.weight

        def candidates(pending: list[int], reach: int) -> list[Candidates]:
            read = [query for query in pending if not (by_words_alone or queries.is_unread(query))]
            near_source = self._by_vector(queries.vectors[read], options.exact, allowed, missing)
            by_vector = dict(zip(read, collect(len(read), near_source, reach, Wanted(reach, apart)), strict=True))
            by_words = hybrid.bm25.scored([texts[query] for query in pending], reach, allowed)
            found = []
            for query, words in zip(pending, by_words, strict=True):
                require_awaited()
                near, own = by_vector.get(query, []), config if query in by_vector else of_words
                documents = hybrid.fused(queries.vectors[query], near[:reach], words, own, most)
                found.append(Candidates(documents, max(len(near), len(words.best)) < reach))
            return found

        return candidates

    def _documents(self, scores: Scores, rows: RowIds) -> list[RankedDocument]:
        return best_rows(scores, rows, self._index.numbering, self._index.documents.ids)

    def _folding(self, options: SearchOptions) -> "Folding | None":
        """How answers are folded; None: they are not."""
        if options.fold is None:
            return None
        from search.ranking.folding import Folding

        def vectors_of(_: int, documents: Sequence[RankedDocument]) -> Vectors:
            return self._index.vectors(np.array([found.row for found in documents], np.int64))

        return Folding(options.fold, vectors_of, _lowest_score(options))

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
        from search.filters.filters import MetadataFilter

        with self._filters_lock:
            if self._filters is None:
                self._filters = MetadataFilter(self._index)
        return self._filters.documents(where)


def fusion_of(config: HybridConfig, options: SearchOptions) -> HybridConfig:
    """How hybrid answers are fused: as the recipe says, with the weight that was asked for. Raises ConfigError."""
    if options.hybrid_weight is None:
        return config
    if config.fusion != "convex":
        raise ConfigError(
            f'{WEIGHT} is {options.hybrid_weight:g}, but the recipe fuses by "{config.fusion}", which has no '
            "weight. Leave it out, or set hybrid.fusion=convex with isotrope refit."
        )
    return replace(config, weight=options.hybrid_weight)


def _lowest_score(options: SearchOptions) -> float | None:
    """`min_score` rounded to float32, like scores: the float32 nearest to 0.7 is below the float64 nearest to 0.7."""
    if options.min_score is None:
        return None
    with np.errstate(over="ignore"):
        return float(np.float32(options.min_score))


def _above(documents: list[RankedDocument], least: float | None) -> list[RankedDocument]:
    """Those that score at least so much."""
    return documents if least is None else [found for found in documents if found.score >= least]
