"""Filters as dicts, written as the SQL conditions of `search.filters`. Loads no numerical library.

    {"year": 2019, "section": ["math", "science"]}      year = 2019 AND section IN ('math', 'science')
    {"year": {">": 2019, "<=": 2024}}                   year > 2019 AND year <= 2024
    {"or": [{"lang": "en"}, {"not": {"tags": {"contains": "draft"}}}]}

A key is the name of a column, or a path to a field of an object: "author.name". None stands for the documents without a
value. As in Python and unlike SQL, "!=", "not in" and "not" also match documents without a value.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from math import isfinite
from typing import Any

from indexer.errors import ConfigError
from search.formatting import did_you_mean

MOST_LEVELS = 50  # of dicts in dicts
_SIGNS = (">", ">=", "<", "<=", "like", "ilike")
_NUMBER = int | float | Decimal


def quote(text: str) -> str:
    """Return text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def quote_path(path: Sequence[str]) -> str:
    """Return a column, or a field of a column's objects, as SQL."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in path)


def membership(name: str, literals: Sequence[str], wanted: bool = True, is_list: bool = False) -> str:
    """Return SQL for a column that equals or contains one of some values, or if not `wanted`, does not."""
    if not literals:
        return str(not wanted).upper()
    listed = ", ".join(literals)
    sql = f"list_has_any({name}, [{listed}])" if is_list else f"{name} IN ({listed})"
    return sql if wanted else f"({name} IS NULL OR NOT {sql})"


def condition_of(where: Mapping[str, Any], level: int = 0) -> str | None:
    """Return a dict as an SQL condition, None if it is empty. Raises ConfigError with the place of a fault."""
    if level > MOST_LEVELS:
        raise ConfigError(f"where is nested more than {MOST_LEVELS} levels deep.")
    parts = [_part(key, value, level) for key, value in where.items()]
    return _joined("AND", [part for part in parts if part])


def _part(key: Any, value: Any, level: int) -> str | None:
    if not isinstance(key, str) or not key:
        raise ConfigError(f"where has the key {key!r}; expected the name of a column, or and, or, not.")
    if key in ("and", "or"):
        if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(i, Mapping) for i in value):
            raise ConfigError(f'where["{key}"] is {value!r:.60}; expected a list of dicts.')
        inner = [condition_of(each, level + 1) or "TRUE" for each in value]
        return _joined(key.upper(), inner) or str(key == "and").upper()
    if key == "not":
        if not isinstance(value, Mapping):
            raise ConfigError(f'where["not"] is {value!r:.60}; expected a dict.')
        return f"(NOT coalesce({condition_of(value, level + 1) or 'TRUE'}, FALSE))"
    name = quote_path(key.split("."))
    if getattr(value, "ndim", 0) == 1:  # an array of numpy, or a column of pandas
        value = value.tolist()
    if not isinstance(value, Mapping):
        return _equals(key, name, value)
    if not value:
        raise ConfigError(f'where["{key}"] is an empty dict; expected a value, a list, or {{operator: value}}.')
    return _joined("AND", [_compared(key, name, sign, each) for sign, each in value.items()])


def _joined(word: str, parts: Sequence[str]) -> str | None:
    return f"({f' {word} '.join(parts)})" if len(parts) > 1 else parts[0] if parts else None


def _equals(key: str, name: str, value: Any) -> str:
    return _OPERATORS["in" if _is_list(value) else "="](key, name, value)


def _compared(key: str, name: str, sign: Any, value: Any) -> str:
    if sign not in _OPERATORS:
        swapped = next((known for known in _OPERATORS if sorted(known) == sorted(str(sign))), str(sign))  # "=>"
        hint = did_you_mean(swapped, _OPERATORS, f"expected {', '.join(_OPERATORS)}.")
        raise ConfigError(f'where["{key}"] has the operator {sign!r}; {hint}')
    return _OPERATORS[sign](key, name, value)


def _equality(wanted: bool) -> Callable[[str, str, Any], str]:
    def sql(key: str, name: str, value: Any) -> str:
        if value is None:
            return f"{name} IS {'' if wanted else 'NOT '}NULL"
        return f"{name} = {_literal(key, value)}" if wanted else membership(name, [_literal(key, value)], wanted)

    return sql


def _is_one_of(wanted: bool) -> Callable[[str, str, Any], str]:
    def sql(key: str, name: str, values: Any) -> str:
        if not _is_list(values):
            raise ConfigError(f'where["{key}"] compares with {values!r:.60}; expected a list of values.')
        values = list(values)
        literals = [_literal(key, value) for value in values if value is not None]
        if len(literals) == len(values):
            return membership(name, literals, wanted)
        known = f"{name} IS {'' if wanted else 'NOT '}NULL"
        return f"({known} {'OR' if wanted else 'AND'} {membership(name, literals, wanted)})"

    return sql


def _ordering(sign: str) -> Callable[[str, str, Any], str]:
    return lambda key, name, value: f"{name} {sign.upper()} {_literal(key, value)}"


_OPERATORS: dict[Any, Callable[[str, str, Any], str]] = {
    "=": _equality(True),
    "==": _equality(True),
    "!=": _equality(False),
    **{sign: _ordering(sign) for sign in _SIGNS},
    "in": _is_one_of(True),
    "not in": _is_one_of(False),
    "contains": lambda key, name, value: f"contains({name}, {_literal(key, value)})",
    "icontains": lambda key, name, value: f"contains(lower({name}), lower({_literal(key, value)}))",
}


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple | set | frozenset)


def _literal(key: str, value: Any) -> str:
    """Return a value as an SQL literal. Raises ConfigError for one that no column holds."""
    value = value.item() if hasattr(value, "item") and not isinstance(value, type) else value  # a number of numpy
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, _NUMBER):
        if not isfinite(value):
            raise ConfigError(f'where["{key}"] compares with {value}; expected a finite number.')
        return format(value, "f") if isinstance(value, Decimal) else _number(value)
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, datetime):
        value = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return f"TIMESTAMP {quote(value.isoformat(' '))}"
    if isinstance(value, date | time):
        return f"{type(value).__name__.upper()} {quote(value.isoformat())}"
    raise ConfigError(
        f'where["{key}"] compares with a value of type {type(value).__name__}; expected text, a number, True or '
        "False, a date or time, None, or a list of these."
    )


def _number(value: float) -> str:
    """Return a number as SQL: DuckDB reads a float64 with an exponent, an integer without one."""
    if isinstance(value, int):
        return str(value)
    text = repr(float(value))
    return text if "e" in text else f"{text}e0"
