"""The segments of a planned index: their kind, how many a recipe cuts the rows into, and how many hosts hold them."""

import math
from dataclasses import dataclass, replace

from indexer.ann.choosing.selection import SMALL_BYTES, nlist_for
from search.plan.constants import constants
from search.plan.settings import PlanSettings

_BITS_OF_FINE = 0.99  # recall up to which codes of 8 bits a dimension are enough to score candidates again
_REGISTER = 16  # dimensions that codes are padded to
_ROW_NUMBER = 8  # bytes


@dataclass(frozen=True)
class IndexKind:
    """The kind of index that is planned: a FAISS factory string, bytes of a vector and of what all share, lists."""

    factory: str
    bytes_per_vector: float
    shared_bytes: float = 0.0
    lists: int = 0

    def size(self, rows: int) -> float:
        """Bytes of a segment of so many rows."""
        return rows * self.bytes_per_vector + self.shared_bytes


@dataclass(frozen=True)
class Segments:
    """`count` segments of about `rows` each, all of one kind, held by `hosts`. `fit`: whether they have the memory."""

    kind: IndexKind
    count: int
    rows: int
    hosts: int = 1
    fit: bool = True

    @property
    def size(self) -> float:
        """Bytes of one."""
        return self.kind.size(self.rows)

    @property
    def a_host(self) -> int:
        """Segments that a host holds at most."""
        return math.ceil(self.count / self.hosts)

    @property
    def processes(self) -> int:
        """One opens all segments of one host; of several hosts each segment has a process of its own."""
        return 1 if self.hosts == 1 else self.count


def index_kind(rows: int, dim: int, recall: float, limited: bool) -> IndexKind:
    """The kind of index that `index.type = "auto"` most often chose for so many rows, here taken for granted."""
    if rows * dim * 4 <= SMALL_BYTES and not limited:
        return IndexKind("Flat", 4.0 * dim)
    wide = -(-dim // _REGISTER) * _REGISTER
    lists = nlist_for(rows)
    finer, width = ("SQ8", 1) if recall <= _BITS_OF_FINE and limited else ("SQfp16", 2)
    size = wide // 4 + width * wide + _ROW_NUMBER
    return IndexKind(f"Pad{wide},IVF{lists},PQ{wide // 2}x4fsr,Refine({finer})", size, 4.0 * lists * wide, lists)


def lay_out(settings: PlanSettings, dim: int) -> Segments:
    """As many segments as index.segment_rows says, on the fewest hosts that have the memory for them.

    Where it says nothing: one segment a host, on the fewest hosts.
    """
    memory, process = settings.hardware.memory, constants()["serve.process"].value
    most = settings.config.index.segment_rows
    if not most:
        return _one_a_host(settings, dim, memory - process)
    segments = _cut(settings, dim, min(math.ceil(settings.rows / most), settings.parts))
    if not memory or segments.count * segments.size + process <= memory:
        return segments
    a_host = int(memory // (segments.size + process))
    return replace(segments, hosts=math.ceil(segments.count / max(1, a_host)), fit=a_host > 0)


def _one_a_host(settings: PlanSettings, dim: int, room: float) -> Segments:
    count = 1
    while True:
        segments = _cut(settings, dim, count)
        needed = segments.size
        if not settings.hardware.memory or needed <= room or segments.rows <= 1:
            return replace(segments, hosts=count)
        count = max(count + 1, math.ceil(count * needed / max(room, needed / 2)))


def _cut(settings: PlanSettings, dim: int, count: int) -> Segments:
    rows, index = math.ceil(settings.rows / count), settings.config.index
    if index.type == "flat":
        return Segments(IndexKind("Flat", 4.0 * dim), count, rows)
    return Segments(index_kind(rows, dim, index.recall, bool(index.memory_bytes)), count, rows)
