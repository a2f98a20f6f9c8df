"""The exact similarity join: all pairs of vectors that score at least a threshold.

Codes are compared tile by tile and rule out nearly all pairs; what is left gets its score from the vectors themselves.
Threads work ahead of who takes their results, but only so far: what waits is bounded, however much there is.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from indexer.arrays import Float32Array, RowIds, Vectors
from indexer.errors import MachineError
from indexer.parallel import available_cores, single_blas_thread
from indexer.progress import NoProgress, Progress
from search.dedup.codes import Kernel, choose_kernel, fit_basis, float32_accumulation, margin
from search.dedup.pairs import Pairs, pair_scores, tile_scores
from search.dedup.settings import JoinOptions
from search.dedup.vectors import disk_full

COMPARING, COMPARING_KEPT = "comparing vectors", "comparing with those kept"  # phases
_BLOCK = 1024  # rows encoded at once: they stay in the processor's cache
_PATIENCE = 0.1  # seconds between two looks at whether to stop
_DENSE = 0.05  # hits a cell of a tile: above it all of its scores are computed by one product

Job = tuple[int, Callable[[], Iterator[Pairs]]]  # rows it deals with, and its pairs in batches
Result = tuple[int, Pairs | None]  # rows that are done, or a batch


@dataclass(frozen=True)
class Tile:
    """Rows (n,) and (m,), and which of their pairs may reach the threshold: indices into `left` and into `right`."""

    left: RowIds
    right: RowIds
    rows: RowIds
    columns: RowIds


Task = tuple[int, Callable[[], Iterator[Tile]]]  # rows it deals with, and how


@dataclass(frozen=True)
class CodeMatrix:
    """Codes of all vectors (n, width), on disk or on the kernel's device, and E of each (n,)."""

    kernel: Kernel
    codes: torch.Tensor
    errors: Float32Array
    path: Path

    @classmethod
    def of(cls, vectors: Vectors, kernel: Kernel, path: Path, advance: Callable[[int], None]) -> "CodeMatrix":
        """Encode all vectors (n, d) into the file `path`."""
        errors = np.zeros(len(vectors), np.float32)

        def blocks() -> Iterator[torch.Tensor]:
            for start in range(0, len(vectors), _BLOCK):
                codes, errors[start : start + _BLOCK] = kernel.encode(vectors[start : start + _BLOCK])
                yield codes
                advance(len(codes))

        write_codes(blocks(), len(vectors), path)
        return cls(kernel, _near(open_codes(path, len(vectors), kernel), kernel.device), errors, path)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"codes": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        with seen_by_all(state["path"]):
            codes = open_codes(state["path"], len(state["errors"]), state["kernel"])
        vars(self).update(state, codes=codes)

    def compare(self, left: RowIds, right: RowIds, score: float) -> Iterator[Tile]:
        """Tiles of rows `left` against rows `right`, both ascending, in which some pair may score at least `score`."""
        height, width = self.kernel.tile
        for start in range(0, len(left), height):
            block = left[start : start + height]
            codes = self._codes(block)
            for part in range(0, len(right), width):
                tile = self._tile(block, codes, right[part : part + width], score)
                if len(tile.rows):
                    yield tile

    def compare_within(self, rows: RowIds, first: int, last: int, score: float) -> Iterator[Tile]:
        """Of ascending `rows`, those at [first, last) against themselves and all after them; each pair once."""
        for tile in self.compare(rows[first:last], rows[first:], score):
            later = tile.left[tile.rows] < tile.right[tile.columns]
            if later.any():
                yield Tile(tile.left, tile.right, tile.rows[later], tile.columns[later])

    def _tile(self, left: RowIds, codes: torch.Tensor, right: RowIds, score: float) -> Tile:
        limit = self.kernel.limit(score, margin(self.errors[left], self.errors[right]))
        products = self.kernel.products(self._codes(right), codes)
        hit = (products.amax(dim=1) >= limit).nonzero()[:, 0]  # most rows have none: the rest is looked at closely
        found = (products[hit] >= limit).nonzero().cpu().numpy()
        return Tile(left, right, found[:, 1], hit.cpu().numpy()[found[:, 0]])

    def _codes(self, rows: RowIds) -> torch.Tensor:
        first, last = int(rows[0]), int(rows[-1]) + 1
        if last - first == len(rows):
            return self.codes[first:last].to(self.kernel.device)
        chosen = torch.from_numpy(rows).to(self.codes.device)
        return self.codes.index_select(0, chosen).to(self.kernel.device)


def _near(codes: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Codes on the device if they take at most half of its free memory; tiles are sent one by one otherwise."""
    if device.type != "cuda":
        return codes
    free, _ = torch.cuda.mem_get_info(device)
    return codes.to(device) if 2 * codes.nbytes <= free else codes


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

    Codes are written to `folder`; beside them memory holds a few tiles a thread and 4 bytes a vector.
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
        self.kernel = kernel or choose_kernel(fit_basis(vectors, self.threshold), options)
        self.progress.phase("coding vectors", len(vectors))
        self.coded = CodeMatrix.of(vectors, self.kernel, folder / "codes", self.progress.advance)

    def within(self, members: RowIds) -> Iterator[Pairs]:
        """See `PairSource`."""
        self.progress.phase(COMPARING, len(members))
        return self.pairs_of(iter(self.tasks_within(members)))

    def between(self, left: RowIds, right: RowIds) -> Iterator[Pairs]:
        """See `PairSource`."""
        self.progress.phase(COMPARING_KEPT, len(left))
        return self.pairs_of(iter(self.tasks_between(left, right)))

    def tasks_within(self, members: RowIds) -> list[Task]:
        """What `within` does, in pieces that any thread or worker may do, in any order."""
        step = self.kernel.tile[0]
        return [
            (len(members[first : first + step]), self._within(members, first, first + step))
            for first in range(0, len(members), step)
        ]

    def tasks_between(self, left: RowIds, right: RowIds) -> list[Task]:
        """What `between` does, likewise."""
        step = self.kernel.tile[0]
        blocks = [left[first : first + step] for first in range(0, len(left), step)]
        return [(len(block), self._between(block, right)) for block in blocks]

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
            join.coded = replace(self.coded, kernel=join.kernel, codes=_near(self.coded.codes, device))
        return join

    def __getstate__(self) -> dict[str, Any]:
        vectors = getattr(self.vectors, "filename", None)
        return vars(self) | {"vectors": self.vectors if vectors is None else Path(vectors), "progress": NoProgress()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if isinstance(state["vectors"], Path):
            with seen_by_all(state["vectors"]):
                state["vectors"] = np.load(state["vectors"], mmap_mode="r", allow_pickle=False)
        vars(self).update(state)

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
            scores = pair_scores(self.vectors[left], self.vectors[right])
        return Pairs(left, right, scores).take(scores >= self.lowest)


def write_codes(blocks: Iterable[torch.Tensor], rows: int, path: Path) -> None:
    """Blocks of codes into a file, none where there are no rows. Raises StoreError when the disk is full."""
    if not rows:
        return
    try:
        with path.open("wb") as file:
            for block in blocks:
                file.write(block.contiguous().view(torch.uint8).numpy().data)
    except OSError as error:
        raise disk_full(path, error) from error


def open_codes(path: Path, rows: int, kernel: Kernel) -> torch.Tensor:
    """The codes of a file, (rows, width), memory-mapped."""
    if not rows:
        return torch.zeros((0, kernel.width), dtype=kernel.dtype)
    path.stat()  # torch would make a file that is not there
    return torch.from_file(str(path), size=rows * kernel.width, dtype=kernel.dtype).view(rows, kernel.width)


@contextmanager
def seen_by_all(path: Path) -> Iterator[None]:
    """Raises MachineError for a file that whoever began the join sees and this worker does not."""
    try:
        yield
    except FileNotFoundError:
        raise MachineError(
            f"{path}: this file of the join is not on a worker's machine. Every machine must see the folder of "
            "temporary files: name a shared one with TMPDIR=/shared isotrope dedup ..."
        ) from None
