"""BM25 over the texts that are encoded: what vectors must beat to earn their keep.

bm25s with the scoring of Lucene (Lu, BM25S, arXiv:2407.03618), its own default parameters, English stop words and
Snowball's English stemmer.
"""

from collections.abc import Sequence

import numpy as np

from search.evaluation.retrieval.ranking import Found, Rows, Scores, rank_scores
from search.extras import require_extra
from search.hybrid.terms import PARAMETERS, terms_of

LABEL = "BM25"
_EXTRA = "eval"


def describe_bm25() -> str:
    """The parameters in a few words."""
    return (
        f"{LABEL}: bm25s, {PARAMETERS['method']}, k1 {PARAMETERS['k1']}, b {PARAMETERS['b']}, English stop words "
        "and stemming"
    )


def rank_bm25(texts: Sequence[str], queries: Sequence[str], places: Rows, depth: int) -> list[Found]:
    """For each query the best `depth` of the texts that share a term with it, ties by id; often fewer, or none.

    `places` are as `places_of` gives them for the ids of the texts. Raises MachineError when bm25s or PyStemmer
    is not installed.
    """
    documents = terms_of(texts, _EXTRA)
    if not any(documents):  # bm25s divides by the mean length
        return [_ranked(np.zeros(len(texts), np.float32), places, depth) for _ in queries]
    index = require_extra("bm25s", _EXTRA).BM25(
        method=PARAMETERS["method"], k1=PARAMETERS["k1"], b=PARAMETERS["b"], backend="numpy"
    )
    index.index(documents, show_progress=False)
    known = set(index.vocab_dict)
    found = []
    for terms in terms_of(queries, _EXTRA):
        terms = [term for term in terms if term in known]  # bm25s refuses a query without any
        scores = index.get_scores(terms) if terms else np.zeros(len(texts), np.float32)
        found.append(_ranked(scores, places, depth))
    return found


def _ranked(scores: Scores, places: Rows, depth: int) -> Found:
    rows = np.flatnonzero(scores > 0)
    return rank_scores(scores[rows].astype(np.float32), rows, places, depth)
