"""A replacement for `os` in `indexer.store.files` that fails, or stops the process, at a chosen operation."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from indexer.store.layout import TOP_LEVEL

OPERATIONS = ("open", "write", "fsync", "replace", "link", "mkdir", "unlink", "rmdir")
FAILURES = [errno.EIO, errno.ENOSPC]
Kind = tuple[str, str]  # an operation, and the folder of the index


class Dead(BaseException):
    """The process stopped here. A BaseException, so that product code does not handle it."""


def every(kinds: list[Kind]) -> list[int]:
    """Return the number of each operation."""
    return list(range(len(kinds)))


def one_of_each(kinds: list[Kind]) -> list[int]:
    """Return the number of the middle operation of each kind."""
    alike: dict[Kind, list[int]] = {}
    for number, kind in enumerate(kinds):
        alike.setdefault(kind, []).append(number)
    return [numbers[len(numbers) // 2] for numbers in alike.values()]


def one_of_each_operation(kinds: list[Kind]) -> list[int]:
    """Return the number of one operation of each name, in any folder."""
    return one_of_each([(name, "") for name, _ in kinds])


class FaultyOs:
    """Counts every changing operation, and fails at number `at`.

    `error` is the errno of a single failure, or None for a process that stops: that operation and all later ones do
    nothing, so no clean-up runs either. A write that fails has written half of its bytes. With `power_cut`, stopping
    also loses unsynced bytes and names. `fsync` itself does nothing, to save time. `watch` is called before operation
    `at` and all later ones, or without a failure before every operation.
    """

    def __init__(
        self,
        at: int = -1,
        error: int | None = None,
        power_cut: bool = False,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        self.count, self.failed_on = 0, ""
        self.kinds: list[Kind] = []
        self._at, self._error, self._power_cut, self._watch = at, error, power_cut, watch
        self._dead = False
        self._paths: dict[int, str] = {}  # open file -> path
        self._synced: dict[str, int] = {}  # path -> bytes that survive a power cut
        self._names: dict[str, list[Callable[[], object]]] = {}  # folder -> undo functions of its unsynced names

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in OPERATIONS:
            return real
        return lambda *arguments, **named: self._call(name, real, arguments, named)

    def _call(self, name: str, real: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if self._dead:
            raise Dead
        if self.count >= self._at:  # earlier states were watched by the runs that fail earlier
            self._watch()
        self.count += 1
        self.kinds.append((name, self._place(name, arguments)))
        if self.count - 1 == self._at:
            self.failed_on = name
            if name == "write":
                real(arguments[0], arguments[1][: len(arguments[1]) // 2])
            if self._error is None:
                self._die()
            else:
                raise OSError(self._error, os.strerror(self._error))
        result = None if name == "fsync" else real(*arguments, **named)
        self._note(name, [str(argument) for argument in arguments], arguments, result)
        return result

    def _place(self, name: str, arguments: tuple[Any, ...]) -> str:
        path = self._paths.get(arguments[0], "") if name in ("write", "fsync") else arguments[0]
        return next((part for part in Path(path).parts if part in TOP_LEVEL), "")

    def _note(self, name: str, paths: list[str], arguments: tuple[Any, ...], result: Any) -> None:
        """Record the data that has reached the disk."""
        if name == "open":
            self._paths[result] = paths[0]
            if arguments[1] & os.O_CREAT:
                self._synced[paths[0]] = 0
        elif name == "fsync":
            path = self._paths[arguments[0]]
            if os.path.isdir(path):
                self._names.pop(path, None)
            else:
                self._synced[path] = os.path.getsize(path)
        elif name in ("replace", "link"):
            self._synced[paths[1]] = self._synced.pop(paths[0], 0)
            self._unsynced_name(paths[1], lambda: os.unlink(paths[1]))
        elif name == "mkdir":
            self._unsynced_name(paths[0], lambda: shutil.rmtree(paths[0]))

    def _unsynced_name(self, path: str, take_back: Callable[[], object]) -> None:
        self._names.setdefault(os.path.dirname(path), []).append(take_back)

    def _die(self) -> None:
        self._dead = True
        if self._power_cut:
            for path, size in self._synced.items():
                if os.path.exists(path) and os.path.getsize(path) > size:
                    os.truncate(path, size)
            for take_back in [undo for names in self._names.values() for undo in reversed(names)]:
                take_back()
        raise Dead
