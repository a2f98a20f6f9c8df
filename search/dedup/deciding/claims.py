"""What kept documents say of the marks of others: which of them is the best to stand for a document with that mark.

A *mark* is what makes documents duplicates: the number of a distinct vector or, where equal texts count, a number
for the text, after those of the vectors. Two documents are duplicates if they share a mark or a pair joins two of
their marks; their windows, and how many documents share a mark, need no further thought.

A *claim* is a score and the rank of a kept document in one 64-bit number: the greatest claim is that of the highest
score and, among equals, of the lowest rank, in whatever order claims come.
"""

import numpy as np
import numpy.typing as npt

from search.dedup.deciding.collection import Collection
from search.dedup.pairs import Pairs, Rows, Scores

Claims = npt.NDArray[np.uint64]
Ranks = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]
_NOBODY = 0xFFFFFFFF
_SIGN = 0x80000000
_BY_TEXT = -np.inf  # the score of two documents with nothing in common but their text: below every other


class Claimed:
    """The marks of all documents, who is kept, and the best claim on each mark so far."""

    def __init__(self, collection: Collection, by_text: bool) -> None:
        self.rank: Ranks = collection.rank.astype(np.uint32)
        self.kept: Flags = np.zeros(len(collection), bool)
        self._vectors = len(collection.self_scores)
        self._document_of, self._mark_of = _marks(collection, by_text)
        self._starts: Rows = np.searchsorted(self._document_of, np.arange(len(collection) + 1))
        texts = int(collection.text_of.max(initial=-1)) + 1 if by_text else 0
        self._own_scores = np.concatenate([collection.self_scores, np.full(texts, _BY_TEXT, np.float32)])
        self._best: Claims = np.zeros(self.marks, np.uint64)  # 0: no claim
        self._holder: Ranks = np.full(self.marks, _NOBODY, np.uint32)  # the first kept document with the mark

    @property
    def marks(self) -> int:
        """Number of marks."""
        return len(self._own_scores)

    def marks_of(self, documents: Rows) -> tuple[Rows, Rows]:
        """All marks of some documents, one after the other, and where each document's begin: (marks,), (n + 1,)."""
        starts = self._starts[documents]
        counts = self._starts[documents + 1] - starts
        ends = np.cumsum(counts)
        within = np.arange(counts.sum()) + np.repeat(starts - (ends - counts), counts)
        return self._mark_of[within], np.concatenate([[0], ends])

    def vectors_of(self, documents: Rows) -> Rows:
        """The distinct vectors of some documents, ascending."""
        return self._only_vectors(self.marks_of(documents)[0])

    def vectors_in_need(self) -> Rows:
        """The distinct vectors of all documents that are not kept, ascending."""
        return self._only_vectors(self._mark_of[~self.kept[self._document_of]])

    def duplicates(self) -> Flags:
        """Which documents have a claim on one of their marks, (documents,); true of kept ones also."""
        found = np.zeros(len(self.rank), bool)
        found[self._document_of[self._best[self._mark_of] != 0]] = True
        return found

    def keep(self, documents: Rows) -> None:
        """Keep these documents; they claim every mark that is theirs."""
        marks, starts = self.marks_of(documents)
        ranks = np.repeat(self.rank[documents], np.diff(starts))
        self.kept[documents] = True
        np.minimum.at(self._holder, marks, ranks)
        # No threshold is asked: none is above `settings.IDENTICAL`, and vectors that are accepted score more than
        # that with themselves. Of several holders of a mark (documents of another index) the first has the best claim
        # on whatever is paired with it, as all have the same score.
        np.maximum.at(self._best, marks, _claims(self._own_scores[marks], ranks))

    def learn(self, pairs: Pairs) -> None:
        """Kept documents with one mark of a pair claim the other."""
        for source, target in ((pairs.left, pairs.right), (pairs.right, pairs.left)):
            ranks = self._holder[source]
            held = ranks != _NOBODY
            np.maximum.at(self._best, target[held], _claims(pairs.scores[held], ranks[held]))

    def standing_for(self) -> tuple[Rows, Scores]:
        """For each document the rank of the one that stands for it and its score, (documents,) twice.

        -1 and NaN for those that are kept or have no duplicate; NaN for those that have only their text in common.
        """
        best = np.zeros(len(self.rank), np.uint64)
        np.maximum.at(best, self._document_of, self._best[self._mark_of])
        best[self.kept] = 0
        ranks, scores = _unpacked(best)
        ranks[best == 0] = -1
        scores[(best == 0) | (scores == _BY_TEXT)] = np.nan
        return ranks, scores

    def _only_vectors(self, marks: Rows) -> Rows:
        present = np.zeros(self._vectors, bool)
        present[marks[marks < self._vectors]] = True
        return np.flatnonzero(present)


def _marks(collection: Collection, by_text: bool) -> tuple[Rows, Rows]:
    """(document, mark) of every mark of every document, documents ascending."""
    if not by_text:
        return collection.document_of, collection.vector_of
    written = np.flatnonzero(collection.text_of >= 0)
    documents = np.concatenate([collection.document_of, written])
    marks = np.concatenate([collection.vector_of, collection.text_of[written] + len(collection.self_scores)])
    order = np.argsort(documents, kind="stable")
    return documents[order], marks[order]


def _claims(scores: Scores, ranks: Ranks) -> Claims:
    """Greater for a higher score, then for a lower rank; never 0."""
    bits = (scores + np.float32(0)).view(np.uint32)  # -0 becomes 0: they are equal
    ordered = np.where(bits & _SIGN, ~bits, bits | _SIGN)  # floats of either sign in the order of whole numbers
    claims: Claims = ordered.astype(np.uint64) << np.uint64(32) | (_NOBODY - ranks)
    return claims


def _unpacked(claims: Claims) -> tuple[Rows, Scores]:
    """Ranks and scores that `_claims` packed."""
    ordered = (claims >> np.uint64(32)).astype(np.uint32)
    scores: Scores = np.where(ordered & _SIGN, ordered ^ _SIGN, ~ordered).astype(np.uint32).view(np.float32)
    return _NOBODY - (claims & np.uint64(_NOBODY)).astype(np.int64), scores
