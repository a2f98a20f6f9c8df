"""Processes that take turns: each loads one implementation, and computes nothing during the turns of the others.

Threads of two libraries in one process disturb each other, and so do spinning thread pools. A child answers calls on
its standard input, one at a time. It may run under another interpreter, so that a peer gets the versions it requires.
"""

import os
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import IO, Any

_ROOT = Path(__file__).resolve().parents[1]
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class ChildFailed(Exception):  # noqa: N818
    """A call raised an exception in a child; the message is the exception's type and first line."""


class Child:
    """A process that calls `opener` ("package.module:function") with `arguments` and then methods of the result.

    `threads` limits the thread pools that read the environment; `opener` must limit the others. Raises ChildFailed if
    the opener or a call raises. Use it as a context manager, or close it.
    """

    def __init__(self, opener: str, *arguments: Any, threads: int, python: str = sys.executable) -> None:
        environment = os.environ | {name: str(threads) for name in _THREADS} | {"PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.children"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=_ROOT,
            env=environment,
        )
        try:
            self._ask((opener, arguments))
        except BaseException:
            self.close()
            raise

    def call(self, name: str, *arguments: Any) -> Any:
        """Return the result of the method `name` of the opened object."""
        return self._ask((name, arguments))

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
        self._process.wait()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _ask(self, question: Any) -> Any:
        if not self._process.stdin or not self._process.stdout:
            raise ChildFailed("has no pipes")
        try:
            _send(self._process.stdin, question)
            done, answer = pickle.load(self._process.stdout)  # noqa: S301 - our own process
        except (EOFError, OSError) as error:
            raise ChildFailed(f"ended with exit code {self._process.wait()}") from error
        if not done:
            raise ChildFailed(answer)
        return answer


def _send(pipe: IO[bytes], value: Any) -> None:
    pickle.dump(value, pipe, protocol=4)
    pipe.flush()


def _serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    opened: Any = None
    while True:
        try:
            name, arguments = pickle.load(questions)  # noqa: S301 - its parent asks
        except EOFError:
            return
        answer: tuple[bool, Any]
        try:
            if opened is None:
                module, _, function = name.partition(":")
                opened = getattr(import_module(module), function)(*arguments)
                answer = (True, None)
            else:
                answer = (True, getattr(opened, name)(*arguments))
        except Exception as error:  # noqa: BLE001 - sent to the parent
            lines = str(error).strip().splitlines()
            answer = (False, f"{type(error).__name__}: {lines[0] if lines else ''}")
        _send(answers, answer)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of libraries must not mix with the answers
    _serve(sys.stdin.buffer, answers)
