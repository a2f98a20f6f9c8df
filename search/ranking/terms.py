"""The terms of a text for BM25: words without stop words, stemmed by the settings of `[hybrid]`.

Words are runs of letters and digits with their combining marks (vowel signs, accents), composed (NFC) and lower-cased.
With `terms = "words"` (and "auto", before a build) they have at least two characters. With "code" words of one
character count too, and so do the parts of `snake_case`, `camelCase` and `HTTPServer` in addition to the whole. Scripts
without spaces are not cut into words: a run of them is one term.
"""

import logging
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from indexer.errors import MachineError
from indexer.lazy_imports import require_extra
from indexer.recipe.ranking import NO_LANGUAGE, HybridConfig
from indexer.system.versions import version_of
from search.ranking.definitions import is_defining

_STOPPED = (
    "danish", "dutch", "english", "french", "german", "italian", "norwegian", "portuguese", "russian", "spanish",
    "swedish", "turkish",
)  # fmt: skip
"""Languages for which bm25s has a list of stop words."""
_LAST_MARK = 0x1FFFF  # only variation selectors lie beyond
_TURKISH_CAPITALS = str.maketrans({"I": "\u0131", "\u0130": "i"})  # str.lower follows other languages
_TOGETHER = 4 << 20  # characters tokenised together


class TermIds(NamedTuple):
    """Terms as numbers, in the form of bm25s: `ids` for each text, and `vocab` from term to number."""

    ids: "list[array[int]]"
    vocab: dict[str, int]


def require_packages(extra: str) -> tuple[Any, Any]:
    """Return bm25s and PyStemmer. Raises MachineError with the command that installs `extra`, which has both."""
    packages = require_extra("bm25s", extra), require_extra("Stemmer", extra)
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # importing bm25s turns on its debug messages
    return packages


def tokenize(texts: Sequence[str], extra: str, config: HybridConfig) -> list[list[str]]:
    """Return the terms of each text, in order. Raises MachineError, also for a language that PyStemmer lacks."""
    terms: list[list[str]] = _tokenized(texts, extra, config, return_ids=False)
    return terms


def tokenize_ids(texts: Iterable[str], extra: str, config: HybridConfig) -> TermIds:
    """Return the terms of a stream of texts as numbers, four bytes a term. Raises the errors of `tokenize`."""
    result = TermIds([], {})
    for block in _blocks(texts):
        terms = _tokenized(block, extra, config, return_ids=True)
        numbers = {local: result.vocab.setdefault(term, len(result.vocab)) for term, local in terms.vocab.items()}
        result.ids.extend(array("i", map(numbers.__getitem__, ids)) for ids in terms.ids)
    return result


def _blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    block, size = list[str](), 0
    for text in texts:
        block.append(text)
        size += len(text)
        if size >= _TOGETHER:
            yield block
            block, size = [], 0
    if block:
        yield block


def terms_parameters(config: HybridConfig) -> dict[str, str]:
    """Return the rules that make terms, for output and results."""
    stemmer = "none" if config.language == NO_LANGUAGE else f"{config.language} (Snowball)"
    return {"stemmer": stemmer, "stopwords": _stop_words(config) or "none", "terms": config.resolved().terms}


def terms_key(config: HybridConfig) -> dict[str, Any]:
    """Return everything that determines the terms of a text."""
    versions = {name: version_of(name) for name in ("bm25s", "PyStemmer")}
    return terms_parameters(config) | {"versions": versions, "unicode": unicodedata.unidata_version, "form": "NFC"}


def _tokenized(texts: Sequence[str], extra: str, config: HybridConfig, return_ids: bool) -> Any:
    bm25s, stemming = require_packages(extra)
    return bm25s.tokenize(
        [_prepared(text, config) for text in texts],
        token_pattern=_pattern(least=1 if config.terms == "code" else 2),
        stopwords=_stop_words(config) or [],
        stemmer=_stemmer(stemming, config.language),
        return_ids=return_ids,
        show_progress=False,
    )


def _stop_words(config: HybridConfig) -> str:
    """Return bm25s's name of the list; empty for none."""
    return config.language if config.language in _STOPPED else ""


def _stemmer(stemming: Any, language: str) -> Any:
    if language == NO_LANGUAGE:
        return None
    if language not in stemming.algorithms():
        raise MachineError(
            f'PyStemmer {version_of("PyStemmer")} has no stemmer for hybrid.language "{language}". Fix: install a '
            'newer version (pip install -U PyStemmer), or set hybrid.language = "none".'
        )
    return stemming.Stemmer(language)


@cache
def _pattern(least: int) -> str:
    """Return the pattern of words with at least this length. `\\w` alone ends a word at each combining mark."""
    marks = [code for code in range(_LAST_MARK + 1) if unicodedata.category(chr(code)) in ("Mn", "Mc")]
    ends = [place for place, (mark, after) in enumerate(pairwise(marks), 1) if after > mark + 1]
    runs = pairwise([0, *ends, len(marks)])
    ranges = "".join(f"{chr(marks[start])}-{chr(marks[end - 1])}" for start, end in runs)
    return rf"\w[\w{ranges}]{{{least - 1},}}"


def _prepared(text: str, config: HybridConfig) -> str:
    composed = unicodedata.normalize("NFC", text)
    if config.terms == "code":
        composed = re.sub(_pattern(least=1), lambda match: " ".join([match[0], *_parts(match[0])]), composed)
    return composed.translate(_TURKISH_CAPITALS) if config.language == "turkish" else composed


def identifiers(query: str) -> list[str]:
    """Return the different words of a query as they are written."""
    return list(dict.fromkeys(re.findall(_pattern(least=1), unicodedata.normalize("NFC", query))))


def _parts(identifier: str) -> list[str]:
    """Return the parts of snake_case and camelCase; none if there is only one."""
    if is_defining(identifier):
        return []
    parts = [part for piece in identifier.split("_") for part in _humps(piece)]
    return parts if len(parts) > 1 else []


def _humps(word: str) -> list[str]:
    """Cut a word before a capital after a small letter, and before the last of several capitals."""
    cuts = [
        place
        for place in range(1, len(word))
        if word[place].isupper() and (not word[place - 1].isupper() or word[place + 1 : place + 2].islower())
    ]
    return [word[start:end] for start, end in pairwise([0, *cuts, len(word)]) if end > start]
