"""Which ids were met, and where, in about 24 bytes a document.

A dict of id strings costs some 150 bytes an entry: 15 GB for 100 million documents. Here an id is its 128-bit
hash (at 10^9 documents the chance of any two colliding is about 10^-21) and its position one 64-bit number. Recent
ids are in a small dict; when it is full they become a sorted numpy run, and runs of similar size are merged, so
that there are few (a logarithm of the number of documents) and each id is moved only as many times. While two runs
are merged their memory is held twice.
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

_Numbers = npt.NDArray[np.uint64]
_HASH_BYTES = 16


@dataclass(frozen=True)
class _Run:
    """Ids in order of the upper half of their hashes; three columns of equal length."""

    upper: _Numbers
    lower: _Numbers
    positions: _Numbers

    def find(self, upper: int, lower: int) -> int | None:
        # bisect over a memoryview takes a microsecond; np.searchsorted of a single number several
        view = memoryview(self.upper.data)
        place = bisect_left(view, upper)
        while place < len(view) and view[place] == upper:
            if int(self.lower[place]) == lower:
                return int(self.positions[place])
            place += 1
        return None


class SeenIds:
    """A map from id to the position (0 to 2**64 - 1) it was first added with.

    `recent` is the number of ids kept in the dict before they are packed.
    """

    def __init__(self, recent: int = 1 << 16) -> None:
        self._limit = recent
        self._recent: dict[bytes, int] = {}
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return len(self._recent) + sum(len(run.upper) for run in self._runs)

    def find(self, identifier: str) -> int | None:
        """The position the id was added with, or None."""
        key = _hash(identifier)
        if (position := self._recent.get(key)) is not None:
            return position
        upper, lower = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
        for run in self._runs:
            if (position := run.find(upper, lower)) is not None:
                return position
        return None

    def add(self, identifier: str, position: int) -> None:
        """Remember a new id; the caller has asked `find` first."""
        self._recent[_hash(identifier)] = position
        if len(self._recent) >= self._limit:
            self._pack()

    def _pack(self) -> None:
        hashes = np.frombuffer(b"".join(self._recent), dtype="<u8").reshape(-1, 2).astype(np.uint64)
        positions = np.fromiter(self._recent.values(), dtype=np.uint64, count=len(self._recent))
        run = _sorted_run(hashes[:, 0], hashes[:, 1], positions)
        self._recent = {}
        while self._runs and len(self._runs[-1].upper) <= len(run.upper):
            run = _merged(self._runs.pop(), run)
        self._runs.append(run)


@lru_cache(maxsize=1)  # `add` follows `find`
def _hash(identifier: str) -> bytes:
    return blake2b(identifier.encode("utf-8"), digest_size=_HASH_BYTES).digest()


def _sorted_run(upper: _Numbers, lower: _Numbers, positions: _Numbers) -> _Run:
    order = np.argsort(upper, kind="stable")
    return _Run(upper[order], lower[order], positions[order])


def _merged(a: _Run, b: _Run) -> _Run:
    return _sorted_run(
        np.concatenate([a.upper, b.upper]),
        np.concatenate([a.lower, b.lower]),
        np.concatenate([a.positions, b.positions]),
    )
