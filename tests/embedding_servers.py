"""A small embedding server for tests: OpenAI's protocol, with any model behind it, and with faults on demand."""

import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.encoders.server.probes import PROBES
from tests.waiting import PATIENCE

Model = Callable[[list[str]], npt.NDArray[np.floating]]
"""Texts to rows (n, d)."""


def words_model(dim: int = 16, seed: int = 0) -> Model:
    """Return a model that adds a random vector for each word; another seed is another model."""

    def vector(word: str) -> npt.NDArray[np.float64]:
        digest = hashlib.sha256(f"{seed} {word}".encode()).digest()
        return np.random.default_rng(list(digest)).standard_normal(dim)

    return lambda texts: np.stack([sum((vector(word) for word in text.split()), np.zeros(dim)) for text in texts])


@dataclass
class Reply:
    """An answer, which faults change before it is sent. `cut`: only this many bytes; `held`: after the test."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    held: bool = False


Fault = Callable[["StubServer", Reply], None]


@dataclass
class StubServer:
    """The server: its `url`, the texts of each request, the keys it got, and the faults of the next requests."""

    model: Model
    url: str = ""
    requests: list[list[str]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    faults: list[Fault | None] = field(default_factory=list)
    most_texts: int = 1000
    lock: Any = field(default_factory=threading.Lock)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def documents(self) -> list[str]:
        """The texts of all answered requests, without probes."""
        return [text for texts in self.requests for text in texts if text not in PROBES]

    def reply(self, sent: dict[str, Any], key: str | None) -> Reply:
        with self.lock:
            texts: list[str] = sent["input"]
            assert set(sent) == {"model", "input", "encoding_format"}
            self.keys.append(key)
            fault = self.faults.pop(0) if self.faults else None
            if len(texts) > self.most_texts:
                return Reply(413, {"error": f"batch size {len(texts)} > {self.most_texts}", "error_type": "Validation"})
            rows = self.model(texts).tolist()
            data = [{"object": "embedding", "index": number, "embedding": row} for number, row in enumerate(rows)]
            reply = Reply(body={"object": "list", "model": sent["model"], "data": data})
            if fault is not None:
                fault(self, reply)
            if reply.status == 200 and reply.cut is None and not reply.held:
                self.requests.append(texts)
            return reply


def status(code: int, message: Any = "try later", **headers: str) -> Fault:
    """Return the fault of an answer with this status, error message and headers."""

    def change(_: StubServer, reply: Reply) -> None:
        reply.status, reply.body = code, {"error": {"message": message, "code": None}}
        reply.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    return change


def data(change: Callable[[list[dict[str, Any]]], Sequence[dict[str, Any]]]) -> Fault:
    """Return the fault of other rows."""

    def changed(_: StubServer, reply: Reply) -> None:
        reply.body["data"] = change(reply.body["data"])

    return changed


@contextlib.contextmanager
def stub_server(model: Model | None = None, **settings: Any) -> Iterator[StubServer]:
    """Run a stub on a free port of this machine."""
    stub, connections = StubServer(model or words_model(), **settings), list[Any]()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            connections.append(self.connection)

        def do_POST(self) -> None:
            sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/v1/embeddings":
                reply = Reply(404, {"detail": "Not Found"})
            else:
                reply = stub.reply(sent, self.headers.get("Authorization"))
            if reply.held:
                stub.ended.wait(PATIENCE)
            body = json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body[: reply.cut])
            self.close_connection = reply.cut is not None

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stub.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield stub
    finally:
        stub.ended.set()
        server.shutdown()
        server.server_close()
        for connection in connections:  # else a client could go on with one that it keeps
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)
