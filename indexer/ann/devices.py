"""An exact index whose candidates come from a GPU: through FAISS where its wheel can, else through torch."""

from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from indexer.ann.arrays import Found, Mask, Rows, Scores, Vectors
from indexer.ann.asking import ask
from indexer.ann.flat import search_copies, search_flat, until_certain
from indexer.ann.gpu import MOST_ROWS, has_gpu, to_device
from indexer.ann.layers import is_flat, is_on_gpu
from indexer.ann.making import vectors_at
from indexer.ann.parameters import SPARSE

_BLOCK_ROWS = 1 << 16  # read at a time from an index that may be larger than the memory


@dataclass(frozen=True)
class Accelerated:
    """A flat index and its vectors on a device. `search_index` takes it as it takes the index."""

    index: Any
    on_device: Any  # a GPU index of FAISS, or TorchVectors
    _lock: Lock = field(default_factory=Lock)  # FAISS's GPU indexes are for one search at a time

    @property
    def d(self) -> int:
        """Dimensions."""
        return int(self.index.d)

    @property
    def ntotal(self) -> int:
        """Rows."""
        return int(self.index.ntotal)

    def search(self, queries: Vectors, k: int, allowed: Mask | None) -> list[Found]:
        """As `search_flat` of the index, with the same answers."""
        most = self.ntotal if allowed is None else int(np.count_nonzero(allowed))
        if allowed is not None and most * SPARSE < self.ntotal:
            return search_copies(self.index, queries, k, np.flatnonzero(allowed))
        if allowed is not None and is_on_gpu(self.on_device):
            return search_flat(self.index, queries, k, allowed)  # FAISS's GPU indexes take no selector
        return until_certain(self.index, lambda some, reach: self._ask(some, reach, allowed), queries, k, most)

    def _ask(self, queries: Vectors, reach: int, allowed: Mask | None) -> tuple[Scores, Rows]:
        found: tuple[Scores, Rows]
        if not is_on_gpu(self.on_device):
            found = self.on_device.ask(queries, reach, allowed)
            return found
        if reach > MOST_ROWS:
            return ask(self.index, queries, reach, {})
        with self._lock:
            found = self.on_device.search(np.ascontiguousarray(queries, dtype=np.float32), reach)
        return found


def accelerated(index: Any, device: str) -> Any:
    """An index that is searched on a device ("cuda", "cuda:N", "mps") with the same answers; "cpu" leaves it as it is.

    For flat indexes; other kinds are searched on the CPU whatever the device, so they come back as they are. The
    vectors stay on the device as long as the result lives. Raises MachineError if they do not fit.
    """
    if device == "cpu" or not is_flat(index):
        return index
    if has_gpu(device):
        return Accelerated(index, to_device(index, device))
    from indexer.ann.exact_torch import TorchVectors

    vectors = TorchVectors(index.d, device)
    for start in range(0, index.ntotal, _BLOCK_ROWS):
        vectors.add(vectors_at(index, np.arange(start, min(start + _BLOCK_ROWS, index.ntotal))))
    return Accelerated(index, vectors)
