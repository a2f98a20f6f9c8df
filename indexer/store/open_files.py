"""Open files within a limited number of descriptors, and memory maps without descriptors.

An index has several files for each part, a process may have many indexes open, and some systems allow only 256
descriptors. The least recently used files are closed, and opened again when needed.
"""

import ctypes
import mmap
import os
import resource
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

_MOST = 1024  # descriptors kept open
_SHARE = 4  # at most a quarter of the limit of the process
_FEWEST = 16

_LIBC: Any = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


class OpenFile:
    """A file that `opening` opens, each time with a new descriptor. Safe to share between threads. `times` counts the
    openings: the path may name another file the next time."""

    def __init__(self, opening: Callable[[], int]) -> None:
        self._opening, self._descriptor, self._users = opening, -1, 0
        self.closed, self.times = False, 0

    @contextmanager
    def descriptor(self) -> Iterator[int]:
        """Keep the file open within the block. Raises the errors of `opening`, and ValueError after `close`."""
        with _LOCK:
            if self.closed:
                raise ValueError("a file was used after it was closed")
            if self._descriptor < 0:
                _make_room()
                self._descriptor = self._opening()
                self.times += 1
            _OPEN[self] = None
            _OPEN.move_to_end(self)
            self._users += 1
        try:
            yield self._descriptor
        finally:
            with _LOCK:
                self._users -= 1
                self._release_if_closed()

    def close(self) -> None:
        """Close the descriptor, at once or at the end of the last block that uses it."""
        with _LOCK:
            self.closed = True
            self._release_if_closed()

    def _release_if_closed(self) -> None:
        if self.closed:
            self._release()

    def _release(self) -> None:
        if self._users:
            return
        _OPEN.pop(self, None)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_LOCK = threading.RLock()  # re-entrant: garbage collection can close a file at any time
_OPEN: OrderedDict[OpenFile, None] = OrderedDict()  # the most recently used last


def _make_room() -> None:
    """Close the least recently used files to make room for one more."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = _MOST if allowed == resource.RLIM_INFINITY else max(_FEWEST, min(_MOST, allowed // _SHARE))
    for file in list(_OPEN)[: max(0, len(_OPEN) - most + 1)]:
        file._release()


def map_file(descriptor: int, size: int) -> npt.NDArray[np.uint8]:
    """Map the first `size` bytes of a file, read-only, while the array or a view of it exists. The descriptor can be
    closed. Python's `mmap` would keep a duplicate of it (before 3.13, which has `trackfd`)."""
    if not size:
        return np.zeros(0, np.uint8)
    address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    block = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(block, _LIBC.munmap, address, size).atexit = False  # threads may still read at exit
    array: npt.NDArray[np.uint8] = np.frombuffer(memoryview(block), np.uint8)
    array.flags.writeable = False
    return array
