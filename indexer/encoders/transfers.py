"""Arrays to a GPU and back without ever making it wait: pinned memory, copies that run beside the computing."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from indexer.encoders.device import release_memory

Result = TypeVar("Result")

_BEHIND = 2  # results on their way while the next batches are started


class Transfers:
    """The copies of one run over some batches. On a device other than CUDA everything is copied at once.

    What `to_host` gives holds its numbers only once `settled` has handed on what was made from it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._overlapped = device, device.type == "cuda"
        self._last: Any = None  # the event behind the newest copy to the host

    def to_device(self, array: npt.NDArray[np.int64]) -> torch.Tensor:
        """An array as a tensor on the device."""
        tensor = torch.from_numpy(array)
        if not self._overlapped:
            return tensor.to(self._device)
        return tensor.pin_memory().to(self._device, non_blocking=True)

    def to_host(self, rows: torch.Tensor) -> npt.NDArray[np.float32]:
        """A float32 tensor as an array."""
        if not self._overlapped:
            array: npt.NDArray[np.float32] = rows.cpu().numpy()
            return array
        host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
        host.copy_(rows, non_blocking=True)
        self._last = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._last.record()
        pinned: npt.NDArray[np.float32] = host.numpy()
        return pinned

    def release(self) -> None:
        """Wait for the copies so far, and give unused memory back, before trying again with less."""
        _settle(None, self._last)
        release_memory(self._device)

    def settled(self, results: Iterable[Result]) -> Iterator[Result]:
        """Hand on results in order, each when its copies are through, while later ones are being started."""
        waiting: deque[tuple[Result, Any]] = deque()
        for result in results:
            waiting.append((result, self._last))
            if len(waiting) > _BEHIND:
                yield _settle(*waiting.popleft())
        while waiting:
            yield _settle(*waiting.popleft())


def _settle(result: Result, event: Any) -> Result:
    if event is not None:
        event.synchronize()
    return result
