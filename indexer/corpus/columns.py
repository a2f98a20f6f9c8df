"""Which column of a row is the id, the title and the text, and the row made into a Document.

Columns are dropped first, then converted, then given their roles. What a column is converted to is for the user to say
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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa

from indexer.corpus.document import Document, is_blank
from indexer.corpus.ids import content_id
from indexer.corpus.readers.text import parse_json
from indexer.corpus.row import BadRow, Row, excerpt
from indexer.corpus.schema import EXACT_INTEGER, conversions_to, drop_nulls
from indexer.corpus.validation import Vector, check_string, check_value, to_vector, type_in_words
from indexer.errors import ConfigError, CorpusError
from indexer.recipe.config import CorpusConfig

ID_COLUMNS = ("_id", "id", "docid")
TITLE_COLUMNS = ("title",)
TEXT_COLUMNS = ("text", "contents", "document_text")
STORED_NAMES = ("id", "title", "text")  # the stored names of the three; no metadata column may have them
_MOST_CACHED = 1024  # sets of columns whose roles are remembered
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,25}", re.ASCII)
_BELOW_MICROSECONDS = re.compile(r"[.,]\d{6}\d*[1-9]")  # digits of a second that Python would drop
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
_WAY_OUT = {
    "id": "pass --id-column with the name of a column that every row has",
    "title": "pass --title-column with the name of a column",
    "text": "pass --text-column with the name of the column that holds the text",
    "vector": "pass --vector-column with the name of the column that holds the embeddings",
}


@dataclass(frozen=True)
class ColumnRoles:
    """The roles of the columns of a row; empty where there is none."""

    id: str
    title: str
    text: str
    metadata: tuple[str, ...]
    clashes: tuple[str, ...]  # metadata columns with a stored name
    vector: str = ""


class RowMapper:
    """Makes Documents of rows as a CorpusConfig says, and notes which columns it has met."""

    def __init__(self, config: CorpusConfig, known: pa.Schema | None = None) -> None:
        """`known` are the types of the index that the rows are for, by whose rules `config` they are read."""
        check_conversions(config.columns)
        for name in config.text:
            if name in config.drop:
                raise ConfigError(f'corpus.text names column "{name}", which corpus.drop leaves out.')
        self._config = config
        self._of_index = known is not None
        self._cell_types = conversions_to(known) if known is not None else {}
        self._drop = frozenset(config.drop)
        self._met: set[str] = set()
        self._roles: dict[tuple[str, ...], ColumnRoles] = {}

    def unused_columns(self) -> list[str]:
        """Columns named in drop, columns or text that were in no row."""
        asked = [*self._config.text, *self._config.columns, *self._config.drop]
        return [name for name in dict.fromkeys(asked) if name not in self._met and name not in STORED_NAMES]

    def check_title_met(self) -> None:
        """Raises CorpusError when the title column that was asked for is in no row at all."""
        name = self._config.title_column
        if name and self._met and name not in self._met:
            raise CorpusError(f"{self._missing('title', self._met)}. Way out: {self.way_out(_WAY_OUT['title'])}.")

    def check_header(self, columns: Sequence[str], shown: str) -> None:
        """Raises CorpusError when rows with these columns can never be documents."""
        roles = self.roles(columns)
        for role, name in (("id", self._config.id_column), ("title", self._config.title_column)):
            if name and name not in columns:
                raise CorpusError(f"{shown}: {self._missing(role, columns)}. Way out: {self.way_out(_WAY_OUT[role])}.")
        for role in ("text", "vector"):
            if not getattr(roles, role) and self._needs(role):
                raise CorpusError(f"{shown}: {self._missing(role, columns)}. Way out: {self.way_out(_WAY_OUT[role])}.")
        if roles.clashes:
            clash = _clash(roles.clashes[0], roles)
            raise CorpusError(f"{shown}: {clash.what}. Way out: {self.way_out(clash.way_out)}.")

    def way_out(self, usual: str) -> str:
        """The way out that there is (see `way_out_of`)."""
        return way_out_of(usual, self._of_index)

    def has_id(self, row: Row) -> bool:
        """Whether the row has an id column."""
        return bool(self.roles(row.values).id)

    def document(self, row: Row) -> Document:
        """The row as a Document, its metadata canonical; one without an id column gets the id of its content.

        Raises BadRow: "id", "no-id", "title", "text", "blank", "vector", "type", "nul", "surrogate", "malformed".
        """
        roles = self.roles(row.values)
        values = self._converted(row.values, row.cells)
        if not roles.id:
            self._require_no_id_column(values)
            document = self._document("", row, values, roles)
            return replace(document, id=content_id(document))
        identifier = _identifier(values[roles.id], roles.id)
        try:
            return self._document(identifier, row, values, roles)
        except BadRow as bad:
            bad.id = identifier
            raise

    def _document(self, identifier: str, row: Row, values: dict[str, Any], roles: ColumnRoles) -> Document:
        check_string(identifier, roles.id)
        title = _title(values[roles.title], roles.title) if roles.title else None
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
            joined = " and ".join(f'"{name}"' for name in self._config.text)
            raise BadRow("blank", f"nothing but blanks in {joined}", "fill the row, or take it out")
        return document

    def _require_no_id_column(self, values: dict[str, Any]) -> None:
        if self._config.id_column:
            raise BadRow("no-id", self._missing("id", values), _WAY_OUT["id"])

    def _needs(self, role: str) -> bool:
        """Whether every row must have a column for this: a text, unless it is a vector that the document stands for."""
        config = self._config
        return bool(config.text_column or not config.vector_column if role == "text" else config.vector_column)

    def _vector(self, values: dict[str, Any], roles: ColumnRoles) -> Vector | None:
        if roles.vector:
            return to_vector(values[roles.vector], roles.vector)
        if self._needs("vector"):
            raise BadRow("vector", self._missing("vector", values), _WAY_OUT["vector"])
        return None

    def _text(self, row: Row, values: dict[str, Any], roles: ColumnRoles) -> str:
        if not roles.text and self._needs("text"):
            raise BadRow("text", self._missing("text", values), _WAY_OUT["text"])
        text = values[roles.text] if roles.text else None
        if text is None and (row.cells or self._config.vector_column):
            return ""
        if text is None:
            raise BadRow("text", f'"{roles.text}" is null')
        if not isinstance(text, str):
            raise BadRow("text", f'"{roles.text}" is {type_in_words(text)}, not text', _as_text(roles.text))
        check_string(text, roles.text)
        return text

    def _missing(self, role: str, found: Collection[str]) -> str:
        """What to say when a role has no column: what was looked for, what is there and why that will not do."""
        columns = ", ".join(f'"{name}"' for name in found) or "none"
        named = getattr(self._config, f"{role}_column")
        wanted = (named,) if named else TEXT_COLUMNS
        if used := [f'"{name}" is {self._use(name)}' for name in wanted if name in found]:
            return f"no {role} column: {' and '.join(used)}; columns found: {columns}"
        if not named:
            return f"no {role} column ({', '.join(TEXT_COLUMNS)}); columns found: {columns}"
        close = difflib.get_close_matches(named, list(found), n=1)
        hint = f' (did you mean "{close[0]}"?)' if close else ""
        return f'the {role} column "{named}" is missing{hint}; columns found: {columns}'

    def _use(self, name: str) -> str:
        """What is made of a column that is there."""
        if name in self._drop:
            return "left out (--drop-column)"
        roles = [role for role in ("id", "title", "text", "vector") if getattr(self._config, f"{role}_column") == name]
        return f"the {roles[0]} (--{roles[0]}-column)" if roles else "another column"

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
        """The value as type `kind`. A column that is one of whole numbers in the index may come with fractions."""
        try:
            return convert(value, kind, name)
        except BadRow:
            if kind != "int" or name in self._config.columns:
                raise
            with suppress(BadRow):
                return convert(value, "float", name)
            raise

    def roles(self, columns: Iterable[str]) -> ColumnRoles:
        """The roles of the columns of a row that has these."""
        names = tuple(columns)
        roles = self._roles.get(names)
        if roles is None:
            roles = self._find_roles(names)
            # rows with ever new columns must not fill the memory
            if len(self._roles) >= _MOST_CACHED:
                self._roles.clear()
            self._roles[names] = roles
        return roles

    def _find_roles(self, names: tuple[str, ...]) -> ColumnRoles:
        for name in names:
            check_string(name, name)
        self._met.update(names)
        kept = [name for name in names if name not in self._drop]
        config = self._config
        asked = (config.id_column, config.title_column, config.text_column, config.vector_column)
        found = [
            _find(named, usual, [name for name in kept if name == named or name not in asked])
            for named, usual in zip(asked, (ID_COLUMNS, TITLE_COLUMNS, TEXT_COLUMNS, ()), strict=True)
        ]
        taken = {name for name in found if name}  # "" stands for a role that no column has
        metadata = tuple(name for name in kept if name not in taken)
        clashes = tuple(name for name in metadata if name in STORED_NAMES)
        return ColumnRoles(found[0], found[1], found[2], metadata, clashes, found[3])


def way_out_of(usual: str, for_index: bool) -> str:
    """The way out of a bad row: whoever adds to an index has no options that say how columns are read."""
    if for_index and "--" in usual:
        return "give the row as the index has the others, or build the index anew by other column rules"
    return usual


def _find(named: str, usual: Sequence[str], names: Collection[str]) -> str:
    for name in (named,) if named else usual:
        if name in names:
            return name
    return ""


def _identifier(value: Any, column: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None or value == "":
        raise BadRow("id", f'the id "{column}" is {"null" if value is None else "empty"}')
    if not isinstance(value, str):
        what = f'the id "{column}" is {type_in_words(value)}; expected text or a whole number'
        raise BadRow("id", what, _as_text(column))
    return value


def _title(value: Any, column: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise BadRow("title", f'"{column}" is {type_in_words(value)}, not text', _as_text(column))
    check_string(value, column)
    return value


def _as_text(column: str) -> str:
    return f"pass --column {column}:string to read it as text"


def _clash(name: str, roles: ColumnRoles) -> BadRow:
    role = getattr(roles, name)
    taken = f'the {name} comes from "{role}"' if role else f"the stored {name} has that name"
    what = f'column "{name}" cannot be metadata: {taken}'
    return BadRow(name, what, f"pass --{name}-column {name}, or --drop-column {name}")


def check_conversions(columns: Mapping[str, str]) -> None:
    """Raises ConfigError for a type that is not in the table of this module."""
    for name, kind in columns.items():
        if kind not in _CONVERTERS:
            known = ", ".join(_CONVERTERS)
            raise ConfigError(f'column "{name}" is to be read as "{kind}"; expected one of {known}.')


def convert(value: Any, kind: str, name: str) -> Any:
    """The value as type `kind` (see the table of this module). Raises BadRow ("type") when it does not fit exactly."""
    if value is None:
        return None
    try:
        return _CONVERTERS[kind](value)
    except (ValueError, OverflowError, RecursionError):
        text = excerpt(str(value))[:80]
        what = f'column "{name}" holds "{text}", which cannot be read as {kind}'
        raise BadRow("type", what, f"fix the row, or pass --column {name}:string") from None


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
        return _written_float(value.strip())
    too_large = isinstance(value, int) and abs(value) > EXACT_INTEGER
    if isinstance(value, bool) or too_large or not isinstance(value, int | float | Decimal):
        raise ValueError
    return float(value)


def _written_float(text: str) -> float:
    if not _NUMBER.fullmatch(text) or math.isinf(number := float(text)):
        raise ValueError
    return number


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


def _json(value: Any) -> Any:
    return parse_json(value) if isinstance(value, str) else value


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "string": _string,
    "int": _int,
    "float": _float,
    "bool": _bool,
    "timestamp": _timestamp,
    "date": _date,
    "json": _json,
}
