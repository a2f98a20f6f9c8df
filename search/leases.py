"""Closes files once the last call that uses them has ended."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Leases:
    """Counts the calls that use some files, and calls `close` after the last.

    `closed` is True once the files are closed; the caller that opens them again sets it to False.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._close, self._lock, self.users = close, threading.Lock(), 0
        self._wanted = self._for_good = self.closed = False

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Keep the files open within the block."""
        with self._lock:
            self.users += 1
        try:
            yield
        finally:
            with self._lock:
                self.users -= 1
                self._close_if_unused()

    def close(self, for_good: bool = False) -> None:
        """Close the files once no call uses them; `for_good`, again after each later call."""
        with self._lock:
            self._wanted, self._for_good = True, self._for_good or for_good
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if not self.users and (self._wanted or self._for_good):
            self._wanted, self.closed = False, True
            self._close()
