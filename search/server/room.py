"""What answers hold in memory, from the first document that is read for one until it was sent."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from indexer.errors import ConfigError
from search.server.settings import ServerLimits


class BusyError(Exception):
    """There is no room for this now; `retry_after` is in whole seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class AnswerRoom:
    """The bytes that all answers under way may hold together: `held` of `answering_bytes`."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits, self.held = limits, 0
        self.lock = threading.Lock()

    @contextmanager
    def share(self) -> Iterator["RoomShare"]:
        """The share of one answer, which is given back when the block ends."""
        share = RoomShare(self)
        try:
            yield share
        finally:
            share.give_back()


class RoomShare:
    """What one answer has `taken` of the room. Safe to share between threads."""

    def __init__(self, room: AnswerRoom) -> None:
        self._room, self.taken, self._over = room, 0, False

    def reach(self, size: int) -> None:
        """Take as much as is missing to so many bytes.

        Raises ConfigError for an answer that is too long, and BusyError where all are too long together, or where this
        one is not waited for any more.
        """
        room = self._room
        if size > room.limits.answer_bytes:
            raise ConfigError(
                f"The answer is longer than {room.limits.answer_bytes:,} bytes, as its documents are long. Ask for "
                "fewer hits, or fewer queries at once."
            )
        with room.lock:
            more = max(0, size - self.taken)
            if self._over or room.held + more > room.limits.answering_bytes:
                raise BusyError("Too many long answers are being sent; try again in 1 s, or ask for fewer hits.", 1)
            room.held += more
            self.taken += more

    def give_back(self) -> None:
        """The answer was sent, or will not be."""
        with self._room.lock:
            self._room.held -= self.taken
            self.taken, self._over = 0, True
