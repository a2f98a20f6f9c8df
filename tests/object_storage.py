"""An S3-compatible server on loopback, behind a proxy that counts requests and injects faults."""

import http.client
import os
import socket
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from indexer.store import bucket, stores
from indexer.system.blob_cache import LIMIT
from tests.waiting import PATIENCE, wait_until

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}
_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "date", "server"}


@dataclass(frozen=True)
class Request:
    """A request that passed the proxy."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Fault:
    """A fault that the proxy injects into a request; none by default."""

    status: int = 0  # of the answer, without calling the server
    cut: bool = False  # send half of the body, then close the connection
    lost: bool = False  # close the connection after the server has answered
    wait: threading.Event | None = None  # pause in the middle of the body until this is set
    without: str = ""  # a header to remove
    changed: bool = False  # change one byte of the body


@dataclass
class Storage:
    """The server behind the proxy; `fault` returns the fault of each request."""

    endpoint: str = ""
    upstream: str = ""
    requests: list[Request] = field(default_factory=list)
    served: dict[str, int] = field(default_factory=dict)  # path -> bytes of bodies of GET
    fault: Callable[[Request], Fault | None] = lambda _: None
    opaque: bool = False  # ETags do not depend on the bytes, as in stores that encrypt

    def bucket(self) -> str:
        """Create a bucket, and return its URL."""
        name = f"test-{uuid.uuid4().hex[:12]}"
        request = urllib.request.Request(f"{self.upstream}/{name}", method="PUT")  # noqa: S310
        urllib.request.urlopen(request, timeout=PATIENCE).close()  # noqa: S310
        return f"s3://{name}"

    def environment(self, cache: Path) -> dict[str, str]:
        """The environment of a command that uses this storage."""
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": self.endpoint, "ISOTROPE_CACHE": str(cache)}

    def bytes_of(self, ending: str) -> int:
        """Return the bytes served of objects whose names end with this."""
        return sum(size for path, size in self.served.items() if path.endswith(ending))


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each body waits 40 ms for the acknowledgement of its headers
    storage: Storage

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""

    def _pass_on(self) -> None:
        storage, body = self.storage, self._body()
        request = Request(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        storage.requests.append(request)
        fault = storage.fault(request) or Fault()
        if fault.status:
            self._answer(fault.status, {}, b"<Error><Code>InternalError</Code></Error>", Fault())
            return
        headers = {name: value for name, value in request.headers.items() if name != fault.without}
        if fault.changed:
            body = body[:-1] + bytes([body[-1] ^ 1])
        connection = http.client.HTTPConnection(storage.upstream.removeprefix("http://"), timeout=PATIENCE)
        try:
            connection.request(self.command, self.path, body, headers)
            response = connection.getresponse()
            data = response.read()
            if fault.lost:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            if self.command == "GET" and not self.path.partition("?")[2]:
                path = self.path
                storage.served[path] = storage.served.get(path, 0) + len(data)
            answered = dict(response.getheaders())
            if storage.opaque and self.command == "PUT":
                answered = {name: value for name, value in answered.items() if name.lower() != "etag"}
                answered["ETag"] = f'"{uuid.uuid4().hex}"'
            self._answer(response.status, answered, data, fault)
        finally:
            connection.close()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on  # noqa: N815

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            pieces = []
            while size := int(self.rfile.readline(), 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, status: int, headers: dict[str, str], data: bytes, fault: Fault) -> None:
        self.send_response(status)
        length = headers.get("Content-Length", str(len(data))) if self.command == "HEAD" else str(len(data))
        for name, value in headers.items():
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command == "HEAD":
            return
        half = len(data) // 2
        try:
            if fault.cut:
                self.wfile.write(data[:half])
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            if fault.wait is not None:
                self.wfile.write(data[:half])
                self.wfile.flush()
                fault.wait.wait(PATIENCE)
                data = data[half:]
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=1).close()  # noqa: S310
    except OSError:
        return False
    return True


@pytest.fixture(scope="session")
def _server() -> Iterator[str]:
    """moto's server, once per session."""
    pytest.importorskip("obstore")
    port = _free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: server.poll() is not None or _answers(f"http://127.0.0.1:{port}/moto-api/"))
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def storage(_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """Object storage for a test, with an empty cache and short pauses between retries."""
    found = Storage(upstream=_server)
    handler = type("Handler", (_Proxy,), {"storage": found})
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    proxy.daemon_threads = True
    found.endpoint = f"http://127.0.0.1:{proxy.server_port}"
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    for name in ("AWS_ENDPOINT_URL_S3", LIMIT):
        monkeypatch.delenv(name, raising=False)
    for name, value in found.environment(tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bucket, "PAUSE", 0.002)
    monkeypatch.setattr(bucket, "RETRIES", {"max_retries": 0})
    forget()
    try:
        yield found
    finally:
        forget()
        proxy.shutdown()
        proxy.server_close()


def first(count: int, fault: Fault, method: str, ending: str = "") -> Callable[[Request], Fault | None]:
    """Return a fault for the first requests of a method to objects whose names end with this."""
    left = [count]

    def of(request: Request) -> Fault | None:
        if request.method != method or not request.path.partition("?")[0].endswith(ending) or not left[0]:
            return None
        left[0] -= 1
        return fault

    return of


def forget() -> None:
    """Close all stores, as in a new process."""
    bucket.open_bucket.cache_clear()
    stores._object_store.cache_clear()


def use_cache(folder: Path) -> None:
    """Give this process another cache, as on another machine."""
    os.environ["ISOTROPE_CACHE"] = str(folder)
    forget()
