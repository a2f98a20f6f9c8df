"""Segments held by other processes, on this machine or others, by Ray: an index larger than one machine's memory.

Each process opens its segment from the index's folder, which all machines must see under the same path, or from object
storage, and does what this one would do with it: candidates, exact scores from the embeddings, ties and all. So the
answers are the same; here they are merged. A process that dies is started again by Ray; the question that it leaves
unanswered is an error, or goes without it if that was asked for.
"""

import math
import platform
import threading
import time
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from indexer import ann
from indexer.arrays import Mask, SearchResult, Vectors
from indexer.errors import ConfigError, IsotropeError, ShardLostError, StoreError
from indexer.executors.ray_actors import connect
from indexer.recipe.loading import describe_type
from indexer.store.manifest import SegmentEntry, load_generation, published_at
from indexer.store.stores import store_at
from search.index import Index
from search.segments import Finish, Segment, VectorsOf

Host = Literal["ray"]
_GRACE = 0.1  # seconds to fetch an answer that has arrived, after the common timeout has passed


@dataclass(frozen=True)
class ShardOptions:
    """Where segments are searched: each by a process of Ray's, of the cluster at `address`.

    "auto" is the cluster that this machine is part of; empty: one is started here, for as long as the program runs. A
    process that has not answered `timeout` seconds after it was asked counts as lost. All are asked at once, so a
    question waits that long for all of them together.
    """

    host: Host = "ray"
    address: str = ""
    timeout: float = 300.0

    def __post_init__(self) -> None:
        if self.host not in get_args(Host):
            raise ConfigError(f'shards are to be held by "{self.host}"; expected {describe_type(Host)}.')
        if not 0 < self.timeout < math.inf:
            raise ConfigError(f"the timeout of shards is {self.timeout}; expected seconds, more than 0.")


@dataclass(frozen=True)
class Question:
    """A question to a process: see `SearchedSegment.begin`. `mask` is packed, one bit a row; None for all rows."""

    queries: Vectors
    k: int
    mask: npt.NDArray[np.uint8] | None
    exact: bool
    parameters: dict[str, int]  # to search with


class SegmentProcess:
    """One segment in a process of its own; opened by the first question, whose errors reach the one who asked."""

    def __init__(self, index: str | Path, generation: int, number: int) -> None:
        """`index` is its path, or its URL in object storage."""
        self._place, self._generation, self._number = index, generation, number

    def search(self, question: Question) -> list[SearchResult]:
        """Raises as `Segment.search`, and as opening the index does."""
        ann.set_threads(1)  # one query on a flat index is faster so
        segment, rows = self._segment, self._segment.entry.rows
        mask = None if question.mask is None else np.unpackbits(question.mask, count=rows).astype(bool)
        if not segment.exact:
            segment.set_search_parameters(question.parameters)
        return segment.search(question.queries, question.k, mask, self._index.stored_vectors, question.exact)

    @cached_property
    def _index(self) -> Index:
        path = published_at(self._place)
        if path is None:
            raise StoreError(
                f"{self._place}: is no index on {platform.node()}, where Ray runs the process of a shard; expected a "
                "folder that every machine of the cluster sees under this path, or an index in object storage."
            )
        return Index(path, load_generation(path, self._generation))

    @cached_property
    def _segment(self) -> Segment:
        return self._index.open_segment(self._number)


class LostError(Exception):
    """Why a process gives no answer."""


@dataclass(frozen=True)
class HostedSegment:
    """A segment in a process of its own; a `SearchedSegment`."""

    entry: SegmentEntry
    host: "RayHost"
    parameters: dict[str, int] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """See `SearchedSegment`."""
        return ann.is_exact(self.entry.factory)

    def begin(self, queries: Vectors, k: int, mask: Mask | None, vectors_of: VectorsOf, exact: bool) -> Finish:
        """See `SearchedSegment`. The process has the vectors of rows from the index, as `vectors_of` has here."""
        packed = None if mask is None else np.packbits(mask)
        question = Question(np.asarray(queries, np.float32), k, packed, exact, dict(self.parameters))
        return partial(self._finish, self.host.ask(question))

    def set_search_parameters(self, parameters: dict[str, int]) -> None:
        """See `SearchedSegment`."""
        self.parameters.update(parameters)

    def _finish(self, finish: Finish) -> list[SearchResult]:
        try:
            return finish()
        except LostError as error:
            first, last = self.entry.first_row, self.entry.first_row + self.entry.rows - 1
            raise ShardLostError(
                f"{self.entry.file}: the process that holds rows {first:,} to {last:,} of the index does not answer "
                f"({error}). Ask again: Ray starts it anew where it can; or ask for partial answers (--partial)."
            ) from error


def hosted(index: Index, options: ShardOptions) -> Index:
    """Return the same index with its segments in other processes. Raises MachineError without Ray."""
    ray = connect(options.address)
    place, generation = store_at(index.path).url or index.path.resolve(), index.manifest.generation

    def segment(number: int, entry: SegmentEntry) -> HostedSegment:
        host = RayHost(ray, (place, generation, number), options.timeout)
        return HostedSegment(entry, host, dict(entry.search_parameters))

    return replace(index, hosted=tuple(segment(number, one) for number, one in enumerate(index.manifest.segments)))


def close_hosts(index: Index) -> None:
    """End the processes that hold segments of an index; a later question starts them again."""
    for segment in index.hosted:
        if isinstance(segment, HostedSegment):
            segment.host.close()


class RayHost:
    """The owner of a `SegmentProcess`: a Ray actor, wherever the cluster has room, started by the first question."""

    def __init__(self, ray: Any, segment: tuple[str | Path, int, int], timeout: float) -> None:
        """`segment` are the arguments of `SegmentProcess`."""
        self._ray, self._segment, self._timeout = ray, segment, timeout
        self._actor: Any = None
        self._lock = threading.Lock()

    def ask(self, question: Question) -> Finish:
        """Ask without waiting. The answer raises the errors of the process, or LostError if it is gone."""
        with self._lock:
            if self._actor is None:
                kind = self._ray.remote(SegmentProcess).options(max_restarts=-1, scheduling_strategy="SPREAD")
                self._actor = kind.remote(*self._segment)
            return partial(self._answer, self._actor.search.remote(question), time.monotonic() + self._timeout)

    def close(self) -> None:
        """End the process; the next question starts another."""
        with self._lock:
            if self._actor is not None and self._ray.is_initialized():
                self._ray.kill(self._actor)
            self._actor = None

    def _answer(self, begun: Any, until: float) -> list[SearchResult]:
        errors = self._ray.exceptions
        try:
            found: list[SearchResult] = self._ray.get(begun, timeout=max(_GRACE, until - time.monotonic()))
        except errors.RayTaskError as error:
            raise error.cause if isinstance(error.cause, IsotropeError) else error from None
        except errors.RayError as error:
            raise LostError(str(error).strip().partition("\n")[0] or type(error).__name__) from error
        return found
