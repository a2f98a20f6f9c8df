"""Child Python processes, and single calls in one, which free the libraries and memory of the call.

A process is a new interpreter, because a fork of a process with threads can wait forever for a lock that no thread
holds. It does not import its parent's script, so scripts need no guard.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

from indexer import errors
from indexer.errors import IsotropeError, MachineError

# The packages come from the parent's folder, also if a file beside the user's script has the name of one.
_START = "import json, sys; call = json.loads(sys.argv[1]); sys.path[:0] = [call['home']]; import indexer, search; "
_PROGRAM = f"{_START}sys.path[:] = call['path']; from indexer.system.child_process import run_call; run_call(**call)"
_HOME = str(Path(__file__).resolve().parents[2])
_LAST = 300  # last characters of the output of a failed process
_FAILED = 70  # its exit code


def start_python(function: str, *arguments: Any, **streams: Any) -> "subprocess.Popen[bytes]":
    """Start a process that calls `function` ("package.module:name") with JSON arguments; `streams` are for Popen."""
    call = {"home": _HOME, "path": sys.path, "function": function, "arguments": arguments, "reader": errors.reader()}
    # -P: files in the current folder are not imported.
    return subprocess.Popen([sys.executable, "-P", "-c", _PROGRAM, json.dumps(call)], **streams)


def run_call(function: str, arguments: list[Any], reader: errors.Reader, **_: Any) -> None:
    """Make the call of `start_python`, in its process. Messages are for the reader of the parent's."""
    with errors.written_for(reader):
        named(function)(*arguments)


def named(function: str) -> Any:
    """Return a function by its name "package.module:name"."""
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)


def call_in_child(function: str, arguments: dict[str, Any], task: str) -> Any:
    """Return the result of `function` ("package.module:name") for JSON keyword arguments, run in a new process.

    An exception of this project is raised again here. Raises MachineError, with the `task`, if the process is killed or
    fails otherwise. The process ends with its parent.
    """
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile() as log:
        with start_python(f"{__name__}:answer", function, arguments, stdin=pipe, stdout=pipe, stderr=log) as process:
            try:
                answer_bytes = process.stdout.read() if process.stdout else b""
            except BaseException:  # above all an interrupt
                process.kill()
                raise
        log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST))
        last = log.read().decode(errors="replace").strip().splitlines()[-1:]
    if process.returncode or not answer_bytes:
        raise MachineError(f"the process for {task} {_ending(process.returncode, last)}")
    outcome = json.loads(answer_bytes)
    if "error" in outcome:
        raise getattr(errors, outcome["error"])(outcome["message"])
    return outcome["result"]


def _ending(code: int, last: list[str]) -> str:
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        memory = ", probably out of memory: free some and start again" if name == "SIGKILL" else ""
        return f"was ended by the signal {name}{memory}."
    return f"failed with exit code {code}: {last[0] if last else 'no output'}"


def answer(function: str, arguments: dict[str, Any]) -> None:
    """Write the outcome of a call to the standard output, and end the process."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps the output of libraries out of the answer
    threading.Thread(target=_end_with_parent, daemon=True).start()
    outcome: dict[str, Any]
    try:
        outcome = {"result": named(function)(**arguments)}
    except IsotropeError as error:
        outcome = {"error": type(error).__name__, "message": str(error)}
    answers.write(json.dumps(outcome).encode())
    answers.flush()
    os._exit(0)  # at once, since some libraries end slowly or crash


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(_FAILED)
