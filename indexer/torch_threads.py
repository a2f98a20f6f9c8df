"""How many threads torch uses inside one operation."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread_an_operation() -> Iterator[None]:
    """Within the block, so that bits do not depend on how many threads there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
