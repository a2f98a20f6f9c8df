"""Things worked out lately, kept up to a number of bytes."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value", bound=_Sized)


class Held(Generic[Key, Value]):
    """Values by key; those used longest ago go first, and one larger than all the room is not kept.

    `key_bytes` tells how large a key is; they count too. Safe to share between threads.
    """

    def __init__(self, room: int, key_bytes: Callable[[Key], int] = lambda key: 0) -> None:
        self._room, self._bytes, self._key_bytes = room, 0, key_bytes
        self._values: OrderedDict[Key, Value] = OrderedDict()  # the one used last at the end
        self._lock = threading.Lock()

    def find(self, key: Key) -> Value | None:
        """The value kept for `key`, if any."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def keep(self, key: Key, value: Value) -> Value:
        """Keep a value, in place of the one that the key has; returns the value."""
        with self._lock:
            if key in self._values:
                self._bytes -= self._size(key, self._values.pop(key))
            if self._size(key, value) <= self._room:
                self._values[key] = value
                self._bytes += self._size(key, value)
            while self._bytes > self._room:
                self._bytes -= self._size(*self._values.popitem(last=False))
        return value

    def _size(self, key: Key, value: Value) -> int:
        return value.nbytes + self._key_bytes(key)
