"""Checks before all routes: access, limits of bodies, and disconnects."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest

from search.server.http.guard import ABORT, Guard
from search.server.metrics import ServerMetrics
from search.server.settings import ServerLimits, ServerSettings
from tests.servers import ADMIN_KEY, READ_KEY, keys

LOCAL = {"host": "127.0.0.1:8080"}


class Application:
    """An application that waits for `go`, answers with its body, and records how it ended."""

    def __init__(self) -> None:
        self.bodies, self.cancelled, self.go = list[bytes](), 0, asyncio.Event()
        self.go.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        self.bodies.append(body)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})


class Client:
    """A client that sends a request piece by piece, and records the answer."""

    def __init__(self, path: str, headers: dict[str, str] | None = None, method: str = "POST") -> None:
        self.aborted = False
        self.scope = {
            "type": "http",
            "path": path,
            "method": method,
            "headers": [(name.encode(), value.encode()) for name, value in (headers or LOCAL).items()],
            "extensions": {ABORT: {"call": self._abort}},
        }
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self.read = self.read_before = 0  # bytes, and those before the answer began
        self.whole = False  # whether the answer has ended
        self.status, self.headers, self.body = 0, dict[str, str](), b""

    def _abort(self) -> None:
        self.aborted = True
        self.leave()

    def send(self, *pieces: bytes, end: bool = True) -> "Client":
        for number, piece in enumerate(pieces, start=1):
            more = number < len(pieces) or not end
            self.sent.put_nowait({"type": "http.request", "body": piece, "more_body": more})
        return self

    def leave(self) -> None:
        self.sent.put_nowait({"type": "http.disconnect"})

    async def receive(self) -> Any:
        message = await self.sent.get()
        self.read += len(message.get("body", b""))
        return message

    async def answer(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.read_before = message["status"], self.read
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")
            self.whole = not message.get("more_body", False)

    @property
    def message(self) -> str:
        return str(json.loads(self.body)["error"]["message"])


def guarded(
    use: Callable[[Guard, Application], Coroutine[Any, Any, None]],
    settings: ServerSettings | None = None,
    **limits: Any,
) -> ServerMetrics:
    """Run `use` with a guard, and return its metrics."""
    metrics = ServerMetrics()

    async def run() -> None:
        app = Application()
        guard = Guard(app, settings or ServerSettings("tests", limits=ServerLimits(**limits)), metrics)
        await use(guard, app)
        assert guard.bodies.held == 0

    asyncio.run(run())
    return metrics


def asked(clients: Iterable[Client], settings: ServerSettings | None = None, **limits: Any) -> list[int]:
    """Return the statuses for clients that send "{}"."""
    given = list(clients)

    async def use(guard: Guard, app: Application) -> None:
        for client in given:
            await guard(client.scope, client.send(b"{}").receive, client.answer)

    guarded(use, settings, **limits)
    return [client.status for client in given]


@pytest.fixture
def closed(tmp_path: Path) -> ServerSettings:
    """A server with keys."""
    return ServerSettings(
        "tests",
        host="0.0.0.0",  # noqa: S104
        read_keys=keys(f"# for readers\n{READ_KEY}\n\nanother-key-of-the-tests\n", tmp_path),
        admin_keys=keys(ADMIN_KEY, tmp_path, "admin.txt"),
    )


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "127.0.0.1:8080"}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "LocalHost:1"}, 200),
        ({"host": "[::1]:8080"}, 200),
        ({"host": "127.9.9.9"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "localhost.evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example:8080"}, 403),
        ({"host": "evil.example@127.0.0.1"}, 403),
        ({"host": "127.0.0.1#evil.example"}, 403),
        ({"host": "LOCALHOST:8080"}, 200),
        ({"host": "127.0.0.1:notaport"}, 403),
        ({"host": "localhost:8080evil.example"}, 403),
        ({"host": "[::1].evil.example"}, 403),
        ({"host": "[::1]evil.example:8080"}, 403),
        ({"host": "notlocalhost"}, 403),
        ({"host": "evil.localhost"}, 403),
        ({"host": "evil127.0.0.1"}, 403),
        ({"host": "[::1"}, 403),
        ({"host": ""}, 403),
        ({"accept": "*/*"}, 403),
        ({"host": "10.0.0.1"}, 403),
        ({"host": "0.0.0.0"}, 403),  # noqa: S104
        (LOCAL | {"origin": "http://127.0.0.1:8080"}, 200),
        (LOCAL | {"origin": "http://localhost:8080"}, 403),
        (LOCAL | {"origin": "http://127.0.0.1:3000"}, 403),
        (LOCAL | {"origin": "http://evil.example"}, 403),
        (LOCAL | {"origin": "null"}, 403),
        (LOCAL | {"origin": "http://["}, 403),
        (LOCAL | {"origin": "http://127.0.0.1:8080@evil.example"}, 403),
        (LOCAL | {"origin": "HTTP://127.0.0.1:8080"}, 200),
        (LOCAL | {"origin": "file://127.0.0.1:8080"}, 403),
        (LOCAL | {"sec-fetch-site": "same-origin"}, 200),
        (LOCAL | {"sec-fetch-site": "none"}, 200),
        (LOCAL | {"sec-fetch-site": "cross-site"}, 403),
        (LOCAL | {"sec-fetch-site": "same-site"}, 403),
    ],
)
def test_pages_of_other_sites_may_not_ask_an_open_server(headers: dict[str, str], status: int) -> None:
    """Under any host name (DNS rebinding), on every route, including those without keys."""
    paths = ["/v1/search", "/healthz", "/assets/app.js", "/mcp", "/metrics"]
    assert set(asked(Client(path, headers) for path in paths)) == {status}


def test_a_link_of_another_site_leads_to_the_page_alone() -> None:
    there = LOCAL | {"sec-fetch-site": "cross-site"}
    assert asked([Client("/", there, "GET"), Client("/", there), Client("/v1/info", there, "GET")]) == [200, 403, 403]


@pytest.mark.parametrize("name", ["authorization", "x-api-key"])
def test_keys_open_what_they_are_for(name: str, closed: ServerSettings) -> None:
    def status(path: str, key: str) -> int:
        value = f"Bearer {key}" if name == "authorization" else key
        return asked([Client(path, {"host": "any.example", name: value})], closed)[0]

    for path in ("/v1/search", "/v1/info", "/metrics", "/readyz", "/openapi.json", "/mcp", "/mcp/", "/nothing", "//"):
        assert status(path, READ_KEY) == status(path, "another-key-of-the-tests") == 200
        for wrong in (ADMIN_KEY, READ_KEY[:-1], READ_KEY + "x", READ_KEY.upper(), "", "# for readers", "ä"):
            assert status(path, wrong) == 401, (path, wrong)
    assert status("/admin/reload", ADMIN_KEY) == 200
    assert (status("/admin/reload", READ_KEY), status("/admin/reload", "wrong"), status("/admin/reload", "")) == (
        403, 401, 401,
    )  # fmt: skip
    assert {status(path, "") for path in ("/healthz", "/", "/assets/app.js")} == {200}


def test_without_a_key_no_body_is_read_and_nothing_revealed(closed: ServerSettings) -> None:
    client = Client("/v1/search", {"host": "any.example"}).send(b"x" * 100)

    async def use(guard: Guard, app: Application) -> None:
        await guard(client.scope, client.receive, client.answer)
        assert app.bodies == []

    guarded(use, closed)
    assert (client.status, client.read) == (401, 0)
    assert client.headers["www-authenticate"] == "Bearer"
    assert client.message == "The key is missing or wrong. Send it as: Authorization: Bearer KEY"


def test_of_several_keys_none_counts(closed: ServerSettings, tmp_path: Path) -> None:
    """A proxy in front may check another of the keys."""
    for name in ("authorization", "x-api-key"):
        value = f"Bearer {READ_KEY}" if name == "authorization" else READ_KEY
        for second in (value, "another"):
            client = Client("/v1/search", {"host": "any.example", name: value})
            client.scope["headers"].append((name.encode(), second.encode()))  # type: ignore[attr-defined]
            assert asked([client], closed) == [401]
            assert client.message == "More than one key. Send one, as: Authorization: Bearer KEY"
    both = {"host": "any.example", "authorization": f"Bearer {READ_KEY}", "x-api-key": "another"}
    assert asked([Client("/v1/search", both)], closed) == [200]


def test_a_stranger_does_not_learn_whether_there_is_an_administrator(tmp_path: Path) -> None:
    settings = ServerSettings("tests", host="0.0.0.0", read_keys=keys(READ_KEY, tmp_path))  # noqa: S104
    stranger, reader = Client("/admin/x"), Client("/admin/x", {"authorization": f"Bearer {READ_KEY}"})
    assert asked([stranger, reader], settings) == [401, 403]


def test_a_fault_of_the_application_is_answered_and_counted() -> None:
    client = Client("/v1/search").send(b"{}")

    async def use(guard: Guard, app: Application) -> None:
        app.go = None  # type: ignore[assignment]
        await guard(client.scope, client.receive, client.answer)

    metrics = guarded(use)
    assert (client.status, client.message) == (500, "The server failed at this request; see its log.")
    assert b'isotrope_requests_total{route="none",status="500"} 1.0' in metrics.text()


def test_administration_needs_a_key_also_where_nothing_else_does(tmp_path: Path) -> None:
    (client,) = clients = [Client("/admin/reload")]
    assert asked(clients) == [403]
    assert "--admin-key-file" in client.message
    settings = ServerSettings("tests", admin_keys=keys(ADMIN_KEY, tmp_path))
    given = LOCAL | {"authorization": f"Bearer {ADMIN_KEY}"}
    there = [Client("/admin/reload", given), Client("/admin/reload"), Client("/v1/search")]
    assert asked(there, settings) == [200, 401, 200]
    assert asked([Client("/admin/reload", given | {"host": "evil.example"})], settings) == [403]


def test_a_body_is_counted_as_it_arrives() -> None:
    whole, stated = Client("/v1/search"), Client("/v1/search", LOCAL | {"content-length": "11"})
    lying = Client("/v1/search", LOCAL | {"content-length": "5"})
    huge = Client("/v1/search", LOCAL | {"content-length": "9" * 5000})

    async def use(guard: Guard, app: Application) -> None:
        await guard(whole.scope, whole.send(b"12345", b"", b"67890").receive, whole.answer)
        for client in (stated, huge):
            await guard(client.scope, client.send(b"x" * 11).receive, client.answer)
        await guard(lying.scope, lying.send(*[b"123"] * 100).receive, lying.answer)
        assert app.bodies == [b"1234567890"]

    guarded(use, body_bytes=10)
    assert [client.status for client in (whole, stated, huge, lying)] == [200, 413, 413, 413]
    assert [client.read_before for client in (stated, huge, lying)] == [0, 0, 12]
    assert "10 bytes" in lying.message


def test_a_body_that_was_refused_is_read_on_a_little() -> None:
    """A client whose connection closes while it sends never sees the answer."""
    short = Client("/v1/search", LOCAL | {"content-length": "30"})
    long = Client("/v1/search", LOCAL | {"content-length": "300"})

    async def use(guard: Guard, app: Application) -> None:
        await guard(short.scope, short.send(*[b"123"] * 10).receive, short.answer)
        await guard(long.scope, long.send(*[b"123"] * 100).receive, long.answer)

    guarded(use, body_bytes=29)
    for client, read in ((short, 30), (long, 60)):
        assert (client.status, client.read_before, client.read, client.whole) == (413, 0, read, True)


def test_bodies_together_have_a_limit_too_and_give_it_back() -> None:
    clients = [Client("/v1/search").send(b"x" * 8, end=False) for _ in range(3)]

    async def use(guard: Guard, app: Application) -> None:
        tasks = [asyncio.create_task(guard(one.scope, one.receive, one.answer)) for one in clients]
        await asyncio.sleep(0.01)
        assert clients[2].status == 503
        clients[0].leave()
        await asyncio.sleep(0.01)
        clients[1].send(b"y" * 8)
        await asyncio.gather(*tasks)

    metrics = guarded(use, reading_bytes=20)
    assert [client.status for client in clients] == [0, 200, 503]
    assert clients[2].headers["retry-after"] == "1"
    assert b'isotrope_refused_total{reason="bodies"} 1.0' in metrics.text()


def test_a_body_must_arrive_in_time() -> None:
    client = Client("/v1/search").send(b"slow", end=False)

    async def use(guard: Guard, app: Application) -> None:
        await guard(client.scope, client.receive, client.answer)

    guarded(use, reading_seconds=0.02)
    assert client.status == 408


def test_requests_of_clients_that_left_are_cancelled() -> None:
    client = Client("/v1/search").send(b"{}")

    async def use(guard: Guard, app: Application) -> None:
        app.go.clear()
        task = asyncio.create_task(guard(client.scope, client.receive, client.answer))
        await asyncio.sleep(0.01)
        client.leave()
        await task
        assert app.cancelled == 1

    metrics = guarded(use)
    assert client.status == 0
    assert b"isotrope_clients_left_total 1.0" in metrics.text()
    assert b'isotrope_requests_total{route="none",status="499"} 1.0' in metrics.text()


def test_a_request_that_is_open_when_the_server_stops_gets_an_error() -> None:
    client = Client("/v1/search").send(b"{}")

    async def use(guard: Guard, app: Application) -> None:
        app.go.clear()
        task = asyncio.create_task(guard(client.scope, client.receive, client.answer))
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    guarded(use)
    assert (client.status, client.message) == (503, "The server stopped before it answered this request.")


def test_a_client_that_does_not_read_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("search.server.http.guard._AFTER", 0.01)
    client = Client("/v1/search").send(b"{}")

    async def full(message: Any) -> None:
        await asyncio.Event().wait()

    async def use(guard: Guard, app: Application) -> None:
        await guard(client.scope, client.receive, full)

    guarded(use, deadline=0.01)
    assert client.aborted


def test_every_answer_has_the_headers_that_keep_a_browser_safe() -> None:
    for path in ("/", "/assets/x", "/v1/search", "/admin/x"):
        client = Client(path)
        asked([client])
        policy = client.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert client.headers["x-content-type-options"] == "nosniff"
        assert ("cache-control" in client.headers) == (path not in ("/", "/assets/x"))


def test_web_sockets_are_closed() -> None:
    told = list[Any]()

    async def send(message: Any) -> None:
        told.append(message)

    async def use(guard: Guard, app: Application) -> None:
        await guard({"type": "websocket", "path": "/mcp", "headers": []}, None, send)  # type: ignore[arg-type]

    guarded(use)
    assert told == [{"type": "websocket.close", "code": 1008}]
