"""The join over worker processes on one or many machines.

Every worker maps the files of vectors and quantised vectors. A worker compares a run of tiles and writes the pairs to a
file named by the run's number, so repeating a run changes nothing. The receiver sorts the pairs.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import numpy as np

from indexer.arrays import RowIds
from indexer.errors import MachineError
from indexer.executors import WorkerPool, run_tasks, threads_per_worker
from search.dedup.join.exact import COMPARING, COMPARING_KEPT, ExactJoin
from search.dedup.join.quantised import Int8Kernel, int8_is_exact
from search.dedup.join.tiles import seen_by_all
from search.dedup.pairs import Pairs
from search.dedup.vectors import temporary_file

_RUNS = 32  # of tiles for each worker, so that the last run is short
_BATCH = 1 << 20  # pairs
_PAIR = np.dtype([("left", "<i8"), ("right", "<i8"), ("score", "<f4")])


@dataclass(frozen=True)
class DistributedJoin:
    """A `PairSource`: a join by the workers of a pool. All workers must see `folder`."""

    join: ExactJoin
    folder: Path
    pool: WorkerPool

    def within(self, members: RowIds) -> Iterator[Pairs]:
        return self._pairs(COMPARING, members)

    def between(self, left: RowIds, right: RowIds) -> Iterator[Pairs]:
        return self._pairs(COMPARING_KEPT, left, right)

    def _pairs(self, phase: str, left: RowIds, right: RowIds | None = None) -> Iterator[Pairs]:
        tasks = self.join.tasks(left, right)
        self.join.progress.phase(phase, len(left))
        runs = min(len(tasks), _RUNS * self.pool.workers)
        ends: list[int] = np.linspace(0, len(tasks), runs + 1).astype(int).tolist()
        files, threads = self.folder / f"tiles-{uuid4().hex}", threads_per_worker(self.pool)
        work = TileWorker(self.join, left, right, files, threads)
        for path, rows in run_tasks(work, list(pairwise(ends)), self.pool):
            yield from _read(path)
            path.unlink()
            self.join.progress.advance(rows)


@dataclass(frozen=True)
class TileWorker:
    """Creates the function of a worker, which maps runs of tasks [first, end) to files of pairs and row counts.

    The tasks compare rows `left` with each other, or with rows `right`.
    """

    join: ExactJoin
    left: RowIds
    right: RowIds | None
    files: Path  # prefix of the names
    threads: int

    def __call__(self, worker: int) -> Callable[[Iterator[tuple[int, int]]], Iterator[tuple[Path, int]]]:
        if isinstance(self.join.kernel, Int8Kernel) and not int8_is_exact():
            raise MachineError(
                "int8 products are not exact on this processor, but on the processor that started the join."
            )
        join = self.join.for_worker(worker, self.threads)
        tasks = join.tasks(self.left, self.right)

        def work(runs: Iterator[tuple[int, int]]) -> Iterator[tuple[Path, int]]:
            for first, end in runs:
                path = self.files.with_name(f"{self.files.name}-{first:08d}.pairs")
                _write(path, join.pairs_of(iter(tasks[first:end])))
                yield path, sum(rows for rows, _ in tasks[first:end])

        return work


def _write(path: Path, batches: Iterator[Pairs]) -> None:
    """Write pairs to a file atomically. Raises StoreError for a full disk."""
    temporary = path.with_suffix(f".{os.urandom(6).hex()}")  # an earlier attempt elsewhere may still be writing
    with temporary_file(temporary) as file:
        for pairs in batches:
            block = np.empty(len(pairs), _PAIR)
            block["left"], block["right"], block["score"] = pairs.left, pairs.right, pairs.scores
            file.write(block.data)
    temporary.replace(path)


def _read(path: Path) -> Iterator[Pairs]:
    with seen_by_all(path), path.open("rb") as file:
        while data := file.read(_BATCH * _PAIR.itemsize):
            block = np.frombuffer(data, _PAIR)
            yield Pairs(block["left"].astype(np.int64), block["right"].astype(np.int64), block["score"].copy())
