"""The choice of a device and its number type for a precision class, and copies to the device and back.

Copies never block a GPU: they use pinned memory and overlap with computation.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from indexer.encoders.memory import only_half_fits
from indexer.errors import ConfigError, MachineError
from indexer.recipe.config import Precision
from indexer.system.processor import bfloat16_is_faster

Result = TypeVar("Result")
_BEHIND = 2  # results whose copies run while the next batches are started


def choose_device(asked: str) -> torch.device:
    """Return the device for `auto` (CUDA, else MPS, else the CPU), `cpu`, `cuda`, `cuda:N` or `mps`.

    Raises ConfigError for another name, MachineError (listing the available devices) for a missing device.
    """
    if asked == "auto":
        return torch.device(_best())
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", asked):
        raise ConfigError(f'device is "{asked}"; expected auto, cpu, cuda, cuda:N (N a number) or mps.')
    device, cuda, mps = torch.device(asked), _cuda_count(), torch.backends.mps.is_available()
    if (device.type == "cuda" and (device.index or 0) >= cuda) or (device.type == "mps" and not mps):
        names = ", ".join(["cpu", *(f"cuda:{index}" for index in range(cuda)), *["mps"] * mps])
        raise MachineError(f'device is "{asked}", but this machine has {names}. Fix: choose one of these, or auto.')
    return device


def compute_dtype(precision: Precision, half: str, device: torch.device, parameters: int = 0) -> torch.dtype:
    """Return the type of weights and activations for a precision class on a device; pooling is always float32.

    The class bfloat16 is computed in bfloat16 on a CPU where that is faster, or where the memory does not hold the
    model's `parameters` in float32, else in float32; on CUDA in bfloat16 if the GPU supports it, else in float16
    (`half` forces either); and on MPS in float16.
    """
    if precision == "float32":
        if half != "auto":
            raise ConfigError(
                f'half is "{half}", but encoder.precision is "float32". Fix: set encoder.precision to "bfloat16".'
            )
        return torch.float32
    if device.type == "cpu":
        if half == "float16":
            raise ConfigError('half is "float16", which a CPU does not support; expected "auto" or "bfloat16".')
        is_half = half == "bfloat16" or bfloat16_is_faster() or only_half_fits(parameters)
        return torch.bfloat16 if is_half else torch.float32
    if device.type == "mps":
        if half == "bfloat16":
            raise ConfigError('half is "bfloat16", which is not supported on MPS; expected "auto" or "float16".')
        return torch.float16
    supported = torch.cuda.is_bf16_supported(including_emulation=False)
    if half == "bfloat16" and not supported:
        raise MachineError('half is "bfloat16", which this GPU does not support; expected "auto" or "float16".')
    return torch.bfloat16 if supported and half != "float16" else torch.float16


def _best() -> str:
    if _cuda_count():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _cuda_count() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


class AsyncCopies:
    """The copies of one run over some batches. On a device other than CUDA all copies are synchronous.

    An array from `to_host` is valid once `settled` has yielded the result that was built from it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._overlapped = device, device.type == "cuda"
        self._last: Any = None  # the event after the newest copy to the host

    def to_device(self, array: npt.NDArray[np.int64]) -> torch.Tensor:
        """Return an array as a tensor on the device."""
        tensor = torch.from_numpy(array)
        if not self._overlapped:
            return tensor.to(self._device)
        return tensor.pin_memory().to(self._device, non_blocking=True)

    def to_host(self, rows: torch.Tensor) -> npt.NDArray[np.float32]:
        """Return a float32 tensor as an array."""
        if not self._overlapped:
            return rows.cpu().numpy()
        host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
        host.copy_(rows, non_blocking=True)
        self._last = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._last.record()
        return host.numpy()

    def release(self) -> None:
        """Wait for the running copies and free unused memory, before a retry with smaller batches."""
        _settle(None, self._last)
        if self._overlapped:
            torch.cuda.empty_cache()
        elif self._device.type == "mps":
            torch.mps.empty_cache()

    def settled(self, results: Iterable[Result]) -> Iterator[Result]:
        """Yield results in order, each after its copies are complete, while later results are being started."""
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
