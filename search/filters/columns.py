"""The columns a filter names, in the schema of an index."""

import difflib

import pyarrow as pa

from indexer.store.documents import ColumnPath, type_at
from search.filters.operands import LISTS, NULLS, OBJECTS, Operand, kind_of
from search.filters.source import RESERVED, Source, shortened

_LISTED = 30  # columns named in a message


class Columns:
    """Finds columns by name and gives each a name of its own in SQL, since DuckDB takes "Year" and "year" for one."""

    def __init__(self, schema: pa.Schema, source: Source) -> None:
        self._schema, self._source = schema, source
        self.paths: list[ColumnPath] = []  # of c0, c1, ...

    @property
    def kinds(self) -> list[str]:
        """What c0, c1, ... hold."""
        return [kind_of(type_at(self._schema, path)) for path in self.paths]

    def find(self, names: ColumnPath, quoted: bool, start: int, shown: str) -> Operand:
        """A column, or a field inside its objects, as written: exactly, else in letters of another case.

        Raises ConfigError for a column that is not there and for one that has no values of its own.
        """
        path = self._path(names, quoted, start)
        held = type_at(self._schema, path)
        kind, element = kind_of(held), NULLS
        if kind == OBJECTS:
            fields = _listed([field.name for field in held])
            self._source.refuse(f"{shown} holds objects; name one of their fields, as {shown}.field: {fields}", start)
        if kind == LISTS:
            element = kind_of(held.value_type)
        if path not in self.paths:
            self.paths.append(path)
        return Operand(f"c{self.paths.index(path)}", kind, shown, start, element=element)

    def _path(self, names: ColumnPath, quoted: bool, start: int) -> ColumnPath:
        name = _among(names[0], self._schema.names)
        if name is None:
            self._source.refuse(f"no column {_named(names)}{self._hint(names, quoted)}", start)
        path: ColumnPath = (name,)
        for field in names[1:]:
            held = type_at(self._schema, path)
            fields = [inner.name for inner in held] if pa.types.is_struct(held) else []
            inner = _among(field, fields)
            if inner is None:
                there = f"its fields are {_listed(fields)}" if fields else f"{'.'.join(path)} is no object"
                self._source.refuse(f"no field {_named(names)}: {there}{self._dotted(names)}", start)
            path = (*path, inner)
        return path

    def _hint(self, names: ColumnPath, quoted: bool) -> str:
        columns = self._schema.names
        if dotted := self._dotted(names):
            return dotted
        close = difflib.get_close_matches(names[0], columns, n=1)
        meant = f" (did you mean {_shown(close[0])}?)" if close else ""
        text = f"; text is written in single quotes: '{shortened(names[0])}'" if quoted or not close else ""
        return f"{meant}; there are {_listed(columns)}{text}"

    def _dotted(self, names: ColumnPath) -> str:
        """The way out where the name of a column has a dot."""
        whole = ".".join(names)
        return f' (did you mean "{whole}", in double quotes?)' if whole in self._schema.names and names[1:] else ""


def _among(name: str, there: list[str]) -> str | None:
    if name in there:
        return name
    alike = [other for other in there if other.casefold() == name.casefold()]
    return alike[0] if len(alike) == 1 else None


def _named(names: ColumnPath) -> str:
    return f'"{shortened(".".join(names))}"'


def _listed(names: list[str]) -> str:
    return ", ".join(map(_shown, names[:_LISTED])) + ", ..." * (len(names) > _LISTED)


def _shown(name: str) -> str:
    """A column's name as a filter would have it."""
    plain = name.isidentifier() and name.upper() not in RESERVED
    name = shortened(name)
    return name if plain else '"' + name.replace('"', '""') + '"'
