"""The servers of `benchmarks.serve`, each in a process, and the engine without a server."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

from indexer.recipe.run_options import RunOptions
from search.engine import SearchEngine

_CLI = "from search.cli import main; main()"
_PATIENCE = 180.0  # seconds that a server may take to load
_SEARCH, _EMBED = "/v1/search", "/embeddings"


class Server:
    """A process that serves on a port. Raises RuntimeError if it does not start to answer.

    `bodies` are the queries in its format; `url` is their address.
    """

    def __init__(
        self, command: Sequence[str], port: int, path: str, bodies: list[bytes], environment: Mapping[str, str]
    ) -> None:
        self.url, self.bodies = f"http://127.0.0.1:{port}{path}", bodies
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **environment}
        )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the process."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait(self) -> None:
        request = Request(self.url, self.bodies[0], {"Content-Type": "application/json"})  # noqa: S310  # our own URL
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise RuntimeError(f"ended with exit code {self._process.returncode}")
            try:
                with build_opener(ProxyHandler({})).open(request, timeout=_PATIENCE) as answer:
                    answer.read()
                return
            except URLError as error:
                if getattr(error, "code", 503) != 503:
                    raise RuntimeError(f"answers {error}") from error
                time.sleep(0.2)
        raise RuntimeError(f"does not answer after {_PATIENCE:g} s")


def isotrope(index: Path, texts: list[str], k: int, environment: Mapping[str, str]) -> Server:
    """Start `isotrope serve`."""
    port = _free_port()
    command = [sys.executable, "-c", _CLI, "serve", str(index), "--port", str(port)]
    return Server(command, port, _SEARCH, _bodies(texts, k), environment)


def locked(index: Path, texts: list[str], k: int, environment: Mapping[str, str]) -> Server:
    """Start `serve_locked`, the simplest server."""
    port = _free_port()
    command = [sys.executable, "-m", "benchmarks.serve_peers", str(index), str(port)]
    return Server(command, port, _SEARCH, _bodies(texts, k), environment)


def infinity(program: Path, weights: Path, texts: list[str]) -> Server:
    """Start infinity-emb from its own environment. It returns embeddings and searches nothing."""
    port = _free_port()
    command = [str(program), "v2", "--model-id", str(weights), "--engine", "torch", "--device", "cpu"]
    quiet = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0", "PYTHONPATH": ""}
    bodies = [json.dumps({"input": [text], "model": weights.name}).encode() for text in texts]
    return Server([*command, "--port", str(port)], port, _EMBED, bodies, quiet)


def _bodies(texts: list[str], k: int) -> list[bytes]:
    return [json.dumps({"query": text, "k": k}).encode() for text in texts]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


class Engine:
    """The engine alone in a process of `benchmarks.children`, for single queries or batches."""

    def __init__(self, index: Path) -> None:
        self._engine = SearchEngine(index, options=RunOptions())

    def one_by_one(self, texts: list[str], k: int) -> list[float]:
        """Return the seconds of each query."""
        seconds = []
        for text in texts:
            start = time.perf_counter()
            self._engine.search(text, k)
            seconds.append(time.perf_counter() - start)
        return seconds

    def batches(self, texts: list[str], k: int, size: int) -> float:
        """Return the seconds of all queries in batches of `size`."""
        start = time.perf_counter()
        for place in range(0, len(texts), size):
            self._engine.search_many(texts[place : place + size], k)
        return time.perf_counter() - start


def serve_locked(index: Path, port: int) -> None:
    """Run the simplest server: a framework, an engine, and a lock around it."""
    import uvicorn
    from fastapi import Body, FastAPI, Response

    from search.result_files import to_json

    engine, lock, app = SearchEngine(index), threading.Lock(), FastAPI()

    @app.post(_SEARCH)
    def search(query: str = Body(), k: int = Body()) -> Response:
        with lock:
            answer = engine.search(query, k)
        hits: list[dict[str, Any]] = [{"rank": rank} | hit.to_dict() for rank, hit in enumerate(answer, start=1)]
        return Response(to_json({"results": [{"query": query, "hits": hits}]}), media_type="application/json")

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


if __name__ == "__main__":
    serve_locked(Path(sys.argv[1]), int(sys.argv[2]))
