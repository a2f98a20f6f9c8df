"""Changes to columns of stored documents."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from indexer.corpus.columns import ID_COLUMNS
from indexer.corpus.document import Document
from indexer.errors import ConfigError, UnknownDocumentError
from search.index import Index


def updated_documents(index: Index, changes: Iterable[Mapping[str, Any]]) -> Iterator[Document]:
    """Yield the stored documents with their changed columns, in the order of the changes.

    A column has its name in the corpus, or is `title` or `text`. Raises ConfigError for a change that is not a dict
    with an id, and UnknownDocumentError.
    """
    if isinstance(changes, str | Mapping) or not isinstance(changes, Iterable):
        raise ConfigError(f"changes is of type {type(changes).__name__}; expected a list of dicts.")
    rows = [_row(number, change) for number, change in enumerate(changes, start=1)]
    names = index.config.corpus.id_column, *ID_COLUMNS
    ids = [_pop_id(number, row, names) for number, row in enumerate(rows, start=1)]
    numbers = index.ids.find(ids)
    if missing := [identity for identity in ids if identity not in numbers]:
        raise UnknownDocumentError(
            f'{index.path}: contains no document with id "{missing[0]}"; nothing was changed. Fix: add new documents '
            "with add."
        )
    wanted = [numbers[identity] for identity in ids]
    for number, document, row in zip(wanted, index.documents.fetch(wanted), rows, strict=True):
        yield _changed(index, number, document, row)


def _row(number: int, change: Any) -> dict[str, Any]:
    if not isinstance(change, Mapping):
        raise ConfigError(f"change {number} is of type {type(change).__name__}; expected a dict.")
    return dict(change)


def _pop_id(number: int, row: dict[str, Any], names: Iterable[str]) -> str:
    column = next((name for name in names if name and name in row), None)
    if column is None:
        raise ConfigError(f'change {number} has no id; expected the column "{ID_COLUMNS[1]}".')
    return str(row.pop(column))


def _changed(index: Index, number: int, document: Document, row: dict[str, Any]) -> Document:
    rules = index.config.corpus
    for field, column in (("title", rules.title_column), ("text", rules.text_column), ("vector", rules.vector_column)):
        for name in {field, column} & row.keys():
            document = replace(document, **{field: row.pop(name)})
    if rules.vector_column and document.vector is None:
        document = replace(document, vector=index.embeddings(np.array([number]))[0])
    return replace(document, metadata=document.metadata | row)
