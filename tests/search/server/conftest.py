"""Servers that really listen, for tests of real clients."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from search.engine import SearchEngine
from search.server import listener
from search.server.app import serve_engine
from search.server.settings import ServerSettings

LiveServer = Callable[..., str]


@pytest.fixture(scope="module")
def live_server() -> Iterator[LiveServer]:
    """Serves an index in a thread and gives its URL: `live_server(index, name="docs", limits=...)`.

    What is named are fields of ServerSettings; the name is "index" unless given. All are stopped with the module.
    """
    started: list[tuple[listener._Server, threading.Thread]] = []
    servers: Queue[listener._Server] = Queue()

    @contextlib.contextmanager
    def without_signals(self: listener._Server) -> Iterator[None]:
        servers.put(self)  # signals are for the main thread
        yield

    def serve(index: Path, name: str = "index", **settings: Any) -> str:
        ready: Queue[str | BaseException] = Queue()

        def run() -> None:
            try:
                wanted = ServerSettings(name, port=0, **settings)
                listener.listen(serve_engine(SearchEngine(index), wanted), wanted, ready.put)
            except BaseException as error:  # noqa: BLE001  # raised where it was asked for
                ready.put(error)

        thread = threading.Thread(target=run, name=f"serve-{name}", daemon=True)
        thread.start()
        found = ready.get(timeout=60)
        if isinstance(found, BaseException):
            raise found
        started.append((servers.get(timeout=60), thread))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener._Server, "capture_signals", without_signals)
        yield serve
        for server, thread in started:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()
