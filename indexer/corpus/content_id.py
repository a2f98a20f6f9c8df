"""Ids for documents that come without one: made of their content, so that the same document has the same id in another
file, in another order and tomorrow.

An id is 32 hex digits: blake2b, 128 bits, of the UTF-8 JSON text of [title, text, metadata] without spaces, keys in
order of code points, whole numbers without a fraction; a zero byte and the vector as little-endian float32 follow
where a document comes with one. What JSON has no type for is an object with one key that no metadata has: a NUL
character and the name of the type. At 10^9 documents the chance of any two contents with one id is about 10^-21.

None of this may ever change: ids of indexes on disk are made so.
"""

import json
import re
from datetime import UTC, date, datetime, time
from decimal import Decimal
from hashlib import blake2b
from typing import Any

import numpy as np

from indexer.corpus.column_kinds import EXACT_INTEGER
from indexer.corpus.document import Document

_BYTES = 16
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True)
_REPEATED = re.compile(r"-[1-9][0-9]*\Z")


def content_id(document: Document) -> str:
    """The id of the document's title, text, canonical metadata and vector, whatever its own id is."""
    written = _ENCODER.encode([document.title, document.text, _plain(document.metadata)])
    digest = blake2b(written.encode(), digest_size=_BYTES)
    if document.vector is not None:
        digest.update(b"\0" + np.ascontiguousarray(document.vector, "<f4").tobytes())
    return digest.hexdigest()


def repeated_id(identifier: str, times: int) -> str:
    """The id of the document that has the content of `times - 1` others before it in its corpus."""
    return f"{identifier}-{times}" if times > 1 else identifier


def has_content_id(document: Document) -> bool:
    """Whether the document's id is one that is made of its content."""
    return _REPEATED.sub("", document.id) == content_id(document)


def _plain(value: Any) -> Any:
    """The value in types of JSON; equal numbers are written alike."""
    kind = type(value)
    if kind in (str, int, bool, type(None)):
        return value
    if kind is float:
        return int(value) if abs(value) <= EXACT_INTEGER and value.is_integer() else value
    if kind is dict:
        return {key: _plain(inner) for key, inner in value.items()}
    if kind is list:
        return [_plain(inner) for inner in value]
    return _named(value)


def _named(value: Any) -> dict[str, str]:
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
    raise TypeError(f"metadata of type {type(value).__name__} has no canonical form")


def _decimal(value: Decimal) -> str:
    """Sign, digits and exponent, without zeros at the end: 1.50 and 1.5 are the same."""
    sign, digits, exponent = value.as_tuple()
    written = "".join(map(str, digits)).lstrip("0")
    short = written.rstrip("0")
    if not short:
        return "0"
    return f"{'-' if sign else ''}{short}e{int(exponent) + len(written) - len(short)}"
