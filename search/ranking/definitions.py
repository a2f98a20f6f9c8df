"""The names that source code defines, as BM25 terms of their own: a question with a name finds its definition first.

A text that defines `read_file` has a marked term for it besides its words, and so has a question with this word.
Ordinary words that happen to be defined somewhere, such as `close`, do not count in a question of several words: there
the word must be of several parts, such as `read_file` or `readFile`, or rare.
"""

from bisect import bisect_left

from indexer.corpus.document import Document, joined_text
from indexer.corpus.files.markup import kind_of
from indexer.corpus.files.outline_code import definitions_of

_MARK = "\u02d0"  # a letter of phonetic alphabets: no name begins with it
_TIMES = 2  # measured: 3 finds few more definitions, and answers other questions worse
MOST_TEXTS, MOST_SHARE = 10, 0.003  # with a word that is rare


def defining(name: str) -> str:
    """Return the term of a text that defines a name."""
    return _MARK + name


def is_defining(word: str) -> bool:
    """Return whether a word is such a term."""
    return word.startswith(_MARK)


class Definitions:
    """The names that a document defines, with their places in its joined text."""

    def __init__(self, document: Document, columns: tuple[str, ...]) -> None:
        language = kind_of(document.metadata).language
        found = definitions_of(document.text, language) if language and "text" in columns else []
        start = joined_text(document, columns).find(document.text.strip())
        start -= len(document.text) - len(document.text.lstrip())
        named = sorted((start + each.named, each.name) for each in found if each.name)
        self._places, self._names = [place for place, _ in named], [name for _, name in named]

    def of(self, text: str, start: int) -> str:
        """Return a part of the joined text, from a character on, with the terms of the names that it defines."""
        first, last = bisect_left(self._places, start), bisect_left(self._places, start + len(text))
        return " ".join([text, *(_TIMES * [defining(name) for name in self._names[first:last]])])
