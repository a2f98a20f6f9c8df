"""uvicorn, which listens: with a limit of connections and of silence, and an end that loses no answer."""

import asyncio
import contextlib
import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from indexer.errors import ConfigError
from search.server.app import ServedIndex
from search.server.guard import ABORT
from search.server.settings import ServerLimits, ServerSettings

_SILENCE = 10.0  # seconds for the head of a request to arrive
_KEEP_ALIVE = 30  # seconds between two requests of a connection
_BACKLOG = 512
_LONGEST_HEAD = 64 << 10  # bytes


class Listener(uvicorn.Server):
    """A server of one index, bound to its address as soon as it is made: nobody else takes the port any more.

    Raises ConfigError for an address that cannot be listened on.
    """

    def __init__(self, served: ServedIndex, settings: ServerSettings) -> None:
        self._served, self._socket = served, _bound(settings)
        self._on_ready: Callable[[str], None] = lambda url: None
        super().__init__(
            uvicorn.Config(
                served.guard,
                http=_protocol(settings.limits),
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE,
                timeout_graceful_shutdown=math.ceil(settings.limits.drain),
                backlog=_BACKLOG,
            )
        )

    @property
    def url(self) -> str:
        """Where it is reached."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def listen(self, on_ready: Callable[[str], None]) -> None:
        """Answer until SIGINT, SIGTERM or `stop`; requests under way are then finished. `on_ready` is told the URL."""
        self._on_ready = on_ready
        with self._socket:
            self.run(sockets=[self._socket])

    def stop(self) -> None:
        """End `listen`, from any thread."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        url = self.url
        await super().startup(sockets)
        if self.started:
            self._on_ready(url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._served.drain()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but a signal is not raised again at the end: it is an end in good order."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {one: signal.signal(one, self.handle_exit) for one in signals}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


def _bound(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"{settings.host}:{settings.port}: cannot be listened on: {error.strerror or error}. Name another --port; "
            "0 takes any that is free."
        ) from error


def _protocol(limits: ServerLimits) -> type[asyncio.Protocol]:
    """HTTP as uvicorn speaks it, within limits: of connections, of silence, and of bytes that are no body."""
    most = 2 * limits.body_bytes + _LONGEST_HEAD  # twice: chunks have heads of their own

    class GuardedProtocol(HttpToolsProtocol):
        _silence: asyncio.TimerHandle | None = None
        _received = 0  # since the head of the last message began

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                transport.abort()
            else:
                self._expect_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._end_silence()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._received += len(data)
            super().data_received(data)
            if self._received > (_LONGEST_HEAD if self._silence else most):
                self.transport.abort()  # the parser would hold on to it without end

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.scope["extensions"] = {ABORT: {"call": self.transport.abort}}
            self._received = 0
            if self._silence is None:
                self._expect_head()

        def on_headers_complete(self) -> None:
            self._end_silence()
            super().on_headers_complete()

        def _expect_head(self) -> None:
            self._silence = self.loop.call_later(_SILENCE, self.transport.abort)

        def _end_silence(self) -> None:
            if self._silence is not None:
                self._silence.cancel()
                self._silence = None

    return GuardedProtocol
