"""DuckDB parses and evaluates filters: tables in memory only, no files, no settings, limited time."""

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

from indexer.store.document_tables import numbers_array

DEPTH = 250  # nested expressions that DuckDB parses
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,  # no files, no network
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "python_enable_replacements": False,  # Python variables are not tables
    "max_expression_depth": DEPTH,
    "threads": 4,
    "lock_configuration": True,
}
_TABLE, _POSITION = "documents", "position"
_VECTOR = 2048  # rows that DuckDB processes together, at most
_STEP_BYTES = 8 << 20  # processed between two moments at which DuckDB can be interrupted
_AGAIN = 0.05  # seconds between interrupts: DuckDB ignores those that come before it starts
_NOWHERE = 2**64 - 1  # DuckDB's value for no position

Tree = dict[str, Any]  # a node of DuckDB's syntax tree, without empty and default fields


class FilterError(Exception):
    """DuckDB cannot parse or evaluate a condition. The message uses the SQL names of columns.

    `place` is the byte of the statement at which DuckDB stopped parsing, if it reports one.
    """

    def __init__(self, message: str, place: int | None = None) -> None:
        super().__init__(message)
        self.place = place


class TimeLimitError(Exception):
    """A condition was not evaluated in time."""


@dataclass(frozen=True)
class Condition:
    """An SQL condition over columns c0, c1, ... and tables list0, list1, ... with one column each (`lists`).

    For each document, DuckDB reads its bytes `weight` times and writes `made` further bytes.
    """

    sql: str
    lists: tuple[pa.Array, ...] = ()
    weight: int = 1
    made: int = 0


class FilterDatabase:
    """A connection to DuckDB with one table of documents at a time. Not thread-safe."""

    def tokens(self, text: str) -> list[tuple[int, str]]:
        """Return the first byte and the kind of each token of SQL text, except literals."""
        import duckdb

        kinds = duckdb.token_type
        literals = (kinds.numeric_const, kinds.string_const)
        return [(start, kind.name) for start, kind in duckdb.tokenize(text) if kind not in literals]

    def parse(self, statement: str) -> Tree:
        """Return the syntax tree of one query without binding or running it. Raises FilterError for anything else."""
        sql = "SELECT json_serialize_sql(?::VARCHAR, skip_null := true, skip_empty := true, skip_default := true)"
        try:
            tree: Tree = json.loads(self.connection.execute(sql, [statement]).fetchall()[0][0])
        except RecursionError:
            raise FilterError("Max expression depth limit exceeded") from None
        if tree["error"]:
            place = int(tree.get("position", _NOWHERE))
            raise FilterError(tree["error_message"], None if place >= _NOWHERE else place)
        node: Tree = tree["statements"][0]["node"]  # the only statement, because the scanner rejects ";"
        return node

    def matches(
        self, condition: Condition, columns: list[pa.ChunkedArray], count: int, seconds: float
    ) -> npt.NDArray[np.int64]:
        """Return the ascending positions at which a condition over c0, c1, ... (`count` values each) is true.

        Raises FilterError, and TimeLimitError after `seconds`.
        """
        import duckdb

        names = [f"c{number}" for number in range(len(columns))]
        table = pa.table([*columns, numbers_array(np.arange(count))], names=[*names, _POSITION])
        work = table.nbytes * condition.weight + len(table) * condition.made
        rows = _STEP_BYTES * len(table) // max(1, work)
        if rows < _VECTOR:  # smaller batches, because DuckDB can be interrupted only between them
            table = pa.Table.from_batches(table.to_batches(max_chunksize=max(1, rows)), table.schema)
        tables = {_TABLE: table} | {
            f"list{number}": pa.table([values], names=["value"]) for number, values in enumerate(condition.lists)
        }
        sql = f"SELECT {_POSITION} FROM {_TABLE} WHERE {condition.sql}"  # noqa: S608  # `grammar` wrote all of it
        connection = self.connection
        for name, values in tables.items():
            connection.register(name, values)
        try:
            with _interrupted_after(seconds, connection):
                positions = connection.execute(sql).fetchnumpy()[_POSITION]
        except duckdb.InterruptException as error:
            raise TimeLimitError from error
        except duckdb.Error as error:
            raise FilterError(_reason(error)) from error
        finally:
            for name in tables:
                connection.unregister(name)
        return np.sort(positions)  # DuckDB guarantees no order

    @cached_property
    def connection(self) -> Any:
        """The connection to DuckDB, loaded on first use."""
        import duckdb  # here, because the import is slow and most searches have no filter

        connection = duckdb.connect(":memory:", config=_SETTINGS)
        # The first Arrow table loads further modules, which takes a second on a busy machine: outside the time limit.
        connection.register(_TABLE, pa.table([numbers_array([0])], names=[_POSITION]))
        connection.execute(f"SELECT {_POSITION} FROM {_TABLE}").fetchnumpy()  # noqa: S608
        connection.unregister(_TABLE)
        return connection


@contextmanager
def _interrupted_after(seconds: float, connection: Any) -> Iterator[None]:
    done, until = threading.Event(), time.monotonic() + seconds

    def watch() -> None:
        while not done.wait(max(_AGAIN, until - time.monotonic())):
            connection.interrupt()

    watcher = threading.Thread(target=watch, name="filter-limit", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()  # so that it does not interrupt the next filter


def _reason(error: Exception) -> str:
    """Return DuckDB's message without the error type, the rewritten SQL, and advice that does not apply to filters."""
    message = re.sub(r"^[A-Z][\w -]* Error: ", "", str(error).partition("\n")[0])
    return re.sub(r"\. Use TRY\(.*", "", message).rstrip(".")
