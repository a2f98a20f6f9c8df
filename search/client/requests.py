"""The bodies and paths of requests: options as fields, checked texts, and pieces that fit into one request."""

import json
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlencode

from indexer.errors import ConfigError
from search.ranking.options import SEARCH_OPTIONS, SearchOptions, require_texts

MOST_TEXTS = 64  # per request; the server accepts 256 queries by default, but other clients wait meanwhile
_MOST_HITS = 10_000  # of all queries of a request: the server's default
_MOST_BYTES = 4 << 20  # of texts per request: half of the server's default


def fields_of(options: SearchOptions) -> dict[str, Any]:
    """Return the options as fields of a request: `k`, and the options that differ from their defaults."""
    values = [(option, getattr(options, option.name)) for option in SEARCH_OPTIONS]
    fields = [(option, value) for option, value in values if value != option.default or option.name == "k"]
    if not all(option.is_served for option, _ in fields):
        raise ConfigError("partial is for segments in other processes; a server always answers from all segments.")
    return {option.name: float(value) if option.kind is float else value for option, value in fields}


def path_of(identity: str, optional: bool) -> str:
    """Return the path of a document, with any characters in its id; `optional` asks for null if it is missing."""
    return "/v1/documents?" + urlencode({"id": identity} | ({"optional": "true"} if optional else {}))


def require_unicode(texts: list[str], what: str = "query") -> list[str]:
    """Return the texts. Raises ConfigError for a text that UTF-8 cannot encode."""
    for number, text in enumerate(texts, start=1):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            name = f"{what} {number}" if len(texts) > 1 else what
            raise ConfigError(
                f"{name} is not valid text: half a surrogate pair, or bytes that are not UTF-8."
            ) from error
    return texts


def require_ids(ids: Iterable[str]) -> list[str]:
    """Return the ids of documents. Raises ConfigError for items that are not strings, or not UTF-8."""
    return require_unicode(require_texts(ids, "ids", "Fix: for a single document, call document."), "the id")


def require_embeddable(texts: Iterable[str]) -> list[str]:
    """Return texts for embeddings. Raises ConfigError for items that are not strings, blank, or not UTF-8."""
    checked = require_texts(texts, "texts", "Fix: pass a single text in a list.")
    for number, text in enumerate(checked, start=1):
        if not text.strip():
            raise ConfigError(f"text {number} is blank; a server embeds only texts that are not blank.")
    return require_unicode(checked, "text")


def pieces_of(texts: list[str], k: int = 1) -> Iterator[list[str]]:
    """Split texts into requests, within the limits of texts, hits (`k` for each text) and bytes."""
    most, piece, length = max(min(MOST_TEXTS, _MOST_HITS // k), 1), list[str](), 0
    for text in texts:
        size = len(json.dumps(text, ensure_ascii=False).encode())
        if piece and (len(piece) == most or length + size > _MOST_BYTES):
            yield piece
            piece, length = [], 0
        piece.append(text)
        length += size
    if piece:
        yield piece
