"""Agents over HTTP and over standard streams: access, clean-up, and the end."""

import asyncio
import contextlib
import gc
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.server.streamable_http import StreamableHTTPServerTransport

from search.server.settings import ServerSettings
from tests.agents import MODES, call, each_tool, place_is_free, server_for_agents
from tests.search.cli.test_cli import ISOTROPE, isotrope
from tests.search.server.test_service import Slow
from tests.servers import READ_KEY, keys, live_server
from tests.waiting import PATIENCE, wait_until

POST = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


# --- over HTTP


def over_http(url: str, headers: dict[str, str], use: Callable[[Client], Coroutine[Any, Any, None]], mode: str) -> None:
    async def run() -> None:
        http = httpx2.AsyncClient(headers=headers, trust_env=False, timeout=PATIENCE)
        async with http, Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client:
            await use(client)

    asyncio.run(run())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("key", [None, READ_KEY])
def test_every_tool_answers_over_http(library: Path, tmp_path: Path, key: str | None, mode: str) -> None:
    read_keys = {"read_keys": keys(key, tmp_path)} if key else {}

    async def use(client: Client) -> None:
        await each_tool(client)
        results = (await call(client, "search", query="whales"))["results"]
        urls = {result["id"]: result["url"] for result in results}
        assert urls["bread"] == f"{server.url}/?doc=bread"
        assert urls["sea/1 ü"] == "https://example.org/whales"

    with live_server(library, ServerSettings("library", port=0, **read_keys)) as server:  # type: ignore[arg-type]
        over_http(server.url, {"authorization": f"Bearer {key}"} if key else {}, use, mode)
        assert server.served.service.pending == 0
        assert '"/mcp"' in server.served.metrics.text().decode()


@pytest.mark.parametrize("mode", MODES)
def test_a_caller_that_leaves_gives_its_place_back(library: Path, mode: str) -> None:
    with live_server(library) as server:
        service = server.served.service
        slow = Slow(service)

        async def use(client: Client) -> None:
            held = await slow.held(client.call_tool("search", {"query": "bread"}))
            assert service.pending == 1
            held.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await held

        over_http(server.url, {}, use, mode)
        asyncio.run(place_is_free(service))
        slow.go.set()


def test_mcp_checks_keys_too(library: Path, tmp_path: Path) -> None:
    with live_server(library) as server:
        for headers in (
            {"host": "evil.example"},
            {"host": "127.0.0.1.evil.example"},
            {"origin": "http://evil.example"},
            {"origin": "http://localhost:1"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
        ):
            assert server.client.post("/mcp", json=PING, headers=POST | headers).status_code == 403, headers
        own = {"origin": server.url, "sec-fetch-site": "same-origin"}
        for headers in (own, {"host": "localhost:80"}, {"host": "[::1]"}):
            assert server.client.post("/mcp", json=PING, headers=POST | headers).json()["result"] == {}
    settings = ServerSettings("library", port=0, read_keys=keys(READ_KEY, tmp_path))
    with live_server(library, settings) as server:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": READ_KEY[:-1]}):
            refused = server.client.post("/mcp", json=PING, headers=POST | headers)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        named = POST | {"host": "search.example.org", "x-api-key": READ_KEY}  # any host name needs a key
        assert server.client.post("/mcp", json=PING, headers=named).json()["result"] == {}


def test_there_are_no_streams_and_no_sessions(library: Path) -> None:
    with live_server(library, body_bytes=10_000) as server:
        for method in ("GET", "DELETE", "PUT"):
            refused = server.client.request(method, "/mcp", headers=POST)
            assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
        for _ in range(20):
            answer = server.client.post("/mcp", json=LIST, headers=POST | {"mcp-session-id": "made-up"})
            assert answer.headers["content-type"] == "application/json"
            assert "mcp-session-id" not in answer.headers
        for body, status in ((b"{", 400), (b"[]", 400), (b'{"a": 1}', 400), (b" " * 10_001, 413)):
            answer = server.client.post("/mcp", content=body, headers=POST)
            assert answer.status_code == status
            said = answer.json()["error"]["message"]
            assert "\n" not in said
            assert len(said) < 200
            assert "https:" not in said
        modern = POST | {"mcp-protocol-version": "2026-07-28"}
        assert server.client.post("/mcp", content=b"[]", headers=modern).json()["error"]["code"] == -32600
        for headers in (POST, modern):
            for kind in ({"content-type": "text/plain"}, {"accept": "text/html"}):
                assert 400 <= server.client.post("/mcp", json=PING, headers=headers | kind).status_code < 500
        assert server.client.post("/mcp", json={"jsonrpc": "2.0", "method": "x"}, headers=POST).status_code == 202
        wait_until(lambda: not held_transports())  # they end just after the answer


def test_a_server_without_the_sdk_answers_all_others(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with live_server(library) as server:
        assert server.client.post("/mcp", json=PING, headers=POST).status_code == 404
        assert server.search(query="bread", k=1)["results"][0]["hits"][0]["id"] == "bread"


def held_transports() -> int:
    gc.collect()
    return sum(type(one) is StreamableHTTPServerTransport for one in gc.get_objects())


def test_a_call_under_way_is_answered_before_a_server_stops(library: Path) -> None:
    body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call"}
    body |= {"params": {"name": "search", "arguments": {"query": "bread"}}}
    answers = []

    def ask(url: str) -> None:
        answers.append(httpx2.post(f"{url}/mcp", json=body, headers=POST, trust_env=False, timeout=PATIENCE).json())

    def answer_when_draining() -> None:
        wait_until(lambda: server.served.service.draining)
        slow.go.set()

    with live_server(library) as server:
        slow = Slow(server.served.service)
        caller = threading.Thread(target=ask, args=(server.url,))
        caller.start()
        slow.begun.acquire()
        threading.Thread(target=answer_when_draining).start()
    caller.join(PATIENCE)
    assert answers[0]["result"]["structuredContent"]["results"][0]["id"] == "bread"


@pytest.mark.check
def test_a_server_for_agents_alone(library: Path) -> None:
    async def use(client: Client) -> None:
        await each_tool(client)
        assert (await call(client, "fetch", id="bread"))["url"] == "isotrope:///bread"  # there is no page

    with server_for_agents(library) as url:
        over_http(url.removesuffix("/mcp"), {}, use, "auto")
        with httpx2.Client(base_url=url.removesuffix("mcp"), trust_env=False, timeout=PATIENCE) as http:
            assert http.get("/healthz").status_code == 200
            assert http.post("/v1/search", json={"query": "bread"}).status_code == 404
            assert http.post("/mcp", json=PING, headers=POST | {"host": "evil.example"}).status_code == 403


# --- over standard streams

NOISY = """
import os, subprocess, sys, warnings
from search.server import app
opened = app.prepare
def noisy(engine):
    print("printed by the index")
    print("printed with a flush", flush=True)
    os.write(1, b"written by a library\\n")
    subprocess.run(["echo", "said by a child"])
    warnings.warn("a warning of a library")
    sys.stdout.write("left in the buffer")
    opened(engine)
app.prepare = noisy
from search.cli import main
main()
"""


def test_standard_output_holds_protocol_lines_alone(library: Path) -> None:
    """Output of the index, libraries or child processes changes nothing; the end of the input ends the process."""
    messages: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call",
         "params": {"name": "search", "arguments": {"query": "bread"}}},
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", NOISY, "mcp", str(library)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8",
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    lines = []
    for message in messages:
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()
        if "id" in message:
            lines.append(process.stdout.readline())
    rest, remarks = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, remarks
    assert rest == ""
    first, second = map(json.loads, lines)
    assert (first["id"], first["result"]["protocolVersion"]) == (1, "2025-06-18")
    assert second["result"]["structuredContent"]["results"][0]["id"] == "bread"
    for said in ("printed by the index", "printed with a flush", "written by a library", "said by a child",
                 "note: a warning of a library", "left in the buffer"):  # fmt: skip
        assert said in remarks


@pytest.mark.check
def test_a_line_that_is_no_message_is_answered(library: Path) -> None:
    """The error has no id, because none can be read; the next message is answered as usual."""
    halves = json.dumps(PING | {"params": {"half": "\ud800"}})
    lines = ["no JSON", halves, "[]", '{"a": 1}', "[" * 10_000, json.dumps(PING), halves, json.dumps(PING | {"id": 2})]
    process = subprocess.Popen(
        [*ISOTROPE, "mcp", str(library)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n".join(lines) + "\n")
    process.stdin.flush()
    answers = [json.loads(process.stdout.readline()) for _ in lines]
    rest, remarks = process.communicate(timeout=PATIENCE)
    assert (process.returncode, rest) == (0, ""), remarks
    assert [one["error"]["code"] for one in answers if one["id"] is None] == [-32700] * 2 + [-32600] * 2 + [-32700] * 2
    assert [one["id"] for one in answers if one["id"]] == [1, 2]


@pytest.mark.parametrize("mode", [MODES[1], pytest.param(MODES[0], marks=pytest.mark.check)])
def test_every_tool_answers_over_standard_streams(library: Path, mode: str) -> None:
    program, arguments = ISOTROPE[0], [*ISOTROPE[1:], "mcp", str(library)]

    async def run() -> None:
        async with Client(StdioServerParameters(command=program, args=arguments), mode=mode) as client:
            await each_tool(client)

    asyncio.run(run())


@pytest.mark.check
def test_ctrl_c_ends_a_server_that_waits(library: Path) -> None:
    import signal

    process = subprocess.Popen(
        [*ISOTROPE, "mcp", str(library)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(PING).encode() + b"\n")
    process.stdin.flush()
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == -signal.SIGINT
    process.communicate()


def test_a_server_that_cannot_start_prints_an_error(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = isotrope("mcp", tmp_path / "nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert "nowhere" in done.stderr
    assert "is open" not in done.stderr
    done = isotrope("mcp", library, "--port", "8081")
    assert done.returncode == 2
    assert "--port is for a server over HTTP. Fix: add --http" in done.stderr
    monkeypatch.setitem(sys.modules, "mcp", None)
    done = isotrope("mcp", library)
    assert done.returncode == 1
    assert "(the extra isotrope[mcp])" in done.stderr
