"""DuckDB parses filters and evaluates them: one table in memory, no files, no settings, and a limited time."""

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
_STEP_BYTES = 8 << 20  # read between two moments at which DuckDB can be interrupted
_AGAIN = 0.05  # seconds: an interrupt that comes before DuckDB has begun is lost
_NOWHERE = 2**64 - 1  # DuckDB's word for no place

Tree = dict[str, Any]  # a node of DuckDB's syntax tree: fields that are empty or as usual are left out


class FilterError(Exception):
    """DuckDB cannot read or evaluate a condition. The message says why; columns have their names in SQL.

    `place` is the byte of the statement at which DuckDB stopped reading, if it reports one.
    """

    def __init__(self, message: str, place: int | None = None) -> None:
        super().__init__(message)
        self.place = place


class TimeLimitError(Exception):
    """A condition was not evaluated in time."""


@dataclass(frozen=True)
class Condition:
    """A condition in SQL, over columns c0, c1, ... and the values of `lists`: tables list0, list1, ... of one column.

    `weight` says how often a document's bytes are read, `made` how many more bytes are written for each document.
    """

    sql: str
    lists: tuple[pa.Array, ...] = ()
    weight: int = 1
    made: int = 0


class FilterDatabase:
    """A connection to DuckDB, with one table of documents at a time. Not thread-safe."""

    def connect(self) -> None:
        """Load DuckDB and connect to it, which takes time the first time."""
        self._connection  # noqa: B018  # a cached property

    def tokens(self, text: str) -> list[tuple[int, str]]:
        """Return the first byte and the kind of each word and sign of a piece of SQL, literals aside."""
        import duckdb

        kinds = duckdb.token_type
        literals = (kinds.numeric_const, kinds.string_const)
        return [(start, kind.name) for start, kind in duckdb.tokenize(text) if kind not in literals]

    def parse(self, statement: str) -> Tree:
        """Return the syntax tree of one query, neither bound nor run. Raises FilterError for anything else."""
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
        """Return the positions, ascending, at which a condition over columns c0, c1, ... (`count` values each) holds.

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
    """Return the table in pieces that take little time and memory each. DuckDB can be interrupted only between them."""
    work = table.nbytes * condition.weight + len(table) * condition.made
    rows = _STEP_BYTES * len(table) // max(1, work)
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
    """Return DuckDB's message without the kind of error, the piece of rewritten SQL, and advice that fits no filter."""
    said = re.sub(r"^[A-Z][\w -]* Error: ", "", str(error).partition("\n")[0])
    return re.sub(r"\. Use TRY\(.*", "", said).rstrip(".")
