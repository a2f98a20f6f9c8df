"""Files of a corpus in object storage: found by URL, and read by range, so that what seeks is not fetched whole."""

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

_AHEAD = 8 << 20  # bytes fetched at once where a file is read on
_AROUND = 256 << 10  # where it is read here and there


class RemoteFile(io.RawIOBase):
    """An object as a seekable file. Raises CorpusError if it is written anew meanwhile, else as `Bucket`."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        folder, _, self._file = url.rpartition("/")
        self._store = open_bucket(folder)
        found = self._store.head(self._file)
        if found is None:
            raise CorpusError(f"{url}: was there, and is not any more. Run the command again.")
        self._object = found
        self._position = self._start = 0
        self._held = b""  # bytes from `_start` on

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
        goes_on = self._position == self._start + len(self._held)
        end = min(self._position + max(wanted, _AHEAD if goes_on else _AROUND), self._object.bytes)
        try:
            self._held = self._store.read_range(self._file, self._position, end, self._object.version)
        except ConditionError as error:
            raise CorpusError(f"{self._url}: was written anew while it was read. Run the command again.") from error
        self._start = self._position


def open_object(url: str) -> io.BufferedReader:
    """Open an object for reading."""
    return io.BufferedReader(RemoteFile(url), _AROUND)


def find_objects(url: str) -> tuple[str, list[str], bool]:
    """Return the files of a URL: (the URL that names are relative to, names in order, whether it is one file).

    A file, else a folder, else a glob. Raises CorpusError where there is nothing, or an index.
    """
    folder, _, name = url.rpartition("/")
    if "://" in f"{folder}/" and not folder.endswith("/") and open_bucket(folder).head(name) is not None:
        return folder, [name], True
    found = open_bucket(url).list()
    if found:
        return url, _corpus_files(url, found), False
    if glob.has_magic(url.partition("://")[2]):
        return *_matching(url), False
    raise CorpusError(f"{url}: no such file or folder{_nearest(open_bucket(folder), name)}")


def _corpus_files(url: str, found: dict[str, StoredObject]) -> list[str]:
    """Names below a folder, without hidden ones and those of indexes."""
    marks = _indexes(found)
    if "" in marks:
        raise CorpusError(f"{url}: is an index, not a corpus. Way out: name the files that it was built of.")
    names = [name for name in found if not name.startswith(marks)]
    shown = [name for name in names if not any(part.startswith((".", "_")) for part in PurePosixPath(name).parts)]
    return sorted(shown, key=lambda name: PurePosixPath(name).parts)


def _indexes(found: Iterable[str]) -> tuple[str, ...]:
    """How the names of everything in an index begin, for each index among them."""
    return tuple(name.rpartition("manifests/")[0] for name in found if re.search(r"(^|/)manifests/\d{8}\.json$", name))


def _matching(pattern: str) -> tuple[str, list[str]]:
    fixed = re.split(r"[*?[]", pattern, maxsplit=1)[0].rpartition("/")[0]
    found = open_bucket(fixed).list()
    inside = _indexes(found)
    matching = names_matching(pattern.removeprefix(f"{fixed}/"), found)
    names = sorted(name for name in matching if not name.startswith(inside))
    if not names:
        raise CorpusError(f"{pattern}: this pattern matches no file. Way out: check the URL.")
    return fixed, names


def names_matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names of objects that a pattern matches, by the rules of `glob.glob(pattern, recursive=True)`.

    Wildcards match within one name of a path, ** any number of folders, and neither a leading dot.
    """
    parts = pattern.split("/")
    if parts[-1] == "**":
        parts.append("*")  # its folders are no objects
    return [name for name in names if _matches(name.split("/"), parts)]


def _matches(name: list[str], pattern: list[str]) -> bool:
    reached = {0}  # places in the pattern to which the name has been matched so far
    for part in name:
        reached = {place for at in reached for place in _places_after(part, pattern, at)}
    return len(pattern) in reached


def _places_after(part: str, pattern: list[str], at: int) -> Iterator[int]:
    """Where in the pattern one may be after one more part of the name."""
    if at == len(pattern):
        return
    if pattern[at] == "**":
        yield from _places_after(part, pattern, at + 1)  # it stands for no more folders
        if not part.startswith("."):
            yield at
    elif fnmatch.fnmatchcase(part, pattern[at]) and (not part.startswith(".") or pattern[at].startswith(".")):
        yield at + 1


def _nearest(store: Bucket, name: str) -> str:
    close = difflib.get_close_matches(name, store.top(), n=1)
    return f'; did you mean "{store.url}/{close[0]}"?' if close else "."
