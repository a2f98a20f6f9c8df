"""Promises of the asynchronous client alone: bounded concurrency, cancellation, and closed connections."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from indexer.errors import ConfigError, MachineError
from search import AsyncSearchClient, SearchEngine
from search.client.asynchronous import _AT_ONCE
from tests.servers import live_server
from tests.waiting import PATIENCE

TEXTS = [f"thing {number} of {number % 3}" for number in range(640)]
GOOD = b'{"results": [{"query": "x", "hits": []}]}'
Asked = Callable[[], Awaitable[None]]


class Crowd:
    """A server that counts the requests that are under way. An answer waits until `open` is set."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.connections, self.under_way, self.most, self.asked = 0, 0, 0, 0
        self.bodies: list[bytes] = [GOOD]
        self.url = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(re.findall(rb"(?i)\r\ncontent-length: (\d+)", head)[0]))
                self.asked += 1
                self.under_way += 1
                self.most = max(self.most, self.under_way)
                left = asyncio.ensure_future(reader.read(1))  # ends if the client closes its connection
                opened = asyncio.ensure_future(self.open.wait())
                await asyncio.wait([left, opened], return_when=asyncio.FIRST_COMPLETED)
                self.under_way -= 1
                if left.done():
                    return
                left.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await left
                body = self.bodies.pop(0) if len(self.bodies) > 1 else self.bodies[0]
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.connections -= 1
            writer.close()

    @classmethod
    @contextlib.asynccontextmanager
    async def serving(cls) -> AsyncIterator["Crowd"]:
        crowd = cls()
        server = await asyncio.start_server(crowd._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        crowd.url = f"http://{host}:{port}"
        try:
            yield crowd
        finally:
            server.close()


async def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.005)


def test_many_queries_are_asked_a_few_requests_at_once() -> None:
    async def ask() -> None:
        async with Crowd.serving() as crowd, AsyncSearchClient(crowd.url) as client:
            crowd.bodies = [b'{"results": [%b]}' % b", ".join([b'{"query": "x", "hits": []}'] * 64)]
            search = asyncio.create_task(client.search_many(TEXTS, k=2))
            await until(lambda: crowd.under_way == _AT_ONCE)
            crowd.open.set()
            assert len(await search) == len(TEXTS)
            assert (crowd.most, crowd.asked) == (_AT_ONCE, 10)

    asyncio.run(ask())


def test_tasks_share_a_client(index: Path, engine: SearchEngine) -> None:
    async def ask(url: str) -> list[Any]:
        async with AsyncSearchClient(url) as client:
            return await asyncio.gather(*(client.search(text, k=3) for text in TEXTS[:40]))

    with live_server(index) as server:
        found = asyncio.run(ask(server.url))
        assert [[hit.id for hit in hits] for hits in found] == [
            [hit.id for hit in hits] for hits in engine.search_many(TEXTS[:40], k=3)
        ]


def test_a_cancelled_call_ends_its_requests_and_the_client_stays_usable() -> None:
    async def ask() -> None:
        async with Crowd.serving() as crowd:
            async with AsyncSearchClient(crowd.url) as client:
                search = asyncio.create_task(client.search_many(TEXTS, k=2))
                await until(lambda: crowd.under_way == _AT_ONCE)
                search.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await search
                await until(lambda: crowd.connections == 0)
                assert crowd.asked == _AT_ONCE
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await client.search("x")
                crowd.open.set()
                assert await client.search("x") == []
                assert crowd.connections == 1
            await until(lambda: crowd.connections == 0)

    asyncio.run(ask())


def test_a_failed_request_ends_the_others_of_its_call_and_keeps_its_error() -> None:
    async def ask() -> None:
        async with Crowd.serving() as crowd, AsyncSearchClient(crowd.url) as client:
            crowd.bodies = [b"<html>", GOOD]
            search = asyncio.create_task(client.search_many(TEXTS, k=2))
            await until(lambda: crowd.under_way == _AT_ONCE)
            crowd.open.set()
            with pytest.raises(ConfigError, match="not an Isotrope server") as raised:
                await search
            assert isinstance(raised.value.__cause__, ValueError)

    asyncio.run(ask())


def test_a_missing_server_raises_an_error_of_the_client() -> None:
    async def ask() -> None:
        async with AsyncSearchClient("http://127.0.0.1:1") as client:
            with pytest.raises(MachineError, match="cannot be reached"):
                await client.documents([f"d{number}" for number in range(20)])

    asyncio.run(ask())
