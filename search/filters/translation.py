"""The grammar of filters. One is read once, and SQL is written anew from what was understood, so nothing else runs.

    condition  = all {OR all}            all = not {AND not}            not = NOT not | test
    test       = value
               | value ("=" | "==" | "<>" | "!=" | "<" | "<=" | ">" | ">=" | IS [NOT] DISTINCT FROM) value
               | value [NOT] (LIKE | ILIKE) text [ESCAPE text] | value [NOT] BETWEEN value AND value
               | value [NOT] IN ("(" value {"," value} ")" | column) | value IS [NOT] (NULL | TRUE | FALSE)
    value      = ("(" condition ")" | ["-"] number | text | TRUE | FALSE | (DATE | TIME | TIMESTAMP) text | column
               | function "(" [value {"," value}] ")" | (CAST | TRY_CAST) "(" value AS type ")") {"::" type}
    column     = name {"." name}

It means what DuckDB takes it to mean. DuckDB's own parser is not asked: the tree it gives out changes from one release
to the next, leaves comments out, and takes seconds for a long list.
"""

import difflib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Never

from search.filters.columns import Columns
from search.filters.cursor import Cursor
from search.filters.functions import CASTS, COALESCE, FUNCTIONS, TYPED_LITERALS, call
from search.filters.operands import (
    DATES,
    LISTS,
    MOMENTS,
    NULLS,
    NUMBERS,
    TEXT,
    TRUTH,
    Operand,
    are_comparable,
    fitted,
    quote,
)
from search.filters.source import RESERVED, Source, Token

DEEPEST = 50  # conditions within conditions
MOST = 500  # comparisons, columns and functions: DuckDB's planning of a thousand takes seconds, and is not interrupted
_COMPARISONS = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_CASTING = ("CAST", "TRY_CAST")


def translate(source: Source, columns: Columns) -> tuple[str, int]:
    """A filter as an SQL condition over the columns that `columns` gives names to, and how much work it is for a value.

    Raises ConfigError.
    """
    translator = _Translator(source, columns)
    return translator.whole(), translator.weight


class _Translator:
    """Recursive descent: a method reads what it is named after and returns it as SQL."""

    def __init__(self, source: Source, columns: Columns) -> None:
        self._source, self._columns = source, columns
        self._at, self._depth, self._count = Cursor(source), 0, 0
        self._pattern = 0  # characters of the patterns, each of which may be compared with each of a text

    @property
    def weight(self) -> int:
        """Comparisons and functions, those with a pattern once for some of its characters."""
        return self._count + self._pattern // 4

    def whole(self) -> str:
        condition = self._condition()
        if self._at.token.kind != "end":
            self._at.expected("AND, OR or the end")
        return self._truth(condition).sql

    def _condition(self) -> Operand:
        with self._deeper():
            return self._joined("OR", lambda: self._joined("AND", self._negation))

    def _joined(self, word: str, read: Callable[[], Operand]) -> Operand:
        operands = [read()]
        while self._at.takes(word):
            operands.append(read())
        if len(operands) == 1:
            return operands[0]
        return self._made(f"({f' {word} '.join(self._truth(operand).sql for operand in operands)})", TRUTH, operands[0])

    def _negation(self) -> Operand:
        start = self._at.token.start
        if not self._at.takes("NOT"):
            return self._test()
        with self._deeper():
            operand = self._truth(self._negation())
        return Operand(f"(NOT {operand.sql})", TRUTH, self._at.shown(start), start)

    def _test(self) -> Operand:
        self._one_more()
        left, token = self._value(), self._at.token
        if token.kind == "sign" and token.value in _COMPARISONS:
            self._at.read()
            right = self._comparable(left)
            return self._made(f"({left.sql} {_COMPARISONS[token.value]} {right.sql})", TRUTH, left)
        if self._at.takes("IS"):
            return self._made(f"({left.sql} IS {self._state(left)})", TRUTH, left)
        reading = {"IN": self._in, "BETWEEN": self._between, "LIKE": self._like, "ILIKE": self._like}
        negated = self._at.sees("NOT") and self._at.sees_after(*reading) and self._at.takes("NOT")
        if not self._at.sees(*reading):
            return left
        sql = reading[self._at.token.value](left)
        return self._made(f"(NOT {sql})" if negated else sql, TRUTH, left)

    def _state(self, left: Operand) -> str:
        negated = "NOT " if self._at.takes("NOT") else ""
        if self._at.takes("DISTINCT"):
            self._at.take("FROM")
            return f"{negated}DISTINCT FROM {self._comparable(left).sql}"
        if not self._at.sees("NULL"):
            self._truth(left)
        return negated + self._at.take("NULL", "TRUE", "FALSE").value

    def _in(self, left: Operand) -> str:
        self._at.take("IN")
        if self._at.token.kind in ("word", "name"):
            held = self._column()
            return self._called("list_contains", [held, left], left.start).sql
        self._at.take("(")
        values = [self._comparable(left).sql]
        while self._at.takes(","):
            values.append(self._comparable(left).sql)
        self._at.take(")")
        return f"({left.sql} IN ({', '.join(values)}))"

    def _between(self, left: Operand) -> str:
        self._at.take("BETWEEN")
        lower = self._comparable(left)
        self._at.take("AND")
        return f"({left.sql} BETWEEN {lower.sql} AND {self._comparable(left).sql})"

    def _like(self, left: Operand) -> str:
        word = self._at.take("LIKE", "ILIKE").value
        if left.kind not in (TEXT, NULLS):
            way_out = "" if left.kind == LISTS else f"; write CAST({left.shown} AS VARCHAR) {word} ..."
            self._source.refuse(f"{word} takes text, not {left.named}{way_out}", left.start)
        pattern = self._at.text("a pattern in single quotes, such as 'whale%'")
        self._pattern += len(pattern.value)
        return f"({left.sql} {word} {quote(pattern.value)}{self._escape(pattern)})"

    def _escape(self, pattern: Token) -> str:
        if not self._at.takes("ESCAPE"):
            return ""
        token = self._at.text("one character in single quotes")
        if len(token.value) != 1:
            self._source.refuse("ESCAPE takes one character", token.start)
        if (len(pattern.value) - len(pattern.value.rstrip(token.value))) % 2:
            self._source.refuse(f"the pattern ends with {token.value}, which stands for no character", pattern.start)
        return f" ESCAPE {quote(token.value)}"

    def _value(self) -> Operand:
        operand = self._primary()
        while self._at.takes("::"):
            self._one_more()
            operand = self._cast(operand, "CAST")
        return operand

    def _primary(self) -> Operand:
        token = self._at.token
        if token.kind in ("number", "text") or self._at.sees("-"):
            return self._literal()
        if self._at.takes("("):
            inner = self._condition()
            self._at.take(")")
            return inner
        if self._at.takes("TRUE", "FALSE"):
            return Operand(token.value, TRUTH, token.value, token.start)
        if self._at.sees(*TYPED_LITERALS) and self._at.following.kind == "text":
            self._at.read()
            made = self._cast_to(token.value, self._literal(), "CAST")
            return replace(made, shown=self._at.shown(token.start), start=token.start)
        if token.kind == "word" and self._at.sees_after("(") and token.value not in RESERVED.difference(_CASTING):
            return self._call(token)
        return self._column()

    def _literal(self) -> Operand:
        start = self._at.token.start
        minus = "-" if self._at.takes("-") else ""
        token = self._at.token
        if minus and token.kind != "number":
            self._at.expected("a number after -")
        self._at.read()
        shown = self._at.shown(start)
        if token.kind == "text":
            return Operand(quote(token.value), TEXT, shown, start, literal=True, text=token.value)
        return Operand(minus + token.value, NUMBERS, shown, start, literal=True)

    def _call(self, token: Token) -> Operand:
        """A function or a cast; both its name and the parenthesis are there."""
        self._one_more()
        name = (self._at.read(), self._at.read())[0].value.lower()
        with self._deeper():
            if token.value in _CASTING:
                operand = self._value()
                self._at.take("AS")
                cast = self._cast(operand, token.value)
                self._at.take(")")
                return replace(cast, shown=self._at.shown(token.start), start=token.start)
            if name not in FUNCTIONS and name != COALESCE:
                self._refuse_function(name, token.start)
            arguments = [] if self._at.sees(")") else [self._value()]
            while self._at.takes(","):
                arguments.append(self._value())
            self._at.take(")")
        return self._called(name, arguments, token.start)

    def _called(self, name: str, arguments: list[Operand], start: int) -> Operand:
        try:
            return call(name, arguments, self._at.shown(start), start)
        except ValueError as error:
            self._source.refuse(str(error), start)

    def _cast(self, operand: Operand, word: str) -> Operand:
        token = self._at.token
        if token.kind != "word" or token.value not in CASTS:
            self._at.expected(f"a type: {', '.join(CASTS)}")
        self._at.read()
        return self._cast_to(token.value, operand, word)

    def _cast_to(self, name: str, operand: Operand, word: str) -> Operand:
        made = self._made("", CASTS[name], operand)
        return replace(made, sql=f"{word}({self._fitted(operand, made).sql} AS {name})")

    def _column(self) -> Operand:
        self._one_more()
        first = self._at.token
        names = [self._at.name()]
        while self._at.takes("."):
            names.append(self._at.name())
        return self._columns.find(tuple(names), first.kind == "name", first.start, self._at.shown(first.start))

    def _comparable(self, left: Operand) -> Operand:
        """A value that `left` is compared with."""
        if self._at.sees("NULL"):
            self._source.refuse("nothing equals NULL; write IS NULL or IS NOT NULL", self._at.token.start)
        right = self._value()
        if not are_comparable(left, right):
            reason = f"{left.named} cannot be compared with {right.named}{_way_out(left, right)}"
            self._source.refuse(reason, left.start)
        if self._fitted(left, right) != left:
            self._source.refuse(f"write {right.shown} first, and {left.shown}, which has a zone, after it", left.start)
        return self._fitted(right, left)

    def _fitted(self, operand: Operand, other: Operand) -> Operand:
        try:
            return fitted(operand, other)
        except ValueError as error:
            self._source.refuse(str(error), operand.start)

    def _truth(self, operand: Operand) -> Operand:
        """A condition, and not a number or a text, which SQL would take for one."""
        if operand.kind not in (TRUTH, NULLS):
            self._source.refuse(f"{operand.named} is no condition; compare it with something", operand.start)
        return operand

    def _made(self, sql: str, kind: str, first: Operand) -> Operand:
        """What was read since the start of `first`."""
        return Operand(sql, kind, self._at.shown(first.start), first.start)

    def _refuse_function(self, name: str, start: int) -> Never:
        close = difflib.get_close_matches(name, FUNCTIONS, n=1)
        meant = f" (did you mean {close[0]}?)" if close else ""
        self._source.refuse(f"no function {name}{meant}; there are {', '.join(FUNCTIONS)}, {COALESCE}", start)

    def _one_more(self) -> None:
        self._count += 1
        if self._count > MOST:
            reason = (
                f"more than {MOST} comparisons, columns and functions; many values go in one list: id IN ('a', 'b')"
            )
            self._source.refuse(reason, self._at.token.start)

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        depth = self._depth
        self._depth += 1
        if self._depth > DEEPEST:
            self._source.refuse(f"conditions lie more than {DEEPEST} deep in one another", self._at.token.start)
        yield
        self._depth = depth


def _way_out(left: Operand, right: Operand) -> str:
    """How to compare values of two kinds."""
    if left.kind == LISTS:
        return f"; write list_contains({left.shown}, {right.shown})"
    if left.kind == TEXT and right.literal:
        return f"; write '{right.shown}' in single quotes"
    if left.kind in (DATES, MOMENTS) and right.literal:
        return f"; write a date in single quotes, such as '2020-12-31', or compare year({left.shown})"
    return "; write CAST(... AS ...) of one of them"
