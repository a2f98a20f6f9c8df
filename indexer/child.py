"""One call in a process of its own: the libraries that it loads, and their memory, go when it ends.

The process is a new interpreter, not a fork: a fork of a process with threads can wait for ever for a lock that nobody
holds. Arguments and result are JSON. It ends when its parent does, however that ends.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from importlib import import_module
from typing import IO, Any

from indexer import errors
from indexer.errors import IsotropeError, MachineError

# -P: what lies in the current folder is not imported.
_START = "import json, sys; asked = json.loads(sys.stdin.buffer.readline()); sys.path[:] = asked['path']; "
_PROGRAM = [sys.executable, "-P", "-c", f"{_START}from indexer.child import answer; answer(asked)"]
_TOLD = 300  # characters of what a process that failed has written last
_FAILED = 70  # its exit code then


def call_in_child(function: str, arguments: dict[str, Any], task: str) -> Any:
    """What `function` ("package.module:name") returns for some keyword arguments, in a process of its own.

    An error of this project comes back as the same error. Raises MachineError, which names the `task`, when the
    process is killed or fails otherwise.
    """
    asked = {"path": sys.path, "function": function, "arguments": arguments}
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen(_PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said) as process:
            try:
                told = _exchanged(process.stdin, process.stdout, json.dumps(asked).encode() + b"\n")
            except BaseException:  # an interrupt, above all
                process.kill()
                raise
        said.seek(max(0, said.seek(0, os.SEEK_END) - _TOLD))
        last = said.read().decode(errors="replace").strip().splitlines()[-1:]
    if process.returncode or not told:
        raise MachineError(f"the process for {task} {_ending(process.returncode, last)}")
    outcome = json.loads(told)
    if "error" in outcome:
        raise getattr(errors, outcome["error"])(outcome["message"])
    return outcome["result"]


def _exchanged(questions: IO[bytes] | None, answers: IO[bytes] | None, question: bytes) -> bytes:
    """The answer; the pipe of questions stays open until it is there."""
    if questions is None or answers is None:
        return b""
    try:
        questions.write(question)
        questions.flush()
    except BrokenPipeError:  # it ended before it read: its exit code says more
        return b""
    return answers.read()


def _ending(code: int, last: list[str]) -> str:
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        memory = ", as the system does when memory runs out: free some, and start again" if name == "SIGKILL" else ""
        return f"was ended by the signal {name}{memory}."
    return f"failed with exit code {code}: {last[0] if last else 'it said nothing'}"


def answer(asked: dict[str, Any]) -> None:
    """What the process does."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not get among the answers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    module, _, name = asked["function"].partition(":")
    try:
        outcome = {"result": getattr(import_module(module), name)(**asked["arguments"])}
    except IsotropeError as error:
        outcome = {"error": type(error).__name__, "message": str(error)}
    _send(answers, outcome)


def _send(answers: IO[bytes], outcome: dict[str, Any]) -> None:
    answers.write(json.dumps(outcome).encode())
    answers.flush()
    os._exit(0)  # libraries that take long to end, or crash as they do, have nothing more to say


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(_FAILED)
