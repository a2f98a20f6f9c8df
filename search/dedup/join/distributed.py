"""The join over worker processes, of this machine or many: tiles are the unit of work for them as for threads.

Vectors and codes lie in files that every worker maps. A worker compares a run of tiles and writes their pairs to a file
that the run's number names, so a run that is done again changes nothing; who gathers the pairs sorts them.
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
from search.dedup.join.codes import Int8Kernel, int8_is_exact
from search.dedup.join.exact import COMPARING, COMPARING_KEPT, ExactJoin
from search.dedup.join.tiles import Task, seen_by_all
from search.dedup.pairs import Pairs
from search.dedup.vectors import disk_full

_RUNS = 32  # of tiles, for each worker: the last ones are short beside the whole
_BATCH = 1 << 20  # pairs read at once
_PAIR = np.dtype([("left", "<i8"), ("right", "<i8"), ("score", "<f4")])


@dataclass(frozen=True)
class DistributedJoin:
    """A `PairSource`: the pairs of a join, found by the workers of a pool. What lies in `folder` they must all see."""

    join: ExactJoin
    folder: Path
    pool: WorkerPool

    def within(self, members: RowIds) -> Iterator[Pairs]:
        """See `PairSource`."""
        return self._found(Comparison(members), COMPARING)

    def between(self, left: RowIds, right: RowIds) -> Iterator[Pairs]:
        """See `PairSource`."""
        return self._found(Comparison(left, right), COMPARING_KEPT)

    def _found(self, comparison: "Comparison", phase: str) -> Iterator[Pairs]:
        tasks = comparison.tasks(self.join)
        self.join.progress.phase(phase, len(comparison.left))
        runs = min(len(tasks), _RUNS * self.pool.workers)
        ends: list[int] = np.linspace(0, len(tasks), runs + 1).astype(int).tolist()
        work = TileWorker(self.join, comparison, self.folder / f"tiles-{uuid4().hex}", threads_per_worker(self.pool))
        for path, rows in run_tasks(work, list(pairwise(ends)), self.pool):
            yield from _read(path)
            path.unlink()
            self.join.progress.advance(rows)


@dataclass(frozen=True)
class Comparison:
    """Which rows are compared: those of `left` among themselves, or with those of `right`."""

    left: RowIds
    right: RowIds | None = None

    def tasks(self, join: ExactJoin) -> list[Task]:
        """The same pieces in the same order wherever they are asked for."""
        return join.tasks_within(self.left) if self.right is None else join.tasks_between(self.left, self.right)


@dataclass(frozen=True)
class TileWorker:
    """Makes a worker's function: runs of tiles, numbered (first, end), to files of pairs and how many rows they had."""

    join: ExactJoin
    comparison: Comparison
    files: Path  # what their names begin with
    threads: int

    def __call__(self, worker: int) -> Callable[[Iterator[tuple[int, int]]], Iterator[tuple[Path, int]]]:
        if isinstance(self.join.kernel, Int8Kernel) and not int8_is_exact():
            raise MachineError("int8 products are not exact on this processor, as they are on the one that began.")
        join = self.join.for_worker(worker, self.threads)
        tasks = self.comparison.tasks(join)

        def work(runs: Iterator[tuple[int, int]]) -> Iterator[tuple[Path, int]]:
            for first, end in runs:
                chosen = tasks[first:end]
                path = self.files.with_name(f"{self.files.name}-{first:08d}.pairs")
                _write(path, join.pairs_of(iter(chosen)))
                yield path, sum(rows for rows, _ in chosen)

        return work


def _write(path: Path, found: Iterator[Pairs]) -> None:
    """Pairs to a file, which is there when it is whole. Raises StoreError for a full disk."""
    beside = path.with_suffix(f".{os.urandom(6).hex()}")  # an earlier try, on another machine, may still be writing
    try:
        with beside.open("wb") as file:
            for pairs in found:
                block = np.empty(len(pairs), _PAIR)
                block["left"], block["right"], block["score"] = pairs.left, pairs.right, pairs.scores
                file.write(block.data)
        beside.replace(path)
    except OSError as error:
        raise disk_full(path, error) from error


def _read(path: Path) -> Iterator[Pairs]:
    with seen_by_all(path), path.open("rb") as file:
        while data := file.read(_BATCH * _PAIR.itemsize):
            block = np.frombuffer(data, _PAIR)
            yield Pairs(block["left"].astype(np.int64), block["right"].astype(np.int64), block["score"].copy())
