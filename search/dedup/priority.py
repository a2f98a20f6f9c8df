"""The priority order of documents, which decides which of two duplicates is kept."""

import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np

from indexer.arrays import RowIds
from indexer.corpus.document import Document, joined_text
from indexer.errors import ConfigError
from search.index import Index

_WAYS = ("first", "last", "longest")
_FIELDS = ("id", "title")  # columns besides metadata
_DESCENDING, _ASCENDING = ":desc", ":asc"


def priority(index: Index, prefer: str) -> RowIds:
    """Return the place of each document in the priority order, (documents,), 0 first; ties in corpus order.

    `prefer` is `first`, `last`, `longest` (characters of the encoded text) or `column:NAME`, ascending or, with
    `:desc`, descending; documents without a value come last. Holds one value a document. Raises ConfigError for
    anything else, and for a column without an order.
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
        return ranks([_value(document, column) for document in index.documents.all_documents()], descending)
    except TypeError as error:
        raise ConfigError(
            f'prefer is "{prefer}", but values of column "{column}" cannot be compared with each other ({error}); '
            f"expected text, numbers, dates or booleans of one kind. Fix: use {', '.join(_WAYS)}."
        ) from error


def ranks(values: Sequence[Any], descending: bool) -> RowIds:
    """Return the place of each value in order, (n,); ties as given, None and NaN last. Raises TypeError."""
    missing = [value is None or value != value for value in values]  # NaN
    present = [number for number, absent in enumerate(missing) if not absent]
    present.sort(key=values.__getitem__, reverse=descending)  # stable in reverse, too
    places = np.empty(len(values), np.int64)
    places[np.array([*present, *np.flatnonzero(missing)], np.int64)] = np.arange(len(values))
    return places


def _column(index: Index, prefer: str) -> tuple[str, bool]:
    """Return the name of the column, and whether its order is descending."""
    kind, _, column = prefer.partition(":")
    if kind != "column":
        raise ConfigError(
            f'prefer is "{prefer}"; {_did_you_mean(prefer, _WAYS)}expected {", ".join(_WAYS)}, '
            "column:NAME or column:NAME:desc."
        )
    descending = column.endswith(_DESCENDING)
    column = column.removesuffix(_DESCENDING) if descending else column.removesuffix(_ASCENDING)
    schema = index.manifest.schema
    known = [*_FIELDS, *schema]
    if column not in known:
        raise ConfigError(
            f'prefer is "{prefer}", but {index.path} has no column "{column}"; '
            f"{_did_you_mean(column, known)}it has {', '.join(known)}."
        )
    if isinstance(schema.get(column), dict):
        raise ConfigError(
            f'prefer is "{prefer}", but column "{column}" contains '
            f"{'lists' if 'list' in schema[column] else 'objects'}, which have no order; expected a column of text, "
            "numbers, dates or booleans."
        )
    return column, descending


def _value(document: Document, column: str) -> Any:
    return getattr(document, column) if column in _FIELDS else document.metadata.get(column)


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f'did you mean "{close[0]}"? ' if close else ""
