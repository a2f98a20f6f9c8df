"""Corpus files in object storage: found by URL, and read by range, so that a seek does not fetch the whole file."""

import difflib
import fnmatch
import glob
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any

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
            raise CorpusError(f"{url}: no longer exists. Run the command again.")
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
            raise CorpusError(f"{self._url}: changed while it was read. Run the command again.") from error
        self._start = self._position


def open_object(url: str) -> io.BufferedReader:
    """Open an object for reading."""
    return io.BufferedReader(RemoteFile(url), _AROUND)


def find_objects(url: str) -> tuple[str, list[str], bool]:
    """Return the files of a URL: (the URL that names are relative to, names in order, whether it is one file).

    A file, else a folder, else a glob. Raises CorpusError for no file, or an index.
    """
    folder, _, name = url.rpartition("/")
    if "://" in f"{folder}/" and not folder.endswith("/") and open_bucket(folder).head(name) is not None:
        return folder, [name], True
    if objects := open_bucket(url).list():
        return url, _corpus_files(url, objects), False
    if glob.has_magic(url.partition("://")[2]):
        return *_matching(url), False
    raise CorpusError(f"{url}: no such file or folder{_nearest(open_bucket(folder), name)}")


def _corpus_files(url: str, objects: dict[str, StoredObject]) -> list[str]:
    """Return the names below a folder, without hidden ones and those of indexes."""
    indexes = _indexes(objects)
    if "" in indexes:
        raise CorpusError(f"{url}: is an index, not a corpus. Fix: pass the files that it was built from.")
    names = [name for name in objects if not name.startswith(indexes)]
    visible = [name for name in names if not any(part.startswith((".", "_")) for part in PurePosixPath(name).parts)]
    return sorted(visible, key=lambda name: PurePosixPath(name).parts)


def _indexes(names: Iterable[str]) -> tuple[str, ...]:
    """Return the prefix of the names of each index."""
    return tuple(name.rpartition("manifests/")[0] for name in names if re.search(r"(^|/)manifests/\d{8}\.json$", name))


def _matching(pattern: str) -> tuple[str, list[str]]:
    fixed = re.split(r"[*?[]", pattern, maxsplit=1)[0].rpartition("/")[0]
    objects = open_bucket(fixed).list()
    indexes = _indexes(objects)
    matching = names_matching(pattern.removeprefix(f"{fixed}/"), objects)
    names = sorted(name for name in matching if not name.startswith(indexes))
    if not names:
        raise CorpusError(f"{pattern}: this pattern matches no file. Fix: check the URL.")
    return fixed, names


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
