"""Copies to and from a simulated CUDA device: order, waiting, and no reads before a copy is complete."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from indexer.arrays import Float32Array
from indexer.encoders.batching import Batch, retry_halved
from indexer.encoders.device import AsyncCopies
from indexer.errors import MachineError

CUDA = torch.device("cuda")


class LateTensor:
    """Rows on the "device"; a copy to the host completes at the wait for its event."""

    pending: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows, self.shape, self.dtype = rows, rows.shape, rows.dtype


class HostTensor:
    """Pinned memory: a copy is only scheduled."""

    def __init__(self, shape: Any, dtype: Any, pin_memory: bool) -> None:
        assert pin_memory
        self.memory = torch.full(tuple(shape), float("nan"), dtype=dtype)

    def copy_(self, source: LateTensor, non_blocking: bool) -> None:
        assert non_blocking
        LateTensor.pending.append((self.memory, source.rows))

    def numpy(self) -> Any:
        return self.memory.numpy()


class Event:
    """All copies scheduled before `record` are complete after `synchronize`."""

    def record(self) -> None:
        self.until = len(LateTensor.pending)

    def synchronize(self) -> None:
        for memory, rows in LateTensor.pending[: self.until]:
            memory.copy_(rows)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> AsyncCopies:
    monkeypatch.setattr(LateTensor, "pending", [])
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch, "empty", HostTensor)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return AsyncCopies(CUDA)


def test_results_come_in_order_and_only_once_they_have_arrived(cuda: AsyncCopies) -> None:
    started: list[int] = []

    def results() -> Iterator[Any]:
        for number in range(5):
            started.append(number)
            yield cuda.to_host(LateTensor(torch.tensor([float(number)], dtype=torch.float32)))  # type: ignore[arg-type]

    seen = []
    for result in cuda.settled(results()):
        seen.append(float(result[0]))  # NaN if the copy were incomplete
        assert len(started) >= min(5, len(seen) + 2)  # the next batches are already started
    assert seen == [0, 1, 2, 3, 4]


def test_arrays_are_pinned_and_copied_without_waiting(cuda: AsyncCopies, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Pinned:
        def to(self, device: torch.device, non_blocking: bool) -> str:
            calls.append((device.type, non_blocking))
            return "on the device"

    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda _: Pinned())
    assert cuda.to_device(np.zeros((2, 3), np.int64)) == "on the device"
    assert calls == [("cuda", True)]


def test_the_halves_of_a_batch_have_arrived_before_they_are_joined(cuda: AsyncCopies) -> None:
    def forward(part: Batch) -> Float32Array:
        if len(part) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return cuda.to_host(LateTensor(torch.from_numpy(part.ids[None, :, :1].astype(np.float32))))  # type: ignore[arg-type]

    batch = Batch(np.arange(1, 6, dtype=np.int64)[:, None], None, np.ones(5, np.int64))
    pooled = retry_halved(forward, batch, "cuda", cuda.release)
    assert pooled.rows[0, :, 0].tolist() == [1, 2, 3, 4, 5]
    assert pooled.retries == 2


def test_a_text_that_does_not_fit_names_the_device(cuda: AsyncCopies) -> None:
    def forward(part: Batch) -> Float32Array:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(MachineError, match="a text of 1 tokens does not fit into memory on cuda"):
        retry_halved(forward, Batch(np.ones((1, 1), np.int64), None, np.ones(1, np.int64)), "cuda", cuda.release)


def test_on_other_devices_everything_is_there_at_once() -> None:
    transfers = AsyncCopies(torch.device("cpu"))
    rows = torch.rand(2, 3, dtype=torch.float32)
    assert np.array_equal(transfers.to_host(rows), rows.numpy())
    assert list(transfers.settled(iter("abc"))) == ["a", "b", "c"]
