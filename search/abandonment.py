"""Stops work between two steps when nobody waits for its result.

A server sets, for the thread that answers a query, a function that returns whether a caller still waits. Without a
server, every query is answered.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_awaited: ContextVar[Callable[[], bool]] = ContextVar("is_awaited", default=lambda: True)


class AbandonedError(Exception):
    """Nobody waits for this result."""


@contextmanager
def awaited_while(is_awaited: Callable[[], bool]) -> Iterator[None]:
    """Within the block, make `require_awaited` in this thread raise AbandonedError once `is_awaited` returns False."""
    token = _is_awaited.set(is_awaited)
    try:
        yield
    finally:
        _is_awaited.reset(token)


def require_awaited() -> None:
    """Raise AbandonedError if nobody waits for this thread's result. Call it between steps that take a while."""
    if not _is_awaited.get()():
        raise AbandonedError
