"""DuckDB, which works out what a filter matches: given one table in memory, no files, no settings, a second at most."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,  # no files, no network
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "python_enable_replacements": False,  # no variable of this process is a table
    "threads": 4,
    "lock_configuration": True,
}
_TABLE, _POSITION = "documents", "position"
_VECTOR = 2048  # rows that DuckDB looks at together, at most
_STEP_BYTES = 8 << 20  # looked at between two moments at which it can be interrupted
_AGAIN = 0.05  # seconds: an interrupt that comes before DuckDB has begun is lost


class FilterError(Exception):
    """DuckDB did not work out a condition. The message says why; columns have their names in SQL."""


class TimeLimitError(Exception):
    """A condition was not worked out in time."""


class Database:
    """A connection of DuckDB's, with one table at a time. Not thread-safe."""

    def matches(
        self, condition: str, columns: list[pa.ChunkedArray], count: int, seconds: float, weight: int = 1
    ) -> npt.NDArray[np.int64]:
        """The positions, ascending, at which an SQL condition over columns c0, c1, ... (`count` values each) holds.

        `weight` says how often a value is looked at. Raises FilterError, and TimeLimitError.
        """
        import duckdb

        names = [f"c{number}" for number in range(len(columns))]
        table = _in_steps(pa.table([*columns, np.arange(count)], names=[*names, _POSITION]), weight)
        sql = f"SELECT {_POSITION} FROM {_TABLE} WHERE {condition}"  # noqa: S608  # written by `translation` alone
        connection = self._connection
        connection.register(_TABLE, table)
        try:
            with _interrupted_after(seconds, connection):
                found = connection.execute(sql).fetchnumpy()[_POSITION]
        except duckdb.InterruptException as error:
            raise TimeLimitError from error
        except duckdb.Error as error:
            raise FilterError(_reason(error)) from error
        finally:
            connection.unregister(_TABLE)
        return np.sort(found)  # DuckDB promises no order

    @cached_property
    def _connection(self) -> Any:
        import duckdb  # here, as it takes time and most searches have no filter

        return duckdb.connect(":memory:", config=_SETTINGS)


def _in_steps(table: pa.Table, weight: int) -> pa.Table:
    """The table in pieces that take little time each: between them, and only there, DuckDB can be interrupted."""
    rows = _STEP_BYTES * len(table) // max(1, table.nbytes * weight)
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
    """What DuckDB says, without the kind of error and the piece of SQL, which is not what the user wrote."""
    return re.sub(r"^[A-Z][\w -]* Error: ", "", str(error).partition("\n")[0]).rstrip(".")
