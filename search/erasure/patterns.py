"""Search for secret byte strings in data: a proof holds their keyed hashes, not the bytes.

A short hash of the first 8 bytes at every position selects candidates, whose HMAC is then compared.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from indexer.pipeline.erase import keyed
from indexer.store.layout import Hash

Bytes = npt.NDArray[np.uint8]
_CHUNK = 1 << 20
_START = 8  # bytes whose hash selects candidates
_BITS = 22  # of that hash
_SPACE = 32


class Pattern(Struct, frozen=True):
    """Byte strings of one length: a short hash of the start of each, and its HMAC."""

    length: Annotated[int, Meta(ge=1)]
    starts: list[Annotated[int, Meta(ge=0, lt=1 << _BITS)]]
    macs: list[Hash]


class Searcher:
    """Finds byte strings of some patterns under a salt."""

    def __init__(self, salt: str, patterns: Sequence[Pattern]) -> None:
        self._salt, self._factor = salt, _factor(salt)
        self._groups: dict[int, list[tuple[int, npt.NDArray[np.int64]]]] = {}  # by the bytes of the start
        for pattern in patterns:
            starts = np.array(pattern.starts, np.int64)
            self._groups.setdefault(min(pattern.length, _START), []).append((pattern.length, starts))
        self._macs = {mac for pattern in patterns for mac in pattern.macs}
        self._tables = {size: _table(group) for size, group in self._groups.items()}
        self.reach = max((pattern.length for pattern in patterns), default=1) - 1  # bytes that chunks must share

    def found(self, data: Bytes) -> set[str]:
        """Return the HMACs of the strings that occur in some bytes, (n,)."""
        found = set[str]()
        for start in range(0, len(data) if self._groups else 0, _CHUNK):
            chunk = data[start : start + _CHUNK + self.reach]
            for text in {text for size in self._groups for text in self._candidates(chunk, size)}:
                mac = keyed(self._salt, text)
                if mac in self._macs:
                    found.add(mac)
        return found

    def _candidates(self, chunk: Bytes, size: int) -> Iterator[bytes]:
        table, text = self._tables[size], chunk.tobytes()
        padded = text + bytes(_START)  # so that 8 bytes can be read at every position
        for shift in range(_START):
            keys = _keys(np.frombuffer(padded, "<u8", (len(padded) - shift) // _START, shift), size, self._factor)
            places = np.flatnonzero(table[keys])
            for length, starts in self._groups[size]:
                chosen = places[np.isin(keys[places], starts)] * _START + shift
                for at in chosen[chosen + length <= len(text)].tolist():
                    yield text[at : at + length]


def patterns_of(salt: str, strings: Iterable[bytes]) -> list[Pattern]:
    """Return the patterns of some byte strings, by length."""
    by_length: dict[int, list[bytes]] = {}
    for string in sorted(set(strings)):
        by_length.setdefault(len(string), []).append(string)
    factor = _factor(salt)
    return [
        Pattern(
            length,
            [int(_keys(_first(one), min(length, _START), factor)[0]) for one in same],
            [keyed(salt, one) for one in same],
        )
        for length, same in sorted(by_length.items())
    ]


def without(patterns: Iterable[Pattern], macs: set[str]) -> list[Pattern]:
    """Return patterns without the strings that have some HMACs."""
    left = []
    for pattern in patterns:
        pairs = [pair for pair in zip(pattern.starts, pattern.macs, strict=True) if pair[1] not in macs]
        if pairs:
            left.append(Pattern(pattern.length, [start for start, _ in pairs], [mac for _, mac in pairs]))
    return left


def joined(strings: Iterable[str]) -> Bytes:
    """Return strings as the bytes of one text, in which no window and no word spans two of them."""
    return np.frombuffer("".join([f" {string} \0" for string in strings]).encode("utf-8", "surrogatepass"), np.uint8)


def normalised(data: Bytes, before: int = 0) -> Bytes:
    """Return text with lower-case ASCII letters and one space for every run of other ASCII characters except NUL.

    `before` is the last byte of the normalised text that precedes the data.
    """
    plain: Bytes = _NORMAL[data]
    space = plain == _SPACE
    follows = np.concatenate([[before == _SPACE], space[:-1]])
    kept: Bytes = plain[~(space & follows)]
    return kept


def _first(text: bytes) -> npt.NDArray[np.uint64]:
    return np.frombuffer(text[:_START].ljust(_START, b"\0"), "<u8")


def _keys(starts: npt.NDArray[np.uint64], size: int, factor: np.uint64) -> npt.NDArray[np.int64]:
    """Return the hash of the first `size` of 8 bytes, (n,)."""
    if size < _START:
        starts = starts & np.uint64((1 << 8 * size) - 1)
    return ((starts * factor) >> np.uint64(64 - _BITS)).astype(np.int64)


def _factor(salt: str) -> np.uint64:
    """Return a random odd number."""
    return np.uint64(int.from_bytes(hashlib.sha256(bytes.fromhex(salt)).digest()[:8]) | 1)


def _table(group: Iterable[tuple[int, npt.NDArray[np.int64]]]) -> npt.NDArray[np.bool_]:
    table = np.zeros(1 << _BITS, bool)
    for _, starts in group:
        table[starts] = True
    return table


_NORMAL = np.array(
    [0, *(ord(chr(byte).lower()) if chr(byte).isalnum() else _SPACE for byte in range(1, 128)), *range(128, 256)],
    np.uint8,
)
