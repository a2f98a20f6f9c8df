"""Small indexes for tests of filters, and a slow, simple evaluation of conditions."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from indexer.corpus.document import Document
from search.filters.filters import MetadataFilter
from tests.stored import open_index, write_index

if TYPE_CHECKING:
    from search.index import Index

Row = dict[str, Any]
Truth = bool | None  # None: NULL


def open_filters(index: Path, parts: Sequence[Sequence[Document]], live: Sequence[int] | None = None) -> MetadataFilter:
    """Return filters over an index of documents only; `live` are stored numbers, None: all."""
    reader = open_index(index, write_index(index, parts), live)
    return MetadataFilter(cast("Index", SimpleNamespace(documents=reader)))


def row_of(document: Document) -> Row:
    """Return a document's columns; use `get`, which returns None for absent columns."""
    return {"id": document.id, "title": document.title, "text": document.text, **document.metadata}


def not_(inner: Truth) -> Truth:
    return None if inner is None else not inner


def and_(*inner: Truth) -> Truth:
    return False if False in inner else None if None in inner else True


def or_(*inner: Truth) -> Truth:
    return not_(and_(*map(not_, inner)))


def compared(one: Any, other: Any, test: Callable[[Any, Any], bool]) -> Truth:
    """Compare; NULL if either side is NULL."""
    return None if one is None or other is None else test(one, other)


def is_like(value: str | None, pattern: str, escape: str = "", ignore_case: bool = False) -> Truth:
    """Evaluate LIKE and ILIKE by a regular expression."""
    if value is None:
        return None
    if ignore_case:
        value, pattern = value.lower(), pattern.lower()
    regex, characters = "", iter(pattern)
    for character in characters:
        if character == escape:
            regex += re.escape(next(characters))
        else:
            regex += {"%": ".*", "_": "."}.get(character, re.escape(character))
    return re.fullmatch(regex, value, re.DOTALL) is not None
