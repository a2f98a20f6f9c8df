"""Which documents answer a vector: filtered, one hit a document, one a group, alone or together with BM25."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from indexer.arrays import Mask, RowIds, Vectors
from indexer.progress import NoProgress, Progress
from search.divergence import Probabilities, rank_by_divergence, require_mixtures, require_probabilities
from search.opened import OpenIndex
from search.ranked import Groups, Place, by_id, documents_of
from search.request import Request

if TYPE_CHECKING:
    from search.filters import MetadataFilter
    from search.grouping import Codes
    from search.hybrid.lexical import Lexical

_SILENT = NoProgress()
_GROUPINGS = 4  # columns whose values are kept
_WIDER = 4  # times as many rows, when the first gave too few documents


class Finder:
    """Finds documents of an open index; what filters and groupings have read stays for the next question.

    Safe to share between threads.
    """

    def __init__(self, opened: OpenIndex) -> None:
        self._opened = opened
        self._codes: OrderedDict[str, Codes] = OrderedDict()
        self._lexical: Lexical | None = None
        self._filters: MetadataFilter | None = None
        # Of what is made by the first who needs it. None of them is held while another is waited for.
        self._codes_lock, self._lexical_lock, self._filters_lock = (threading.Lock() for _ in range(3))

    def allowed(self, request: Request) -> Mask | None:
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

    def find(self, vectors: Vectors, request: Request, allowed: Mask | None) -> list[list[Place]]:
        """The best documents for each vector (n, dim), at most k, best first, ties by id."""
        found = self._collect(vectors, request, allowed)
        return [_above(places, request)[: request.k] for places in found]

    def find_mixtures(self, mixtures: Probabilities, request: Request, allowed: Mask | None) -> list[list[Place]]:
        """The best documents for each row of distributions (n, d) by Jensen-Shannon divergence, as `find`."""
        require_mixtures(self._opened, mixtures)
        rows, groups = self._rows(allowed), self._groups(request, allowed)
        return [self._mixture_places(mixture, request, rows, groups)[: request.k] for mixture in mixtures]

    def _mixture_places(
        self, mixture: Probabilities, request: Request, rows: Mask | None, groups: Groups
    ) -> list[Place]:
        """Documents for one row of distributions (d,), at least k if there are: with `exact` the k best ones."""
        wanted, k = request.k, min(request.k, groups.count)
        while True:
            ranked = rank_by_divergence(self._opened, mixture, wanted, rows, request.exact)
            places = groups.first_of(documents_of(ranked.scores, ranked.rows, self._opened.numbering, self._ids))
            enough = len(places) >= k and (not request.exact or not k or places[k - 1].score >= ranked.bound)
            if enough or wanted >= self._opened.numbering.rows:
                return _above(places, request)
            wanted *= _WIDER

    def lexical(self, progress: Progress = _SILENT) -> "Lexical":
        """BM25 of the documents: read from the cache, or made at the first call."""
        from search.hybrid.lexical import Lexical

        with self._lexical_lock:
            if self._lexical is None:
                self._lexical = Lexical(self._opened, progress)
            return self._lexical

    def find_hybrid(
        self, queries: Sequence[str], vectors: Vectors, request: Request, allowed: Mask | None
    ) -> list[list[Place]]:
        """The same by reciprocal rank fusion with BM25 over the same documents."""
        from search.hybrid.fusion import fuse, list_depth

        depth, lexical, groups = list_depth(request.k), self.lexical(), self._groups(request, allowed)
        answers: list[list[Place]] = [[] for _ in vectors]
        pending = list(range(len(vectors)))
        while pending:
            by_vector = self._collect(vectors[pending], Request(depth, exact=request.exact), allowed)
            by_words = lexical.search([queries[query] for query in pending], depth, allowed)
            short = []
            for query, places, (_, numbers) in zip(pending, by_vector, by_words, strict=True):
                rows = {place.document: place.row for place in places}
                fused = fuse([[place.document for place in places], numbers.tolist()], depth)
                found = [Place(number, score, rows.get(number, -1)) for score, number in fused]
                answers[query] = groups.first_of(by_id(found, lexical.places))
                more = max(len(places), len(numbers)) >= depth
                if more and len(answers[query]) < request.k and len(answers[query]) < groups.count:
                    short.append(query)
            pending, depth = short, depth * _WIDER
        return [self._with_rows(found[: request.k], vector) for found, vector in zip(answers, vectors, strict=True)]

    def neighbours(self, document: int, request: Request, allowed: Mask | None) -> list[Place]:
        """The best documents for a stored one, without itself: each by its best pair of rows."""
        others = np.ones(self._opened.manifest.documents, bool) if allowed is None else allowed.copy()
        others[document] = False
        rows = self._opened.numbering.rows_of(np.array([document]))
        if request.similarity == "js":
            found = self.find_mixtures(self._opened.embeddings(rows), request, others)
        else:
            found = self.find(self._opened.vectors(rows), request, others)
        best: dict[int, Place] = {}
        for place in (place for places in found for place in places):
            if place.document not in best or place.score > best[place.document].score:
                best[place.document] = place
        ranked = by_id(sorted(best.values(), key=lambda place: -place.score), self._ids)
        return self._groups(request, others).first_of(ranked)[: request.k]

    def _with_rows(self, places: list[Place], vector: Vectors) -> list[Place]:
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

    def _collect(self, vectors: Vectors, request: Request, allowed: Mask | None) -> list[list[Place]]:
        """Documents for each vector, one a group: k and those that tie with the k-th, or all there are."""
        numbering, rows, groups = self._opened.numbering, self._rows(allowed), self._groups(request, allowed)
        count = numbering.rows if rows is None else int(np.count_nonzero(rows))
        answers: list[list[Place]] = [[] for _ in vectors]
        pending, reach = list(range(len(vectors))), request.k
        while pending:
            found = self._opened.search(vectors[pending], reach, rows, request.exact)
            short = []
            for query, (scores, best) in zip(pending, found, strict=True):
                answers[query] = groups.first_of(documents_of(scores, best, numbering, self._ids))
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

    def _groups(self, request: Request, allowed: Mask | None) -> "Groups":
        if request.group_by is None:
            return Groups(None, self._opened.manifest.documents)
        return Groups(self._codes_of(request.group_by), self._opened.manifest.documents, allowed)

    def _codes_of(self, column: str) -> "Codes":
        from search.grouping import group_codes

        with self._codes_lock:
            if column not in self._codes:
                self._codes[column] = group_codes(self._opened, column)
                if len(self._codes) > _GROUPINGS:
                    self._codes.popitem(last=False)
            return self._codes[column]

    def _matching(self, where: str) -> RowIds:
        """The numbers of the documents that meet a condition."""
        from search.filters import MetadataFilter

        with self._filters_lock:
            if self._filters is None:
                self._filters = MetadataFilter(self._opened)
        return self._filters.documents(where)


def _above(places: list[Place], request: Request) -> list[Place]:
    """Those that score at least what was asked for."""
    if request.min_score is None:
        return places
    return [place for place in places if place.score >= request.min_score]
