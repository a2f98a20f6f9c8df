"""Exact search over the stored vectors, as they stream by: what an index's answers are held against.

A float32 matrix product finds candidates, a float64 dot product decides. A float32 sum of d products of unit
vectors is wrong by at most d * 2**-24, so a row within twice that of the cut is a candidate too.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from indexer.ann import SCORE_TOLERANCE, GroundTruthBuilder, pair_scores
from indexer.arrays import RowIds, Vectors
from search.stored import StoredRows

_QUERY_ROWS = 1024  # queries a matrix product takes at once


def duplicates_of(stored: StoredRows, documents: RowIds) -> list[RowIds]:
    """For each of some documents, its rows and those that are the same to search, ascending; none for a document of -1.

    The same are rows with the same text hash, and rows whose vectors score at least 1 - `SCORE_TOLERANCE` together.
    """
    known = np.flatnonzero(documents >= 0)
    found: list[list[RowIds]] = [[] for _ in documents]
    if len(known):
        own = [stored.opened.numbering.rows_of(documents[[position]]) for position in known.tolist()]
        rows, owners = np.concatenate(own), np.repeat(known, [len(each) for each in own]).tolist()
        for position, each in zip(known.tolist(), own, strict=True):
            found[position].append(each)
        for owner, text, vector in zip(owners, _same_text(stored, rows), _same_vector(stored, rows), strict=True):
            found[owner] += [text, vector]
    return [np.unique(np.concatenate([np.zeros(0, np.int64), *rows])) for rows in found]


def exact_recall(
    stored: StoredRows, queries: Vectors, answers: RowIds, excluded: Sequence[RowIds]
) -> npt.NDArray[np.float64]:
    """recall@k of each query, (n,): the share of its answers that are among the exact k best.

    `queries` (n, d) are unit vectors, `answers` (n, k) rows of the index (-1: none), `excluded` rows of each
    query that count for neither side. An answer that scores as much as the k-th best, up to `SCORE_TOLERANCE`, is
    right: which of several equal rows is named does not matter.
    """
    best = GroundTruthBuilder(queries, answers.shape[1], excluded)
    scores = np.full(answers.shape, -np.inf)
    for first, vectors in stored.vector_blocks():
        best.update(first, vectors)
        query, place = np.nonzero((answers >= first) & (answers < first + len(vectors)))
        scores[query, place] = pair_scores(queries, query, vectors, answers[query, place] - first)
    share: npt.NDArray[np.float64] = (scores >= best.last_scores[:, None] - SCORE_TOLERANCE).mean(axis=1)
    return share


def _same_text(stored: StoredRows, rows: RowIds) -> list[RowIds]:
    own, group = np.unique(stored.text_hashes(rows), axis=0, return_inverse=True)
    numbers = {tuple(pair): number for number, pair in enumerate(own.tolist())}
    found: list[list[int]] = [[] for _ in numbers]
    for first, hashes in stored.hash_blocks():
        for row in np.flatnonzero(np.isin(hashes[:, 0], own[:, 0])).tolist():
            if (number := numbers.get(tuple(hashes[row].tolist()))) is not None:
                found[number].append(first + row)
    members = [np.array(rows, np.int64) for rows in found]
    return [members[number] for number in group.ravel().tolist()]


def _same_vector(stored: StoredRows, rows: RowIds) -> list[RowIds]:
    own, group = np.unique(stored.vectors(rows), axis=0, return_inverse=True)
    found: list[list[RowIds]] = [[] for _ in own]
    limit = 1 - SCORE_TOLERANCE
    for first, vectors in stored.vector_blocks():
        for start in range(0, len(own), _QUERY_ROWS):
            rough = own[start : start + _QUERY_ROWS] @ vectors.T
            number, row = np.nonzero(rough >= limit - vectors.shape[1] * 2.0**-23)
            same = pair_scores(own, number + start, vectors, row) >= limit
            for one in np.unique(number[same]).tolist():
                found[start + one].append(first + row[same & (number == one)])
    members = [np.concatenate([*rows, np.zeros(0, np.int64)]) for rows in found]
    return [members[number] for number in group.ravel().tolist()]
