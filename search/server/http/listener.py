"""uvicorn as the listener, which finishes open requests when it stops."""

import asyncio
import contextlib
import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from indexer.errors import ConfigError
from search.server.app import ServedIndex
from search.server.http.connection import connection_class
from search.server.settings import ServerSettings

_KEEP_ALIVE = 30  # seconds between two requests of a connection
_BACKLOG = 512


class Listener(uvicorn.Server):
    """A server of one index, bound to its address on creation. Raises ConfigError for an unusable address."""

    def __init__(self, served: ServedIndex, settings: ServerSettings) -> None:
        self._served, self._socket = served, _bound(settings)
        self._on_ready: Callable[[str], None] = lambda url: None
        self._cut = 0  # aborted requests
        super().__init__(
            uvicorn.Config(
                served.guard,
                http=connection_class(settings.limits),
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=settings.access_log,
                server_header=False,
                proxy_headers=False,  # any client could send such headers
                timeout_keep_alive=_KEEP_ALIVE,
                timeout_graceful_shutdown=math.ceil(max(settings.limits.drain, settings.limits.deadline)),
                backlog=_BACKLOG,
            )
        )

    @property
    def url(self) -> str:
        """The URL for clients on this machine, with the loopback address for a server on all addresses."""
        host, port = self._socket.getsockname()[:2]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def is_on_all_addresses(self) -> bool:
        """Whether the server listens on every address of this machine."""
        return self._socket.getsockname()[0] in ("0.0.0.0", "::")  # noqa: S104

    def listen(self, on_ready: Callable[[str], None]) -> int:
        """Answer until SIGINT, SIGTERM, SIGHUP or `stop`, then finish open requests. `on_ready` gets the URL.

        Returns the number of aborted requests, by a second SIGINT or because they took too long.
        """
        self._on_ready = on_ready
        with self._socket:
            self.run(sockets=[self._socket])
        return self._cut

    def stop(self) -> None:
        """End `listen`, from any thread."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        url = self.url
        await super().startup(sockets)
        if self.started:
            self._on_ready(url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._served.service.draining = True
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn would end the loop before its tasks, and log each task
            for connection in list(self.server_state.connections):
                connection.transport.abort()
            if self.server_state.tasks:
                await asyncio.wait(self.server_state.tasks)
            await self.lifespan.shutdown()

    async def _wait_tasks_to_complete(self) -> None:
        try:
            await super()._wait_tasks_to_complete()
        finally:
            self._cut = len(self.server_state.tasks)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self.force_exit:  # a third SIGINT ends the process without waiting for threads
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals as uvicorn does, without raising them again: stopping is a normal end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # under nohup the server survives its terminal
            signals.append(signal.SIGHUP)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _bound(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        why = str(error.strerror or error).partition(" (while")[0]
        raise ConfigError(
            f"{settings.host}:{settings.port}: cannot listen on this address: {why}. Fix: choose another --port (0: "
            "any free port), or an address of this machine as --host."
        ) from error
