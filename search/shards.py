"""Segments in Ray processes, on this machine or others, for an index larger than one machine's memory.

Each process opens its segment from the index's folder, which all machines must see under the same path, or from object
storage. It searches as this process would: candidates, exact scores from the embeddings, and ties. The answers are
merged here and equal those of one process. Ray restarts a lost process; the query it was answering raises an error, or
gets a partial answer if that is allowed.
"""

import math
import platform
import threading
import time
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from indexer import ann
from indexer.arrays import Mask, SearchResult, Vectors
from indexer.errors import ConfigError, IsotropeError, ShardLostError, StoreError, as_argument
from indexer.store.manifest import SegmentEntry, load_generation, published_at
from indexer.store.stores import store_at
from indexer.typed_arguments import checked
from search.index import Index
from search.segments import Finish, Segment

Host = Literal["ray"]
_GRACE = 0.1  # seconds to fetch an answer that has arrived, after the common timeout has passed


@checked
@dataclass(frozen=True)
class ShardOptions:
    """Segments are searched by one Ray process each, in the cluster at `address`.

    "auto" is this machine's cluster; with an empty address one is started here, for as long as the program runs. A
    process that does not answer within `timeout` seconds counts as lost. All processes search concurrently.
    """

    host: Host = "ray"
    address: str = ""
    timeout: float = 300.0

    def __post_init__(self) -> None:
        if not 0 < self.timeout < math.inf:
            raise ConfigError(f"the timeout of shards is {self.timeout}; expected more than 0 seconds.")


@dataclass(frozen=True)
class Question:
    """Arguments of `SearchedSegment.begin` for a process. `mask` is packed, one bit per row; None for all rows."""

    queries: Vectors
    k: int
    mask: npt.NDArray[np.uint8] | None
    exact: bool
    parameters: dict[str, int]  # of the search


class SegmentProcess:
    """One segment in its own process, opened by the first search, which raises the errors of opening."""

    def __init__(self, index: str | Path, generation: int, number: int) -> None:
        """`index` is its path, or its URL in object storage."""
        self._place, self._generation, self._number = index, generation, number

    def search(self, question: Question) -> list[SearchResult]:
        """Search as `Segment.search` does. Raises its errors and those of opening the index."""
        ann.set_threads(1)  # faster than many for one query on a flat index
        segment, rows = self._segment, self._segment.entry.rows
        mask = None if question.mask is None else np.unpackbits(question.mask, count=rows).astype(bool)
        if not segment.exact:
            segment.set_search_parameters(question.parameters)
        return segment.search(question.queries, question.k, mask, question.exact)

    @cached_property
    def _segment(self) -> Segment:
        path = published_at(self._place)
        if path is None:
            raise StoreError(
                f"{self._place}: is not an index on {platform.node()}, where Ray runs a shard's process; expected a "
                "folder that every machine of the cluster sees under this path, or an index in object storage."
            )
        return Index(path, load_generation(path, self._generation)).open_segment(self._number)


class HostedSegment:
    """A `SearchedSegment` in its own process, a Ray actor anywhere in the cluster that the first query starts."""

    def __init__(self, ray: Any, entry: SegmentEntry, process: tuple[str | Path, int, int], timeout: float) -> None:
        """`process` are the arguments of `SegmentProcess`."""
        self.entry, self.parameters = entry, dict(entry.search_parameters)
        self._ray, self._process, self._timeout = ray, process, timeout
        self._actor: Any = None
        self._lock = threading.Lock()

    @property
    def exact(self) -> bool:
        return ann.is_exact(self.entry.factory)

    def set_search_parameters(self, parameters: dict[str, int]) -> None:
        self.parameters.update(parameters)

    def begin(self, queries: Vectors, k: int, mask: Mask | None, exact: bool) -> Finish:
        packed = None if mask is None else np.packbits(mask)
        return self.ask(Question(np.asarray(queries, np.float32), k, packed, exact, dict(self.parameters)))

    def ask(self, question: Question) -> Finish:
        """Send a question without waiting. The result raises the errors of the process, or ShardLostError."""
        with self._lock:
            if self._actor is None:
                kind = self._ray.remote(SegmentProcess).options(max_restarts=-1, scheduling_strategy="SPREAD")
                self._actor = kind.remote(*self._process)
            return partial(self._answer, self._actor.search.remote(question), time.monotonic() + self._timeout)

    def close(self) -> None:
        """End the process; a later query starts another."""
        with self._lock:
            if self._actor is not None and self._ray.is_initialized():
                self._ray.kill(self._actor)
            self._actor = None

    def _answer(self, begun: Any, until: float) -> list[SearchResult]:
        errors = self._ray.exceptions
        try:
            results: list[SearchResult] = self._ray.get(begun, timeout=max(_GRACE, until - time.monotonic()))
        except errors.RayTaskError as error:
            raise error.cause if isinstance(error.cause, IsotropeError) else error from None
        except errors.RayError as error:
            raise self.lost(str(error).strip().partition("\n")[0] or type(error).__name__) from error
        return results

    def lost(self, reason: str) -> ShardLostError:
        """Return the error of a process that gave no answer."""
        first, last = self.entry.first_row, self.entry.first_row + self.entry.rows - 1
        return ShardLostError(
            f"{self.entry.file}: the process of rows {first:,} to {last:,} of the index does not answer ({reason}). "
            "Fix: repeat the query, because Ray restarts lost processes, or allow partial answers "
            f"({as_argument('partial', True)})."
        )


def hosted(index: Index, options: ShardOptions) -> Index:
    """Return the same index with its segments in other processes. Raises MachineError if Ray is not installed."""
    from indexer.executors.ray_actors import connect  # imports multiprocessing, which a search here does not need

    ray = connect(options.address)
    place, generation = store_at(index.path).url or index.path.resolve(), index.manifest.generation
    segments = (
        HostedSegment(ray, entry, (place, generation, number), options.timeout)
        for number, entry in enumerate(index.manifest.segments)
    )
    return replace(index, hosted=tuple(segments))


def close_hosts(index: Index) -> None:
    """End the processes of an index's segments; a later query restarts them."""
    for segment in index.hosted:
        if isinstance(segment, HostedSegment):
            segment.close()
