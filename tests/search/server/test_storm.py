"""Many bad clients on loopback: memory stays flat, and the server answers."""

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.servers import ServerProcess, server_process
from tests.waiting import PATIENCE, wait_until

CLIENTS, EACH = 24, 25  # threads, and requests of each per round
GROWTH = 24 << 20  # bytes from one round to the next
PEAK = 400 << 20  # bytes above the idle server
HEAD = b"POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
QUESTION = json.dumps({"query": "how do whales sing", "k": 9}).encode()


def question(taken: socket.socket, chance: random.Random) -> None:
    for _ in range(chance.randrange(1, 4)):
        taken.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(QUESTION) + QUESTION)
        assert taken.recv(1 << 16)


def huge_body(taken: socket.socket, chance: random.Random) -> None:
    """Send a body that is too long, with or without a stated length."""
    stated = chance.random() < 0.5
    taken.sendall(HEAD + (b"Content-Length: 99999999\r\n\r\n" if stated else b"Transfer-Encoding: chunked\r\n\r\n"))
    piece = b"x" * (1 << 18)
    for _ in range(60):
        taken.sendall(piece if stated else b"%x\r\n%s\r\n" % (len(piece), piece))


def large_body(taken: socket.socket, chance: random.Random) -> None:
    """Send an invalid body of the allowed length: deeply nested, or with only wrong elements and fields."""
    size = chance.randrange(1 << 20, 4 << 20)
    listed = b'{"query": [%s]}' % b",".join([b"1"] * (size // 2))
    named = b"{%s}" % b",".join(b'"a%d":1' % number for number in range(size // 12))
    body = chance.choice([b"[" * size, listed, named])
    taken.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    taken.recv(1 << 16)


def slow_writer(taken: socket.socket, chance: random.Random) -> None:
    for byte in (HEAD + b"Content-Length: 19\r\n\r\n" + b'{"query": "whales"}')[: chance.randrange(150)]:
        taken.sendall(bytes([byte]))
        time.sleep(0.0005)


def half_closed(taken: socket.socket, chance: random.Random) -> None:
    taken.sendall(HEAD[: chance.randrange(len(HEAD))])
    taken.shutdown(socket.SHUT_WR)
    taken.recv(1 << 16)


def leaver(taken: socket.socket, chance: random.Random) -> None:
    """Send a request, and leave before the answer."""
    body = json.dumps({"query": [f"whales {chance.random()}"] * 100, "k": 9}).encode()
    taken.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def pipelined(taken: socket.socket, chance: random.Random) -> None:
    taken.sendall((HEAD + b"Content-Length: %d\r\n\r\n" % len(QUESTION) + QUESTION) * 40)
    taken.recv(1 << 10)


def noise(taken: socket.socket, chance: random.Random) -> None:
    taken.sendall(chance.randbytes(chance.randrange(1, 5000)))
    taken.recv(1 << 16)


KINDS: list[Callable[[socket.socket, random.Random], None]] = [
    question, huge_body, large_body, slow_writer, half_closed, leaver, pipelined, noise,
]  # fmt: skip


def client(port: int, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(EACH):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as taken:
            chance.choice(KINDS)(taken, chance)


def watch(process: psutil.Process, peak: list[int], done: threading.Event) -> None:
    while not done.wait(0.05):
        peak.append(process.memory_info().rss)


def storm(server: ServerProcess, seed: int) -> tuple[int, int]:
    """Run one round; return the bytes of the server afterwards, and the peak."""
    process, peak, done = psutil.Process(server.process.pid), list[int](), threading.Event()
    watcher = threading.Thread(target=watch, args=(process, peak, done))
    watcher.start()
    port = int(server.url.rpartition(":")[2])
    try:
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(lambda number: client(port, seed * CLIENTS + number), range(CLIENTS)))
        assert server.ask("/healthz") == {"status": "ok"}
        assert len(server.ask("/v1/search", {"query": "whales", "k": 3})["results"][0]["hits"]) == 3
    finally:
        done.set()
        watcher.join()
    wait_until(partial(is_idle, process))
    return process.memory_info().rss, max(peak)


def is_idle(process: psutil.Process) -> bool:
    """Whether the server has ended its work, also the answers to clients that have left."""
    before = process.cpu_times().user
    time.sleep(0.5)
    return bool(process.cpu_times().user - before < 0.05)


@pytest.mark.check
def test_a_storm_leaves_memory_flat_and_the_server_answering(served_folder: Path) -> None:
    # Freed memory returns to the system at once, so that the process holds what the server holds.
    at_once = "65536"
    with server_process(
        str(served_folder), MALLOC_ARENA_MAX="2", MALLOC_MMAP_THRESHOLD_=at_once, MALLOC_TRIM_THRESHOLD_=at_once
    ) as server:
        rest = psutil.Process(server.process.pid).memory_info().rss
        rounds = [storm(server, seed) for seed in range(4)]
        after, peaks = [held for held, _ in rounds], [most for _, most in rounds]
        # Garbage that Python has not collected yet is not growth: the lower of two neighbours is compared.
        assert min(after[2:]) - min(after[:2]) < 2 * GROWTH, [rest, *after]
        assert max(peaks) - rest < PEAK, [rest, *peaks]
        server.process.terminate()
        _, said = server.process.communicate(timeout=PATIENCE)
        assert "Traceback" not in said, said[-3000:]
