"""Checks of the words and signs of a filter before it is parsed, and the messages about its mistakes.

The syntax tree no longer shows comments. Some filters would make parsing itself long: words of other statements,
depth, and the copies that CASE x WHEN makes of x are refused here. The parser gets no long lists of literals, because
DuckDB needs a while to read thousands of them; they come back as tables.
"""

import re
from typing import Never

from indexer.errors import ConfigError
from search.filters.columns import RESERVED, ColumnNames
from search.filters.database import FilterDatabase, FilterError
from search.filters.expressions import shortened
from search.text import escape

LONGEST = 100_000  # characters; IN lists of thousands of ids are no rarity
DEEPEST = 50  # conditions within conditions
MOST = 500  # comparisons, columns and functions: DuckDB's planning of a thousand takes seconds, and is not interrupted
_LONG_LIST = 64  # literals of a list that is taken out
_CASE_OPERAND = 40  # words and signs between CASE and WHEN, which the parser copies for each WHEN
_SHOWN = 60  # characters of a filter on each side of a mistake
START = "SELECT 1 WHERE "
UNFIT = re.compile("[\0\ud800-\udfff]")
_CLAUSES = (
    "SELECT UNION INTERSECT EXCEPT WITH WHERE GROUP ORDER HAVING LIMIT OFFSET WINDOW QUALIFY FETCH INTO TABLE USING "
    "LATERAL CREATE PIVOT PIVOT_WIDER PIVOT_LONGER UNPIVOT DESCRIBE SHOW SUMMARIZE RETURNING TABLESAMPLE LAMBDA "
    "COLLATE"
)
_STATEMENTS = frozenset(_CLAUSES.split())  # reserved words that no condition on one row needs
_LOGIC = (
    "and or not in is null like ilike glob similar to escape between true false case when then else end cast as "
    "distinct from array any all some both leading trailing for isnull notnull placing default"
)
_WORDS = frozenset(_LOGIC.split())  # reserved words that a condition is made of
_QUOTES = "text is written in straight single quotes: 'en'"
PARAMETERS = "a filter has no parameters; write the value itself"
_REFUSED = {
    ";": "a filter is one condition, not several statements",
    **dict.fromkeys("‘’“”`", _QUOTES),  # noqa: RUF001
    **dict.fromkeys("?$", PARAMETERS),
}
_TEXTS = re.compile(rb"\s*\(\s*('[^']*+(?:''[^']*+)*+'(?:\s*,\s*'[^']*+(?:''[^']*+)*+')*+)\s*\)")
_TEXT = re.compile(rb"'([^']*+(?:''[^']*+)*+)'")
_WHOLES = re.compile(rb"\s*\(\s*(-?\d{1,18}(?:\s*,\s*-?\d{1,18})*+)\s*\)")
_WHOLE = re.compile(rb"-?\d+")
_LETTERS = re.compile(rb"\w+")


def refuse(where: str, reason: str, place: int | None = None) -> Never:
    """Raise ConfigError: the filter, what is wrong, and at which character (`place` counts from 0)."""
    at = "" if place is None else f"at character {place + 1}: "
    start, end = max(0, (place or 0) - _SHOWN), (place or 0) + _SHOWN
    before, after = "..." * (start > 0), "..." * (end < len(where))
    raise ConfigError(f"filter [{before}{escape(where[start:end])}{after}]: {at}{escape(reason)}.")


def refuse_byte(where: str, reason: str, byte: int) -> Never:
    """Raise as `refuse`, with a place in bytes of UTF-8."""
    refuse(where, reason, len(where.encode()[:byte].decode(errors="ignore")))


def refuse_syntax(where: str, error: FilterError) -> Never:
    """Raise ConfigError with the message of DuckDB's parser, at the place in the filter."""
    reason = str(error)
    if "expression depth" in reason:
        refuse(where, f"conditions lie more than {DEEPEST} deep in one another")
    near = re.fullmatch(r'syntax error at or near "(.*)"', reason, re.DOTALL)
    quotes = {
        "unterminated string literal": "this text has no closing quote (a quote inside text is written twice: 'it''s')",
        "unterminated quoted identifier": "this name has no closing quote, or is empty",
    }
    reason = quotes.get(reason, reason)
    place = None if error.place is None else max(0, error.place - len(START))
    if near:
        last = where.encode()[place:].strip() == near[1].encode()
        ends = last and (near[1].lower() in _WORDS or not near[1].strip("'\"")[-1:].isalnum())
        found = f"the filter ends after {near[1]}" if ends else f"{shortened(near[1])} does not fit here"
        reason = f"{found}; a filter is one condition such as year > 2019 AND lang = 'en'"
    if place is None:
        refuse(where, reason.rstrip("."))
    refuse_byte(where, reason.rstrip("."), place)


class Scanner:
    """Checks the words and signs of a filter before it is parsed. Places are bytes of the statement."""

    def __init__(self, where: str, columns: ColumnNames, database: FilterDatabase) -> None:
        self._where, self._columns = where, columns
        if not where.strip():
            refuse(where, "it is empty; expected a condition such as year > 2019 AND lang = 'en'")
        if len(where) > LONGEST:
            refuse(where, f"{len(where):,} characters; at most {LONGEST:,} are read")
        if unfit := UNFIT.search(where):
            refuse(where, "a null character or half a surrogate pair, which no document holds", unfit.start())
        self._bytes = (START + where).encode()
        self._kept = bytearray(self._bytes)
        self._tokens = [(start + len(START), kind) for start, kind in database.tokens(where)]
        self.lists: dict[int, list[bytes]] = {}  # long lists that are left out, by the place of their first literal
        self.names: dict[int, str] = {}  # columns named as a word of SQL is, by their place
        self._depth, self._taken, self._whens = 0, 0, 0
        self._cases: list[int | None] = []  # the token at which each open CASE began, until its WHEN

    def statement(self) -> str:
        """Return the query to parse, without `lists` and with other words for `names`; every place stays the same.

        Raises ConfigError for anything but a condition.
        """
        for number, (start, kind) in enumerate(self._tokens):
            if start < self._taken:
                continue
            if kind == "comment":
                self._refuse("a filter has no comments", start)
            elif kind == "keyword":
                self._keyword(number, self._word(start), start)
            elif kind in ("operator", "identifier"):
                self._sign(start)
        return self._kept.decode()

    def _refuse(self, reason: str, byte: int) -> Never:
        refuse_byte(self._where, reason, byte - len(START))

    def _word(self, start: int) -> str:
        """Return the word that starts there, in upper case."""
        found = _LETTERS.match(self._bytes, start)
        return found.group().decode().upper() if found else ""

    def _keyword(self, number: int, word: str, start: int) -> None:
        if word in _STATEMENTS:
            self._refuse(
                f"{word} has no place here: a filter is one condition, without subqueries and the like "
                "(a column of that name goes in double quotes)",
                start,
            )
        opened = self._cases[-1] if self._cases else None
        if word.lower() in RESERVED - _WORDS and self._columns.has(word) and not self._is_called(start + len(word)):
            self.names[start] = word
            self._kept[start : start + len(word)] = b"x" * len(word)
        elif word == "IN":
            self._take_list(start + len(word))
        elif word == "CASE":
            if any(case is not None for case in self._cases):
                self._refuse("a CASE between CASE and WHEN; write CASE WHEN ... = ... THEN ...", start)
            self._cases.append(number)
        elif word == "WHEN":
            self._whens += 1
            if self._whens > MOST:
                self._refuse(f"more than {MOST} WHENs", start)
            if opened is not None and number - opened > _CASE_OPERAND:
                self._refuse("too much stands between CASE and WHEN; write CASE WHEN ... = ... THEN ...", start)
            self._cases[-1:] = [None] * bool(self._cases)
        elif word == "END" and self._cases:
            self._cases.pop()

    def _is_called(self, end: int) -> bool:
        return self._bytes[end:].lstrip()[:1] == b"("

    def _sign(self, start: int) -> None:
        sign = self._bytes[start : start + 4].decode(errors="ignore")[:1]
        if sign in _REFUSED:
            self._refuse(_REFUSED[sign], start)
        self._depth += (sign in "([{") - (sign in ")]}")
        if self._depth > DEEPEST:
            self._refuse(f"conditions lie more than {DEEPEST} deep in one another", start)

    def _take_list(self, start: int) -> None:
        """Replace a long list of literals by blanks, except for its first literal."""
        for form, literal in ((_TEXTS, _TEXT), (_WHOLES, _WHOLE)):
            found = form.match(self._bytes, start)
            held = [one.group() for one in literal.finditer(found[1])] if found else []
            if found and len(held) >= _LONG_LIST:
                first = found.start(1)
                self.lists[first] = held
                self._kept[first + len(held[0]) : found.end(1)] = b" " * (len(found[1]) - len(held[0]))
                self._taken = found.end()
