"""Things worked out lately, kept up to a number of bytes."""

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

    `key_bytes` tells how large a key is; they count too.
    """

    def __init__(self, room: int, key_bytes: Callable[[Key], int] = lambda key: 0) -> None:
        self._room, self._bytes, self._key_bytes = room, 0, key_bytes
        self._values: OrderedDict[Key, Value] = OrderedDict()  # the one used last at the end

    def find(self, key: Key) -> Value | None:
        """The value kept for `key`, if any."""
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def keep(self, key: Key, value: Value) -> Value:
        """Keep a value for a key that has none; returns the value."""
        if self._size(key, value) <= self._room:
            self._values[key] = value
            self._bytes += self._size(key, value)
        while self._bytes > self._room:
            self._bytes -= self._size(*self._values.popitem(last=False))
        return value

    def _size(self, key: Key, value: Value) -> int:
        return value.nbytes + self._key_bytes(key)
