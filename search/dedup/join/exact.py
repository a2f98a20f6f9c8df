"""The exact similarity join: all pairs of vectors that score at least a threshold.

If cells save work, only pairs that cells cannot rule out are compared (`cells`). Quantised vectors, compared tile by
tile, rule out nearly all of these; the remaining pairs are scored from the vectors. Threads work ahead of the consumer,
with a bounded queue of results.
"""

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from indexer.ann.inner_products import float32_slack
from indexer.arrays import RowIds, Vectors
from indexer.encoders.device import choose_device
from indexer.errors import MachineError, as_argument
from indexer.progress import NoProgress, Progress
from indexer.system.threads import available_cores, single_blas_thread
from search.dedup.join.cell_tasks import CellComparison
from search.dedup.join.cells import Centroids, Pilot, most_cells, reach
from search.dedup.join.probes import Cells
from search.dedup.join.quantised import FloatKernel, choose_kernel, fit_basis, float32_accumulation
from search.dedup.join.tiles import QuantisedMatrix, Task, Tile, near, seen_by_all
from search.dedup.pairs import Pairs, pair_scores, tile_scores
from search.dedup.settings import JoinOptions

COMPARING, COMPARING_KEPT = "comparing vectors", "comparing with those kept"  # phases
_PATIENCE = 0.1  # seconds between checks for a stop
_ROWS_A_TASK = 4096  # of one cell, with one lookup of the probing rows
_DENSE = 0.05  # share of hits in a tile above which one product computes all of its scores

Job = tuple[int, Callable[[], Iterator[Pairs]]]  # number of rows, and a function that yields pairs
Result = tuple[int, Pairs | None]  # number of finished rows, or a batch


def run_bounded(jobs: Iterator[Job], threads: int) -> Generator[Result, None, None]:
    """Yield the results of all jobs from several threads, in any order; raise the exception of a job.

    At most two batches a thread are queued. Each thread uses one thread of torch, and ends with the generator.
    """
    results: queue.Queue[Result | BaseException | None] = queue.Queue(2 * threads)
    stop, lock = threading.Event(), threading.Lock()
    put = partial(_put, results, stop)

    def work() -> None:
        torch.set_num_threads(1)
        try:
            while not stop.is_set():
                with lock:
                    job = next(jobs, None)
                if job is None:
                    break
                rows, batches = job
                if not all(put((0, pairs)) for pairs in batches()):
                    return
                put((rows, None))
            put(None)
        except BaseException as error:  # noqa: BLE001 - raised again below
            put(error)

    workers = [threading.Thread(target=work, daemon=True, name=f"join {number}") for number in range(threads)]
    for worker in workers:
        worker.start()
    try:
        while threads:
            result = results.get()
            if isinstance(result, BaseException):
                raise result
            if result is None:
                threads -= 1
            else:
                yield result
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def _put(results: "queue.Queue[Any]", stop: threading.Event, result: Result | BaseException | None) -> bool:
    """Wait for room in the queue; return False after a stop."""
    while not stop.is_set():
        with suppress(queue.Full):
            results.put(result, timeout=_PATIENCE)
            return True
    return False


class ExactJoin:
    """All pairs of distinct unit vectors (m, d) that score at least `lowest`.

    Quantised vectors and probes are written to `folder`; memory contains a few tiles per thread, 20 bytes per vector,
    and the distances of centroids. `figures` describe the method, JSON types.
    """

    def __init__(
        self,
        vectors: Vectors,
        lowest: np.float32,
        folder: Path,
        options: JoinOptions = JoinOptions(),  # noqa: B008 - frozen
        progress: Progress | None = None,
    ) -> None:
        self.vectors, self.lowest, self.options = vectors, lowest, options
        self.progress = progress or NoProgress()
        self.threads = options.threads or available_cores()
        # Scores are rounded to float32, so a sum less than one step below `lowest` may score `lowest`.
        self.threshold = float(np.nextafter(lowest, np.float32(-2)))
        self.folder, self.pilot = folder, self._pilot()
        self.cells = self._cells_of_all(choose_device(options.device))
        fit = partial(fit_basis, vectors, self.threshold, self._share_compared())
        self.kernel = choose_kernel(fit, options)
        self.progress.phase("quantising vectors", len(vectors))
        path, advance = folder / "quantised", self.progress.advance
        self.quantised = QuantisedMatrix.of(vectors, self.kernel, path, self.threads, advance)
        self.figures = self._prepare()

    def within(self, members: RowIds) -> Iterator[Pairs]:
        tasks = self.tasks(members)
        self.progress.phase(COMPARING, len(members))
        return self.pairs_of(iter(tasks))

    def between(self, left: RowIds, right: RowIds) -> Iterator[Pairs]:
        tasks = self.tasks(left, right)
        self.progress.phase(COMPARING_KEPT, len(left))
        return self.pairs_of(iter(tasks))

    def tasks(self, left: RowIds, right: RowIds | None = None) -> list[Task]:
        """Return the tasks of `between` or, without `right`, of `within`, in the same order in every process."""
        cells = self._cells_for(len(left) ** 2 / 2 if right is None else len(left) * len(right))
        if cells is None:
            return self._plain_tasks(left, right)
        comparison = CellComparison(self.quantised, cells, self.threshold, _ROWS_A_TASK)
        return comparison.within(left) if right is None else comparison.between(left, right)

    def pairs_of(self, tasks: Iterator[Task]) -> Iterator[Pairs]:
        """Run the tasks on all threads; yield the pairs tile by tile, in any order."""
        jobs = ((rows, self._scored(tiles)) for rows, tiles in tasks)
        with float32_accumulation(), single_blas_thread(), closing(run_bounded(jobs, self.threads)) as results:
            for rows, pairs in results:
                self.progress.advance(rows)
                if pairs is not None:
                    yield pairs

    def for_worker(self, worker: int, threads: int) -> "ExactJoin":
        """Return this join for a worker process, with its share of threads and its own GPU."""
        join = copy(self)
        join.threads = threads
        if isinstance(self.kernel, FloatKernel) and self.kernel.device.type == "cuda":
            count = torch.cuda.device_count()
            if not count:
                raise MachineError(
                    "a worker has no GPU, but the join started on one. Fix: pass "
                    f"{as_argument('gpus_per_worker', 1)} or {as_argument('device', 'cpu')}."
                )
            device = torch.device("cuda", worker % count)
            join.kernel = replace(self.kernel, device=device)
            join.quantised = replace(self.quantised, kernel=join.kernel, rows=near(self.quantised.rows, device))
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
        """Return the cells if they save work for so many pairs."""
        return self.cells if self.pilot and self.pilot.best(pairs, self.kernel) else None

    def _cells_of_all(self, device: torch.device) -> Cells | None:
        """Create cells if they save work in a comparison of all vectors."""
        count = self.pilot.best(len(self.vectors) ** 2 / 2) if self.pilot and device.type != "cuda" else 0
        return self._sorted(self._centroids(count, device), reach(self.threshold)) if count else None

    def _centroids(self, count: int, device: torch.device) -> Centroids:
        self.progress.phase("finding cells", None)
        with float32_accumulation(), single_blas_thread():
            return Centroids.fit(self.vectors, count, self.threads, device)

    def _sorted(self, centroids: Centroids, reach: float) -> Cells:
        self.progress.phase("sorting into cells", len(self.vectors))
        with float32_accumulation(), single_blas_thread():
            return Cells.of(self.vectors, centroids, reach, self.folder / "cells", self.threads, self.progress.advance)

    def _pilot(self) -> Pilot | None:
        return Pilot.of(self.vectors, self.threshold, most_cells(self.options.memory))

    def _share_compared(self) -> float:
        return 1.0 if self.cells is None else self.cells.share_left

    def _prepare(self) -> dict[str, Any]:
        """Do what remains before the first pair, and return the figures."""
        return {}

    def _plain_tasks(self, left: RowIds, right: RowIds | None = None) -> list[Task]:
        tasks: list[Task] = []
        step = -(-self.kernel.tile[0] // 2)  # half of the square on the diagonal is compared for nothing
        for first in range(0, len(left), step):
            rows = left[first : first + step]
            if right is None:
                tiles = partial(self.quantised.compare_within, left, first, first + step, self.threshold)
            else:
                tiles = partial(self.quantised.compare, rows, right, self.threshold)
            tasks.append((len(rows), tiles))
        return tasks

    def _scored(self, tiles: Callable[[], Iterator[Tile]]) -> Callable[[], Iterator[Pairs]]:
        return lambda: (pairs for tile in tiles() if len(pairs := self._exact(tile)))

    def _exact(self, tile: Tile) -> Pairs:
        left, right = tile.left[tile.rows], tile.right[tile.columns]
        if len(tile.rows) > _DENSE * len(tile.left) * len(tile.right):
            scores = tile_scores(self.vectors[tile.left], self.vectors[tile.right])[tile.rows, tile.columns]
        else:
            first, second = self.vectors[left], self.vectors[right]
            close = np.einsum("nd,nd->n", first, second) >= self.threshold - float32_slack(first.shape[1])  # few
            left, right = left[close], right[close]
            scores = pair_scores(first[close], second[close])
        return Pairs(left, right, scores).take(scores >= self.lowest)
