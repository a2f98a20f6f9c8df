"""The ignore files of a folder, .isotropeignore and .gitignore, at every level, with git's rules.

The last pattern that matches an entry decides; patterns in deeper folders come after those above, and all of
.isotropeignore after all of .gitignore. An entry in an ignored folder is ignored. pathspec translates patterns; it
matches an entry by its parents too, which is wrong where an ignore file of another level brings one of them back, so
each entry is compared by itself.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from indexer.corpus.files.trees import Tree
from indexer.lazy_imports import require_extra

IGNORE_FILES = (".isotropeignore", ".gitignore")  # the first that decides
_CACHED = 1 << 12  # ignore files


class _Pattern(NamedTuple):
    """One line of an ignore file."""

    regex: re.Pattern[str]
    ignores: bool  # False: "!"
    only_folders: bool

    def matches(self, path: str, is_folder: bool) -> bool:
        """Return whether an entry itself matches, and not just a folder that contains it."""
        if self.only_folders and not is_folder:
            return False
        found = self.regex.search(path)
        return found is not None and found.lastindex is None  # the group is the "/" after a matching parent


class IgnoreRules:
    """Decide which entries of a tree are ignored; ignore files are read when they are first needed."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._patterns = lru_cache(_CACHED)(self._read)

    def ignoring(self, path: str, is_folder: bool) -> str:
        """Return the name of the ignore file that excludes an entry, or "". Its folders are not checked."""
        for name in IGNORE_FILES:
            for folder in _folders_above(path):
                below = path[len(folder) + 1 :] if folder else path
                for pattern in self._patterns(f"{folder}/{name}" if folder else name):
                    if pattern.matches(below, is_folder):
                        return name if pattern.ignores else ""
        return ""

    def _read(self, path: str) -> tuple[_Pattern, ...]:
        """Return the patterns of an ignore file, the last line first."""
        lines = self._tree.rules(path).split("\n")
        return tuple(pattern for line in reversed(lines) if (pattern := _parsed(line)) is not None)


def _folders_above(path: str) -> Iterator[str]:
    """Yield the folders of an entry from the deepest to the source itself, ""."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def _parsed(line: str) -> _Pattern | None:
    text = _without_spaces(line.removesuffix("\r"))
    if not text or text.startswith("#"):
        return None
    body = text.removeprefix("!")
    ignores, only_folders, body = body == text, body.endswith("/"), body.removesuffix("/")
    if not body:
        return None
    spec = require_extra("pathspec.patterns.gitignore.spec", "files").GitIgnoreSpecPattern
    try:
        pattern = spec(f"\\{body}" if body[0] in "!#" else body)
    except ValueError:
        return None  # git matches nothing with such a pattern either
    return None if pattern.regex is None else _Pattern(pattern.regex, ignores, only_folders)


def _without_spaces(line: str) -> str:
    """Return the line without spaces at its end, except one after a backslash."""
    text = line.rstrip(" ")
    backslashes = len(text) - len(text.rstrip("\\"))
    return line[: len(text) + 1] if backslashes % 2 else text
