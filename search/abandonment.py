"""Work that nobody waits for any more ends between two of its steps.

A server sets, for the thread that works on a question, how to learn whether its caller is still there. Without a server
every question is worked on to its end.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_awaited: ContextVar[Callable[[], bool]] = ContextVar("is_awaited", default=lambda: True)


class AbandonedError(Exception):
    """Nobody waits for the result of this work."""


@contextmanager
def awaited_while(is_awaited: Callable[[], bool]) -> Iterator[None]:
    """Within the block, `require_awaited` in this thread raises AbandonedError once `is_awaited` returns False."""
    token = _is_awaited.set(is_awaited)
    try:
        yield
    finally:
        _is_awaited.reset(token)


def require_awaited() -> None:
    """Raises AbandonedError if nobody waits for what this thread works on. Called between steps that take a while."""
    if not _is_awaited.get()():
        raise AbandonedError
