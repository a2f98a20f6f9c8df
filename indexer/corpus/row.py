"""What every reader yields: the header of a file, its rows, and the rows that are bad."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from indexer.corpus.rejection import BadRow


@dataclass(frozen=True, slots=True)
class Header:
    """The columns of a file whose rows all have the same; comes before the first row.

    `raw` is the header line as written (CSV, TSV); `schema` is the file's own (Parquet, Arrow), which an Arrow
    `stream` differs from an Arrow file in nothing but its framing.
    """

    columns: list[str]
    raw: bytes = b""
    schema: Any = None  # pyarrow.Schema
    stream: bool = False


@dataclass(slots=True)
class Row:
    """One row as found in a file: `line` counts from 1 (physical line, or row number in Parquet and Arrow).

    `raw` is the whole row as written, "" in Parquet and Arrow, where it is number `place` of a `batch` instead.
    `cells` says that the row is text cells, in which an empty one stands for null.
    """

    line: int
    values: dict[str, Any]
    raw: bytes = b""
    cells: bool = False
    header: Header | None = None
    batch: Any = None  # pyarrow.RecordBatch
    place: int = 0


class BlankLine:
    """A line without anything on it; counted, no row."""


BLANK_LINE = BlankLine()
Rows = Iterator[Row | Header | BadRow | BlankLine]
