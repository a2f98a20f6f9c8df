"""Servers for tests: on a real port in a thread of this process, or in a separate process."""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from search import SearchEngine
from search.server.app import ServedIndex, serve_engine
from search.server.http.listener import Listener
from search.server.settings import Keys, ServerLimits, ServerSettings
from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
READ_KEY, ADMIN_KEY = "read-key-of-the-tests", "admin-key-of-the-tests"


@dataclass(frozen=True)
class LiveServer:
    """A server that listens at `url`, with a `client`, its messages on new generations (`said`), and its open
    `connections`."""

    url: str
    served: ServedIndex
    client: httpx2.Client
    said: list[str]
    connections: set[Any]

    @property
    def served_at(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def search(self, **asked: Any) -> Any:
        """Return the body of the answer to POST /v1/search."""
        response = self.client.post("/v1/search", json=asked)
        assert response.status_code == 200, response.text
        return response.json()


def keys(text: str, folder: Path, name: str = "keys.txt") -> Keys:
    """Return the keys of a file with this text."""
    (folder / name).write_text(text)
    return Keys.read(folder / name)


@contextlib.contextmanager
def live_server(
    index: Path | SearchEngine, settings: ServerSettings | None = None, **limits: Any
) -> Iterator[LiveServer]:
    """Serve an index under the name "tests" on a free port of 127.0.0.1."""
    settings = settings or ServerSettings("tests", port=0, limits=ServerLimits(**limits))
    said, ready = list[str](), threading.Event()
    engine = index if isinstance(index, SearchEngine) else SearchEngine(index)
    served = serve_engine(engine, settings, lambda line, _: said.append(line))
    listener = Listener(served, settings)
    url = listener.url
    thread = threading.Thread(target=listener.listen, args=(lambda _: ready.set(),))
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        with httpx2.Client(base_url=url, trust_env=False, timeout=PATIENCE) as client:
            yield LiveServer(url, served, client, said, listener.server_state.connections)
    finally:
        listener.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@dataclass(frozen=True)
class ServerProcess:
    """`isotrope serve` in its own process."""

    url: str
    process: "subprocess.Popen[str]"

    def ask(self, path: str, body: Any = None, **headers: str) -> Any:
        """Return the JSON answer of a route: POST with a body, else GET."""
        with httpx2.Client(base_url=self.url, trust_env=False, timeout=PATIENCE, headers=headers) as client:
            response = client.get(path) if body is None else client.post(path, json=body)
        assert response.status_code == 200, response.text
        return json.loads(response.text)


@contextlib.contextmanager
def server_process(*arguments: str | Path, cwd: Path = ROOT, **environment: str) -> Iterator[ServerProcess]:
    """Run `isotrope serve` with these arguments on a free port; it must stop with exit code 0."""
    begun = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)"  # the tests may run under nohup
    call = [sys.executable, "-c", f"{begun}; from search.cli import main; main()", "serve", *map(str, arguments)]
    env = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    process = subprocess.Popen(
        [*call, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, env=env
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        found = re.search(r"http://[^\s,]+", line)
        assert found, line + process.stderr.read()
        yield ServerProcess(found.group(), process)
    except BaseException:
        process.kill()
        raise
    else:
        process.terminate()
    finally:
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
