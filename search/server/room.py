"""THE count of the memory that callers take: bodies while they arrive, documents and vectors until they are sent."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from indexer.errors import ConfigError


class BusyError(Exception):
    """The server has no room for a request now; `retry_after` is in whole seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Room:
    """Memory for callers: `held` bytes, at most `most`, of which one share has at most `most_of_one`."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self.most, self.most_of_one, self.held = most, most_of_one, 0
        self.lock = threading.Lock()

    @contextmanager
    def share(self) -> Iterator["RoomShare"]:
        """Return the share of one caller; the end of the block gives it back."""
        share = RoomShare(self)
        try:
            yield share
        finally:
            share.give_back()


class RoomShare:
    """The bytes that one caller has `taken` of the room. Safe to share between threads."""

    def __init__(self, room: Room) -> None:
        self._room, self.taken, self._over = room, 0, False

    def reach(self, size: int) -> None:
        """Take bytes until this share has `size` of them.

        Raises ConfigError for more than one share may have, and BusyError if the room is full or nobody waits for this
        caller's answer any more.
        """
        room = self._room
        if size > room.most_of_one:
            raise ConfigError(
                f"The answer is longer than {room.most_of_one:,} bytes, as its documents are long. Ask for fewer hits, "
                "or fewer queries at once."
            )
        with room.lock:
            more = max(0, size - self.taken)
            if self._over or room.held + more > room.most:
                raise BusyError("Too many long answers are under way; try again in 1 s, or ask for less at once.", 1)
            room.held += more
            self.taken += more

    def give_back(self) -> None:
        """Free the bytes: the body was handed on, the answer was sent, or neither will happen."""
        with self._room.lock:
            self._room.held -= self.taken
            self.taken, self._over = 0, True
