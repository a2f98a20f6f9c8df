"""Vectors that are the same byte for byte are given one number, so that the join sees each of them once."""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from search.dedup.pairs import Rows, Vectors

Digests = npt.NDArray[np.uint64]
DIGEST_BYTES = 16  # two different values with one digest are not to be expected before 10**18 of them
_BLOCK_ROWS = 4096


@dataclass(frozen=True)
class Distinct:
    """Values numbered densely, in the order in which they first occur."""

    first: Rows  # (distinct,) position at which each first occurs, ascending
    number_of: Rows  # (n,) number of the value at each position


def find_distinct(vectors: Vectors) -> Distinct:
    """Number the rows of (n, d) float32 by their bytes. Reads a block at a time and holds 16 bytes a row."""
    digests = bytearray()
    for start in range(0, len(vectors), _BLOCK_ROWS):
        block = np.ascontiguousarray(vectors[start : start + _BLOCK_ROWS])
        for row in block.view(np.uint8):
            digests += hashlib.blake2b(row.data, digest_size=DIGEST_BYTES).digest()
    return number_equal(as_digests(digests))


def as_digests(joined: bytearray) -> Digests:
    """Digests written one after the other, as (n, 2)."""
    return np.frombuffer(joined, np.uint64).reshape(-1, 2)


def number_equal(digests: Digests) -> Distinct:
    """Number the rows of (n, 2), equal ones alike."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: of equal rows the earliest comes first
    arranged = digests[order]
    starts = np.ones(len(order), bool)
    starts[1:] = (arranged[1:] != arranged[:-1]).any(axis=1)
    first_of_group = order[starts]
    number_of_group = np.empty(len(first_of_group), np.int64)
    number_of_group[np.argsort(first_of_group)] = np.arange(len(first_of_group))
    number_of = np.empty(len(order), np.int64)
    number_of[order] = number_of_group[np.cumsum(starts) - 1]
    return Distinct(np.sort(first_of_group), number_of)
