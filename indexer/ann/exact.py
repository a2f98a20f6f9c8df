"""Exact search of a flat index: float32 products find candidates on a CPU or GPU, float64 products rank them.

More candidates are requested until the last one is further below the k-th than the float32 error bound
(`indexer.ann.inner_products`). A GPU finds candidates through FAISS if its wheel supports the GPU, else through torch,
which also supports MPS.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from indexer.ann.factory import add_vectors, make_index, reconstruct
from indexer.ann.faiss_index import MOST_ROWS, has_gpu, is_flat, is_on_gpu, to_gpu
from indexer.ann.inner_products import float32_slack, matrix_products
from indexer.ann.parameters import SPARE, SPARSE, faiss_search
from indexer.arrays import Mask, RowIds, Scores, SearchResult, Vectors
from indexer.errors import MachineError, as_argument

_BLOCK_ROWS = 1 << 16  # of an index that may be larger than the memory
_QUERIES = 512  # at once: 128 MiB of scores
_TURN = threading.Lock()  # torch's matrix precision is a setting of the process
_BLOCK_BYTES = 32 << 20  # of allowed vectors, copied at a time
_FEW_QUERIES = 4  # above it copies pay off: FAISS compares allowed rows with one query at a time
# Return the best `reach` rows of each query by float32 score, best first.
Ask = Callable[[Vectors, int], tuple[Scores, RowIds]]


def exact_search(index: Any, queries: Vectors, k: int, allowed: Mask | None = None) -> list[SearchResult]:
    """Return for each query (n, d) the best `k` rows and all ties with the k-th. `k` is at most the allowed rows."""
    most = index.ntotal if allowed is None else int(np.count_nonzero(allowed))
    if allowed is not None and (len(queries) > _FEW_QUERIES or most * SPARSE < index.ntotal):
        return search_rows(queries, k, np.flatnonzero(allowed), partial(reconstruct, index))
    return search_until_certain(
        index, lambda some, reach: faiss_search(index, some, reach, {}, allowed=allowed), queries, k, most
    )


def search_until_certain(index: Any, ask_for: Ask, queries: Vectors, k: int, most: int) -> list[SearchResult]:
    """Request candidates, at most `most`, until no other row can be among the best `k` or tie with the k-th. `index` is
    the flat index that contains their vectors."""
    results: dict[int, SearchResult] = {}
    pending, reach = list(range(len(queries))), min(k + SPARE, most)
    while pending:
        scores, rows = ask_for(queries[pending], reach)
        again = []
        for position, query in enumerate(pending):
            exact = matrix_products(reconstruct(index, rows[position]), queries[query]).astype(np.float32)
            results[query] = top_k(exact, rows[position], k)
            if reach < most and scores[position][-1] >= results[query][0][-1] - float32_slack(index.d):
                again.append(query)
        pending, reach = again, min(4 * reach, most)
    return [results[query] for query in range(len(queries))]


def search_rows(queries: Vectors, k: int, rows: RowIds, vectors_of: Callable[[RowIds], Vectors]) -> list[SearchResult]:
    """Return for each query (n, d) the best `k` of some rows and all ties with the k-th. `vectors_of` returns the
    vectors of rows."""
    most = max(1, _BLOCK_BYTES // (4 * queries.shape[1]))
    blocks = (rows[start : start + most] for start in range(0, len(rows), most))
    return search_blocks(queries, k, ((block, vectors_of(block)) for block in blocks))


def search_blocks(queries: Vectors, k: int, blocks: Iterable[tuple[RowIds, Vectors]]) -> list[SearchResult]:
    """Like `search_rows`, for blocks of rows and their vectors, each copied into a flat index."""
    best = [nothing() for _ in queries]
    for rows, vectors in blocks:
        block = make_index("Flat", queries.shape[1])
        add_vectors(block, vectors)
        for query, (scores, places) in enumerate(exact_search(block, queries, min(k, len(rows)))):
            best[query] = merge_top_k([best[query], (scores, rows[places])], k)
    return best


def nothing() -> SearchResult:
    """Return an answer without rows."""
    return np.zeros(0, np.float32), np.zeros(0, np.int64)


def top_k(scores: Scores, rows: RowIds, k: int) -> SearchResult:
    """Return the best `k` rows, at least 1, and all ties with the k-th; equal scores are ordered by row."""
    order = np.lexsort((rows, -scores))
    return _cut(scores[order], rows[order], k)


def merge_top_k(answers: Sequence[SearchResult], k: int) -> SearchResult:
    """Merge several answers to one query, each best first and with different rows: the best `k` and all ties."""
    if not answers:
        return nothing()
    if len(answers) == 1:
        return _cut(*answers[0], k)
    scores, rows = zip(*answers, strict=True)
    return top_k(np.concatenate(scores), np.concatenate(rows), k)


def _cut(scores: Scores, rows: RowIds, k: int) -> SearchResult:
    keep = scores >= scores[min(k, len(scores)) - 1] if len(scores) else slice(0)
    return scores[keep], rows[keep]


def on_device(index: Any, device: str) -> Any:
    """Return an index that is searched on a device ("cuda", "cuda:N", "mps") with the same answers.

    "cpu" and indexes that are not flat return unchanged: other kinds are searched on the CPU. The vectors stay on the
    device as long as the result lives. Raises MachineError if they do not fit.
    """
    if device == "cpu" or not is_flat(index):
        return index
    if has_gpu(device):
        return DeviceIndex(index, to_gpu(index, device))
    return DeviceIndex(index, TorchFlatIndex(index, device))


@dataclass(frozen=True)
class DeviceIndex:
    """A flat index and a copy of its vectors on a device. `search_index` accepts it in place of the index."""

    index: Any
    on_device: Any  # a GPU index of FAISS, or TorchFlatIndex
    _lock: Lock = field(default_factory=Lock)  # FAISS's GPU indexes are for one search at a time

    @property
    def d(self) -> int:
        """Dimensions."""
        return int(self.index.d)

    @property
    def ntotal(self) -> int:
        """Rows."""
        return int(self.index.ntotal)

    def search(self, queries: Vectors, k: int, allowed: Mask | None) -> list[SearchResult]:
        """Like `exact_search` of the index, with the same answers."""
        most = self.ntotal if allowed is None else int(np.count_nonzero(allowed))
        if allowed is not None and most * SPARSE < self.ntotal:
            return search_rows(queries, k, np.flatnonzero(allowed), partial(reconstruct, self.index))
        if allowed is not None and is_on_gpu(self.on_device):
            return exact_search(self.index, queries, k, allowed)  # FAISS's GPU indexes take no selector
        return search_until_certain(self.index, lambda some, reach: self._ask(some, reach, allowed), queries, k, most)

    def _ask(self, queries: Vectors, reach: int, allowed: Mask | None) -> tuple[Scores, RowIds]:
        hits: tuple[Scores, RowIds]
        if not is_on_gpu(self.on_device):
            hits = self.on_device.ask(queries, reach, allowed)
            return hits
        if reach > MOST_ROWS:
            return faiss_search(self.index, queries, reach, {})
        with self._lock:
            hits = self.on_device.search(np.ascontiguousarray(queries, dtype=np.float32), reach)
        return hits


class TorchFlatIndex:
    """A copy of a flat index's vectors (n, dim) on a torch device. Raises MachineError if they do not fit.

    They are stored in blocks. The product of a block and some queries, in float32 without TF32 or bfloat16, gives
    candidates, which the caller scores again.
    """

    def __init__(self, index: Any, device: str) -> None:
        import torch

        self._device = torch.device(device)
        self._blocks: list[torch.Tensor] = []
        for start in range(0, index.ntotal, _BLOCK_ROWS):
            block = reconstruct(index, np.arange(start, min(start + _BLOCK_ROWS, index.ntotal)))
            with _fitting(self._device):
                self._blocks.append(torch.from_numpy(block).to(self._device))

    def ask(self, queries: Vectors, reach: int, allowed: Mask | None = None) -> tuple[Scores, RowIds]:
        """Return the best `reach` rows of each query (n, dim) by float32 score, best first: scores and rows, (n, reach)
        each.

        `allowed` (ntotal,) marks the rows to search; `reach` is at most their number.
        """
        import torch

        answers = []
        with _TURN, _fitting(self._device), _float32_products(torch), torch.inference_mode():
            for start in range(0, len(queries), _QUERIES):
                some = torch.from_numpy(np.array(queries[start : start + _QUERIES], np.float32)).to(self._device)
                answers.append(self._best(torch, some, reach, allowed))
        if not answers:
            return np.zeros((0, reach), np.float32), np.zeros((0, reach), np.int64)
        scores, rows = zip(*answers, strict=True)
        return np.concatenate(scores), np.concatenate(rows)

    def _best(self, torch: Any, queries: Any, reach: int, allowed: Mask | None) -> tuple[Scores, RowIds]:
        scores = torch.zeros((len(queries), 0), dtype=torch.float32, device=self._device)
        rows = torch.zeros((len(queries), 0), dtype=torch.int64, device=self._device)
        first = 0
        for block in self._blocks:
            fresh = queries @ block.T
            if allowed is not None:
                hidden = torch.from_numpy(~allowed[first : first + len(block)]).to(self._device)
                fresh.masked_fill_(hidden, -torch.inf)
            best, places = torch.topk(fresh, min(reach, len(block)), dim=1)
            scores, rows = torch.cat([scores, best], dim=1), torch.cat([rows, places + first], dim=1)
            scores, places = torch.topk(scores, min(reach, scores.shape[1]), dim=1)
            rows = torch.gather(rows, 1, places)
            first += len(block)
        return scores.cpu().numpy(), rows.cpu().numpy()


@contextmanager
def _float32_products(torch: Any) -> Iterator[None]:
    """Within the block, torch multiplies float32 matrices in float32, whatever the process has set."""
    backends: list[Any] = [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)]
    with ExitStack() as restored:
        if all(hasattr(backend, "fp32_precision") for backend in backends):
            for backend in backends:
                restored.callback(setattr, backend, "fp32_precision", backend.fp32_precision)
                backend.fp32_precision = "ieee"
        else:  # torch before 2.9
            restored.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("highest")
        yield


@contextmanager
def _fitting(device: Any) -> Iterator[None]:
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MachineError(
            f'the vectors of the index do not fit on the device "{device}" ({error}). '
            f"Fix: search with {as_argument('device', 'cpu', 'RunOptions')}."
        ) from error
