"""The terms of BM25: what bm25s makes of a text, without English stop words, stemmed by Snowball.

Documents and queries go this one way, for the baseline of `isotrope evaluate retrieval` and for `--hybrid` alike.
"""

import unicodedata
from collections.abc import Sequence
from typing import Any

from indexer.versions import version_of
from search.extras import require_extra

PARAMETERS: dict[str, Any] = {
    "package": "bm25s",
    "method": "lucene",
    "k1": 1.5,
    "b": 0.75,
    "stemmer": "english (Snowball)",
    "stopwords": "english",
}


def require_terms(extra: str) -> tuple[Any, Any]:
    """bm25s and PyStemmer. Raises MachineError with the line that installs `extra`, which brings them."""
    return require_extra("bm25s", extra), require_extra("Stemmer", extra)


def terms_of(texts: Sequence[str], extra: str) -> list[list[str]]:
    """The terms of each text, in its order. Raises as `require_terms`."""
    terms: list[list[str]] = _tokenized(texts, extra, return_ids=False)
    return terms


def numbered_terms(texts: Sequence[str], extra: str) -> Any:
    """`terms_of` as numbers: bm25s's `Tokenized`, with `ids` (a list for each text) and `vocab`. Raises as above."""
    return _tokenized(texts, extra, return_ids=True)


def terms_key() -> dict[str, Any]:
    """What decides which terms a text has."""
    versions = {name: version_of(name) for name in ("bm25s", "PyStemmer")}
    rules = {name: PARAMETERS[name] for name in ("stemmer", "stopwords")}
    return rules | {"versions": versions, "unicode": unicodedata.unidata_version}


def _tokenized(texts: Sequence[str], extra: str, return_ids: bool) -> Any:
    bm25s, stemming = require_terms(extra)
    return bm25s.tokenize(
        list(texts),
        stopwords=PARAMETERS["stopwords"],
        stemmer=stemming.Stemmer("english"),
        return_ids=return_ids,
        show_progress=False,
    )
