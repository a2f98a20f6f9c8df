"""Conversion of a row to a Document: which columns are the id, the title and the text, and of which types.

Columns are dropped first, then converted, then given their roles. The user chooses the type of a column
(`--column name:type`, `columns = {name = "type"}` in a recipe):

    string     text as it is; numbers and times written out; anything nested as JSON
    int        a whole number, also as text or as a float without a fraction
    float      a number, also as text
    bool       true or false, also as text, 1 or 0
    timestamp  a datetime, also as ISO 8601 text; zoned ones in UTC
    date       a date, also as ISO 8601 text
    json       text parsed as JSON; other values as they are

Null stays null. A value that does not fit exactly is an error of its row.
"""

import difflib
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa

from indexer.corpus.document import Document, is_blank
from indexer.corpus.ids import content_id
from indexer.corpus.readers.text import parse_json
from indexer.corpus.row import BadRow, Row, column_of, excerpt, name_column, read_as
from indexer.corpus.schema import EXACT_INTEGER, conversions_to, drop_nulls
from indexer.corpus.validation import Vector, check_string, check_value, to_vector, type_in_words
from indexer.errors import ConfigError, CorpusError, spelled
from indexer.recipe.corpus_config import CorpusConfig

ID_COLUMNS = ("_id", "id", "docid")
TITLE_COLUMNS = ("title",)
TEXT_COLUMNS = ("text", "contents", "document_text")
STORED_NAMES = ("id", "title", "text")  # reserved: no metadata column may have such a name
_MOST_CACHED = 1024  # sets of columns whose roles are cached
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,25}", re.ASCII)
_BELOW_MICROSECONDS = re.compile(r"[.,]\d{6}\d*[1-9]")  # digits of a second that Python would drop
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
_FIXES = {
    "id": "the name of a column that every row has",
    "title": "the name of a column",
    "text": "the name of the text column",
    "vector": "the name of the embedding column",
}


@dataclass(frozen=True)
class ColumnRoles:
    """The columns of a row by role; an empty name means that the row has no such column."""

    id: str
    title: str
    text: str
    metadata: tuple[str, ...]
    clashes: tuple[str, ...]  # metadata columns with a reserved name
    vector: str = ""


class RowMapper:
    """Converts rows to Documents by the rules of a CorpusConfig and records the columns it has seen."""

    def __init__(self, config: CorpusConfig, known: pa.Schema | None = None) -> None:
        """`known` is the metadata schema of the index that the rows are added to."""
        for name, kind in config.columns.items():
            if kind not in _CONVERTERS:
                known_types = ", ".join(_CONVERTERS)
                raise ConfigError(f'column "{name}" has the unknown type "{kind}"; expected one of {known_types}.')
        for name in config.text:
            if name in config.drop:
                raise ConfigError(f'corpus.text names column "{name}", which corpus.drop leaves out.')
        self._config = config
        self._of_index = known is not None
        self._cell_types = conversions_to(known) if known is not None else {}
        self._drop = frozenset(config.drop)
        self._met: set[str] = set()
        self._roles = lru_cache(_MOST_CACHED)(self._find_roles)  # rows with ever new columns must not fill the memory

    def unused_columns(self) -> list[str]:
        """Return the columns of `drop`, `columns` and `text` that no row had; none without rows."""
        named = [*self._config.text, *self._config.columns, *self._config.drop]
        return [name for name in dict.fromkeys(named) if self._met and name not in {*self._met, *STORED_NAMES}]

    def check_title_met(self) -> None:
        """Raises CorpusError if no row had the configured title column."""
        name = self._config.title_column
        if name and self._met and name not in self._met:
            bad = self._no_column("title", self._met)
            raise CorpusError(f"{bad.what}. Fix: {self.way_out(bad.way_out)}.")

    def check_header(self, columns: Sequence[str], shown: str) -> None:
        """Raises CorpusError if no row with these columns can become a document."""
        roles, config = self.roles(columns), self._config
        named = (("id", config.id_column), ("title", config.title_column))
        missing = [role for role, name in named if name and name not in columns]
        missing += [role for role in ("text", "vector") if self._needs(role) and not getattr(roles, role)]
        if missing or roles.clashes:
            bad = self._no_column(missing[0], columns) if missing else _clash(roles.clashes[0], roles)
            raise CorpusError(f"{shown}: {bad.what}. Fix: {self.way_out(bad.way_out)}.")

    def way_out(self, usual: str) -> str:
        """Return the fix that is available here (see `way_out_of`)."""
        return way_out_of(usual, self._of_index)

    def has_id(self, row: Row) -> bool:
        """Return whether the row has an id column."""
        return bool(self.roles(row.values).id)

    def document(self, row: Row) -> Document:
        """Return the row as a Document with canonical metadata; without an id column its id is a hash of the content.

        Raises BadRow: "id", "no-id", "title", "text", "blank", "vector", "type", "nul", "surrogate", "malformed".
        """
        roles = self.roles(row.values)
        values = self._converted(row.values, row.cells)
        if not roles.id and self._config.id_column:
            raise self._no_column("id", values)
        identifier = _identifier(values[roles.id], roles.id) if roles.id else ""
        try:
            document = self._document(identifier, row, values, roles)
        except BadRow as bad:
            bad.id = identifier or None
            raise
        return document if roles.id else replace(document, id=content_id(document))

    def _document(self, identifier: str, row: Row, values: dict[str, Any], roles: ColumnRoles) -> Document:
        check_string(identifier, roles.id)
        title = values[roles.title] if roles.title else None
        title = None if title is None else _checked_text(title, roles.title, "title")
        text = self._text(row, values, roles)
        metadata = {}
        for name in roles.metadata:
            if (value := values[name]) is not None:
                check_value(value, name)
                metadata[name] = value
        for name in roles.clashes:
            if name in metadata:
                raise _clash(name, roles)
        document = Document(identifier, text, title, drop_nulls(metadata), self._vector(values, roles))
        if not self._config.vector_column and is_blank(document, self._config.text):
            own = {"title": roles.title, "text": roles.text}
            names = [own.get(name, name) for name in self._config.text]
            joined = " and ".join(f'"{name}"' for name in names if name)
            raise BadRow("blank", f"no text in {joined}", "add text to the row, or delete it")
        return document

    def _no_column(self, role: str, columns: Collection[str]) -> BadRow:
        return BadRow(
            "no-id" if role == "id" else role, self._missing(role, columns), f"{name_column(role)} {_FIXES[role]}"
        )

    def _needs(self, role: str) -> bool:
        """Whether every row needs a column of this role. With a vector column the text is optional."""
        config = self._config
        return bool(config.text_column or not config.vector_column if role == "text" else config.vector_column)

    def _vector(self, values: dict[str, Any], roles: ColumnRoles) -> Vector | None:
        if roles.vector:
            return to_vector(values[roles.vector], roles.vector)
        if self._needs("vector"):
            raise self._no_column("vector", values)
        return None

    def _text(self, row: Row, values: dict[str, Any], roles: ColumnRoles) -> str:
        if not roles.text and self._needs("text"):
            raise self._no_column("text", values)
        text = values[roles.text] if roles.text else None
        if text is None and (row.cells or self._config.vector_column):
            return ""
        if text is None:
            raise BadRow("text", f'"{roles.text}" is null')
        return _checked_text(text, roles.text, "text")

    def _missing(self, role: str, columns: Collection[str]) -> str:
        present = ", ".join(f'"{name}"' for name in columns) or "none"
        named = getattr(self._config, f"{role}_column")
        expected = (named,) if named else TEXT_COLUMNS
        if used := [f'"{name}" is {self._use(name)}' for name in expected if name in columns]:
            return f"no {role} column: {' and '.join(used)}; columns found: {present}"
        if not named:
            return f"no {role} column ({', '.join(TEXT_COLUMNS)}); columns found: {present}"
        close = difflib.get_close_matches(named, list(columns), n=1)
        hint = f' (did you mean "{close[0]}"?)' if close else ""
        return f'the {role} column "{named}" is missing{hint}; columns found: {present}'

    def _use(self, name: str) -> str:
        if name in self._drop:
            return f"dropped ({spelled('corpus.drop', '--drop-column')})"
        roles = [role for role in ("id", "title", "text", "vector") if getattr(self._config, f"{role}_column") == name]
        return f"the {roles[0]} ({column_of(roles[0])})" if roles else "another column"

    def _converted(self, values: dict[str, Any], cells: bool) -> dict[str, Any]:
        columns = self._config.columns
        kinds = self._cell_types | columns if cells else columns
        if not kinds:
            return values
        return {
            name: self._convert(value, kinds[name], name) if name in kinds and name not in self._drop else value
            for name, value in values.items()
        }

    def _convert(self, value: Any, kind: str, name: str) -> Any:
        """Convert a cell. A column of whole numbers in the index also accepts fractions."""
        try:
            return convert(value, kind, name)
        except BadRow:
            if kind != "int" or name in self._config.columns:
                raise
            with suppress(BadRow):
                return convert(value, "float", name)
            raise

    def roles(self, columns: Iterable[str]) -> ColumnRoles:
        """Return the roles of a row's columns."""
        return self._roles(tuple(columns))

    def _find_roles(self, names: tuple[str, ...]) -> ColumnRoles:
        for name in names:
            check_string(name, name)
        self._met.update(names)
        kept = [name for name in names if name not in self._drop]
        config = self._config
        named = (config.id_column, config.title_column, config.text_column, config.vector_column)
        chosen = []
        for column, usual in zip(named, (ID_COLUMNS, TITLE_COLUMNS, TEXT_COLUMNS, ()), strict=True):
            free = [name for name in kept if name == column or name not in named]
            chosen.append(next((name for name in ((column,) if column else usual) if name in free), ""))
        taken = set(filter(None, chosen))
        metadata = tuple(name for name in kept if name not in taken)
        clashes = tuple(name for name in metadata if name in STORED_NAMES)
        return ColumnRoles(chosen[0], chosen[1], chosen[2], metadata, clashes, chosen[3])


def require_id(has_id: bool, needs_id: bool) -> None:
    """Raise BadRow ("no-id") for a row without an id if the first row of its file has one."""
    if needs_id and not has_id:
        way_out = f"give every row an id, or none, or {name_column('id')} the column of ids"
        raise BadRow("no-id", "the row has no id, but the first row of the file has one", way_out)


def way_out_of(usual: str, for_index: bool) -> str:
    """Return the fix for a bad row; settings cannot change how rows added to an existing index are read."""
    if for_index and spelled("corpus.", "--") in usual:
        return "give the row the columns and types of the index, or rebuild the index with other column rules"
    return usual


def _identifier(value: Any, column: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None or value == "":
        raise BadRow("id", f'the id "{column}" is {"null" if value is None else "empty"}')
    if not isinstance(value, str):
        what = f'the id "{column}" is {type_in_words(value)}; expected text or a whole number'
        raise BadRow("id", what, _as_text(column))
    return value


def _checked_text(value: Any, column: str, role: str) -> str:
    if not isinstance(value, str):
        raise BadRow(role, f'"{column}" is {type_in_words(value)}, not text', _as_text(column))
    check_string(value, column)
    return value


def _as_text(column: str) -> str:
    return f"{read_as(column, 'string')} to read it as text"


def _clash(name: str, roles: ColumnRoles) -> BadRow:
    role = getattr(roles, name)
    taken = f'the {name} comes from "{role}"' if role else f"the name is reserved for the {name}"
    what = f'column "{name}" cannot be metadata: {taken}'
    return BadRow(
        name,
        what,
        spelled(
            f'set corpus.{name}_column = "{name}", or corpus.drop = ["{name}"]',
            f"pass --{name}-column {name}, or --drop-column {name}",
        ),
    )


def convert(value: Any, kind: str, name: str) -> Any:
    """Return the value as type `kind` (see the table above). Raises BadRow ("type") if it does not fit exactly."""
    if value is None:
        return None
    try:
        return _CONVERTERS[kind](value)
    except (ValueError, OverflowError, RecursionError):
        what = f'column "{name}" contains "{excerpt(str(value))[:80]}", which cannot be read as {kind}'
        raise BadRow("type", what, f"correct the row, or {read_as(name, 'string')}") from None


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float | dict | list):
        return json.dumps(value, ensure_ascii=False, default=_string)
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value)


def _int(value: Any) -> int:
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and abs(value) <= EXACT_INTEGER and value.is_integer():
        return int(value)
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        return int(value)
    raise ValueError


def _float(value: Any) -> float:
    if isinstance(value, str):
        if not _NUMBER.fullmatch(text := value.strip()) or math.isinf(number := float(text)):
            raise ValueError
        return number
    too_large = isinstance(value, int) and abs(value) > EXACT_INTEGER
    if isinstance(value, bool) or too_large or not isinstance(value, int | float | Decimal):
        raise ValueError
    return float(value)


def _bool(value: Any) -> bool:
    if isinstance(value, str):
        value = _TRUTH.get(value.strip().lower())
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise ValueError


def _timestamp(value: Any) -> datetime:
    if isinstance(value, str) and not _BELOW_MICROSECONDS.search(value):
        value = datetime.fromisoformat(value.strip())
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        raise ValueError
    return value if value.tzinfo is None else value.astimezone(UTC)


def _date(value: Any) -> date:
    if isinstance(value, str):
        return date.fromisoformat(value.strip())
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    raise ValueError


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "string": _string, "int": _int, "float": _float, "bool": _bool, "timestamp": _timestamp, "date": _date,
    "json": lambda value: parse_json(value) if isinstance(value, str) else value,
}  # fmt: skip
