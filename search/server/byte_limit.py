"""Limits of the memory of requests: bodies while they arrive, documents and vectors until they are sent."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from indexer.errors import ConfigError


class BusyError(Exception):
    """The server is too busy for a request; `retry_after` is in whole seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Room:
    """Memory of callers: `held` bytes, at most `most` in total and `most_of_one` per share."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self.most, self.most_of_one, self.held = most, most_of_one, 0
        self.lock = threading.Lock()

    @contextmanager
    def share(self) -> Iterator["RoomShare"]:
        """Yield the share of one caller, released at the end of the block."""
        share = RoomShare(self)
        try:
            yield share
        finally:
            share.give_back()


class RoomShare:
    """The `taken` bytes of one caller. Safe to share between threads."""

    def __init__(self, room: Room) -> None:
        self._room, self.taken, self._over = room, 0, False

    def reach(self, size: int) -> None:
        """Grow this share to `size` bytes.

        Raises ConfigError for more than the limit of a share, and BusyError if the room is full or the share was given
        back.
        """
        room = self._room
        if size > room.most_of_one:
            raise ConfigError(
                f"The answer is longer than {room.most_of_one:,} bytes, because its documents are long. Ask for fewer "
                "hits or queries at once."
            )
        with room.lock:
            more = max(0, size - self.taken)
            if self._over or room.held + more > room.most:
                raise BusyError(
                    "The server is sending too many long answers; try again in 1 s, or ask for less at once.", 1
                )
            room.held += more
            self.taken += more

    def give_back(self) -> None:
        """Free the bytes for good."""
        with self._room.lock:
            self._room.held -= self.taken
            self.taken, self._over = 0, True
