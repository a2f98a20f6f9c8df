"""The arrays that go in and out of an index, and answers put together from several."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Scores = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Found = tuple[Scores, Rows]  # scores and rows of one query, best first


def nothing() -> Found:
    """An answer without rows."""
    return np.zeros(0, np.float32), np.zeros(0, np.int64)


def best_first(scores: Scores, rows: Rows, k: int) -> Found:
    """The best `k` of these and all that tie with the k-th; equal scores by row. `k` is at least 1."""
    order = np.lexsort((rows, -scores))
    scores, rows = scores[order], rows[order]
    keep = scores >= scores[min(k, len(scores)) - 1] if len(scores) else slice(0)
    return scores[keep], rows[keep]


def best_of(answers: Sequence[Found], k: int) -> Found:
    """The best `k` of several answers to one query, whose rows differ, and all that tie with the k-th."""
    if not answers:
        return nothing()
    scores, rows = zip(*answers, strict=True)
    return best_first(np.concatenate(scores), np.concatenate(rows), k)
