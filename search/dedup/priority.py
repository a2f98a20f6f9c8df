"""Which of two duplicates stays: the place of each document in the priority order."""

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from indexer.arrays import RowIds
from indexer.corpus.document import Document, joined_text
from indexer.errors import ConfigError
from search.index import Index

_WAYS = ("first", "last", "longest")
_OWN = ("id", "title")  # columns that are no metadata
_DESCENDING, _ASCENDING = ":desc", ":asc"


def priority(index: Index, prefer: str) -> RowIds:
    """Place of each document, (documents,), 0 for the one that is kept first; ties are in corpus order.

    `prefer` is `first`, `last`, `longest` (characters of the encoded text) or `column:NAME`, ascending, with `:desc`
    behind it descending; documents without a value come last either way. Documents are read one after the other, and
    one number or value of each is held. Raises ConfigError for anything else, or for a column of no order.
    """
    if prefer == "first":
        return np.arange(index.manifest.documents)
    if prefer == "last":
        return np.arange(index.manifest.documents)[::-1].copy()
    if prefer == "longest":
        columns = index.config.corpus.text
        lengths = [len(joined_text(document, columns)) for document in index.documents.all_documents()]
        return ranks(lengths, descending=True)
    column, descending = _column(index, prefer)
    try:
        return ranks(list(_values(index, column)), descending)
    except TypeError as error:
        raise ConfigError(
            f'prefer is "{prefer}", but values of column "{column}" cannot be compared with one another ({error}). '
            f"Expected text, numbers, dates or true and false, all of one kind; or use {', '.join(_WAYS)}."
        ) from error


def ranks(values: Sequence[Any], descending: bool) -> RowIds:
    """Place of each value in ascending or descending order; ties as given; None and NaN last. Raises TypeError."""
    present = [number for number, value in enumerate(values) if not _missing(value)]
    missing = [number for number, value in enumerate(values) if _missing(value)]
    present.sort(key=values.__getitem__, reverse=descending)  # stable in reverse, too
    places = np.empty(len(values), np.int64)
    places[np.array(present + missing, np.int64)] = np.arange(len(values))
    return places


def _missing(value: Any) -> bool:
    return value is None or value != value  # NaN


def _column(index: Index, prefer: str) -> tuple[str, bool]:
    """The name of the column, and whether its order is reversed."""
    kind, _, column = prefer.partition(":")
    if kind != "column":
        raise ConfigError(
            f'prefer is "{prefer}"; {_did_you_mean(prefer, _WAYS)}expected {", ".join(_WAYS)}, '
            "column:NAME or column:NAME:desc."
        )
    descending = column.endswith(_DESCENDING)
    column = column.removesuffix(_DESCENDING) if descending else column.removesuffix(_ASCENDING)
    schema = index.manifest.schema
    known = [*_OWN, *schema]
    if column not in known:
        raise ConfigError(
            f'prefer is "{prefer}", but {index.path} has no column "{column}"; '
            f"{_did_you_mean(column, known)}it has {', '.join(known)}."
        )
    if isinstance(schema.get(column), dict):
        raise ConfigError(
            f'prefer is "{prefer}", but column "{column}" holds {"lists" if "list" in schema[column] else "objects"}, '
            "which have no order; expected a column of text, numbers, dates or true and false."
        )
    return column, descending


def _values(index: Index, column: str) -> Iterator[Any]:
    return (_value(document, column) for document in index.documents.all_documents())


def _value(document: Document, column: str) -> Any:
    return getattr(document, column) if column in _OWN else document.metadata.get(column)


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f'did you mean "{close[0]}"? ' if close else ""
