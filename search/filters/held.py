"""Things worked out lately, kept up to a number of bytes."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value", bound=_Sized)


class Held(Generic[Key, Value]):
    """Values by key; those used longest ago go first, and one larger than all the room is not kept."""

    def __init__(self, room: int) -> None:
        self._room, self._bytes = room, 0
        self._values: OrderedDict[Key, Value] = OrderedDict()  # the one used last at the end

    def find(self, key: Key) -> Value | None:
        """The value kept for `key`, if any."""
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def keep(self, key: Key, value: Value) -> Value:
        """Keep a value for a key that has none; returns the value."""
        if value.nbytes <= self._room:
            self._values[key] = value
            self._bytes += value.nbytes
        while self._bytes > self._room:
            self._bytes -= self._values.popitem(last=False)[1].nbytes
        return value
