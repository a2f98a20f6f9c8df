"""The server on a real socket: slow, silent and endless clients, and shutdown."""

import contextlib
import http.client
import logging
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from indexer import BuildConfig, Document, add_documents, build_index
from indexer.errors import ConfigError
from search import SearchEngine
from search.server.app import serve_engine
from search.server.http import connection as connection_module
from search.server.http.listener import Listener
from search.server.settings import ServerSettings
from tests.search.cli.test_cli import isotrope
from tests.servers import READ_KEY, ROOT, LiveServer, keys, live_server, server_process
from tests.waiting import PATIENCE, wait_until

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"  # start of a line of the log
QUESTION = b'{"query": "whales"}'
HEAD = b"POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
ENDLESS = {
    "a header's name": b"GET / HTTP/1.1\r\n",
    "a header's value": b"GET / HTTP/1.1\r\nX: ",
    "a path": b"GET /",
    "a chunk's extension": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5;",
    "a trailer": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ",
}


@contextlib.contextmanager
def connection(server: LiveServer) -> Iterator[socket.socket]:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as taken:
        yield taken


def status_of_answer(taken: socket.socket) -> int:
    """Return the status, once the whole answer has arrived."""
    answer = http.client.HTTPResponse(taken)
    answer.begin()
    answer.read()
    return answer.status


def until_closed(taken: socket.socket) -> bytes:
    """Return the rest of the bytes."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while piece := taken.recv(1 << 16):
            received += piece
    return received


def listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=PATIENCE).close()
    except ConnectionError:
        return False
    return True


def post(body: bytes, *, stated: int | None = None) -> bytes:
    return HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % (stated or len(body)) + body


def test_a_request_in_pieces_is_a_request(served_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived, received = list[bytes](), connection_module.Connection.data_received

    def noted(self: connection_module.Connection, data: bytes) -> None:
        arrived.append(data)
        received(self, data)

    monkeypatch.setattr(connection_module.Connection, "data_received", noted)
    pieces = [post(QUESTION)[place : place + 7] for place in range(0, len(post(QUESTION)), 7)]
    with live_server(served_folder) as server, connection(server) as taken:
        for place, piece in enumerate(pieces):
            wait_until(lambda: arrived == pieces[:place])  # noqa: B023 - called in this round
            taken.sendall(piece)
        assert until_closed(taken).startswith(b"HTTP/1.1 200")


def test_silent_clients_are_aborted(served_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first request, and at later requests of a connection."""
    monkeypatch.setattr(connection_module, "_SILENCE", 0.2)
    with live_server(served_folder) as server:
        for said in (b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /hea"):
            with connection(server) as taken:
                taken.sendall(said)
                answer = until_closed(taken)
                assert answer.count(b"HTTP/1.1 200") == said.count(b"\r\n\r\n")
        assert server.client.get("/healthz").status_code == 200


@pytest.mark.parametrize("what", list(ENDLESS))
def test_endless_input_is_aborted(what: str, served_folder: Path) -> None:
    with live_server(served_folder, body_bytes=100_000) as server:
        with connection(server) as taken:
            taken.sendall(ENDLESS[what])
            sent = 0
            with contextlib.suppress(ConnectionError):
                while sent < 50_000_000:
                    sent += taken.send(b"x" * 50_000)
            assert sent < 50_000_000
        assert server.search(query="whales")


def test_more_connections_than_there_may_be_are_closed(served_folder: Path) -> None:
    with live_server(served_folder, connections=3) as server, contextlib.ExitStack() as stack:
        held = [stack.enter_context(connection(server)) for _ in range(3)]
        with connection(server) as taken:
            assert until_closed(taken) == b""
        held[0].close()
        wait_until(lambda: len(server.connections) == 2)
        cut = [Mock(transport=Mock(is_closing=lambda: True)) for _ in range(9)]
        server.connections.update(cut)  # the loop may accept many before it forgets aborted ones
        assert server.client.get("/healthz").status_code == 200
        server.connections.difference_update(cut)


def test_a_server_on_all_addresses_tells_one_that_can_be_opened(served_folder: Path, tmp_path: Path) -> None:
    settings = ServerSettings("tests", host="0.0.0.0", port=0, read_keys=keys(READ_KEY, tmp_path))  # noqa: S104
    with live_server(served_folder, settings) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.client.get("/healthz").status_code == 200


def has_answered(server: LiveServer, number: int) -> bool:
    """Return whether `number` connections are idle; clients see their answers a little earlier."""
    return sum(one.is_idle for one in server.connections if isinstance(one, connection_module.Connection)) == number


def test_a_new_client_takes_the_place_of_one_that_has_had_its_answer(
    served_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest idle connection; a connection before its first request stays."""
    monkeypatch.setattr(connection_module, "_SILENCE", PATIENCE)  # a busy machine can need the usual 10 s
    asked = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with live_server(served_folder, connections=3) as server, contextlib.ExitStack() as stack:
        first, second, silent = (stack.enter_context(connection(server)) for _ in range(3))
        wait_until(lambda: len(server.connections) == 3)
        for number, taken in enumerate((first, second), 1):
            taken.sendall(asked)
            assert status_of_answer(taken) == 200
            wait_until(partial(has_answered, server, number))
            time.sleep(0.01)  # the clock of uvloop counts milliseconds; two answers in one are equally old
        assert server.client.get("/healthz").status_code == 200
        assert until_closed(first) == b""
        for taken in (second, silent):
            taken.sendall(asked)
            assert status_of_answer(taken) == 200


def test_half_closed_and_broken_connections_do_no_harm(served_folder: Path) -> None:
    with live_server(served_folder) as server:
        for said in (b"", b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n", HEAD, post(QUESTION, stated=500)):
            with connection(server) as taken:
                taken.sendall(said)
                taken.shutdown(socket.SHUT_WR)
                assert b"HTTP/1.1 2" not in until_closed(taken)
            with connection(server) as taken:
                taken.sendall(said)
        assert server.search(query="whales")
        assert server.served.service.pending == 0


def test_clients_that_do_not_read_are_aborted(
    tiny_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, lost = threading.Event(), connection_module.Connection.connection_lost

    def noted(self: connection_module.Connection, reason: Exception | None) -> None:
        lost(self, reason)
        ended.set()

    monkeypatch.setattr(connection_module.Connection, "connection_lost", noted)
    monkeypatch.setattr(connection_module, "_READER_PAUSE", 0.05)
    large = {"blob": "x" * 4_000_000}
    build_index([Document(f"d{n}", f"text {n}", None, large) for n in range(3)], tmp_path / "index", tiny_config)
    with live_server(tmp_path / "index") as server:
        with connection(server) as taken:
            taken.sendall(post(QUESTION))
            assert ended.wait(PATIENCE)
            assert len(until_closed(taken)) < 12_000_000
        monkeypatch.setattr(connection_module, "_READER_PAUSE", 3600.0)  # the test triggers the check
        with connection(server) as taken:  # it reads slowly
            taken.sendall(post(QUESTION))
            wait_until(lambda: any(one._reader for one in server.connections))
            (reader,) = server.connections
            received, waiting = b"", reader.transport.get_write_buffer_size
            for _ in range(5):
                left = waiting()
                while waiting() > max(0, left - connection_module._LEAST_READ):
                    received += (piece := taken.recv(1 << 16))
                    assert piece
                reader.loop.call_soon_threadsafe(reader._expect_reader, left)
            assert len(received) + len(until_closed(taken)) > 12_000_000


def test_a_port_that_is_taken_is_an_error(served_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = ServerSettings("tests", port=port)
        with pytest.raises(
            ConfigError, match=r"cannot listen on this address: Address already in use\. Fix: choose another --port \(0"
        ):
            Listener(serve_engine(SearchEngine(served_folder), settings), settings)


def test_a_blank_line_after_an_answer_keeps_no_place(served_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("search.server.http.listener._KEEP_ALIVE", 1)
    with live_server(served_folder) as server, connection(server) as taken:
        taken.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert status_of_answer(taken) == 200
        taken.sendall(b"\r\n")
        assert until_closed(taken) == b""


def test_a_client_that_reads_after_sending_sees_that_its_body_is_too_long(
    served_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("search.server.http.guard._DRAIN_SECONDS", 30)
    with live_server(served_folder) as server:
        asking = http.client.HTTPConnection(*server.served_at, timeout=20)
        with contextlib.closing(asking):
            asking.request("POST", "/v1/search", b"x" * 12_000_000, {"Content-Type": "application/json"})
            assert asking.getresponse().status == 413


def test_a_second_interrupt_cuts_open_requests_off(
    served_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log contains nothing that they sent, and no answer."""
    begun, go, ready, cut = threading.Event(), threading.Event(), threading.Event(), list[int]()
    engine, settings = SearchEngine(served_folder), ServerSettings("tests", port=0)
    served = serve_engine(engine, settings)

    def wait(*_: object) -> None:
        begun.set()
        assert go.wait(20)

    monkeypatch.setattr(engine, "rank", wait)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    listener = Listener(served, settings)
    address = listener.url.removeprefix("http://").split(":")
    thread = threading.Thread(target=lambda: cut.append(listener.listen(lambda _: ready.set())))
    thread.start()
    assert ready.wait(20)
    with socket.create_connection((address[0], int(address[1])), timeout=20) as taken:
        taken.sendall(post(QUESTION))
        assert begun.wait(20)
        for _ in range(2):
            listener.handle_exit(signal.SIGINT, None)
        assert until_closed(taken) == b""
    go.set()
    thread.join(20)
    assert cut == [1]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_server_under_nohup_outlives_its_terminal(served_folder: Path) -> None:
    settings = ServerSettings("tests", port=0)
    listener = Listener(serve_engine(SearchEngine(served_folder), settings), settings)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with contextlib.closing(listener._socket), listener.capture_signals():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) == listener.handle_exit
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_full_disk_silences_the_log_only_while_it_is_full() -> None:
    program = """
import errno, logging, sys
from search.cli.serve import log_to_stderr, note
log_to_stderr()
logging.raiseExceptions = False
(handler,) = logging.getLogger().handlers
write, handler.flush = handler.flush, lambda: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full"))
note("one")
handler.flush = write
note("two")
"""
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, cwd=ROOT, check=True)
    assert "INFO two" in done.stderr


def test_the_reader_of_the_log_may_leave(served_folder: Path) -> None:
    """A closed log changes neither the answers nor the exit code."""
    said = "from search.cli.serve import log_to_stderr, note; import os; log_to_stderr()\n"
    said += "read, write = os.pipe(); os.dup2(write, 2); os.close(read)\n"
    said += "os.close(write); note('one'); note('two'); print('done')"
    done = subprocess.run([sys.executable, "-c", said], stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n")


@pytest.mark.check
@pytest.mark.parametrize("signalled", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_server_that_is_stopped_answers_what_it_was_asked(signalled: signal.Signals, served_folder: Path) -> None:
    with server_process(str(served_folder)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        assert server.ask("/v1/search", {"query": "whales", "where": "year > 1992", "k": 1})["results"]
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as taken:
            taken.sendall(post(QUESTION).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")[:-5])
            assert taken.recv(1 << 16).startswith(b"HTTP/1.1 100")  # it waits for the body
            server.process.send_signal(signalled)
            wait_until(lambda: not listens(host, int(port)))
            taken.sendall(QUESTION[-5:])
            assert until_closed(taken).startswith(b"HTTP/1.1 200")
        out, err = server.process.communicate(timeout=PATIENCE)
        assert (server.process.returncode, out) == (0, "")
        assert re.fullmatch(rf"{TIME} INFO stopped; all open requests were answered\n", err)


@pytest.mark.check
def test_a_server_follows_its_index_and_says_so(served_folder: Path, tmp_path: Path) -> None:
    index, key_file = shutil.copytree(served_folder, tmp_path / "my index"), tmp_path / "keys"
    key_file.write_text(READ_KEY)
    key_file.chmod(0o644)
    with server_process(str(index), "--api-key-file", str(key_file), "--host", "0.0.0.0", "--access-log") as server:  # noqa: S104
        url = server.url.replace("0.0.0.0", "127.0.0.1")  # noqa: S104
        asked = type(server)(url, server.process)
        allowed = {"authorization": f"Bearer {READ_KEY}"}
        add_documents([Document("new", "how do whales sing")], index)
        wait_until(lambda: asked.ask("/v1/info", **allowed)["generation"] != 1)
        info = asked.ask("/v1/info", **allowed)
        assert (info["name"], info["generation"]) == ("my index", 2)
        hits = asked.ask("/v1/search", {"query": "how do whales sing", "k": 1}, **allowed)["results"][0]["hits"]
        assert hits[0]["id"] == "new"
        server.process.terminate()
        _, err = server.process.communicate(timeout=PATIENCE)
    assert re.search(rf"^{TIME} INFO generation 2 replaces 1$", err, re.MULTILINE)
    assert re.search(rf'^{TIME} INFO 127\.0\.0\.1:\d+ - "POST /v1/search HTTP/1\.1" 200$', err, re.MULTILINE)
    assert re.search(rf"^{TIME} WARNING .*chmod 600 {re.escape(str(key_file))}$", err, re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "Fix: pass --api-key-file"),  # noqa: S104
        (["--host", "no such host", "--api-key-file", "keys"], "cannot listen on this address"),
        (["--api-key-file", "missing"], "missing: the keys cannot be read"),
        (["--admin-key-file", "keys", "--api-key-file", "keys"], "expected different keys"),
        (["--port", "70000"], "port is 70000"),
        (["--max-pending", "0"], "pending is 0; expected a finite number above 0"),
        (["--deadline", "inf"], "deadline is inf; expected a finite number above 0"),
        (["--recall", "2"], "recall is 2"),
        (["--name", "a/query"], 'name is "a/query"'),
        (["--name", ""], 'name is ""'),
    ],
)
def test_invalid_settings_are_refused_at_the_start(
    options: list[str], message: str, served_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("keys").write_text(READ_KEY)
    done = isotrope("serve", str(served_folder), *options)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_other_folders_are_not_served(tmp_path: Path) -> None:
    done = isotrope("serve", str(tmp_path))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
