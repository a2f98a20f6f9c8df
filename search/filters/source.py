"""The text of a filter: its words and signs, each with its place, and how a mistake in it is told."""

import re
from dataclasses import dataclass
from typing import Never

from indexer.errors import ConfigError
from search.text import escape

LONGEST = 100_000  # characters; IN lists of thousands of ids are no rarity
_SHOWN = 60  # characters of a piece in a message, and of a filter on each side of a mistake

_WORD = r"(?:[^\W\d]|[^\x00-\x7f\s‘’“”])(?:\w|[^\x00-\x7f\s‘’“”])*"  # noqa: RUF001  # as in SQL: any letter, or mark of one
_TOKEN = re.compile(
    rf"""(?P<space>\s+)
      | (?P<comment>--|/\*)
      | (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
      | (?P<word>{_WORD})
      | (?P<name>"(?:[^"]|"")+")
      | (?P<text>'(?:[^']|'')*')
      | (?P<sign><=|>=|<>|!=|==|::|[=<>(),.\-])""",
    re.VERBOSE,
)
_UNFIT = re.compile("[\0\ud800-\udfff]")
_WORDS = (
    "AND OR NOT IN IS NULL LIKE ILIKE ESCAPE BETWEEN TRUE FALSE CAST TRY_CAST AS DISTINCT FROM "
    "SELECT UNION INTERSECT EXCEPT WITH VALUES EXISTS ANY ALL SOME CASE WHEN THEN ELSE END OVER WHERE "
    "GROUP ORDER HAVING LIMIT OFFSET SET INTERVAL LAMBDA SIMILAR GLOB COLLATE"
)
RESERVED = frozenset(_WORDS.split())  # as the name of a column, such a word is written in double quotes
_QUOTES = "text is written in straight single quotes: 'en'"
_SIGNS = "a filter has no arithmetic, patterns or stars"
_VALUES = "a filter has no parameters; write the value itself"
_LISTS = "a filter has no lists or objects but the list of IN: lang IN ('en', 'fr')"
_REFUSED = {
    ";": "a filter is one condition, not several statements",
    "'": "this text has no closing quote (a quote inside text is written twice: 'it''s')",
    '"': "this name has no closing quote, or is empty",
    **dict.fromkeys("‘’“”`", _QUOTES),  # noqa: RUF001
    **dict.fromkeys("?$:", _VALUES),
    **dict.fromkeys("+*/%^&|~#@!", _SIGNS),
    **dict.fromkeys("[]{}\\", _LISTS),
}


@dataclass(frozen=True, slots=True)
class Token:
    """One word, quoted name, text, number or sign of a filter; kind "end" after the last."""

    kind: str
    value: str  # a word in upper case; what the quotes of a name or text hold
    start: int
    end: int


class Source:
    """A filter as it was written."""

    def __init__(self, where: str) -> None:
        self.where = where

    def tokens(self) -> list[Token]:
        """Its words and signs. Raises ConfigError for an empty filter, and for anything that is neither."""
        where = self.where
        if not where.strip():
            self.refuse("it is empty; expected a condition such as year > 2019 AND lang = 'en'")
        if len(where) > LONGEST:
            self.refuse(f"{len(where):,} characters; at most {LONGEST:,} are read")
        if unfit := _UNFIT.search(where):
            self.refuse("a null character or half a surrogate pair, which no document holds", unfit.start())
        found, position = [], 0
        while position < len(where):
            match = _TOKEN.match(where, position)
            if match is None or match.lastgroup == "comment":
                self._refuse_character(position)
            elif match.lastgroup != "space":
                found.append(self._token(str(match.lastgroup), match.group(), position))
            position = match.end() if match else len(where)
        return [*found, Token("end", "", len(where), len(where))]

    def refuse(self, reason: str, place: int | None = None) -> Never:
        """Raise ConfigError: the filter, what is wrong, and at which character (`place` counts from 0)."""
        at = "" if place is None else f"at character {place + 1}: "
        raise ConfigError(f"filter {self._near(place or 0)}: {at}{escape(reason)}.")

    def shown(self, start: int, end: int) -> str:
        """A piece of the filter for a message."""
        return shortened(self.where[start:end])

    def _near(self, place: int) -> str:
        start, end = max(0, place - _SHOWN), place + _SHOWN
        before, after = "..." * (start > 0), "..." * (end < len(self.where))
        return f"[{before}{escape(self.where[start:end])}{after}]"

    def _token(self, kind: str, written: str, start: int) -> Token:
        value = written
        if kind == "word":
            value = written.upper()
        elif kind in ("name", "text"):
            quote = written[0]
            value = written[1:-1].replace(quote * 2, quote)
        return Token(kind, value, start, start + len(written))

    def _refuse_character(self, position: int) -> Never:
        character = self.where[position]
        if character in "-/":
            self.refuse("a filter has no comments", position)
        self.refuse(_REFUSED.get(character, f'"{escape(character)}" has no place in a filter'), position)


def shortened(text: str, most: int = _SHOWN) -> str:
    """Text for a message, its end cut off where it is long."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
