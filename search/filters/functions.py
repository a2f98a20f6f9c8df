"""The functions, operators and types of filters: the allow-list.

Every function is a pure function of one row: no clock, files, settings or random numbers. No result is much longer than
its arguments, and a pattern is a literal of limited size, so the length of a document bounds the time for one value.
"""

import re
from dataclasses import dataclass, replace
from math import prod

import pyarrow as pa

from search.filters.expressions import (
    Kind,
    TypedExpression,
    are_comparable,
    as_dates,
    combined,
    fitted,
    kind_of,
    united,
)
from search.formatting import counted

MOST_PATTERN = 1000  # estimated instructions of a regular expression

_TYPES = {
    pa.bool_(): "BOOLEAN BOOL",
    pa.int64(): "INTEGER INT BIGINT TINYINT SMALLINT HUGEINT UTINYINT USMALLINT UINTEGER UBIGINT "
    "INT1 INT2 INT4 INT8 SIGNED SHORT LONG",
    pa.float64(): "DOUBLE FLOAT REAL FLOAT4 FLOAT8 DECIMAL NUMERIC DEC",
    pa.string(): "VARCHAR TEXT STRING CHAR BPCHAR",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.timestamp("us"): "TIMESTAMP DATETIME",
    pa.month_day_nano_interval(): "INTERVAL",
}
CASTS: dict[str, pa.DataType] = {name: type_ for type_, names in _TYPES.items() for name in names.split()}

# `a/b` is either kind, `a?` is optional, `a...` repeats. `pattern`, `regex`, `part` and `options` are text literals.
# `same` values share a kind, `item` fits the elements of the list, `lists` fits the list.
_CALLED = """
text -> text: lower upper
text, text? -> text: trim
text/list -> number: length len
text, text -> truth: contains starts_with ends_with
text, regex, options? -> truth: regexp_matches
number -> number: abs floor ceil
number, number? -> number: round
date/moment -> number: year month day
part, date/moment -> moment: date_trunc
list, item -> truth: contains list_contains
list, lists -> truth: list_has_any
same, same... -> same: coalesce
"""
_OPERATORS = """
number -> number: + -
number, number -> number: + - * / // % ** ^
date, number -> date: + -
number, date -> date: +
date, date -> number: -
date/moment, moment -> interval: -
moment, date -> interval: -
date/moment, interval -> moment: + -
interval, date/moment -> moment: +
time, interval -> time: + -
interval, interval -> interval: + -
text, pattern -> truth: ~~ !~~ ~~* !~~*
text, pattern, options -> truth: like_escape ilike_escape not_like_escape not_ilike_escape
same... -> list: list_value
number -> number: trunc
number -> interval: to_millennia to_centuries to_decades to_years to_quarters to_months to_weeks to_days to_hours
number -> interval: to_minutes to_seconds to_milliseconds to_microseconds
"""  # the last five lines are how DuckDB's parser represents LIKE ... ESCAPE, [...] and INTERVAL
_KINDS = {
    **dict.fromkeys(("text", "pattern", "regex", "options", "part"), Kind.TEXT),
    **dict.fromkeys(("list", "lists"), Kind.LISTS),
    "number": Kind.NUMBERS,
    "truth": Kind.TRUTH,
    "date": Kind.DATES,
    "moment": Kind.MOMENTS,
    "time": Kind.TIMES,
    "interval": Kind.INTERVALS,
}
_RESULTS = {kind_of(type_): type_ for type_ in _TYPES}
_LITERALS = {"pattern": "a pattern in single quotes, such as 'whale%'", "options": "text in single quotes",
             "regex": "a regular expression in single quotes",
             "part": "a part of a date in single quotes, such as 'year'"}  # fmt: skip
_WORDS = {"~~": "LIKE", "!~~": "NOT LIKE", "~~*": "ILIKE", "!~~*": "NOT ILIKE", "like_escape": "LIKE",
          "ilike_escape": "ILIKE", "not_like_escape": "NOT LIKE", "not_ilike_escape": "NOT ILIKE"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Signature:
    """The role of each argument and the kind of the result. The first `needs` are required; the last may repeat."""

    takes: tuple[str, ...]
    gives: str
    needs: int
    repeated: bool

    def roles(self, count: int) -> tuple[str, ...] | None:
        """Return the roles of `count` arguments; None if the function takes another number."""
        if count < self.needs or (count > len(self.takes) and not self.repeated):
            return None
        return (*self.takes, *(self.takes[-1:] * (count - len(self.takes))))[:count]


def _signatures(table: str) -> dict[str, tuple[Signature, ...]]:
    signatures: dict[str, tuple[Signature, ...]] = {}
    for line in filter(None, table.splitlines()):
        form, _, names = line.partition(":")
        takes, _, gives = form.partition("->")
        roles = [role.strip() for role in takes.split(",")]
        needs = sum(not role.endswith(("?", "...")) for role in roles)
        signature = Signature(tuple(role.rstrip("?.") for role in roles), gives.strip(), needs, "..." in takes)
        for name in names.split():
            signatures[name] = (*signatures.get(name, ()), signature)
    return signatures


FUNCTIONS = _signatures(_CALLED + _OPERATORS)
NAMES = tuple(_signatures(_CALLED))


def call(name: str, arguments: list[TypedExpression]) -> TypedExpression:
    """Return a call of one of FUNCTIONS. Raises ValueError for arguments that do not fit."""
    signature, roles = _matching(name, arguments)
    pattern = sum(_pattern_size(name, role, argument) for role, argument in zip(roles, arguments, strict=True))
    type_, arguments = _typed(name, signature.gives, roles, arguments)
    return combined(_sql(name, [argument.sql for argument in arguments]), type_, arguments, pattern)


def cast(operand: TypedExpression, name: str, type_: pa.DataType, attempt: bool) -> TypedExpression:
    """Return a conversion to the type `name`; an `attempt` gives NULL where the value cannot be converted."""
    operand = fitted(operand, type_)
    return combined(f"{'TRY_CAST' if attempt else 'CAST'}({operand.sql} AS {name})", type_, [operand])


def _matching(name: str, arguments: list[TypedExpression]) -> tuple[Signature, tuple[str, ...]]:
    count = len(arguments)
    forms = [(form, roles) for form in FUNCTIONS[name] if (roles := form.roles(count)) is not None]
    if not forms:
        raise ValueError(f"{_title(name)} takes {_counts(FUNCTIONS[name])}, not {count}")
    for form, roles in forms:
        if all(argument.kind in _accepted(role) for role, argument in zip(roles, arguments, strict=True)):
            return form, roles
    for number, argument in enumerate(arguments):
        possible = [roles[number] for _, roles in forms]
        kinds = set[Kind]().union(*map(_accepted, possible)) - {Kind.NULLS}
        if argument.kind not in kinds | {Kind.NULLS}:
            expected = _LITERALS.get(possible[0]) or " or ".join(sorted(kinds))
            hint = _hint(name, argument, kinds) if number == 0 or possible[0] not in _LITERALS else ""
            raise ValueError(f"{_title(name)} takes {expected}, not {argument.named}{hint}")
    raise ValueError(f"{_title(name)} does not take {' and '.join(argument.named for argument in arguments)} together")


def _accepted(role: str) -> set[Kind]:
    if role in ("same", "item"):
        return set(Kind) - {Kind.OBJECTS}
    return {Kind.NULLS, *(_KINDS[name] for name in role.split("/"))}


def _hint(name: str, argument: TypedExpression, kinds: set[Kind]) -> str:
    if name in _WORDS and argument.kind != Kind.LISTS:
        return f"; write CAST({argument.shown} AS VARCHAR) {_WORDS[name]} ..."
    if argument.text is not None and kinds & {Kind.DATES, Kind.MOMENTS}:
        return f"; write {'DATE' if Kind.DATES in kinds else 'TIMESTAMP'} {argument.shown}"
    if argument.kind == Kind.TEXT and kinds & {Kind.DATES, Kind.MOMENTS} and Kind.NUMBERS not in kinds:
        return as_dates(argument, Kind.DATES if Kind.DATES in kinds else Kind.MOMENTS)
    return ""


def _title(name: str) -> str:
    return _WORDS.get(name, f"{name}()" if name[0].isalpha() else name)


def _counts(forms: tuple[Signature, ...]) -> str:
    least, most = min(form.needs for form in forms), max(len(form.takes) for form in forms)
    if any(form.repeated for form in forms):
        return f"{counted(least, 'argument')} or more"
    return counted(most, "argument") if least == most else f"{least} to {most} arguments"


def _pattern_size(name: str, role: str, argument: TypedExpression) -> int:
    """Return the size of a pattern, 0 for other arguments. Raises ValueError for a pattern that is too large."""
    if role not in _LITERALS:
        return 0
    if not argument.literal:
        raise ValueError(f"{_title(name)} takes {_LITERALS[role]}, not {argument.shown}")
    text = argument.text or ""
    if role != "regex":
        return len(text)
    if (size := _regex_size(text)) > MOST_PATTERN:
        raise ValueError(f"this regular expression is too large; at most about {MOST_PATTERN:,} parts are allowed")
    return size


def _regex_size(pattern: str) -> int:
    """Return an upper estimate of the instructions of a regular expression."""
    groups = [int(match[1]) for match in re.finditer(r"\)\{(?:\d*,)?(\d{1,9})", pattern)]
    single = [int(match[1]) for match in re.finditer(r"[^)]\{(?:\d*,)?(\d{1,9})", pattern)]
    classes = 300 * len(re.findall(r"\\[pP]", pattern))  # a class of letters of all scripts has hundreds of ranges
    return (len(pattern) + classes * max(1, sum(single)) + sum(single)) * prod(max(1, count) for count in groups)


def _typed(
    name: str, gives: str, roles: tuple[str, ...], arguments: list[TypedExpression]
) -> tuple[pa.DataType, list[TypedExpression]]:
    """Return the type of the result and the arguments, fitted to each other. Raises ValueError."""
    if "item" in roles:
        values, value = arguments
        element = replace(values, type=values.type.value_type if values.kind == Kind.LISTS else pa.null())
        if not are_comparable(element, value):
            raise ValueError(f"{values.shown} contains lists of {element.kind}, not {value.named}")
        return pa.bool_(), [values, fitted(value, element.type)]
    if "lists" in roles:
        united(_title(name), arguments)
    if gives in _KINDS and gives != "list":
        return _RESULTS[_KINDS[gives]], arguments
    type_, arguments = united(_title(name), arguments) if arguments else (pa.null(), [])
    return pa.list_(type_) if gives == "list" else type_, arguments


def _sql(name: str, pieces: list[str]) -> str:
    if name == "coalesce":  # syntax of DuckDB, not a function
        return f"COALESCE({', '.join(pieces)})"
    if name[0].isalpha():
        return f'"{name}"({", ".join(pieces)})'
    return f"({name}({pieces[0]}))" if len(pieces) == 1 else f"({pieces[0]} {name} {pieces[1]})"
