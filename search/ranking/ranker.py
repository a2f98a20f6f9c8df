"""Which documents answer a vector: filtered, one hit a document, one a group, alone or together with BM25."""
# TODO-DOC search.finding:
# TODO-DOC Which documents answer a vector: filtered, one hit a document, one a group, alone or together with BM25.
# TODO-DOC search.request:
# TODO-DOC What a question may ask for beside its text.

import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from indexer.arrays import Mask, RowIds, Vectors
from indexer.errors import ConfigError
from indexer.progress import NoProgress, Progress
from search.index import Index
from search.ranking.divergence import Probabilities, rank_by_divergence, require_mixtures, require_probabilities
from search.ranking.documents import Groups, RankedDocument, best_rows, break_ties

if TYPE_CHECKING:
    from search.filters import Filters
    from search.ranking.bm25 import BM25Index
    from search.ranking.documents import Codes


Similarity = Literal["cosine", "js"]


@dataclass(frozen=True)
class SearchOptions:
    """How hits are chosen. Raises ConfigError for a field that is not as described here.

    `k` hits, 1 and more. `where` is a condition on the metadata (SQL, see `search.filters`), `group_by` a metadata
    column of which each value gives one hit at most; None is no condition and no groups, and blank text, which an unset
    variable leaves, is refused. `min_score` is the lowest score of a hit. `exact` compares with every document instead
    of searching the index. `hybrid` fuses the vectors' ranking with that of BM25: a hit's score is then the sum of
    reciprocal ranks. `similarity` "js" ranks the mixtures of an index of pooling "latte-mix" by Jensen-Shannon
    divergence (`search.ranking.divergence`); `exact` then means proved.
    """

    k: int = 10
    where: str | None = None
    group_by: str | None = None
    min_score: float | None = None
    exact: bool = False
    hybrid: bool = False
    similarity: Similarity = "cosine"

    def __post_init__(self) -> None:
        if not _is_number(self.k, Integral) or self.k < 1:
            raise ConfigError(f"k is {self.k!r}; expected a whole number, at least 1.")
        object.__setattr__(self, "k", int(self.k))  # numpy's numbers overflow
        require_condition("where", self.where, 'a condition such as "year > 2019"')
        require_condition("group_by", self.group_by, "the name of a metadata column")
        if self.min_score is not None and not (_is_number(self.min_score, Real) and math.isfinite(self.min_score)):
            raise ConfigError(f"min_score is {self.min_score!r}; expected a finite number.")
        for name in ("exact", "hybrid"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected True or False.")
        if self.similarity not in get_args(Similarity):
            expected = " or ".join(f'"{name}"' for name in get_args(Similarity))
            raise ConfigError(f"similarity is {self.similarity!r}; expected {expected}.")
        self._require_compatible()

    def _require_compatible(self) -> None:
        if self.hybrid and self.min_score is not None:
            raise ConfigError(
                "a lowest score and hybrid do not go together: hybrid scores are sums of reciprocal ranks, which say "
                "nothing about how close a document is."
            )
        if self.hybrid and self.similarity != "cosine":
            raise ConfigError(f'hybrid fuses cosine and words; leave out similarity "{self.similarity}".')


def require_condition(name: str, value: object, expected: str) -> None:
    """Raises ConfigError unless `value` is None or text that is not blank."""
    if value is None:
        return
    if not isinstance(value, str):
        raise ConfigError(f"{name} is {value!r}; expected {expected}.")
    if not value.strip():
        raise ConfigError(f"{name} is blank; expected {expected}. Is a variable unset? Leave {name} out to go without.")


def require_texts(texts: Iterable[str], name: str, way_out: str) -> list[str]:
    """A list of the texts of an argument `name`. Raises ConfigError for what is not text, and with the `way_out` for
    one string, whose letters would be taken for texts."""
    if isinstance(texts, str):
        raise ConfigError(f"{name} is one string; expected a list of strings. {way_out}")
    if not isinstance(texts, Iterable):
        raise ConfigError(f"{name} is of type {type(texts).__name__}; expected a list of strings.")
    found = list(texts)
    for number, text in enumerate(found, start=1):
        if not isinstance(text, str):
            raise ConfigError(f"{name}: number {number} is of type {type(text).__name__}; expected a string.")
    return found


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


_SILENT = NoProgress()
_GROUPINGS = 4  # columns whose values are kept
_WIDER = 4  # times as many rows, when the first gave too few documents


class DocumentRanker:
    """Finds documents of an open index; what filters and groupings have read stays for the next question.

    Safe to share between threads.
    """

    def __init__(self, index: Index) -> None:
        self._opened = index
        self._codes: OrderedDict[str, Codes] = OrderedDict()
        self._lexical: BM25Index | None = None
        self._filters: Filters | None = None
        # Of what is made by the first who needs it. None of them is held while another is waited for.
        self._codes_lock, self._lexical_lock, self._filters_lock = (threading.Lock() for _ in range(3))

    def allowed(self, request: SearchOptions) -> Mask | None:
        """Which documents may be found, (documents,); None: all. Raises ConfigError."""
        if request.similarity == "js":
            require_probabilities(self._opened)
        if request.group_by is not None:
            self._codes_of(request.group_by)
        if request.where is None:
            return None
        mask = np.zeros(self._opened.manifest.documents, bool)
        mask[self._matching(request.where)] = True
        return mask

    def find(self, vectors: Vectors, request: SearchOptions, allowed: Mask | None) -> list[list[RankedDocument]]:
        """The best documents for each vector (n, dim), at most k, best first, ties by id."""
        found = self._collect(vectors, request, allowed)
        return [_above(places, request)[: request.k] for places in found]

    def find_mixtures(
        self, mixtures: Probabilities, request: SearchOptions, allowed: Mask | None
    ) -> list[list[RankedDocument]]:
        """The best documents for each row of distributions (n, d) by Jensen-Shannon divergence, as `find`."""
        require_mixtures(self._opened, mixtures)
        rows, groups = self._rows(allowed), self._groups(request, allowed)
        return [self._mixture_places(mixture, request, rows, groups)[: request.k] for mixture in mixtures]

    def _mixture_places(
        self, mixture: Probabilities, request: SearchOptions, rows: Mask | None, groups: Groups
    ) -> list[RankedDocument]:
        """Documents for one row of distributions (d,), at least k if there are: with `exact` the k best ones."""
        wanted, k = request.k, min(request.k, groups.count)
        while True:
            ranked = rank_by_divergence(self._opened, mixture, wanted, rows, request.exact)
            places = groups.first_of(best_rows(ranked.scores, ranked.rows, self._opened.numbering, self._ids))
            enough = len(places) >= k and (not request.exact or not k or places[k - 1].score >= ranked.bound)
            if enough or wanted >= self._opened.numbering.rows:
                return _above(places, request)
            wanted *= _WIDER

    def lexical(self, progress: Progress = _SILENT) -> "BM25Index":
        """BM25 of the documents: read from the cache, or made at the first call."""
        from search.ranking.bm25 import BM25Index

        with self._lexical_lock:
            if self._lexical is None:
                self._lexical = BM25Index(self._opened, progress)
            return self._lexical

    def find_hybrid(
        self, queries: Sequence[str], vectors: Vectors, request: SearchOptions, allowed: Mask | None
    ) -> list[list[RankedDocument]]:
        """The same by reciprocal rank fusion with BM25 over the same documents."""
        from search.ranking.fusion import list_depth, reciprocal_rank_fusion

        depth, lexical, groups = list_depth(request.k), self.lexical(), self._groups(request, allowed)
        answers: list[list[RankedDocument]] = [[] for _ in vectors]
        pending = list(range(len(vectors)))
        while pending:
            by_vector = self._collect(vectors[pending], SearchOptions(depth, exact=request.exact), allowed)
            by_words = lexical.search([queries[query] for query in pending], depth, allowed)
            short = []
            for query, places, (_, numbers) in zip(pending, by_vector, by_words, strict=True):
                rows = {place.document: place.row for place in places}
                fused = reciprocal_rank_fusion([[place.document for place in places], numbers.tolist()], depth)
                found = [RankedDocument(number, score, rows.get(number, -1)) for score, number in fused]
                answers[query] = groups.first_of(break_ties(found, lexical.places))
                more = max(len(places), len(numbers)) >= depth
                if more and len(answers[query]) < request.k and len(answers[query]) < groups.count:
                    short.append(query)
            pending, depth = short, depth * _WIDER
        return [self._with_rows(found[: request.k], vector) for found, vector in zip(answers, vectors, strict=True)]

    def neighbours(self, document: int, request: SearchOptions, allowed: Mask | None) -> list[RankedDocument]:
        """The best documents for a stored one, without itself: each by its best pair of rows."""
        others = np.ones(self._opened.manifest.documents, bool) if allowed is None else allowed.copy()
        others[document] = False
        rows = self._opened.numbering.rows_of(np.array([document]))
        if request.similarity == "js":
            found = self.find_mixtures(self._opened.embeddings(rows), request, others)
        else:
            found = self.find(self._opened.vectors(rows), request, others)
        best: dict[int, RankedDocument] = {}
        for place in (place for places in found for place in places):
            if place.document not in best or place.score > best[place.document].score:
                best[place.document] = place
        ranked = break_ties(sorted(best.values(), key=lambda place: -place.score), self._ids)
        return self._groups(request, others).first_of(ranked)[: request.k]

    def _with_rows(self, places: list[RankedDocument], vector: Vectors) -> list[RankedDocument]:
        """The same; documents that only their words brought there get the row that is closest to the vector (dim,)."""
        numbering = self._opened.numbering
        if numbering.one_to_one:
            return places
        found = []
        for place in places:
            if place.row < 0:
                rows = numbering.rows_of(np.array([place.document]))
                place = replace(place, row=int(rows[np.argmax(self._opened.vectors(rows) @ vector)]))
            found.append(place)
        return found

    def _collect(self, vectors: Vectors, request: SearchOptions, allowed: Mask | None) -> list[list[RankedDocument]]:
        """Documents for each vector, one a group: k and those that tie with the k-th, or all there are."""
        numbering, rows, groups = self._opened.numbering, self._rows(allowed), self._groups(request, allowed)
        count = numbering.rows if rows is None else int(np.count_nonzero(rows))
        answers: list[list[RankedDocument]] = [[] for _ in vectors]
        pending, reach = list(range(len(vectors))), request.k
        while pending:
            found = self._opened.search(vectors[pending], reach, rows, request.exact)
            short = []
            for query, (scores, best) in zip(pending, found, strict=True):
                answers[query] = groups.first_of(best_rows(scores, best, numbering, self._ids))
                if reach < count and len(answers[query]) < request.k and len(answers[query]) < groups.count:
                    short.append(query)
            pending, reach = short, reach * _WIDER
        return answers

    def _rows(self, allowed: Mask | None) -> Mask | None:
        """Which rows may be found, (rows,)."""
        numbering = self._opened.numbering
        if allowed is None or numbering.one_to_one:
            return allowed
        mask = np.zeros(numbering.rows, bool)
        mask[numbering.rows_of(np.flatnonzero(allowed))] = True
        return mask

    def _ids(self, numbers: Sequence[int]) -> list[str]:
        return self._opened.documents.ids(numbers)

    def _groups(self, request: SearchOptions, allowed: Mask | None) -> "Groups":
        if request.group_by is None:
            return Groups(None, self._opened.manifest.documents)
        return Groups(self._codes_of(request.group_by), self._opened.manifest.documents, allowed)

    def _codes_of(self, column: str) -> "Codes":
        from search.ranking.documents import group_codes

        with self._codes_lock:
            if column not in self._codes:
                self._codes[column] = group_codes(self._opened, column)
                if len(self._codes) > _GROUPINGS:
                    self._codes.popitem(last=False)
            return self._codes[column]

    def _matching(self, where: str) -> RowIds:
        """The numbers of the documents that meet a condition."""
        from search.filters import Filters

        with self._filters_lock:
            if self._filters is None:
                self._filters = Filters(self._opened)
        return self._filters.documents(where)


def _above(places: list[RankedDocument], request: SearchOptions) -> list[RankedDocument]:
    """Those that score at least what was asked for."""
    if request.min_score is None:
        return places
    return [place for place in places if place.score >= request.min_score]
