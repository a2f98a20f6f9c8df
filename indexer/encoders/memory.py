"""Running out of memory: recognising it, and going on with half a batch."""

from collections.abc import Callable

import numpy as np

from indexer.encoders.batched import Pooled, Rows
from indexer.encoders.batches import Batch
from indexer.errors import MachineError

_WORDS = (
    "bad allocation",
    "bad_alloc",
    "can't allocate memory",
    "not enough memory",
    "out of memory",
)  # of the allocators of torch and OpenVINO


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of torch or OpenVINO means that memory, of the GPU or of the machine, ran out."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    message = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in message for words in _WORDS)


def halving(forward: Callable[[Batch], Rows], batch: Batch, where: str, release: Callable[[], None]) -> Pooled:
    """`forward` on a batch; in halves when it does not fit into memory.

    `release` waits for copies under way and gives cached memory back; `where` names the device. Raises MachineError
    when a single text does not fit.
    """
    try:
        return Pooled(forward(batch), 0)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Outside the handler, so that the failed attempt's tensors are gone.
    release()
    if len(batch) == 1:
        raise MachineError(
            f"a text of {batch.lengths[0]} tokens does not fit into memory on {where}: "
            "lower encoder.max_length, set encoder.precision to bfloat16, or take another --device."
        )
    first, second = (halving(forward, half, where, release) for half in batch.halves())
    release()  # only now are the rows of both halves there
    return Pooled(np.concatenate([first.rows, second.rows], axis=1), 1 + first.retries + second.retries)
