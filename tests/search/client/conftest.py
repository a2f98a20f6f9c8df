"""An index behind a server, servers of other programs, and both clients."""

import asyncio
import inspect
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from indexer import BuildConfig, build_index, read_corpus
from indexer.recipe.config import EncoderConfig
from search import AsyncSearchClient, SearchClient, SearchEngine
from search.server.settings import ServerSettings
from tests.servers import live_server

Reply = tuple[int, dict[str, str], bytes]


@pytest.fixture(scope="module")
def index(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    rows = [
        {"_id": f"d{n}", "title": f"Title {n}", "text": f"Text about thing {n}. " * (1 + 30 * (n == 4)),
         "year": 2000 + n, "day": f"20{n:02}-01-02", "share": n / 3, "set": n % 2 == 0} for n in range(30)
    ]  # fmt: skip
    (folder / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    config = BuildConfig(encoder=EncoderConfig(model=str(tiny_model("bert")), max_length=32)).with_columns(
        {}, ("day:date",), ()
    )
    config = config.with_overrides(("chunk.tokens=24", "chunk.overlap=4"))
    build_index(read_corpus(folder / "docs.jsonl", config=config.corpus), folder / "index", config)
    return folder / "index"


@pytest.fixture(scope="module")
def url(index: Path) -> Iterator[str]:
    with live_server(index, ServerSettings("index", port=0)) as server:
        yield server.url


@pytest.fixture(scope="module")
def engine(index: Path) -> Iterator[SearchEngine]:
    with SearchEngine(index) as opened:
        yield opened


class Awaited:
    """An AsyncSearchClient with an event loop of its own, to be tested as a SearchClient."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self._client, self._runner = AsyncSearchClient(*given, **named), asyncio.Runner()

    def __enter__(self) -> "Awaited":
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        assert inspect.iscoroutinefunction(method)
        return lambda *given, **named: self._runner.run(method(*given, **named))


@pytest.fixture(params=[SearchClient, Awaited])
def connect(request: pytest.FixtureRequest) -> Any:
    """Either client: tests with it hold for both."""
    return request.param


@pytest.fixture
def stranger() -> Iterator[Callable[..., str]]:
    """Start a server that sends these replies, the last one repeatedly, and return its URL."""
    servers = []

    def serve(*replies: Reply) -> str:
        waiting = list(replies)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"] or 0))
                status, headers, body = waiting.pop(0) if len(waiting) > 1 else waiting[0]
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST  # noqa: N815 - the name is of http.server

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()
