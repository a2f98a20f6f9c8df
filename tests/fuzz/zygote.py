"""A process that runs command lines in forked children, so that thousands of commands share one import of libraries.

`python -m tests.fuzz.zygote ROOT` creates the world at ROOT, prints "ready" and then answers JSON lines:

    {"argv": [...], "stdin": hex or null (closed), "seconds": limit, "sabotage": name or ""}
    {"status": exit code, negative for a signal, "hung": bool, "stdout": text, "stderr": text}
"""

import faulthandler
import gc
import json
import os
import resource
import signal
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

_MEMORY = 6 << 30  # bytes of address space that a child may add after the fork
_FILE = 256 << 20  # largest file in bytes
_SHOWN = 1 << 20  # bytes of output that are returned


def _environment(root: Path) -> dict[str, str]:
    return {
        "HOME": str(root / "home"),
        "RAY_AUTH_MODE": "disabled",  # else Ray stores its token in the home
        "TMPDIR": str(root / "tmp"),
        "ISOTROPE_CACHE": str(root / "cache"),
        "ISOTROPE_BACKEND": "torch",
        "ISOTROPE_TRACEBACK": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
    }


def _run_here(*argv: str) -> None:
    """Run a command that prepares the world and must succeed."""
    from search.cli import cli

    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        cli.main(list(argv), standalone_mode=False)


def _one_library(library: Path) -> None:
    """Let `demo-corpus` read the world's library, because Python's takes seconds."""
    paths: Any = sysconfig
    real = sysconfig.get_path
    paths.get_path = lambda name, *rest, **named: str(library) if name == "stdlib" else real(name, *rest, **named)


def _raise() -> None:
    raise RuntimeError("sabotage")


SABOTAGE: dict[str, Callable[[], object]] = {
    "touch": lambda: Path("../home/secrets.txt").write_text("read"),
    "other index": lambda: Path("../home/index/segments/new").write_text("new"),
    "cut grown/segments/0001-00.faiss": lambda: os.truncate("grown/segments/0001-00.faiss", 9),
    "over docs.txt": lambda: Path("docs.txt").write_text("new"),
    "unlink": lambda: os.unlink("../home/photos/part.json"),
    "chmod": lambda: os.chmod("../home/keys/id_rsa", 0o644),
    "raise": _raise,
    "sleep": lambda: time.sleep(600),
    "spin": lambda: [None for _ in iter(int, 1)],
    "abort": os.abort,
    "exit": lambda: sys.exit(7),
}
"""Possible faults of a broken command, for the tests of the fuzzer."""


def _child(request: dict[str, Any], streams: list[int]) -> None:
    """Run the command in this child process. Never returns."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    if request["stdin"] is None:
        os.close(0)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False) if request["stdin"] is not None else None
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", 1, closefd=False)
    faulthandler.enable(2)
    faulthandler.dump_traceback_later(0.9 * request["seconds"], file=2)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (taken + _MEMORY, taken + _MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE, _FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.argv = ["isotrope", *request["argv"]]
    status: Any = 0
    try:
        if request["sabotage"]:
            SABOTAGE[request["sabotage"]]()
        else:
            from search.cli import main

            main()
    except SystemExit as end:
        status = end.code
    except BaseException:  # noqa: BLE001 - reported to the judge
        import traceback

        traceback.print_exc()
        status = 1
    for output in (sys.stdout, sys.stderr):
        try:
            output.flush()
        except (OSError, ValueError):
            status = status or 1
    os._exit(status if isinstance(status, int) else int(status is not None))


@contextmanager
def _pipe_reader(path: Path) -> Iterator[Callable[[], object]]:
    """Read the world's pipe, so that writers to it do not block."""
    try:
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        yield lambda: None
        return

    def drain() -> None:
        with suppress(BlockingIOError, OSError):
            while os.read(reader, _SHOWN):
                pass

    try:
        yield drain
    finally:
        os.close(reader)


def _wait(child: int, seconds: float, meanwhile: Callable[[], object]) -> tuple[int, bool]:
    """Return the exit status of a child, and whether it was killed because it exceeded `seconds`."""
    end, nap = time.monotonic() + seconds, 0.001
    while time.monotonic() < end:
        meanwhile()
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status), False
        time.sleep(nap)
        nap = min(nap * 1.2, 0.02)
    os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), True


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(bytes.fromhex(request["stdin"] or ""))
        stdin.seek(0)
        child = os.fork()
        if child == 0:
            try:
                _child(request, [stdin.fileno(), stdout.fileno(), stderr.fileno()])
            finally:
                os._exit(99)
        with _pipe_reader(Path("pipe")) as drain:
            status, hung = _wait(child, request["seconds"], drain)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # remaining workers
        answer: dict[str, Any] = {"status": status, "hung": hung}
        for name, stream in (("stdout", stdout), ("stderr", stderr)):
            stream.seek(0)
            answer[name] = stream.read(_SHOWN).decode("utf-8", "backslashreplace")
        return answer


def main() -> None:
    """Create the world, then answer lines until the end of the input."""
    root = Path(sys.argv[1])
    outside = tempfile.gettempdir()
    os.environ.update(_environment(root))
    if hasattr(os, "sched_setaffinity"):  # prevents libraries from starting threads, which a fork loses
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    from tests.fuzz.world import lay_out

    lay_out(root, _run_here)
    _one_library(root / "desk/library")
    gc.collect()
    gc.freeze()  # prevents children from destroying objects of threads that they do not have
    tempfile.tempdir = outside  # streams of children are outside the world
    print(json.dumps("ready"), flush=True)
    for line in iter(sys.stdin.readline, ""):
        tempfile.tempdir = outside
        print(json.dumps(_answer(json.loads(line))), flush=True)
    os._exit(0)  # a normal exit would fail on frozen objects


if __name__ == "__main__":
    main()
