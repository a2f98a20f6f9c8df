"""What may never happen, whatever was damaged and asked: the judge of a command's end."""

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
_OWN_PLACES = ("tmp", "cache", "home/.cache/isotrope")  # below the root; ours to write to
_BESIDE = (".ids.parquet", ".rejects.jsonl")  # files that a command writes beside the output named
_PROJECT_FRAME = re.compile(r'File "[^"]*/((?:indexer|search)/[^"]*)", line \d+,? in (\S+)')
_UNEXPECTED = re.compile(r"error: unexpected", re.IGNORECASE)


@dataclass(frozen=True)
class Ending:
    """How a command ended."""

    status: int
    hung: bool
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Fault:
    """`cause` is the same for examples with the same cause, as far as can be told from outside."""

    cause: str
    details: str


def faults(command: Command, ending: Ending, before: Snapshot, after: Snapshot, root: Path) -> list[Fault]:
    """All that was wrong: how it ended, and what it changed."""
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
    """The innermost of our functions in a traceback (whose last line comes first with `first`)."""
    found = _PROJECT_FRAME.findall(text)
    return " ".join(found[0 if first else -1]) if found else "nowhere"


def _kind(text: str) -> str:
    """The exception that a traceback ends with."""
    found = re.findall(r"^([A-Za-z_][\w.]*)(?::|$)", text.split("Traceback")[-1], re.MULTILINE)
    return str(found[0]) if found else "unknown"


def _changes(command: Command, before: Snapshot, after: Snapshot, root: Path) -> Iterator[Fault]:
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    wrong = [name for name in changed if not _may_change(name, command, before, after, root)]
    for name in wrong[:1]:  # the others are most often of the same cause
        verb = " ".join(command.argv[:2] if command.argv[0] in ("evaluate", "train") else command.argv[:1])
        done = "created" if name not in before else "removed" if name not in after else "changed"
        role = "output" if _covering(name, command, root) else "bystander"
        where = _where(name, before)
        yield Fault(f"{verb} {done} {role} {where} {(before.get(name) or after[name]).kind}", "\n".join(wrong[:20]))


def _where(name: str, before: Snapshot) -> str:
    """Whose it is: the index, the home, or a file of desk/."""
    return "in an index" if _index_of(name, before) else f"in {name.split('/')[0]}/"


def _may_change(name: str, command: Command, before: Snapshot, after: Snapshot, root: Path) -> bool:
    if any(name == own or name.startswith(f"{own}/") or own.startswith(f"{name}/") for own in _OWN_PLACES):
        return name in after
    if command.writes is not None:
        index = _relative(command.writes, root)
        if name == index or (name.startswith(f"{index}/") and _is_index_or_new(index, before)):
            return name in after or name != index
        if index.startswith(f"{name}/") and name not in before:  # folders on the way
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
    """The output that a changed name belongs to: it, something in it, beside it, or a folder on the way to it."""
    for output in command.outputs:
        place = _relative(output, root)
        if name == place or name.startswith(f"{place}/") or place.startswith(f"{name}/"):
            return output
        named = os.path.relpath(os.path.join(root, "desk", output), root)  # beside it lies what has the name as given
        if any(name in (place + suffix, named + suffix) for suffix in _BESIDE):
            return output
    return None


def _relative(path: str, root: Path) -> str:
    """Where a path of the command line leads, links followed, relative to the root."""
    return os.path.relpath(os.path.realpath(os.path.join(root, "desk", path)), root)


def _read(command: Command, root: Path) -> set[str]:
    """Files named on the command line that are no outputs."""
    words = list(command.argv[1:])
    for output in command.outputs:
        if output in words:
            words.reverse()
            words.remove(output)
            words.reverse()
    return {_relative(word, root) for word in words if word}


def _index_of(name: str, before: Snapshot) -> str | None:
    """The index that a name is in."""
    parts = name.split("/")
    folders = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
    return next((folder for folder in folders if f"{folder}/manifests" in before), None)


def _is_index_or_new(index: str, before: Snapshot) -> bool:
    """Whether a command that makes or changes an index may write there: not into a folder of other things."""
    inside = [name for name in before if name.startswith(f"{index}/")]
    return not inside or any(name in before for name in (f"{index}/manifests", f"{index}/parts", f"{index}/lock"))
