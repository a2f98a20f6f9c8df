"""Inner products on a device that torch reaches: CUDA or MPS without FAISS's GPU wheel, or the CPU.

Vectors are held there in blocks; a matrix product of a block and some queries, then the best rows of it, give
candidates that the caller scores again (see `flat`). Products are of float32, without TF32 or bfloat16.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.ann.arrays import Mask, Rows, Scores, Vectors
from indexer.errors import MachineError

if TYPE_CHECKING:
    pass

_BLOCK_ROWS = 1 << 16
_QUERIES = 512  # at once: 128 MiB of scores
_TURN = threading.Lock()  # in what numbers torch multiplies is the process's setting


class TorchVectors:
    """Vectors (n, dim) on a device, numbered from 0 in the order in which they are added."""

    def __init__(self, dim: int, device: str) -> None:
        import torch

        self.d, self.ntotal = dim, 0
        self._device = torch.device(device)
        self._blocks: list[torch.Tensor] = []

    def add(self, vectors: Vectors) -> None:
        """Copy vectors to the device. Raises MachineError if they do not fit."""
        import torch

        for start in range(0, len(vectors), _BLOCK_ROWS):
            block = np.array(vectors[start : start + _BLOCK_ROWS], np.float32)  # a copy that may be written to
            with _fitting(self._device):
                self._blocks.append(torch.from_numpy(block).to(self._device))
            self.ntotal += len(block)

    def ask(self, queries: Vectors, reach: int, allowed: Mask | None = None) -> tuple[Scores, Rows]:
        """The best `reach` rows of each query (n, dim) by float32 scores, best first: (n, reach) each.

        `allowed` (ntotal,) says which rows may be found; `reach` is at most their number.
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

    def _best(self, torch: Any, queries: Any, reach: int, allowed: Mask | None) -> tuple[Scores, Rows]:
        """Of each block its best, and of those and the best so far the best."""
        scores = torch.zeros((len(queries), 0), dtype=torch.float32, device=self._device)
        rows = torch.zeros((len(queries), 0), dtype=torch.int64, device=self._device)
        first = 0
        for block in self._blocks:
            fresh = queries @ block.T
            if allowed is not None:
                hidden = torch.from_numpy(~allowed[first : first + len(block)]).to(self._device)
                fresh.masked_fill_(hidden, -torch.inf)
            found, places = torch.topk(fresh, min(reach, len(block)), dim=1)
            scores, rows = torch.cat([scores, found], dim=1), torch.cat([rows, places + first], dim=1)
            scores, places = torch.topk(scores, min(reach, scores.shape[1]), dim=1)
            rows = torch.gather(rows, 1, places)
            first += len(block)
        return scores.cpu().numpy(), rows.cpu().numpy()


@contextmanager
def _float32_products(torch: Any) -> Iterator[None]:
    """Within the block float32 matrices are multiplied as float32, whatever the process allows otherwise."""
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    if not all(hasattr(backend, "fp32_precision") for backend in backends):  # torch before 2.9
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
        return
    settings = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        for backend, setting in zip(backends, settings, strict=True):
            backend.fp32_precision = setting


@contextmanager
def _fitting(device: Any) -> Iterator[None]:
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MachineError(
            f'the vectors of the index do not fit on the device "{device}" ({error}). Search with --device cpu.'
        ) from error
