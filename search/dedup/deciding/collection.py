"""What the greedy rule needs to know of the documents."""

from dataclasses import dataclass

from search.dedup.pairs import Rows, Scores


@dataclass(frozen=True)
class Collection:
    """Documents by number, and for each its windows, its text and its place in the priority order.

    Documents of another index, if any, come first and are numbered on from there.
    """

    document_of: Rows  # (windows,) document of each window, ascending
    vector_of: Rows  # (windows,) number of each window's distinct vector
    text_of: Rows  # (documents,) number of the document's normalised text, dense; -1: blank
    rank: Rows  # (documents,) place in the priority order, 0 first; the others' ranks are the lowest
    self_scores: Scores  # (distinct,) score of each distinct vector with itself
    others: int = 0  # the first so many documents belong to the other index

    def __len__(self) -> int:
        """Number of documents, the others included."""
        return len(self.rank)
