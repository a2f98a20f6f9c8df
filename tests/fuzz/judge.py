"""The judge of a command's ending: faults that must never happen, whatever the damage and the command."""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.commands import Command
from tests.fuzz.world import Entry, Snapshot

_SHOWN = 14  # lines of a stack
_CODES = (0, 1, 2, 143)
_WRITABLE = ("tmp", "cache", "home/.cache/isotrope")  # paths below the root that every command may write
_SUFFIXES = (".ids.parquet", ".rejects.jsonl")  # of files that a command writes next to the named output
_PROJECT_FRAME = re.compile(r'File "[^"]*/((?:indexer|search)/[^"]*)", line \d+,? in (\S+)')
_UNEXPECTED = re.compile(r"error: unexpected", re.IGNORECASE)


@dataclass(frozen=True)
class Ending:
    """The ending of a command."""

    status: int
    hung: bool
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Fault:
    """A fault. `cause` groups examples with the same cause, as far as visible from outside."""

    cause: str
    details: str


def faults(command: Command, ending: Ending, before: Snapshot, after: Snapshot, root: Path) -> list[Fault]:
    """Return all faults in the command's ending and in its changes to files."""
    return [*_bad_ending(command, ending), *_changes(command, before, after, root)]


def _bad_ending(command: Command, ending: Ending) -> Iterator[Fault]:
    shown = "\n".join(ending.stderr.strip().splitlines()[-_SHOWN:])
    if ending.hung or ending.status < 0:
        stack = ending.stderr.split("most recent call first")[-1]
        shown = "\n".join(stack.splitlines()[:_SHOWN])
        what = "hang" if ending.hung else f"signal {-ending.status}"
        yield Fault(f"{what} {_place(stack, first=True)}", shown)
    elif "Traceback (most recent call last)" in ending.stderr or _UNEXPECTED.search(ending.stderr):
        yield Fault(f"traceback {_kind(ending.stderr)} {_place(ending.stderr)}", shown)
    elif ending.status not in _CODES:
        yield Fault(f"exit {ending.status} {command.argv[0]}", shown)
    elif ending.status and not ending.stderr.strip() and not ending.stdout.strip():
        yield Fault(f"silent exit {ending.status} {command.argv[0]}", shown)


def _place(text: str, first: bool = False) -> str:
    """Return the innermost function of this project in a traceback (with `first`, one in reverse order)."""
    frames = _PROJECT_FRAME.findall(text)
    return " ".join(frames[0 if first else -1]) if frames else "nowhere"


def _kind(text: str) -> str:
    """Return the exception at the end of a traceback."""
    names = re.findall(r"^([A-Za-z_][\w.]*)(?::|$)", text.split("Traceback")[-1], re.MULTILINE)
    return str(names[0]) if names else "unknown"


def _changes(command: Command, before: Snapshot, after: Snapshot, root: Path) -> Iterator[Fault]:
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    wrong = [name for name in changed if not _may_change(name, command, before, after, root)]
    for name in wrong[:1]:  # the others usually have the same cause
        verb = " ".join(command.argv[:2] if command.argv[0] == "evaluate" else command.argv[:1])
        done = "created" if name not in before else "removed" if name not in after else "changed"
        role = "output" if _covering(name, command, root) else "bystander"
        where = _where(name, before)
        yield Fault(f"{verb} {done} {role} {where} {(before.get(name) or after[name]).kind}", "\n".join(wrong[:20]))


def _where(name: str, before: Snapshot) -> str:
    """Return the owner of a path: an index, the home, or desk/."""
    return "in an index" if _index_of(name, before) else f"in {name.split('/')[0]}/"


def _may_change(name: str, command: Command, before: Snapshot, after: Snapshot, root: Path) -> bool:
    if any(name == path or name.startswith(f"{path}/") or path.startswith(f"{name}/") for path in _WRITABLE):
        return name in after or (command.argv[0] == "erase" and name.startswith("cache/bm25"))
    if command.writes is not None:
        index = _relative(command.writes, root)
        if name == index or (name.startswith(f"{index}/") and _is_index_or_new(index, before)):
            return name in after or name != index
        if index.startswith(f"{name}/") and name not in before:  # parent folders
            return True
    if _index_of(name, before):
        return False
    output = _covering(name, command, root)
    if output is None:
        return False
    if name not in before:
        return True
    return command.forced and name in after and _is_plain(before[name]) and name not in _read(command, root)


def _is_plain(entry: Entry) -> bool:
    return stat.S_ISREG(entry.mode)


def _covering(name: str, command: Command, root: Path) -> str | None:
    """Return the output of a changed path: the path itself, its parent, its child, or the file next to it."""
    for output in command.outputs:
        place = _relative(output, root)
        if name == place or name.startswith(f"{place}/") or place.startswith(f"{name}/"):
            return output
        named = os.path.relpath(os.path.join(root, "desk", output), root)  # files next to it have the name as given
        if any(name in (place + suffix, named + suffix) for suffix in _SUFFIXES):
            return output
    return None


def _relative(path: str, root: Path) -> str:
    """Return the target of a path of the command line, with links resolved, relative to the root."""
    return os.path.relpath(os.path.realpath(os.path.join(root, "desk", path)), root)


def _read(command: Command, root: Path) -> set[str]:
    """Return the files named on the command line that are not outputs."""
    words = list(command.argv[1:])
    for output in command.outputs:
        if output in words:
            words.reverse()
            words.remove(output)
            words.reverse()
    return {_relative(word, root) for word in words if word}


def _index_of(name: str, before: Snapshot) -> str | None:
    """Return the index that contains a path."""
    parts = name.split("/")
    folders = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
    return next((folder for folder in folders if f"{folder}/manifests" in before), None)


def _is_index_or_new(index: str, before: Snapshot) -> bool:
    """Return whether a command may write an index there: the folder is empty, new or an index."""
    inside = [name for name in before if name.startswith(f"{index}/")]
    return not inside or any(name in before for name in (f"{index}/manifests", f"{index}/parts", f"{index}/lock"))
