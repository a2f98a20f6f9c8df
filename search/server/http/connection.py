"""uvicorn's HTTP connection, with limits on their number, on silence, and on bytes outside of bodies.

uvicorn waits forever for the head of a request and for a client to read its answer, and its parser keeps every byte of
heads, chunk extensions and trailers.
"""

import asyncio
import math
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from search.server.http.guard import ABORT
from search.server.settings import ServerLimits

_SILENCE = 10.0  # seconds for the head of a request to arrive
_LONGEST_HEAD = 64 << 10  # bytes
_READER_PAUSE = 10.0  # seconds in which a client must read _LEAST_READ bytes of its answer, or the rest
_LEAST_READ = 64 << 10


def connection_class(limits: ServerLimits) -> type[HttpToolsProtocol]:
    """Return the class that uvicorn instantiates for each connection, with these limits."""
    return type("LimitedConnection", (Connection,), {"limits": limits})


class Connection(HttpToolsProtocol):
    """A connection that is aborted if its client exceeds the limits."""

    limits: ServerLimits
    _silence: asyncio.TimerHandle | None = None
    _reader: asyncio.TimerHandle | None = None
    _since = 0.0  # time of connecting or of the last answer
    _received = 0  # bytes since the head of the last request began

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._since = self.loop.time()
        self._expect_head()
        if len(self.connections) > self.limits.connections:
            # aborted connections stay in the set for an iteration of the loop
            live = [connection for connection in self.connections if not connection.transport.is_closing()]
            if len(live) > self.limits.connections:
                self._longest_idle(live).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._silence, self._reader):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)
        if self.is_idle and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            # A blank line starts no request. uvicorn stops its timer at any byte, and restarts it only after answers.
            self.timeout_keep_alive_task = self.loop.call_at(
                self._since + self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        # Twice the body, because each chunk has its own head.
        if self._received > (_LONGEST_HEAD if self._silence else 2 * self.limits.body_bytes + _LONGEST_HEAD):
            self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"call": self.transport.abort, "is_closed": self.transport.is_closing}}
        self._received = 0
        if self._silence is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._since = self.loop.time()
        if self._reader is None:
            self._expect_reader(math.inf)

    def _longest_idle(self, live: Iterable[Any]) -> "Connection":
        """Return the connection to abort: the longest idle between two requests, or else this one."""
        others = [other for other in live if isinstance(other, Connection) and other is not self and other.is_idle]
        return min(others, key=lambda other: other._since, default=self)

    @property
    def is_idle(self) -> bool:
        """Whether the client has its answer and has sent nothing since."""
        return self.cycle is not None and self.cycle.response_complete and self._silence is None

    def _expect_head(self) -> None:
        self._silence = self.loop.call_later(_SILENCE, self.transport.abort)

    def _expect_reader(self, left: float) -> None:
        """Abort the connection unless the client reads its answer. `left` are the unread bytes one pause ago."""
        size = self.transport.get_write_buffer_size()
        self._reader = None
        if size > left - _LEAST_READ:
            self.transport.abort()
        elif size:
            self._reader = self.loop.call_later(_READER_PAUSE, self._expect_reader, size)
