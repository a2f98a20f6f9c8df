"""From an index and a filter to the numbers of the documents that meet it."""

import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from indexer.errors import ConfigError
from search.abandonment import require_awaited
from search.filters.columns import HELD_BYTES, ColumnNames, ColumnReader, LruCache
from search.filters.database import FilterDatabase, FilterError, TimeLimitError
from search.filters.expressions import shortened
from search.filters.grammar import compile_filter
from search.filters.scanner import refuse

if TYPE_CHECKING:
    from indexer.pipeline.delete import DeleteReport
    from search.index import Index

SECONDS = 1.0  # time limit of a filter
ANSWER_BYTES = 32 << 20  # of answers kept, a bit a document
_ENTRY_BYTES = 256  # of an answer that is kept, beside what it says
_SAID = 300  # characters of what DuckDB says


class MetadataFilter:
    """SQL conditions on the documents of an open index. Recent columns and answers stay in memory.

    Safe to share between threads. DuckDB evaluates one filter at a time, with its own threads: filters that ran side by
    side would slow each other down beyond the time limit. Answers in memory are returned without waiting.
    """

    def __init__(self, opened: "Index") -> None:
        self._documents = opened.documents
        self._values, self._database = ColumnReader(opened.documents), FilterDatabase()
        self._answers: LruCache[str, npt.NDArray[np.uint8]] = LruCache(
            ANSWER_BYTES, lambda where: 4 * len(where) + _ENTRY_BYTES
        )
        self._lock = threading.Lock()  # of the database and the columns

    def documents(self, where: str) -> npt.NDArray[np.int64]:
        """Return the numbers of the documents that meet an SQL condition, ascending. NULL counts as not met.

        Columns are id, title, text and those of metadata; `column.field` is a field of an object. Times with a zone
        count in UTC. Raises ConfigError for anything but a condition, unknown columns, values of kinds that cannot
        be compared, and a condition that takes longer than a second.
        """
        bits = self._answers.find(where)
        if bits is None:
            with self._lock:
                bits = self._answers.find(where)  # somebody else may have asked the same meanwhile
                if bits is None:
                    bits = self._answers.keep(where, np.packbits(self._met(where)))
        return np.flatnonzero(np.unpackbits(bits, count=len(self._documents)))

    def _met(self, where: str) -> npt.NDArray[np.bool_]:
        """Return a mask of the documents that meet a condition, (documents,)."""
        self._database.connect()  # outside the limit
        columns, limit = ColumnNames(self._documents.schema), _TimeLimit()
        condition = compile_filter(where, columns, self._database)
        met = np.zeros(len(self._documents), bool)
        try:
            limit.count()
            for batch in self._values.batches(columns.paths, limit.check_reading):
                found = self._database.matches(condition, batch.columns, batch.count, limit.left)
                met[batch.first + found] = True
                limit.count()
        except FilterError as error:
            refuse(where, _in_words(str(error), columns))
        except TimeLimitError:
            refuse(
                where,
                f"not worked out within {SECONDS:g} s over {len(met):,} documents. Add a condition that leaves "
                "fewer to be looked at, or spare the longest columns",
            )
        return met


class _TimeLimit:
    """The seconds that a filter has left, parsing included.

    Reading columns counts only after the bytes that `ColumnReader` can keep in memory. Those are read once for all
    later filters and may take longer, because thousands of files must be opened or fetched from object storage.
    """

    def __init__(self) -> None:
        self.left, self._since, self._read = SECONDS, time.monotonic(), 0

    def check_reading(self, size: int) -> None:
        """Count `size` bytes that were read. Raises TimeLimitError, and AbandonedError if nobody waits."""
        require_awaited()
        self._read += size
        if self._read <= HELD_BYTES:
            self._since = time.monotonic()
        else:
            self.count()

    def count(self) -> None:
        """Subtract the seconds since the last call. Raises TimeLimitError when none are left."""
        now = time.monotonic()
        self.left -= now - self._since
        self._since = now
        if self.left <= 0:
            raise TimeLimitError


def _in_words(reason: str, columns: ColumnNames) -> str:
    """Return a message of DuckDB with the filter's own columns and their kinds."""
    names = [".".join(path) for path in columns.paths]
    said = re.sub(r"\bc(\d+)\b", lambda found: dict(enumerate(names)).get(int(found[1]), found[0]), reason)
    kinds = ", ".join(f"{name}: {kind}" for name, kind in zip(names, columns.kinds, strict=True))
    return f"{shortened(said, _SAID)}{f' ({kinds})' if kinds else ''}"


def delete_where(index: str | Path, where: str) -> "DeleteReport":
    """Delete the documents of an index that meet a condition; no match is no error.

    Raises ConfigError for a condition that is blank or cannot be used, and what `indexer.delete_documents` raises.
    """
    from indexer.pipeline.delete import delete_numbers  # here, as a query does not need it
    from search.index import Index

    if not (where or "").strip():
        raise ConfigError("where is blank; expected a condition on the documents to delete. Is a variable unset?")
    opened = Index.open(index)
    return delete_numbers(index, MetadataFilter(opened).documents(where), opened.manifest.generation)
