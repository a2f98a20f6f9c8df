"""DuckDB, which parses a filter and works out what it matches: one table in memory, no files, no settings, a second."""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

DEPTH = 250  # expressions within expressions that DuckDB reads
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,  # no files, no network
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "python_enable_replacements": False,  # no variable of this process is a table
    "max_expression_depth": DEPTH,
    "threads": 4,
    "lock_configuration": True,
}
_TABLE, _POSITION = "documents", "position"
_VECTOR = 2048  # rows that DuckDB looks at together, at most
_STEP_BYTES = 8 << 20  # looked at between two moments at which it can be interrupted
_AGAIN = 0.05  # seconds: an interrupt that comes before DuckDB has begun is lost
_NOWHERE = 2**64 - 1  # DuckDB's word for no place

Tree = dict[str, Any]  # a node of DuckDB's syntax tree: fields that are empty or as usual are left out


class FilterError(Exception):
    """DuckDB did not read or work out a condition: the message says why; columns have their names in SQL.

    `place` is the byte of the statement at which it stopped reading, if it told one.
    """

    def __init__(self, message: str, place: int | None = None) -> None:
        super().__init__(message)
        self.place = place


class TimeLimitError(Exception):
    """A condition was not worked out in time."""


@dataclass(frozen=True)
class Condition:
    """A condition in SQL, over columns c0, c1, ... and the values of `lists`: tables list0, list1, ... of one column.

    `weight` says how often a document's bytes are looked at, `made` how many more bytes are made for each document.
    """

    sql: str
    lists: tuple[pa.Array, ...] = ()
    weight: int = 1
    made: int = 0


class FilterDatabase:
    """A connection of DuckDB's, with one table of documents at a time. Not thread-safe."""

    def tokens(self, text: str) -> list[tuple[int, str]]:
        """The words and signs of a piece of SQL, but for literals: the byte at which each starts, and its kind."""
        import duckdb

        kinds = duckdb.token_type
        literals = (kinds.numeric_const, kinds.string_const)
        return [(start, kind.name) for start, kind in duckdb.tokenize(text) if kind not in literals]

    def has_function(self, name: str) -> bool:
        """Whether DuckDB has a function of this name, whether or not a filter may use it."""
        sql = "SELECT count(*) FROM duckdb_functions() WHERE function_name = ?"
        return bool(self._connection.execute(sql, [name.lower()]).fetchone()[0])

    def parse(self, statement: str) -> Tree:
        """The syntax tree of one query, which is neither bound nor run. Raises FilterError for anything else."""
        sql = "SELECT json_serialize_sql(?::VARCHAR, skip_null := true, skip_empty := true, skip_default := true)"
        try:
            tree: Tree = json.loads(self._connection.execute(sql, [statement]).fetchall()[0][0])
        except RecursionError:
            raise FilterError("Max expression depth limit exceeded") from None
        if tree["error"]:
            place = int(tree.get("position", _NOWHERE))
            raise FilterError(tree["error_message"], None if place >= _NOWHERE else place)
        (parsed,) = tree["statements"]  # several are refused before: there is no ";"
        node: Tree = parsed["node"]
        return node

    def matches(
        self, condition: Condition, columns: list[pa.ChunkedArray], count: int, seconds: float
    ) -> npt.NDArray[np.int64]:
        """The positions, ascending, at which a condition over columns c0, c1, ... (`count` values each) holds.

        Raises FilterError, and TimeLimitError.
        """
        import duckdb

        names = [f"c{number}" for number in range(len(columns))]
        table = _in_steps(pa.table([*columns, np.arange(count)], names=[*names, _POSITION]), condition)
        tables = {_TABLE: table} | {
            f"list{number}": pa.table([values], names=["value"]) for number, values in enumerate(condition.lists)
        }
        sql = f"SELECT {_POSITION} FROM {_TABLE} WHERE {condition.sql}"  # noqa: S608  # written by `grammar` alone
        connection = self._connection
        for name, values in tables.items():
            connection.register(name, values)
        try:
            with _interrupted_after(seconds, connection):
                found = connection.execute(sql).fetchnumpy()[_POSITION]
        except duckdb.InterruptException as error:
            raise TimeLimitError from error
        except duckdb.Error as error:
            raise FilterError(_reason(error)) from error
        finally:
            for name in tables:
                connection.unregister(name)
        return np.sort(found)  # DuckDB promises no order

    @cached_property
    def _connection(self) -> Any:
        import duckdb  # here, as it takes time and most searches have no filter

        return duckdb.connect(":memory:", config=_SETTINGS)


def _in_steps(table: pa.Table, condition: Condition) -> pa.Table:
    """The table in pieces that take little time each: between them, and only there, DuckDB can be interrupted."""
    looked = table.nbytes * condition.weight + len(table) * condition.made
    rows = _STEP_BYTES * len(table) // max(1, looked)
    if rows >= _VECTOR:
        return table
    return pa.Table.from_batches(table.to_batches(max_chunksize=max(1, rows)), table.schema)


@contextmanager
def _interrupted_after(seconds: float, connection: Any) -> Iterator[None]:
    done, until = threading.Event(), time.monotonic() + seconds

    def watch() -> None:
        while not done.wait(max(_AGAIN, until - time.monotonic())):
            connection.interrupt()

    watching = threading.Thread(target=watch, name="filter-limit", daemon=True)
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()  # so that it does not interrupt the next filter


def _reason(error: Exception) -> str:
    """What DuckDB says, without the kind of error, the piece of SQL, which the user did not write, and ways out that
    a filter does not have."""
    said = re.sub(r"^[A-Z][\w -]* Error: ", "", str(error).partition("\n")[0])
    return re.sub(r"\. Use TRY\(.*", "", said).rstrip(".")
