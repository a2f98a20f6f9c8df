"""The exact similarity join: all pairs of vectors that score at least a threshold.

Where cells save work, only pairs that they cannot rule out are looked at (`cells`). Codes are compared tile by tile and
rule out nearly all of these; what is left gets its score from the vectors themselves.
Threads work ahead of who takes their results, but only so far: what waits is bounded, however much there is.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from indexer.ann.products import float32_slack
from indexer.arrays import RowIds, Vectors
from indexer.encoders.device import choose_device
from indexer.errors import MachineError
from indexer.progress import NoProgress, Progress
from indexer.system.threads import available_cores, single_blas_thread
from search.dedup.join.cell_tasks import CellComparison
from search.dedup.join.cells import Centroids, Pilot, most_cells, reach
from search.dedup.join.codes import Kernel, choose_kernel, fit_basis, float32_accumulation
from search.dedup.join.tiles import CodeMatrix, Task, Tile, near, seen_by_all
from search.dedup.join.visits import Cells
from search.dedup.pairs import Pairs, pair_scores, tile_scores
from search.dedup.settings import JoinOptions

COMPARING, COMPARING_KEPT = "comparing vectors", "comparing with those kept"  # phases
_PATIENCE = 0.1  # seconds between two looks at whether to stop
_ROWS_A_TASK = 4096  # of one cell, whose visitors are then looked up once
_DENSE = 0.05  # hits a cell of a tile: above it all of its scores are computed by one product

Job = tuple[int, Callable[[], Iterator[Pairs]]]  # rows it deals with, and its pairs in batches
Result = tuple[int, Pairs | None]  # rows that are done, or a batch


class BoundedWorkers:
    """A context manager; when it ends, also before all is done, its threads have ended too.

    At most two batches a thread wait to be taken. Each thread computes with one thread of torch.
    """

    def __init__(self, threads: int) -> None:
        self._results: queue.Queue[Result | BaseException | None] = queue.Queue(2 * threads)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._count = threads
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "BoundedWorkers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def run(self, jobs: Iterator[Job]) -> Iterator[Result]:
        """Results of all jobs, in any order. An exception of a job is raised here."""
        self._threads = [threading.Thread(target=self._work, args=(jobs,), daemon=True) for _ in range(self._count)]
        for thread in self._threads:
            thread.start()
        working = len(self._threads)
        while working:
            result = self._results.get()
            if isinstance(result, BaseException):
                raise result
            if result is None:
                working -= 1
            else:
                yield result

    def _work(self, jobs: Iterator[Job]) -> None:
        torch.set_num_threads(1)
        try:
            while not self._stop.is_set() and (job := self._next(jobs)) is not None:
                rows, batches = job
                for pairs in batches():
                    if not self._hand_over((0, pairs)):
                        return
                self._hand_over((rows, None))
        except BaseException as error:  # noqa: BLE001 - raised again in `run`
            self._hand_over(error)
        else:
            self._hand_over(None)

    def _next(self, jobs: Iterator[Job]) -> Job | None:
        with self._lock:
            return next(jobs, None)

    def _hand_over(self, result: Result | BaseException | None) -> bool:
        """Wait until there is room; False when nobody takes results any more."""
        while not self._stop.is_set():
            try:
                self._results.put(result, timeout=_PATIENCE)
            except queue.Full:
                continue
            return True
        return False


class ExactJoin:
    """The pairs of distinct unit vectors (m, d) that score at least `lowest`: all of them.

    Codes and who visits which cell are written to `folder`; memory holds a few tiles a thread, 20 bytes a vector, and
    how far the cells' centroids lie apart.
    """

    def __init__(
        self,
        vectors: Vectors,
        lowest: np.float32,
        folder: Path,
        options: JoinOptions = JoinOptions(),  # noqa: B008 - frozen
        progress: Progress | None = None,
        kernel: Kernel | None = None,
    ) -> None:
        self.vectors, self.lowest, self.options = vectors, lowest, options
        self.progress = progress or NoProgress()
        # A score is rounded to float32, so one of `lowest` may stand for a sum that is lower by less than one step.
        self.threshold = float(np.nextafter(lowest, np.float32(-2)))
        self.folder, self.pilot = folder, self._pilot()
        self.cells = self._cells_of_all(kernel.device if kernel else choose_device(options.device))
        self.kernel = kernel or choose_kernel(fit_basis(vectors, self.threshold, self._share_compared()), options)
        self.progress.phase("coding vectors", len(vectors))
        self.coded = CodeMatrix.of(vectors, self.kernel, folder / "codes", self.progress.advance)

    def within(self, members: RowIds) -> Iterator[Pairs]:
        """See `PairSource`."""
        tasks = self.tasks_within(members)
        self.progress.phase(COMPARING, len(members))
        return self.pairs_of(iter(tasks))

    def between(self, left: RowIds, right: RowIds) -> Iterator[Pairs]:
        """See `PairSource`."""
        tasks = self.tasks_between(left, right)
        self.progress.phase(COMPARING_KEPT, len(left))
        return self.pairs_of(iter(tasks))

    def tasks_within(self, members: RowIds) -> list[Task]:
        """What `within` does, in pieces that any thread or worker may do, in any order."""
        if cells := self._cells_for(len(members) ** 2 / 2):
            return self._in_cells(cells).within(members)
        return self._plain_within(members)

    def tasks_between(self, left: RowIds, right: RowIds) -> list[Task]:
        """What `between` does, likewise."""
        if cells := self._cells_for(len(left) * len(right)):
            return self._in_cells(cells).between(left, right)
        return self._plain_between(left, right)

    def pairs_of(self, tasks: Iterator[Task]) -> Iterator[Pairs]:
        """Do the tasks on all threads; their pairs in any order, a tile's at a time."""
        with (
            float32_accumulation(),
            single_blas_thread(),
            BoundedWorkers(self.options.threads or available_cores()) as workers,
        ):
            for rows, pairs in workers.run((rows, self._scored(tiles)) for rows, tiles in tasks):
                self.progress.advance(rows)
                if pairs is not None:
                    yield pairs

    def for_worker(self, worker: int, threads: int) -> "ExactJoin":
        """The same join for one of several processes: with its share of the threads, and its own GPU."""
        join = copy(self)
        join.options = replace(self.options, threads=threads)
        if self.kernel.device.type == "cuda":
            count = torch.cuda.device_count()
            if not count:
                raise MachineError(
                    "a worker sees no GPU, and the join began on one. Pass --gpus-per-worker 1, or --device cpu."
                )
            device = torch.device("cuda", worker % count)
            join.kernel = replace(self.kernel, device=device)  # type: ignore[type-var]
            join.coded = replace(self.coded, kernel=join.kernel, codes=near(self.coded.codes, device))
        return join

    def __getstate__(self) -> dict[str, Any]:
        vectors = getattr(self.vectors, "filename", None)
        return vars(self) | {"vectors": self.vectors if vectors is None else Path(vectors), "progress": NoProgress()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if isinstance(state["vectors"], Path):
            with seen_by_all(state["vectors"]):
                state["vectors"] = np.load(state["vectors"], mmap_mode="r", allow_pickle=False)
        vars(self).update(state)

    def _cells_for(self, pairs: float) -> Cells | None:
        """The cells, if they save work in comparing so many pairs."""
        return self.cells if self.pilot and self.pilot.best(pairs, self.kernel) else None

    def _cells_of_all(self, device: torch.device) -> Cells | None:
        """Cells, if they save work in comparing all vectors with one another."""
        count = self.pilot.best(len(self.vectors) ** 2 / 2) if self.pilot and device.type != "cuda" else 0
        return self._sorted(self._centroids(count, device), reach(self.threshold)) if count else None

    def _centroids(self, count: int, device: torch.device) -> Centroids:
        self.progress.phase("finding cells", None)
        with float32_accumulation(), single_blas_thread():
            return Centroids.fit(self.vectors, count, self.options.threads or available_cores(), device)

    def _sorted(self, centroids: Centroids, reach: float) -> Cells:
        threads = self.options.threads or available_cores()
        self.progress.phase("sorting into cells", len(self.vectors))
        with float32_accumulation(), single_blas_thread():
            return Cells.of(self.vectors, centroids, reach, self.folder / "cells", threads, self.progress.advance)

    def _pilot(self) -> Pilot | None:
        return Pilot.of(self.vectors, self.threshold, most_cells(self.options.memory))

    def _in_cells(self, cells: Cells) -> CellComparison:
        return CellComparison(self.coded, cells, self.threshold, _ROWS_A_TASK)

    def _share_compared(self) -> float:
        """The share of the pairs of all vectors that cells leave."""
        return 1.0 if self.cells is None else self.cells.share_left

    def _plain_within(self, members: RowIds) -> list[Task]:
        step = self.kernel.tile[0]
        return [
            (len(members[first : first + step]), self._within(members, first, first + step))
            for first in range(0, len(members), step)
        ]

    def _plain_between(self, left: RowIds, right: RowIds) -> list[Task]:
        step = self.kernel.tile[0]
        blocks = [left[first : first + step] for first in range(0, len(left), step)]
        return [(len(block), self._between(block, right)) for block in blocks]

    def _within(self, members: RowIds, first: int, last: int) -> Callable[[], Iterator[Tile]]:
        return lambda: self.coded.compare_within(members, first, last, self.threshold)

    def _between(self, left: RowIds, right: RowIds) -> Callable[[], Iterator[Tile]]:
        return lambda: self.coded.compare(left, right, self.threshold)

    def _scored(self, tiles: Callable[[], Iterator[Tile]]) -> Callable[[], Iterator[Pairs]]:
        return lambda: (pairs for tile in tiles() if len(pairs := self._exact(tile)))

    def _exact(self, tile: Tile) -> Pairs:
        left, right = tile.left[tile.rows], tile.right[tile.columns]
        if len(tile.rows) > _DENSE * len(tile.left) * len(tile.right):
            scores = tile_scores(self.vectors[tile.left], self.vectors[tile.right])[tile.rows, tile.columns]
        else:
            ones, others = self.vectors[left], self.vectors[right]
            close = np.einsum("nd,nd->n", ones, others) >= self.threshold - float32_slack(ones.shape[1])  # few are
            left, right = left[close], right[close]
            scores = pair_scores(ones[close], others[close])
        return Pairs(left, right, scores).take(scores >= self.lowest)
