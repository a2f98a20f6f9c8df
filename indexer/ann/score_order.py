"""Order-preserving integers for scores, alone or packed with a rank that breaks ties."""

import numpy as np
import numpy.typing as npt

from indexer.arrays import Int64Array, RowIds, Scores

NO_KEY = np.iinfo(np.int64).min  # below every packed key
_RANK_BITS = 32
_RANK_MASK = (1 << _RANK_BITS) - 1


def sort_key(scores: Scores) -> Int64Array:
    """Return integers in the order of float32 scores; adjacent floats have adjacent integers."""
    bits = scores.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def from_sort_key(numbers: Int64Array) -> Scores:
    """Return the scores of integers from `sort_key`."""
    bits = np.where(numbers < 0, -numbers | 0x80000000, numbers)
    return bits.astype(np.uint32).view(np.float32)


def pack(scores: Scores, ranks: RowIds | npt.NDArray[np.uint32]) -> Int64Array:
    """Return a key for each score (..., n): larger for a larger score, then for a lower rank (n,), below 2**32."""
    return (sort_key(scores) << _RANK_BITS) | (_RANK_MASK - ranks)


def unpack(keys: Int64Array) -> tuple[Scores, RowIds]:
    """Return the scores and ranks of packed keys."""
    return from_sort_key(keys >> _RANK_BITS), _RANK_MASK - (keys & _RANK_MASK)
