"""Checks of a filter's tokens before parsing, and error messages with positions.

The scanner rejects comments, which the syntax tree does not show, and filters that would take long to parse: other
statements, deep nesting, and CASE x WHEN with a long x, which the parser copies. DuckDB parses thousands of literals
slowly, so long lists are replaced by tables.
"""

import re
from typing import Never

from indexer.errors import ConfigError
from search.filters.columns import RESERVED, ColumnNames
from search.filters.database import FilterDatabase, FilterError
from search.filters.expressions import shortened
from search.formatting import escape

LONGEST = 100_000  # characters; IN lists with thousands of ids are common
DEEPEST = 50  # nested conditions
MOST = 500  # comparisons, columns and functions: planning a thousand takes DuckDB seconds, without interruption
_LONG_LIST = 64  # literals of a list that is replaced by a table
_CASE_OPERAND = 40  # tokens between CASE and WHEN, which the parser copies for each WHEN
_SHOWN = 60  # characters of a filter on each side of an error
START = "SELECT 1 WHERE "
UNFIT = re.compile("[\0\ud800-\udfff]")
_CLAUSES = (
    "SELECT UNION INTERSECT EXCEPT WITH WHERE GROUP ORDER HAVING LIMIT OFFSET WINDOW QUALIFY FETCH INTO TABLE USING "
    "LATERAL CREATE PIVOT PIVOT_WIDER PIVOT_LONGER UNPIVOT DESCRIBE SHOW SUMMARIZE RETURNING TABLESAMPLE LAMBDA "
    "COLLATE"
)
_STATEMENTS = frozenset(_CLAUSES.split())  # reserved words of queries
_LOGIC = (
    "and or not in is null like ilike glob similar to escape between true false case when then else end cast as "
    "distinct from array any all some both leading trailing for isnull notnull placing default"
)
_WORDS = frozenset(_LOGIC.split())  # reserved words of conditions
_QUOTES = "text needs straight single quotes: 'en'"
PARAMETERS = "filters do not support parameters; write the value itself"
TOO_DEEP = f"conditions are nested more than {DEEPEST} deep"
UNFIT_TEXT = "a null character or half a surrogate pair, which no document contains"
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
    """Raise ConfigError with the filter, the reason and the position; `place` counts characters from 0."""
    at = "" if place is None else f"at character {place + 1}: "
    start, end = max(0, (place or 0) - _SHOWN), (place or 0) + _SHOWN
    before, after = "..." * (start > 0), "..." * (end < len(where))
    raise ConfigError(f"filter [{before}{escape(where[start:end])}{after}]: {at}{escape(reason)}.")


def refuse_byte(where: str, reason: str, byte: int) -> Never:
    """Raise ConfigError as `refuse` does, with a position in bytes of the statement."""
    refuse(where, reason, len(where.encode()[: max(0, byte - len(START))].decode(errors="ignore")))


def refuse_syntax(where: str, error: FilterError) -> Never:
    """Raise ConfigError with the message of DuckDB's parser and the position in the filter."""
    reason = str(error)
    if "expression depth" in reason:
        refuse(where, TOO_DEEP)
    near = re.fullmatch(r'syntax error at or near "(.*)"', reason, re.DOTALL)
    quotes = {
        "unterminated string literal": "this text has no closing quote (write quotes inside text twice: 'it''s')",
        "unterminated quoted identifier": "this name has no closing quote, or is empty",
    }
    reason = quotes.get(reason, reason)
    if near:
        rest = (START + where).encode()[error.place :].strip()
        last = rest == near[1].encode()
        ends = last and (near[1].lower() in _WORDS or not near[1].strip("'\"")[-1:].isalnum())
        found = f"the filter ends after {near[1]}" if ends else f"unexpected {shortened(near[1])}"
        reason = f"{found}; a filter is one condition such as year > 2019 AND lang = 'en'"
    if error.place is None:
        refuse(where, reason.rstrip("."))
    refuse_byte(where, reason.rstrip("."), error.place)


class Scanner:
    """Checks the tokens of a filter before it is parsed. Positions are bytes of the statement."""

    def __init__(self, where: str, columns: ColumnNames, database: FilterDatabase) -> None:
        self._where, self._columns = where, columns
        if not where.strip():
            refuse(where, "it is empty; expected a condition such as year > 2019 AND lang = 'en'")
        if len(where) > LONGEST:
            refuse(where, f"{len(where):,} characters; expected at most {LONGEST:,}")
        if unfit := UNFIT.search(where):
            refuse(where, UNFIT_TEXT, unfit.start())
        self._bytes = (START + where).encode()
        self._kept = bytearray(self._bytes)
        self._tokens = [(start + len(START), kind) for start, kind in database.tokens(where)]
        self.lists: dict[int, list[str] | list[int]] = {}  # values of long lists, by the position of the first literal
        self.names: dict[int, str] = {}  # columns named like a reserved word, by position
        self._depth, self._taken, self._whens = 0, 0, 0
        self._case: int | None = None  # the number of a CASE token without a WHEN so far

    def statement(self) -> str:
        """Return the query to parse, with placeholders for `lists` and `names`; positions stay the same.

        Raises ConfigError for anything but a condition.
        """
        for number, (start, kind) in enumerate(self._tokens):
            if start < self._taken:
                continue
            if kind == "comment":
                self._refuse("filters do not support comments", start)
            elif kind == "keyword":
                self._keyword(number, start)
            elif kind in ("operator", "identifier"):
                self._sign(start)
        return self._kept.decode()

    def _refuse(self, reason: str, byte: int) -> Never:
        refuse_byte(self._where, reason, byte)

    def _keyword(self, number: int, start: int) -> None:
        match = _LETTERS.match(self._bytes, start)
        word = match.group().decode().upper() if match else ""
        end = start + len(word)
        if word in _STATEMENTS:
            self._refuse(
                f"{word} is not allowed: a filter is one condition, without subqueries (write a column of that name in "
                "double quotes)",
                start,
            )
        is_name = word.lower() in RESERVED - _WORDS and self._columns.has(word)
        if is_name and not self._bytes[end:].lstrip().startswith(b"("):
            self.names[start] = word
            self._kept[start:end] = b"x" * len(word)
        elif word == "IN":
            self._take_list(end)
        elif word == "CASE":
            if self._case is not None:
                self._refuse("CASE between CASE and WHEN; write CASE WHEN ... = ... THEN ...", start)
            self._case = number
        elif word == "WHEN":
            self._whens += 1
            if self._whens > MOST:
                self._refuse(f"more than {MOST} WHENs", start)
            if self._case is not None and number - self._case > _CASE_OPERAND:
                self._refuse("too many tokens between CASE and WHEN; write CASE WHEN ... = ... THEN ...", start)
            self._case = None

    def _sign(self, start: int) -> None:
        sign = self._bytes[start : start + 4].decode(errors="ignore")[:1]
        if sign in _REFUSED:
            self._refuse(_REFUSED[sign], start)
        self._depth += (sign in "([{") - (sign in ")]}")
        if self._depth > DEEPEST:
            self._refuse(TOO_DEEP, start)

    def _take_list(self, start: int) -> None:
        """Replace a long list of literals by spaces, except for its first literal."""
        for form, literal in ((_TEXTS, _TEXT), (_WHOLES, _WHOLE)):
            match = form.match(self._bytes, start)
            literals = list(literal.finditer(match[1])) if match else []
            if match and len(literals) >= _LONG_LIST:
                first, end = match.start(1), literals[0].end()
                texts = [item[literal.groups].decode().replace("''", "'") for item in literals]
                self.lists[first] = texts if literal is _TEXT else list(map(int, texts))
                self._kept[first + end : match.end(1)] = b" " * (len(match[1]) - end)
                self._taken = match.end()
