"""Metadata of frameworks as columns of an index, and conditions on them.

A framework's metadata is JSON: a key can have a text in one document and a number in the next. A column of an index has
one type. The first type of a key gets the column of that name, each other type a column of its own:

    {"year": 2019}, {"year": "2019"}       year = 2019, "year:text" = '2019'
    {"author": {"name": "Ada"}}            "author/name" = 'Ada'
    {"date": "2020-01-31"}                 date = '2020-01-31', "date:time" = TIMESTAMP '2020-01-31'
    {"tags": ["a", "b"]}                   a list; lists of several types are JSON in "tags:json"
"""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from indexer.errors import ConfigError

_KINDS = {str: "text", bool: "bool", int: "number", float: "number", datetime: "time"}
_TAGS = {*_KINDS.values(), *(f"{kind}s" for kind in _KINDS.values()), "json"}
_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ].+)?", re.ASCII)
NONE: Mapping[str, Any] = {"or": []}  # the condition that no document meets; {} is that of all


class Columns:
    """The metadata columns of an index: those of its schema, and those that documents add to it.

    `reserved` are columns of a framework's own, which get no metadata.
    """

    def __init__(self, schema: pa.Schema | None, reserved: Collection[str]) -> None:
        self._paths: dict[str, str] = {}  # of fields of objects, as filters write them
        self._kinds = {name: kind for field in schema or () for name, kind in self._known(field.name, field.type)}
        self._kinds |= dict.fromkeys(["id", "text", *reserved], "reserved") | {"title": "text"}

    def of(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of one document's metadata. Null values have none."""
        columns = {}
        for key, value in _flat(metadata):
            kind = _kind_of(value)
            columns[self._new(key, kind)] = json.dumps(value) if kind == "json" else value
            if kind == "text" and (moment := as_moment(value)):
                columns[self._new(key, "time")] = moment
        return columns

    def where(self, key: str, sign: str, value: Any) -> Mapping[str, Any]:
        """Return a condition on a key of the metadata, with an operator of `search.filters.conditions`.

        A key that no document has is null. Values of different types differ, and are in no order. Raises ConfigError
        for an equality with a list.
        """
        key = key.replace(".", "/")
        if sign in ("!=", "not in"):
            return {"not": self.where(key, "==" if sign == "!=" else "in", value)}
        if sign in ("==", "in"):
            return self._equals(key, [value] if sign == "==" else value)
        if value is None:
            return NONE
        kind = _kind_of(value)
        kinds = [f"{kind}s", *(["text"] if kind == "text" else [])] if sign == "contains" else [kind]
        names = [self._find(key, each) for each in kinds]
        return {"or": [{name: {sign: value}} for name in names if name]}

    def empty(self, key: str) -> Mapping[str, Any]:
        """Return the condition that a key is absent, null, a blank text or an empty list."""
        return self.where(key, "in", [None, "", []])

    def _equals(self, key: str, values: Collection[Any]) -> Mapping[str, Any]:
        wanted: dict[str, list[Any]] = defaultdict(list)
        for value in values:
            if value is None:
                continue
            kind = _kind_of(value)
            if kind.removesuffix("s") != kind:
                raise ConfigError(f"{key}: {value!r:.60} is a list; expected a single value, or another operator.")
            if name := self._find(key, kind):
                wanted[name].append(json.dumps(value) if kind == "json" else value)
        either: list[Any] = [{name: list(each)} for name, each in wanted.items()]
        if None in values:
            either.append({"and": [{self._paths.get(name, name): None} for name in self._of_key(key)]})
        return {"or": either}

    def _of_key(self, key: str) -> list[str]:
        """Return all columns with values of a key or of its fields."""
        tagged = {key, *(f"{key}:{tag}" for tag in _TAGS)}
        return [
            name
            for name, kind in self._kinds.items()
            if kind != "reserved" and (name in tagged or name.startswith(f"{key}/"))
        ]

    def _find(self, key: str, kind: str) -> str | None:
        """Return the column of a kind of values of a key, as filters write it."""
        found = next((name for name in (key, f"{key}:{kind}") if self._kinds.get(name) == kind), None)
        return None if found is None else self._paths.get(found, found)

    def _new(self, key: str, kind: str) -> str:
        is_first = kind != "json" and self._kinds.setdefault(key, kind) == kind
        name = key if is_first else f"{key}:{kind}"
        self._kinds[name] = kind
        return name

    def _known(self, name: str, type_: pa.DataType) -> Iterator[tuple[str, str]]:
        if pa.types.is_struct(type_):
            for field in type_:
                for inner, kind in self._known(f"{name}/{field.name}", field.type):
                    self._paths[inner] = inner.replace("/", ".")
                    yield inner, kind
        else:
            yield name, "json" if name.endswith(":json") else _kind_of_type(type_)


def all_of(*conditions: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the condition that all of these hold. No condition is {}, for which nothing is evaluated."""
    given = [condition for condition in conditions if condition]
    return {"and": given} if given else {}


def as_moment(text: str) -> datetime | None:
    """Return an ISO date, or date and time, in UTC without a zone; None for any other text."""
    if not _ISO_DATE.fullmatch(text):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment


def _flat(metadata: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of metadata that are not null; fields of objects as "object/field"."""
    for key, value in metadata.items():
        name = f"{prefix}{key}".replace(".", "/")
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name}/")
        elif value is not None:
            yield name, value


def _kind_of(value: Any) -> str:
    kinds = {_KINDS.get(type(each)) for each in value} if isinstance(value, list) else set()
    (only,) = kinds if len(kinds) == 1 else (None,)
    return f"{only}s" if only else _KINDS.get(type(value), "json")


def _kind_of_type(type_: pa.DataType) -> str:
    if pa.types.is_list(type_):
        return f"{_kind_of_type(type_.value_type)}s"
    for kind, is_one in (("text", pa.types.is_string), ("bool", pa.types.is_boolean), ("time", pa.types.is_timestamp)):
        if is_one(type_):
            return kind
    return "number" if pa.types.is_integer(type_) or pa.types.is_floating(type_) else str(type_)
