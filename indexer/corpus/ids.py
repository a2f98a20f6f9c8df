"""Ids of documents: hashes of the content where the corpus has none, and unique in a corpus, in 26 bytes a document.

`content_id` gives the same document the same id in another file, in another order and tomorrow. It is 32 hex digits:
blake2b, 128 bits, of the UTF-8 JSON text of [title, text, metadata] without spaces, keys in order of code points, whole
numbers without a fraction; a zero byte and the vector as little-endian float32 follow if the document has a vector.
A value without a JSON type is an object with one key that no metadata has: a NUL character and the name of the type.
The format must never change, because ids in existing indexes depend on it.

`SeenIds` stores the 128-bit hash of an id and a position of 64 bits, since a dict of id strings costs some 150 bytes an
entry: 15 GB for 100 million documents. At 10^9 documents the chance that any two contents, or any two ids, have the
same hash is about 10^-21.

In one pass over a corpus (`UniqueIds`) a given id is unique, and repeated contents get a number after the id: "-2",
"-3" and so on.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from indexer.corpus.document import Document
from indexer.corpus.row import BadRow
from indexer.corpus.schema import EXACT_INTEGER

_HASH_BYTES = 16
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True)
_REPEATED = re.compile(r"-[1-9][0-9]*\Z")
_LINE_BITS = 40  # of a position; the file and one bit use the rest
_REMEMBERED = 1 << 12  # recently repeated contents
_FILTER_BITS = 8  # of the filter, for each id in a run
_UInt64s = npt.NDArray[np.uint64]


def content_id(document: Document) -> str:
    """Return the hash of a document's title, text, canonical metadata and vector; its own id is ignored."""
    written = _ENCODER.encode([document.title, document.text, _to_json(document.metadata)])
    digest = blake2b(written.encode(), digest_size=_HASH_BYTES)
    if document.vector is not None:
        digest.update(b"\0" + np.ascontiguousarray(document.vector, "<f4").tobytes())
    return digest.hexdigest()


def has_content_id(document: Document) -> bool:
    """Return whether a document's id is the hash of its content."""
    return _REPEATED.sub("", document.id) == content_id(document)


def repeated_id(identifier: str, times: int) -> str:
    """Return the id of the document number `times` with the same content in its corpus."""
    return f"{identifier}-{times}" if times > 1 else identifier


class Position(NamedTuple):
    """Place of a document: number of the file and line; and whether its id is a hash of its content."""

    file: int
    line: int
    made: bool

    @property
    def packed(self) -> int:
        """The position as one 64-bit number."""
        return (self.file << _LINE_BITS | self.line) << 1 | self.made

    @classmethod
    def of(cls, packed: int) -> "Position":
        """Return the position of a packed number."""
        place = packed >> 1
        return cls(place >> _LINE_BITS, place & ((1 << _LINE_BITS) - 1), bool(packed & 1))


class UniqueIds:
    """The ids seen in one pass over a corpus; `place` returns a position as text, for messages."""

    def __init__(self, place: Callable[[Position], str]) -> None:
        self.place = place
        self._seen = SeenIds()
        self._numbers: dict[str, int] = {}  # id of a recently repeated content -> its last number

    def add(self, identifier: str, position: Position) -> None:
        """Add an id that `distinct` returned."""
        self._seen.add(identifier, position.packed)

    def distinct(self, document: Document, made: bool) -> Document:
        """Return the document; if its id is `made` of a repeated content, with a number after the id.

        Raises BadRow ("duplicate-id") if a given id was seen before, or if a made id was given to an earlier document.
        """
        packed = self._seen.find(document.id)
        if packed is None:
            return document
        first = Position.of(packed)
        if made and first.made:
            return replace(document, id=repeated_id(document.id, self._next_number(document.id)))
        if made:
            what = f"the row has no id, and the hash of its content is the id at {self.place(first)}"
            raise BadRow("duplicate-id", what, "delete one of the two rows, or give the row an id")
        what = f"the id was already used at {self.place(first)}"
        raise BadRow("duplicate-id", what, "give each document its own id")

    def _next_number(self, identifier: str) -> int:
        """Return the next free number. Numbers have no gaps, so bisection finds it if it is not cached."""
        low = high = self._numbers.get(identifier, 1) + 1
        while self._is_taken(identifier, high):
            low, high = high + 1, 2 * high
        free = bisect_left(range(high), True, lo=low, key=lambda number: not self._is_taken(identifier, number))
        if len(self._numbers) >= _REMEMBERED:
            self._numbers.clear()
        self._numbers[identifier] = free
        return free

    def _is_taken(self, identifier: str, number: int) -> bool:
        return self._seen.find(repeated_id(identifier, number)) is not None


class SeenIds:
    """A map from id to the position (0 to 2**64 - 1) of its first document.

    A small dict contains the recent ids. At `recent` ids they become a sorted numpy run, and runs of similar size are
    merged, so the number of runs, and of moves of an id, is logarithmic in the number of documents. A merge of two runs
    needs their memory twice. A filter with a bit for each prefix of a hash spares most new ids the search of the runs.
    """

    def __init__(self, recent: int = 1 << 16) -> None:
        self._limit = recent
        self._recent: dict[bytes, int] = {}
        self._runs: list[_Run] = []
        self._filter, self._shift = bytearray(1), 61  # a bit for each value of the upper 64 - shift bits of a hash

    def __len__(self) -> int:
        return len(self._recent) + sum(len(run.upper) for run in self._runs)

    def find(self, identifier: str) -> int | None:
        """Return the position of an id, or None."""
        key = _hash(identifier)
        if (position := self._recent.get(key)) is not None:
            return position
        upper = int.from_bytes(key[:8], "little")
        bit = upper >> self._shift
        if not self._filter[bit >> 3] >> (bit & 7) & 1:
            return None
        lower = int.from_bytes(key[8:], "little")
        for run in self._runs:
            if (position := run.find(upper, lower)) is not None:
                return position
        return None

    def add(self, identifier: str, position: int) -> None:
        """Add a new id. The caller has called `find` first."""
        self._recent[_hash(identifier)] = position
        if len(self._recent) >= self._limit:
            self._pack()

    def _pack(self) -> None:
        hashes = np.frombuffer(b"".join(self._recent), dtype="<u8").reshape(-1, 2).astype(np.uint64)
        positions = np.fromiter(self._recent.values(), dtype=np.uint64, count=len(self._recent))
        run = new = _sorted_run(hashes[:, 0], hashes[:, 1], positions)
        self._recent = {}
        while self._runs and len(self._runs[-1].upper) <= len(run.upper):
            run = _merge(self._runs.pop(), run)
        self._runs.append(run)
        self._note(new)

    def _note(self, new: "_Run") -> None:
        runs, bits = [new], (_FILTER_BITS * len(self) - 1).bit_length()
        if bits > 64 - self._shift:
            runs, self._filter, self._shift = self._runs, bytearray(1 << (bits - 3)), 64 - bits
        for run in runs:
            numbers = run.upper >> np.uint64(self._shift)
            masks = np.left_shift(1, numbers & np.uint64(7), dtype=np.uint8, casting="unsafe")
            np.bitwise_or.at(np.frombuffer(self._filter, np.uint8), numbers >> np.uint64(3), masks)


@dataclass(frozen=True)
class _Run:
    """Ids sorted by the upper half of their hashes; three columns of equal length."""

    upper: _UInt64s
    lower: _UInt64s
    positions: _UInt64s

    def find(self, upper: int, lower: int) -> int | None:
        # bisect over a memoryview needs a microsecond; np.searchsorted of a single number several
        view = memoryview(self.upper.data)
        place = bisect_left(view, upper)
        while place < len(view) and view[place] == upper:
            if int(self.lower[place]) == lower:
                return int(self.positions[place])
            place += 1
        return None


@lru_cache(maxsize=1)  # `add` follows `find`
def _hash(identifier: str) -> bytes:
    return blake2b(identifier.encode("utf-8"), digest_size=_HASH_BYTES).digest()


def _sorted_run(upper: _UInt64s, lower: _UInt64s, positions: _UInt64s) -> _Run:
    order = np.argsort(upper, kind="stable")
    return _Run(upper[order], lower[order], positions[order])


def _merge(a: _Run, b: _Run) -> _Run:
    pairs = ((a.upper, b.upper), (a.lower, b.lower), (a.positions, b.positions))
    return _sorted_run(*map(np.concatenate, pairs))


def _to_json(value: Any) -> Any:
    """Return the value in types of JSON; equal numbers are written alike."""
    kind = type(value)
    if kind in (str, int, bool, type(None)):
        return value
    if kind is float:
        return int(value) if abs(value) <= EXACT_INTEGER and value.is_integer() else value
    if kind is dict:
        return {key: _to_json(inner) for key, inner in value.items()}
    if kind is list:
        return [_to_json(inner) for inner in value]
    return _tagged(value)


def _tagged(value: Any) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"\0bytes": value.hex()}
    if isinstance(value, Decimal):
        return {"\0decimal": _decimal(value)}
    if isinstance(value, datetime):
        return {"\0timestamp": (value.astimezone(UTC) if value.tzinfo else value).isoformat()}
    if isinstance(value, date):
        return {"\0date": value.isoformat()}
    if isinstance(value, time):
        return {"\0time": value.isoformat()}
    raise BadRow("type", f"the metadata contains a value of type {type(value).__name__}, which cannot be stored")


def _decimal(value: Decimal) -> str:
    """Return sign, digits and exponent without zeros at the end: 1.50 and 1.5 are the same."""

    sign, digits, exponent = value.as_tuple()
    written = "".join(map(str, digits)).lstrip("0")
    short = written.rstrip("0")
    if not short:
        return "0"
    return f"{'-' if sign else ''}{short}e{int(exponent) + len(written) - len(short)}"
