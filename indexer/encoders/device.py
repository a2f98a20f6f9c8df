"""Which device runs the model, in which number type a class of results is computed there, and copies to it and back.

The copies never make a GPU wait: they go through pinned memory, and run beside the computing.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from indexer.errors import ConfigError, MachineError
from indexer.recipe.config import Precision
from indexer.system.processor import multiplies_bfloat16

Result = TypeVar("Result")
_BEHIND = 2  # results on their way while the next batches are started


def choose_device(asked: str) -> torch.device:
    """The device for `auto` (CUDA, else MPS, else the CPU), `cpu`, `cuda`, `cuda:N` or `mps`.

    Raises ConfigError for another name, MachineError (saying what is there) for a device this machine lacks.
    """
    if asked == "auto":
        return torch.device(_best())
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", asked):
        raise ConfigError(f'device is "{asked}"; expected auto, cpu, cuda, cuda:N (N a number) or mps.')
    device = torch.device(asked)
    if device.type == "cuda" and (device.index or 0) >= _cuda_count():
        raise MachineError(f'device "{asked}" was asked for, but {_there()}. Choose one of those, or auto.')
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise MachineError(f'device "mps" was asked for, but {_there()}. Choose one of those, or auto.')
    return device


def compute_dtype(precision: Precision, half: str, device: torch.device) -> torch.dtype:
    """Return the type of weights and activations for a precision class on a device; pooling is always float32.

    The class bfloat16 is computed in bfloat16 on a CPU that has instructions for it, else in float32; on CUDA in
    bfloat16 where the GPU has it, else in float16 (`half` forces either); and on MPS in float16.
    """
    if precision == "float32":
        if half != "auto":
            raise ConfigError(f'half is "{half}", but encoder.precision is "float32"; set it to "bfloat16".')
        return torch.float32
    if device.type == "cpu":
        if half == "float16":
            raise ConfigError('half is "float16", which a CPU does not compute in; expected "auto" or "bfloat16".')
        wanted = half == "bfloat16" or multiplies_bfloat16()
        return torch.bfloat16 if wanted else torch.float32
    if device.type == "mps":
        if half == "bfloat16":
            raise ConfigError('half is "bfloat16", which is not used on MPS; expected "auto" or "float16".')
        return torch.float16
    supported = torch.cuda.is_bf16_supported(including_emulation=False)
    if half == "bfloat16" and not supported:
        raise MachineError('half is "bfloat16", which this GPU does not compute in; expected "auto" or "float16".')
    return torch.bfloat16 if supported and half != "float16" else torch.float16


def release_memory(device: torch.device) -> None:
    """Give unused cached blocks back to the device, before trying again with less."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def _best() -> str:
    if _cuda_count():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _cuda_count() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _there() -> str:
    names = ["cpu", *(f"cuda:{index}" for index in range(_cuda_count()))]
    if torch.backends.mps.is_available():
        names.append("mps")
    return f"this machine has {', '.join(names)}"


class AsyncCopies:
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
