"""Reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009): rankings whose scores cannot be compared."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

CONSTANT = 60  # the paper's
DEPTH = 1000


def list_depth(k: int) -> int:
    """How many hits each ranking is asked for when k are wanted.

    The same for every k up to 1,000, so that the first hits do not change when more are asked for.
    """
    return max(DEPTH, k)


def fuse(rankings: Sequence[Iterable[int]], depth: int, constant: int = CONSTANT) -> list[tuple[float, int]]:
    """(score, document) of all documents among the first `depth` of any ranking, best first, ties by number.

    A document's score is the sum of 1 / (constant + rank) over the rankings that have it, ranks from 1. Each
    ranking holds a document once, best first. The order of the rankings does not matter.
    """
    shares: defaultdict[int, list[float]] = defaultdict(list)
    for ranking in rankings:
        for rank, document in zip(range(1, depth + 1), ranking, strict=False):
            shares[document].append(1 / (constant + rank))
    return sorted(
        ((math.fsum(share), document) for document, share in shares.items()), key=lambda hit: (-hit[0], hit[1])
    )
