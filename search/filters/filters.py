"""The documents of an index that match a filter."""

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
ANSWER_BYTES = 32 << 20  # of cached answers, a bit a document
_ENTRY_BYTES = 256  # overhead of a cached answer
_REASON = 300  # characters of DuckDB's message


class MetadataFilter:
    """SQL conditions on the documents of an open index, with a cache of columns and answers.

    Safe to share between threads. DuckDB evaluates one filter at a time, with its own threads: parallel filters would
    slow each other down beyond the time limit. Cached answers do not wait.
    """

    def __init__(self, opened: "Index") -> None:
        self._documents = opened.documents
        self._values, self._database = ColumnReader(opened.documents), FilterDatabase()
        self._answers: LruCache[str, npt.NDArray[np.uint8]] = LruCache(ANSWER_BYTES)
        self._lock = threading.Lock()  # of the database and the columns

    def documents(self, where: str) -> npt.NDArray[np.int64]:
        """Return the ascending numbers of the documents that match an SQL condition. NULL does not match.

        Columns are id, title, text and metadata columns; `column.field` is a field of an object. Times with a zone
        are compared in UTC. Raises ConfigError for anything but a condition, unknown columns, values that cannot be
        compared, and a condition that takes longer than a second.
        """
        bits = self._answers.find(where)
        if bits is None:
            with self._lock:
                bits = self._answers.find(where)  # another thread may have evaluated it meanwhile
                if bits is None:
                    bits = np.packbits(self._evaluated(where))
                    self._answers.keep(where, bits, bits.nbytes + 4 * len(where) + _ENTRY_BYTES)
        return np.flatnonzero(np.unpackbits(bits, count=len(self._documents)))

    def _evaluated(self, where: str) -> npt.NDArray[np.bool_]:
        """Return a mask of the matching documents, (documents,)."""
        _ = self._database.connection  # before the time limit starts: the first takes longest
        columns, limit = ColumnNames(self._documents.schema), _TimeLimit()
        condition = compile_filter(where, columns, self._database)
        mask = np.zeros(len(self._documents), bool)
        try:
            limit.count()
            for batch in self._values.batches(columns.paths, limit.check_reading):
                mask[batch.first + self._database.matches(condition, batch.columns, batch.count, limit.left)] = True
                limit.count()
        except FilterError as error:
            refuse(where, _with_columns(str(error), columns))
        except TimeLimitError:
            refuse(
                where,
                f"not evaluated within {SECONDS:g} s over {len(mask):,} documents. Fix: simplify the condition, or "
                "leave out the longest columns",
            )
        return mask


class _TimeLimit:
    """The seconds that a filter has left, parsing included.

    Reading counts only after the bytes that `ColumnReader` can cache. Those are read once for all later filters, and
    may take longer because thousands of files are opened or fetched from object storage.
    """

    def __init__(self) -> None:
        self.left, self._since, self._read = SECONDS, time.monotonic(), 0
        self._lock = threading.RLock()  # several threads read

    def check_reading(self, size: int) -> None:
        """Count `size` bytes as read. Raises TimeLimitError, and AbandonedError if the client is gone."""
        require_awaited()
        with self._lock:
            self._read += size
            if self._read <= HELD_BYTES:
                self._since = time.monotonic()
            else:
                self.count()

    def count(self) -> None:
        """Subtract the seconds since the last call. Raises TimeLimitError when none are left."""
        with self._lock:
            now = time.monotonic()
            self.left -= now - self._since
            self._since = now
            if self.left <= 0:
                raise TimeLimitError


def _with_columns(reason: str, columns: ColumnNames) -> str:
    """Return DuckDB's message with the names and kinds of the columns."""
    names = [".".join(path) for path in columns.paths]
    message = re.sub(r"\bc(\d+)\b", lambda match: dict(enumerate(names)).get(int(match[1]), match[0]), reason)
    kinds = ", ".join(f"{name}: {kind}" for name, kind in zip(names, columns.kinds, strict=True))
    return f"{shortened(message, _REASON)}{f' ({kinds})' if kinds else ''}"


def delete_where(index: str | Path, where: str) -> "DeleteReport":
    """Delete the documents of an index that match a condition, if any.

    Raises ConfigError for a blank or invalid condition, and what `indexer.delete_documents` raises.
    """
    from indexer.pipeline.delete import delete_numbers  # here, because a query does not need it
    from search.index import Index

    if not (where or "").strip():
        raise ConfigError("where is blank; expected a condition on the documents to delete. Is a variable unset?")
    opened = Index.open(index)
    return delete_numbers(index, MetadataFilter(opened).documents(where), opened.manifest.generation)
