"""The ids of one pass over a corpus: given ones are unique, those made of content are told apart."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from indexer.corpus.content_id import repeated_id
from indexer.corpus.document import Document
from indexer.corpus.rejection import BadRow
from indexer.corpus.seen_ids import SeenIds
from indexer.corpus.sources import SourceFile

_LINE_BITS = 40
_REMEMBERED = 1 << 12


class Position(NamedTuple):
    """Where a document stands: number of the file and line; and whether its id is made of its content."""

    file: int
    line: int
    made: bool

    @property
    def packed(self) -> int:
        """The position as one 64-bit number."""
        return (self.file << _LINE_BITS | self.line) << 1 | self.made

    @classmethod
    def of(cls, packed: int) -> "Position":
        """The position that was packed."""
        place = packed >> 1
        return cls(place >> _LINE_BITS, place & ((1 << _LINE_BITS) - 1), bool(packed & 1))


class UniqueIds:
    """The ids met so far, in about 24 bytes each (see `SeenIds`)."""

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self._files = files
        self._seen = SeenIds()
        self._numbers: dict[str, int] = {}  # the last of some contents that were repeated lately

    def add(self, identifier: str, position: Position) -> None:
        """Remember an id that `distinct` gave."""
        self._seen.add(identifier, position.packed)

    def place(self, position: Position) -> str:
        """The position, for messages."""
        return f"{self._files[position.file].shown}:{position.line}"

    def distinct(self, document: Document, made: bool) -> Document:
        """The document, or if its id is `made` of content that others had before, with its number among them behind.

        Raises BadRow ("duplicate-id") for a given id that was met before, and for a made one that was given.
        """
        packed = self._seen.find(document.id)
        if packed is None:
            return document
        first = Position.of(packed)
        if made and first.made:
            return replace(document, id=repeated_id(document.id, self._next_number(document.id)))
        if made:
            what = f"the row has no id, and the one made of its content is that of {self.place(first)}"
            raise BadRow("duplicate-id", what, "take one of the two out, or give the row an id of its own")
        what = f"the id was already used at {self.place(first)}"
        raise BadRow("duplicate-id", what, "give each document its own id")

    def _next_number(self, identifier: str) -> int:
        """The number after those taken. They have no gaps, so it is found by bisection where it is not remembered."""
        taken = self._numbers.get(identifier, 1)
        free = taken + 1
        while self._is_taken(identifier, free):
            taken, free = free, 2 * free
        while free - taken > 1:
            middle = (taken + free) // 2
            if self._is_taken(identifier, middle):
                taken = middle
            else:
                free = middle
        if len(self._numbers) >= _REMEMBERED:
            self._numbers.clear()
        self._numbers[identifier] = free
        return free

    def _is_taken(self, identifier: str, number: int) -> bool:
        return self._seen.find(repeated_id(identifier, number)) is not None
