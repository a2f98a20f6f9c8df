"""Ranked documents for queries: filtered, one hit per document, one per group.

Candidates come from one of three sources: rows by inner product, rows by another similarity, or documents by fusion
with BM25. One loop (`collect`) searches a source deeper until it has k documents.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.arrays import Embeddings, Int64Array, Mask, SearchResult, Vectors
from indexer.errors import ConfigError, as_argument, spelled
from indexer.progress import Progress
from indexer.recipe.ranking import HybridConfig
from search.abandonment import require_awaited
from search.hits import Answer
from search.index import Index
from search.ranking.documents import Groups, RankedDocument, best_rows, break_ties, group_codes
from search.ranking.options import SearchOptions
from search.ranking.similarities import RowRanking, ranking_by
from search.segments import MissingRows

if TYPE_CHECKING:
    from search.filters.filters import MetadataFilter
    from search.ranking.folding import Folding
    from search.ranking.hybrid import HybridRanking

_GROUPINGS = 4  # group columns in memory
_SPARE = 2  # times k rows in the first search if some can be folded
_WIDER = 4  # factor of candidates if a search gave too few documents
_BATCH, _HITS = 256, 1 << 14  # queries answered together: so many, or more if they have fewer hits in all


@dataclass(frozen=True)
class EncodedQueries:
    """Queries as unit `vectors` (n, k), with their raw `embeddings` (n, d) and their `texts`, None if unknown.

    `lengths` are the token counts of `EncodeStats`.
    """

    vectors: Vectors
    embeddings: Embeddings | None = None
    texts: Sequence[str] | None = None
    lengths: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, some: slice) -> "EncodedQueries":
        rest: list[Any] = [self.embeddings, self.texts, self.lengths]
        return EncodedQueries(self.vectors[some], *[None if field is None else field[some] for field in rest])

    def is_unread(self, query: int) -> bool:
        """Return whether the encoder knows no token of a query, by its number, so that its vector is meaningless."""
        return self.lengths is not None and not self.lengths[query]

    def require_for(self, options: SearchOptions) -> None:
        """Raise ConfigError if these options need fields that are None."""
        if options.similarity != "cosine":
            _ = self.raw
        if options.hybrid:
            _ = self.words

    @property
    def raw(self) -> Embeddings:
        """The raw embeddings, which other similarities compare. Raises ConfigError without them."""
        if self.embeddings is None:
            raise ConfigError(
                'similarity "js" compares raw embeddings; expected the result of encoder.encode(texts, "query").'
            )
        return self.embeddings

    @property
    def words(self) -> Sequence[str]:
        """The texts, for BM25. Raises ConfigError without them."""
        if self.texts is None:
            raise ConfigError("hybrid search needs the text of a query, not its vector.")
        return self.texts


@dataclass(frozen=True)
class Candidates:
    """Documents for one query, best first, ties by id.

    `complete`: a deeper search finds no more. No uncompared row scores more than `bound`.
    """

    documents: list[RankedDocument]
    complete: bool
    bound: float = -math.inf


Source = Callable[[list[int], int], list[Candidates]]
"""Returns the candidates of queries, by their numbers, at a reach: the number of candidates to search for."""


@dataclass(frozen=True)
class Wanted:
    """The best `k` documents, one per group of `groups`; with `proved`, proved to be the best.

    With `folding`, near-duplicates among the groups' first documents are folded, and k stay.
    """

    k: int
    groups: Groups
    proved: bool = False
    folding: "Folding | None" = None

    def choose(self, query: int, candidates: Candidates) -> tuple[list[RankedDocument], bool]:
        """Return the wanted documents among the candidates of a query, and whether more candidates change nothing."""
        chosen = firsts = self.groups.first_of(candidates.documents)
        needed = self.k
        if self.folding is not None:
            chosen, needed = self.folding.hits(query, firsts, self.k)
        needed = min(needed, self.groups.count)
        bound = candidates.bound if self.proved else -math.inf
        met = len(firsts) >= needed and (not needed or firsts[needed - 1].score >= bound)
        return chosen, met or candidates.complete


def collect(queries: int, source: Source, reach: int, wanted: Wanted) -> list[list[RankedDocument]]:
    """Return the wanted documents of each query, or all there are. Widens the search until they are complete.

    An answer can contain more than k documents: all that the last search found.
    """
    answers: list[list[RankedDocument]] = [[] for _ in range(queries)]
    pending = list(range(queries))
    while pending:
        require_awaited()
        short = []
        for query, candidates in zip(pending, source(pending, reach), strict=True):
            answers[query], done = wanted.choose(query, candidates)
            if not done:
                short.append(query)
        pending, reach = short, reach * _WIDER
    return answers


class DocumentRanker:
    """Ranks the documents of an open index, and keeps the data of filters and groups for the next query.

    Safe to share between threads.
    """

    def __init__(self, index: Index, hybrid: HybridConfig | None = None) -> None:
        """`hybrid` replaces the fusion of the recipe, but not its terms and its unit."""
        self._index, self._fusion = index, hybrid or index.config.hybrid
        self._codes: OrderedDict[str, Int64Array] = OrderedDict()
        self._hybrid: HybridRanking | None = None
        self._filters: MetadataFilter | None = None
        # Each guards what its first user loads. No thread holds one while it waits for another.
        self._codes_lock, self._hybrid_lock, self._filters_lock = (threading.Lock() for _ in range(3))

    def allowed(self, options: SearchOptions) -> Mask | None:
        """Return a mask of the documents that can be hits, (documents,); None: all. Raises ConfigError."""
        if ranking := ranking_by(options.similarity):
            ranking.require_index(self._index)
        if options.hybrid:
            fusion_of(self._fusion, options)
        if not self._index.manifest.parts:
            return np.zeros(0, bool)  # columns are unknown before the first document
        if options.group_by is not None:
            self._codes_of(options.group_by)
        if options.condition is None:
            return None
        from search.filters.filters import MetadataFilter

        with self._filters_lock:
            if self._filters is None:
                self._filters = MetadataFilter(self._index)
        mask = np.zeros(self._index.manifest.documents, bool)
        mask[self._filters.documents(options.condition)] = True
        return mask

    def hybrid(self, progress: Progress | None = None) -> "HybridRanking":
        """Return the fusion with BM25, read from the cache or made at the first call."""
        from search.ranking.hybrid import HybridRanking

        with self._hybrid_lock:
            if self._hybrid is None:
                self._hybrid = HybridRanking(self._index, progress)
            return self._hybrid

    def rank(
        self, queries: EncodedQueries, options: SearchOptions, allowed: Mask | None = None
    ) -> list[Answer[RankedDocument]]:
        """Return the best documents of each query, at most k, best first, ties by id.

        `allowed` is the mask of `self.allowed`. Raises ConfigError for queries that do not suit `options`.
        """
        if ranking := ranking_by(options.similarity):
            ranking.require_queries(self._index, queries.raw)
        if not self._index.manifest.documents:
            return [Answer[RankedDocument]() for _ in range(len(queries))]
        groups = self._groups(options, allowed)
        answers: list[list[RankedDocument]] = []
        missing = MissingRows() if options.partial else None
        step = max(_BATCH, _HITS // options.k)
        for start in range(0, len(queries), step):
            some = queries[start : start + step]
            source, reach = self._source(some, options, allowed, missing)
            wanted = Wanted(options.k, groups, options.exact, self._folding(options))
            answers += collect(len(some), source, reach, wanted)
        least = _lowest_score(options)
        if least is not None:
            answers = [[hit for hit in answer if hit.score >= least] for answer in answers]
        lost = tuple(sorted((missing or {}).values(), key=lambda entry: entry.first_row))
        return [Answer(answer[: options.k], lost) for answer in answers]

    def neighbours(self, document: int, options: SearchOptions, allowed: Mask | None) -> Answer[RankedDocument]:
        """Return the best documents for a stored document, without itself: each by its best pair of rows."""
        others = np.ones(self._index.manifest.documents, bool) if allowed is None else allowed.copy()
        others[document] = False
        rows = self._index.numbering.rows_of(np.array([document]))
        queries = EncodedQueries(self._index.vectors(rows), self._index.embeddings(rows))
        if options.fold is None:
            return self._nearest(queries, options, others)
        nearest = Answer[RankedDocument]()

        def candidates(_: list[int], reach: int) -> list[Candidates]:
            nonlocal nearest
            nearest = self._nearest(queries, replace(options, k=reach, fold=None), others)
            return [Candidates(list(nearest), len(nearest) < reach)]

        wanted = Wanted(options.k, self._groups(options, others), folding=self._folding(options))
        (chosen,) = collect(1, candidates, _SPARE * options.k, wanted)
        return Answer(chosen, nearest.missing)

    def _nearest(self, queries: EncodedQueries, options: SearchOptions, others: Mask) -> Answer[RankedDocument]:
        """Return the best documents for any of these queries, each with its highest score."""
        best: dict[int, RankedDocument] = {}
        answers = self.rank(queries, options, others)
        for hit in (hit for answer in answers for hit in answer):
            if hit.document not in best or hit.score > best[hit.document].score:
                best[hit.document] = hit
        (ranked,) = break_ties([sorted(best.values(), key=lambda hit: -hit.score)], self._index.documents.ids)
        return Answer(self._groups(options, others).first_of(ranked)[: options.k], answers[0].missing)

    def _source(
        self, queries: EncodedQueries, options: SearchOptions, allowed: Mask | None, missing: MissingRows | None
    ) -> tuple[Source, int]:
        """Return the source of candidates, and its first reach."""
        if options.hybrid:
            from search.ranking.fusion import list_depth

            return self._by_fusion(queries, options, allowed, missing), list_depth(options.k)
        if ranking := ranking_by(options.similarity):
            return self._by_raw(ranking, queries.raw, options.exact, allowed, missing), ranking.first_reach(options.k)
        reach = options.k if options.fold is None else _SPARE * options.k
        return self._by_vector(queries.vectors, options.exact, allowed, missing), reach

    def _by_vector(self, vectors: Vectors, exact: bool, allowed: Mask | None, missing: MissingRows | None) -> Source:
        rows, count = self._rows(allowed)

        def candidates(pending: list[int], reach: int) -> list[Candidates]:
            results = self._index.search(vectors[pending], reach, rows, exact, missing)
            return [Candidates(documents, reach >= count) for documents in self._documents(results)]

        return candidates

    def _by_raw(
        self, ranking: RowRanking, raw: Embeddings, exact: bool, allowed: Mask | None, missing: MissingRows | None
    ) -> Source:
        rows, count = self._rows(allowed)

        def candidates(pending: list[int], reach: int) -> list[Candidates]:
            results = ranking.rank(self._index, raw[pending], reach, rows, exact, missing)
            ranked = self._documents([(top.scores, top.rows) for top in results])
            return [Candidates(best, reach >= count, top.bound) for best, top in zip(ranked, results, strict=True)]

        return candidates

    def _by_fusion(
        self, queries: EncodedQueries, options: SearchOptions, allowed: Mask | None, missing: MissingRows | None
    ) -> Source:
        """Return the source that fuses the rankings of vectors and BM25, each as deep as the reach.

        Vectors are not searched if only words count: at weight 0, or for a query without known tokens. They would
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
            results = []
            for query, words in zip(pending, by_words, strict=True):
                require_awaited()
                near, fusion = by_vector.get(query, []), config if query in by_vector else of_words
                documents = hybrid.fused(queries.vectors[query], near[:reach], words, fusion, most)
                results.append(Candidates(documents, max(len(near), len(words.best)) < reach))
            return results

        return candidates

    def _documents(self, found: Sequence[SearchResult]) -> list[list[RankedDocument]]:
        return best_rows(found, self._index.numbering, self._index.documents.ids)

    def _folding(self, options: SearchOptions) -> "Folding | None":
        if options.fold is None:
            return None
        from search.ranking.folding import Folding

        def vectors_of(_: int, ranked: Sequence[RankedDocument]) -> Vectors:
            return self._index.vectors(np.array([hit.row for hit in ranked], np.int64))

        return Folding(options.fold, vectors_of, _lowest_score(options))

    def _rows(self, allowed: Mask | None) -> tuple[Mask | None, int]:
        """Return a mask of the rows of allowed documents, (rows,), None for all, and their number."""
        numbering = self._index.numbering
        if allowed is None:
            return None, numbering.rows
        mask = allowed
        if not numbering.one_to_one:
            mask = np.zeros(numbering.rows, bool)
            mask[numbering.rows_of(np.flatnonzero(allowed))] = True
        return mask, int(np.count_nonzero(mask))

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


def fusion_of(config: HybridConfig, options: SearchOptions) -> HybridConfig:
    """Return the recipe's fusion with the weight of the options. Raises ConfigError."""
    if options.hybrid_weight is None:
        return config
    if config.fusion != "convex":
        raise ConfigError(
            f"{as_argument('hybrid_weight')} is {options.hybrid_weight:g}, but the recipe fuses by "
            f'"{config.fusion}", which has no '
            f"weight. Fix: leave it out, or set hybrid.fusion=convex with {spelled('refit_index', 'isotrope refit')}."
        )
    return replace(config, weight=options.hybrid_weight)


def _lowest_score(options: SearchOptions) -> float | None:
    """`min_score` rounded to float32, like scores: the float32 nearest to 0.7 is below the float64 nearest to 0.7."""
    if options.min_score is None:
        return None
    with np.errstate(over="ignore"):
        return float(np.float32(options.min_score))
