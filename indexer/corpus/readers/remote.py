"""Corpus files in object storage: found by URL, and read by range, so that a seek does not fetch the whole file."""

import difflib
import fnmatch
import glob
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from indexer.errors import CorpusError
from indexer.store.bucket import Bucket, ConditionError, StoredObject, open_bucket

_AHEAD = 8 << 20  # bytes of a request in sequential reading
_AROUND = 256 << 10  # bytes of a request after a seek


class RemoteFile(io.RawIOBase):
    """An object as a seekable file. Raises CorpusError if it changes meanwhile, else as `Bucket`."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        folder, _, self._file = url.rpartition("/")
        self._store = open_bucket(folder)
        stored = self._store.head(self._file)
        if stored is None:
            raise CorpusError(f"{url}: no longer exists. Fix: run the command again.")
        self._object = stored
        self._position = self._start = 0
        self._held = b""  # bytes from `_start`

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._position, self._object.bytes)[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self._object.bytes - self._position)
        if wanted <= 0:
            return 0
        offset = self._position - self._start
        if not 0 <= offset < len(self._held):
            self._fetch(wanted)
            offset = 0
        piece = self._held[offset : offset + wanted]
        view[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def _fetch(self, wanted: int) -> None:
        sequential = self._position == self._start + len(self._held)
        end = min(self._position + max(wanted, _AHEAD if sequential else _AROUND), self._object.bytes)
        try:
            self._held = self._store.read_range(self._file, self._position, end, self._object.version)
        except ConditionError as error:
            raise CorpusError(f"{self._url}: changed while it was read. Fix: run the command again.") from error
        self._start = self._position


def open_object(url: str) -> io.BufferedReader:
    """Open an object for reading."""
    return io.BufferedReader(RemoteFile(url), _AROUND)


@dataclass(frozen=True)
class FoundObjects:
    """The objects that a URL names: a file, a folder with all below it, or the matches of a glob."""

    folder: str  # the URL that names are relative to
    objects: dict[str, StoredObject]  # below the folder, by name: more than `names` for a glob
    names: list[str]
    kind: Literal["file", "folder", "glob"]


def list_objects(url: str) -> FoundObjects:
    """Return the objects of a URL: a file, else a folder, else a glob. Raises CorpusError for none of them."""
    folder, _, name = url.rpartition("/")
    if "://" in f"{folder}/" and not folder.endswith("/") and (stored := open_bucket(folder).head(name)) is not None:
        return FoundObjects(folder, {name: stored}, [name], "file")
    if objects := open_bucket(url).list():
        if "" in index_prefixes(objects):
            raise CorpusError(f"{url}: is an index, not a corpus. Fix: pass the files that it was built from.")
        return FoundObjects(url, objects, list(objects), "folder")
    if glob.has_magic(url.partition("://")[2]):
        fixed = re.split(r"[*?[]", url, maxsplit=1)[0].rpartition("/")[0]
        objects = open_bucket(fixed).list()
        return FoundObjects(fixed, objects, names_matching(url.removeprefix(f"{fixed}/"), objects), "glob")
    raise CorpusError(f"{url}: no such file or folder{_nearest(open_bucket(folder), name)}")


def find_objects(url: str) -> tuple[str, list[str], bool]:
    """Return the files of a URL: (the URL that names are relative to, names in order, whether it is one file).

    Without hidden ones and those of indexes. Raises CorpusError as `list_objects`, and for a glob without a match.
    """
    found = list_objects(url)
    indexes = index_prefixes(found.objects)
    names = [name for name in found.names if not name.startswith(indexes)]
    if found.kind == "glob":
        if not names:
            raise no_match(url)
        return found.folder, sorted(names), False
    if found.kind == "folder":
        names = [name for name in names if not any(part.startswith((".", "_")) for part in PurePosixPath(name).parts)]
    return found.folder, sorted(names, key=lambda name: PurePosixPath(name).parts), found.kind == "file"


def no_match(pattern: str) -> CorpusError:
    """Return the error for a glob of a URL that matches nothing."""
    return CorpusError(f"{pattern}: this pattern matches no file. Fix: check the URL.")


def index_prefixes(names: Iterable[str]) -> tuple[str, ...]:
    """Return the prefix of the names of each index."""
    return tuple(name.rpartition("manifests/")[0] for name in names if re.search(r"(^|/)manifests/\d{8}\.json$", name))


def names_matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names of objects that match a pattern, by the rules of `glob.glob(pattern, recursive=True)`.

    Wildcards match within one part of a path, ** any number of folders; neither matches a leading dot.
    """
    parts = pattern.split("/")
    if parts[-1] == "**":
        parts.append("*")  # its folders are no objects
    return [name for name in names if _matches(name.split("/"), parts)]


def _matches(name: list[str], pattern: list[str]) -> bool:
    reached = {0}  # positions in the pattern that match the name so far
    for part in name:
        reached = {place for at in reached for place in _places_after(part, pattern, at)}
    return len(pattern) in reached


def _places_after(part: str, pattern: list[str], at: int) -> Iterator[int]:
    """Yield the positions in the pattern after one more part of the name."""
    if at == len(pattern):
        return
    if pattern[at] == "**":
        yield from _places_after(part, pattern, at + 1)  # ** matches no more folders
        if not part.startswith("."):
            yield at
    elif fnmatch.fnmatchcase(part, pattern[at]) and (not part.startswith(".") or pattern[at].startswith(".")):
        yield at + 1


def _nearest(store: Bucket, name: str) -> str:
    close = difflib.get_close_matches(name, store.top(), n=1)
    return f'; did you mean "{store.url}/{close[0]}"?' if close else "."
