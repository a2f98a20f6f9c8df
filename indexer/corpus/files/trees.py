"""A folder of files, on disk or in object storage: what it contains, level by level."""

import os
import stat
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from indexer.corpus.readers.remote import index_prefixes, open_object
from indexer.corpus.sources import SourceFile, is_index, readable
from indexer.errors import CorpusError
from indexer.store.bucket import StoredObject
from indexer.system.regular_files import open_regular

EntryKind = Literal["file", "folder", "link", "special"]
_MOST_RULES = 1 << 20  # bytes of an ignore file that are read


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder; `path` is below the source, with "/" between its parts."""

    path: str
    kind: EntryKind

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class Tree(Protocol):
    """A folder that a user named."""

    shown: str  # its path or URL
    name: str  # its last part

    def entries(self, folder: str) -> list[Entry]:
        """Return the entries of a folder in order of names; none if it is gone.

        Raises CorpusError for one that cannot be listed.
        """

    def kind_of(self, path: str) -> EntryKind:
        """Return the kind of an entry; a missing one counts as a file, which is rejected when it is read."""

    def is_index(self, folder: str) -> bool:
        """Return whether a folder is an index."""

    def is_empty(self, path: str) -> bool:
        """Return whether a file has no bytes."""

    def rules(self, path: str) -> str:
        """Return the text of an ignore file, "" if there is none. Raises CorpusError if it cannot be read."""

    def looks_binary(self, path: str) -> bool:
        """Return whether a file begins with bytes that no text has, if this is cheap to find out."""

    def source_file(self, path: str, label: str) -> SourceFile:
        """Return a file as a document."""


class LocalTree:
    """A folder on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.shown = folder, readable(str(folder))
        self.name = readable(folder.resolve().name)

    def entries(self, folder: str) -> list[Entry]:
        try:
            with os.scandir(self._folder / folder) as found:
                entries = [Entry(f"{folder}/{each.name}" if folder else each.name, _kind(each)) for each in found]
        except OSError as error:
            if folder and isinstance(error, FileNotFoundError | NotADirectoryError):
                return []  # removed meanwhile
            shown = readable(os.fsdecode(error.filename or self._folder / folder))
            raise CorpusError(
                f"{shown}: cannot be listed: {error.strerror or error}. Fix: change its permissions, or name it in "
                ".isotropeignore."
            ) from error
        return sorted(entries, key=lambda entry: entry.path)

    def kind_of(self, path: str) -> EntryKind:
        try:
            mode = (self._folder / path).lstat().st_mode
        except OSError:
            return "file"
        kinds: dict[int, EntryKind] = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
        return kinds.get(stat.S_IFMT(mode), "special")

    def is_index(self, folder: str) -> bool:
        return is_index(self._folder / folder)

    def is_empty(self, path: str) -> bool:
        try:
            return (self._folder / path).lstat().st_size == 0
        except OSError:
            return False

    def rules(self, path: str) -> str:
        place = self._folder / path
        try:
            if not place.is_file() or place.is_symlink():  # git follows no links to ignore files either
                return ""
            with open_regular(place, follow_links=False) as file:
                return _decoded(file.read(_MOST_RULES))
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise CorpusError(f"{readable(str(place))}: cannot be read: {error.strerror or error}.") from error

    def looks_binary(self, path: str) -> bool:
        try:
            with open_regular(self._folder / path, follow_links=False) as file:
                return b"\0" in file.read(8_000)  # git's rule
        except OSError:
            return False  # the file is rejected when it is read

    def source_file(self, path: str, label: str) -> SourceFile:
        place = self._folder / path
        return SourceFile(place, readable(str(place)), label, "file")


class ObjectTree:
    """The objects below a URL of object storage."""

    def __init__(self, url: str, objects: Mapping[str, StoredObject]) -> None:
        self.shown, self._objects = url, objects
        self.name = url.rpartition("/")[2]
        self._indexes = {prefix.rstrip("/") for prefix in index_prefixes(objects)}
        self._below: dict[str, set[tuple[str, EntryKind]]] = defaultdict(set)
        for path in objects:
            if not path.endswith("/"):  # an empty object that stands for a folder
                self._add(path)

    def _add(self, path: str) -> None:
        kind: EntryKind = "file"
        while True:
            folder, _, name = path.rpartition("/")
            if (name, kind) in self._below[folder]:
                return
            self._below[folder].add((name, kind))
            if not folder:
                return
            path, kind = folder, "folder"

    def entries(self, folder: str) -> list[Entry]:
        found = sorted(self._below.get(folder, ()))
        return [Entry(f"{folder}/{name}" if folder else name, kind) for name, kind in found]

    def kind_of(self, path: str) -> EntryKind:
        return "file" if path in self._objects else "folder"

    def is_index(self, folder: str) -> bool:
        return folder in self._indexes

    def is_empty(self, path: str) -> bool:
        return self._objects[path].bytes == 0

    def rules(self, path: str) -> str:
        if path not in self._objects:
            return ""
        with open_object(f"{self.shown}/{path}") as file:
            return _decoded(file.read(_MOST_RULES))

    def looks_binary(self, path: str) -> bool:
        return False  # this would take a request for each object

    def source_file(self, path: str, label: str) -> SourceFile:
        url = f"{self.shown}/{path}"
        return SourceFile(None, url, label, "file", url=url, stored=self._objects[path])


def _kind(entry: "os.DirEntry[str]") -> EntryKind:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "special"


def _decoded(content: bytes) -> str:
    return os.fsdecode(content.removeprefix(b"\xef\xbb\xbf"))  # as names of files are
