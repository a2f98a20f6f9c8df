"""Search one file for the traces of documents: its bytes, and the decoded contents of Parquet, JSON and ZIP files."""

import hashlib
import json
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from indexer.pipeline.erase import keyed_id
from search.erasure.patterns import Bytes, joined, normalised
from search.erasure.traces import Kind, Traces, strings_in

ID, FILE = "id", "file"  # kinds of traces beside those of `Kind`: a value of an id field, the sha256 of a whole file
POSSIBLE: Kind = "word"  # may be another word that equals an id
_ORDER = (ID, POSSIBLE, "text", "vector", "code", FILE)
_BLOCK = 4 << 20
_PARQUET, _ZIP = b"PAR1", b"PK\3\4"
_ID_FIELDS = {"id", "_id", "ids"}
# RuntimeError: encrypted or unknown compression in a ZIP file, and deeply nested JSON.
_UNDECODABLE = pa.ArrowException, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError


class SearchedFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file with its sha256 before and after an erasure, several if generations differed; without `after` it is gone.

    `by` are the kinds of traces that it was searched for, `found` those that it contains.
    """

    file: str
    before: list[str] = []
    after: str | None = None
    by: tuple[str, ...] = ()
    found: tuple[str, ...] = ()


class Scanner:
    """Searches files for keyed `ids` and for `traces`."""

    def __init__(self, salt: str, ids: Iterable[str], traces: Traces) -> None:
        self._salt, self._ids, self._files = salt, set(ids), set(traces.files)
        self._searchers = traces.searchers(salt)
        self._reach = max(searcher.reach for searcher in self._searchers.values()) + 1  # bytes that blocks must share

    def search(self, path: Path, name: str, before: Sequence[str] = ()) -> SearchedFile:
        """Search a file. Raises OSError."""
        digest = hashlib.sha256()
        with path.open("rb") as file:
            start = file.read(1 << 16)
            file.seek(0)
            is_text = b"\0" not in start
            found, by = self._stream(file, is_text, digest), {"text", "vector", "code", FILE}
        if digest.hexdigest() in self._files:
            found.add(FILE)
        try:
            if start.startswith(_ZIP):
                found |= self._zip(path)
            decoded = self._decoded(path, start)
        except _UNDECODABLE as error:
            raise OSError(f"its contents cannot be decoded ({error})") from error
        by |= {POSSIBLE} if is_text or decoded is not None else set()
        by |= {ID} if decoded is not None else set()
        found |= decoded or set()
        kinds = [tuple(kind for kind in _ORDER if kind in chosen) for chosen in (by, found)]
        return SearchedFile(file=name, before=list(before), after=digest.hexdigest(), by=kinds[0], found=kinds[1])

    def _stream(self, file: IO[bytes], words: bool, digest: Any = None) -> set[str]:
        kinds: tuple[Kind, ...] = ("text", POSSIBLE) if words else ("text",)
        found, raw, plain = set[str](), np.zeros(0, np.uint8), np.full(1, ord(" "), np.uint8)
        while block := file.read(_BLOCK):
            if digest is not None:
                digest.update(block)
            data = np.frombuffer(block, np.uint8)
            raw = np.concatenate([raw, data])
            plain = np.concatenate([plain, normalised(data, int(plain[-1]))])
            found |= self._found(raw, "vector", "code") | self._found(plain, *kinds)
            raw, plain = raw[-self._reach :], plain[-self._reach :]
        return found | self._found(np.append(plain, np.uint8(ord(" "))), *kinds)  # the last word

    def _found(self, data: Bytes, *kinds: Kind) -> set[str]:
        return {kind for kind in kinds if self._searchers[kind].found(data)}

    def _has_id(self, values: Iterable[str]) -> bool:
        return any(keyed_id(self._salt, value) in self._ids for value in values)

    def _decoded(self, path: Path, start: bytes) -> set[str] | None:
        """Search the decoded values of a file; None for other formats, and for text that only looks like JSON."""
        if start.startswith(_PARQUET):
            return self._parquet(path)
        return self._json(path) if path.suffix in (".json", ".jsonl") else None

    def _parquet(self, path: Path) -> set[str]:
        found = set[str]()
        with pq.ParquetFile(path, pre_buffer=False) as file:
            for batch in file.iter_batches(8192, use_threads=False):
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    if "string" not in str(column.type):
                        for buffer in filter(None, column.buffers()):  # neither absent nor empty
                            found |= self._found(np.frombuffer(buffer, np.uint8), "vector", "code")
                        continue
                    strings = list(strings_in(column.to_pylist()))
                    found |= self._found(normalised(joined(strings)), "text", POSSIBLE)
                    if name in _ID_FIELDS and self._has_id(strings):
                        found.add(ID)
        return found

    def _json(self, path: Path) -> set[str] | None:
        """Search the strings of a JSON file, or of the lines of a JSONL file that are JSON; None without strings."""
        data, fields = path.read_bytes(), list[tuple[str, str]]()
        for value in [data] if path.suffix == ".json" else data.split(b"\n"):
            with suppress(ValueError):
                fields += _fields(json.loads(value))
        if not fields:
            return None
        found = self._found(normalised(joined(string for _, string in fields)), "text", POSSIBLE)
        return found | ({ID} if self._has_id(string for key, string in fields if key in _ID_FIELDS) else set())

    def _zip(self, path: Path) -> set[str]:
        """Search the members of a ZIP archive, such as a file of moments."""
        found = set[str]()
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                with archive.open(name) as member:
                    found |= self._stream(member, words=False)
        return found


def _fields(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the strings of a JSON value, each with the name of its field."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, list):
        for each in value:
            yield from _fields(each, key)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield "", name
            yield from _fields(each, name)
