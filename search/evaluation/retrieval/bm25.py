"""BM25 over the texts that are encoded: what vectors must beat to earn their keep.

bm25s with the scoring of Lucene (Lu, BM25S, arXiv:2407.03618), its own default parameters, English stop words and
Snowball's English stemmer.
"""

from collections.abc import Sequence

from indexer.arrays import RowIds, SearchResult
from search.hybrid.bm25 import Bm25
from search.hybrid.terms import PARAMETERS, terms_of
from search.ranking import rank_positive

LABEL = "BM25"
_EXTRA = "eval"


def describe_bm25() -> str:
    """The parameters in a few words."""
    return (
        f"{LABEL}: bm25s, {PARAMETERS['method']}, k1 {PARAMETERS['k1']}, b {PARAMETERS['b']}, English stop words "
        "and stemming"
    )


def rank_bm25(texts: Sequence[str], queries: Sequence[str], places: RowIds, depth: int) -> list[SearchResult]:
    """For each query the best `depth` of the texts that share a term with it, ties by id; often fewer, or none.

    `places` are as `places_of` gives them for the ids of the texts. Raises MachineError when bm25s or PyStemmer
    is not installed.
    """
    index = Bm25.of(texts, _EXTRA)
    return [rank_positive(index.scores(terms), places, depth) for terms in terms_of(queries, _EXTRA)]
