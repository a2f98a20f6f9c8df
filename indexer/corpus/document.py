"""The record type `Document`, the text of it that is encoded, and a query that it could answer."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from indexer.corpus.row import read_as
from indexer.errors import ConfigError
from indexer.typed_arguments import checked

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_SENTENCE_WORDS, _WINDOW_WORDS = 24, 12  # most words of a short sentence; words taken from a longer one
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n")


@dataclass(frozen=True, slots=True)
class Document:
    """One document of the corpus, unchanged.

    `metadata` holds every other column: None, bool, int (64 bit), float, str, bytes, datetime, date,
    Decimal, list, or a dict of these types. A null value is the same as an absent one.

    `vector` is an embedding (d,) from the corpus, for encoders of kind "vectors". It is stored with the embeddings and
    not with the documents, and equality ignores it.
    """

    id: str
    text: str
    title: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    vector: "npt.NDArray[np.float32] | None" = field(default=None, compare=False, repr=False)


@checked
def joined_text(document: Document, columns: Iterable[str]) -> str:
    """Return the text to encode: the named columns, stripped, without blank ones, joined by one space.

    `title` and `text` are the document's own; any other name is a metadata column and must contain a string.
    BEIR and sentence-transformers join title and text with a space, too.
    """
    return join_columns([_column(document, name) for name in columns])


def encoded_columns(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that the encoded texts depend on: those that are joined, and the kind of their text."""
    return tuple(dict.fromkeys((*columns, "suffix")))


def only_encoded(document: Document, columns: Iterable[str]) -> Document:
    """Return the document without metadata that the encoded text does not depend on."""
    kept = {name: document.metadata[name] for name in encoded_columns(columns) if name in document.metadata}
    return replace(document, metadata=kept)


def text_bytes(document: Document) -> int:
    """Return the UTF-8 bytes of a document's strings: its id, title and text, and those in its metadata."""
    own = sum(map(_text_bytes, (document.id, document.title, document.text)))
    return own + _text_bytes(document.metadata) if document.metadata else own


def _text_bytes(value: Any) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode(errors="surrogatepass"))
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_text_bytes, value.values()))
    return sum(map(_text_bytes, value)) if isinstance(value, list | tuple) else 0


def is_blank(document: Document, columns: Iterable[str]) -> bool:
    """Return whether `joined_text` is empty."""
    blank = True
    for name in columns:  # all of them, as a column without text is an error; joined, long texts would be copied
        value = _column(document, name)
        blank = blank and (not value or value.isspace())
    return blank


def column_spans(document: Document, columns: Iterable[str], start: int, end: int) -> dict[str, tuple[int, int]]:
    """Return the place of the characters [start, end) of `joined_text` in each column: (start, end) by name.

    Columns outside the range are omitted.
    """
    spans, first = {}, 0
    for name in columns:
        value = _column(document, name) or ""
        if text := value.strip():
            shift = len(value) - len(value.lstrip()) - first
            low, high = max(start, first), min(end, first + len(text))
            if low < high:
                spans[name] = (low + shift, high + shift)
            first += len(text) + 1
    return spans


def join_columns(values: Iterable[str | None]) -> str:
    """Join column values as `joined_text` does; None is blank."""
    return " ".join([text for value in values if value and (text := value.strip())])


def _column(document: Document, name: str) -> str | None:
    if name == "text":
        return document.text
    if name == "title":
        return document.title
    value = document.metadata.get(name)
    if value is not None and not isinstance(value, str):
        raise ConfigError(
            f'corpus.text names column "{name}", which contains {type(value).__name__} in document "{document.id}"; '
            f"only text can be encoded. Fix: remove it from corpus.text, or {read_as(name, 'string')}."
        )
    return value


def pseudo_query(document: Document) -> str:
    """Return a text like a user's query: the title, else a short first sentence, else the first words.

    It replaces real queries where there are none: to fit the mean of queries, and to tune.
    """
    if document.title and document.title.strip():
        return document.title.strip()
    words = _SENTENCE_END.split(document.text.strip(), maxsplit=1)[0].split()
    return " ".join(words if len(words) <= _SENTENCE_WORDS else words[:_WINDOW_WORDS])
