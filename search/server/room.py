"""Limits on the memory that answers take, from the first document that is read for one until it was sent."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from indexer.errors import ConfigError


class BusyError(Exception):
    """The server has no room for a request now; `retry_after` is in whole seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class AnswerRoom:
    """The memory of all answers under way: `held` bytes, at most `most`, and at most `most_of_one` of one answer."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self.most, self.most_of_one, self.held = most, most_of_one, 0
        self.lock = threading.Lock()

    @contextmanager
    def share(self) -> Iterator["RoomShare"]:
        """Return the share of one answer; the end of the block gives it back."""
        share = RoomShare(self)
        try:
            yield share
        finally:
            share.give_back()


class RoomShare:
    """The bytes that one answer has `taken` of the room. Safe to share between threads."""

    def __init__(self, room: AnswerRoom) -> None:
        self._room, self.taken, self._over = room, 0, False

    def reach(self, size: int) -> None:
        """Take bytes until this answer has `size` of them.

        Raises ConfigError for an answer that is too long, and BusyError if all answers together are too long or nobody
        waits for this one any more.
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
        """Free the bytes: the answer was sent, or will not be."""
        with self._room.lock:
            self._room.held -= self.taken
            self.taken, self._over = 0, True
