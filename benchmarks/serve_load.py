"""Cheap clients of a server in their own process, because their processor time is lost to the server.

Each client keeps one connection, sends a prepared request, waits for the whole answer, and sends the next request: a
closed loop. Answers are counted and not parsed.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import uvloop


@dataclass(frozen=True)
class Drive:
    """Seconds of all requests together, and of each request in order of completion."""

    whole: float
    each: list[float]


class Load:
    """Clients in a process of `benchmarks.children`, for one server at a time."""

    def drive(self, url: str, bodies: Sequence[bytes], clients: int, requests: int) -> Drive:
        """Send `requests` posts to a URL from concurrent clients, with these bodies in turn."""
        return uvloop.run(_drive(url, bodies, clients, requests))


async def _drive(url: str, bodies: Sequence[bytes], clients: int, requests: int) -> Drive:
    parts, loop, seconds = urlsplit(url), asyncio.get_running_loop(), list[float]()
    head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\nContent-Length: "
    ready = [head.encode() + f"{len(body)}\r\n\r\n".encode() + body for body in bodies]
    numbers = iter(range(requests))
    made = [await loop.create_connection(_Connection, str(parts.hostname), parts.port or 80) for _ in range(clients)]
    start = time.perf_counter()
    await asyncio.gather(*(_ask(connection, ready, numbers, seconds) for _, connection in made))
    whole = time.perf_counter() - start
    for transport, _ in made:
        transport.close()
    return Drive(whole, seconds)


async def _ask(connection: "_Connection", ready: Sequence[bytes], numbers: Iterator[int], seconds: list[float]) -> None:
    for number in numbers:
        start = time.perf_counter()
        await connection.answered(ready[number % len(ready)])
        seconds.append(time.perf_counter() - start)


class _Connection(asyncio.Protocol):
    """A connection with one request at a time, to a server that sends Content-Length."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's type is not a subclass

    def answered(self, request: bytes) -> "asyncio.Future[None]":
        """Send a request. The future is done when the answer arrives, with ConnectionError if its status is not 200."""
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._received, self._left = b"", -1
        self._transport.write(request)
        return self._done

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            self._received += data
            head, end, data = self._received.partition(b"\r\n\r\n")
            if not end:
                return
            if not head.startswith(b"HTTP/1.1 200 "):
                self._done.set_exception(ConnectionError(head.decode("latin-1") + data.decode("latin-1")))
                return
            lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
            self._left = int(lines[b"content-length"])
        self._left -= len(data)
        if self._left == 0:
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(ConnectionError(f"the server closed the connection ({exc})"))
