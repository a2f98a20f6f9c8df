"""Files that stay open while they are read from: a bounded number of descriptors, and maps that need none.

An index has files for each part, and a process may have many indexes open, while systems allow as few as 256
descriptors. A file that was not used lately is closed, and opened again when it is needed.
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
_SHARE = 4  # or this part of what the system allows the process
_FEWEST = 16

_LIBC: Any = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


class OpenFile:
    """A file that `opening` returns a descriptor of, as often as it is called. Safe to share between threads.

    `times` counts how often it was opened: the name may mean another file by then.
    """

    def __init__(self, opening: Callable[[], int]) -> None:
        self._opening, self._descriptor, self._users = opening, -1, 0
        self.closed, self.times = False, 0

    @contextmanager
    def descriptor(self) -> Iterator[int]:
        """The descriptor, which stays open within the block. Raises what `opening` raises, ValueError after `close`."""
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
                self._settle()

    def close(self) -> None:
        """Let go of the descriptor, now or when the last block ends that uses it."""
        with _LOCK:
            self.closed = True
            self._settle()

    def _settle(self) -> None:
        if self.closed:
            self._let_go()

    def _let_go(self) -> None:
        if self._users:
            return
        _OPEN.pop(self, None)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_LOCK = threading.RLock()  # a file that is collected as garbage, at any time, closes itself
_OPEN: OrderedDict[OpenFile, None] = OrderedDict()  # the one used last at the end


def _make_room() -> None:
    """Close the files that were used longest ago, until one more can be opened."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = _MOST if allowed == resource.RLIM_INFINITY else max(_FEWEST, min(_MOST, allowed // _SHARE))
    for file in list(_OPEN)[: max(0, len(_OPEN) - most + 1)]:
        file._let_go()


def map_file(descriptor: int, size: int) -> npt.NDArray[np.uint8]:
    """The first `size` bytes of a file, read-only, until the array and all its views are gone.

    The descriptor can be closed: Python's mmap would keep a duplicate of it (before 3.13, which has `trackfd`).
    """
    if not size:
        return np.zeros(0, np.uint8)
    address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    block = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(block, _LIBC.munmap, address, size).atexit = False  # threads may read until the very end
    found: npt.NDArray[np.uint8] = np.frombuffer(memoryview(block), np.uint8)
    found.flags.writeable = False
    return found
