"""What every reader yields: the header of a file, its rows, and the rows that are bad."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from indexer.corpus.rejection import BadRow


@dataclass(slots=True)
class Row:
    """One row as found in a file: `line` counts from 1 (physical line, or row number in Parquet and Arrow).

    `raw` is the row as written, kept to show when it is rejected. `cells` says that the row is text cells, in
    which an empty one stands for null.
    """

    line: int
    values: dict[str, Any]
    raw: bytes | str = ""
    cells: bool = False


@dataclass(frozen=True, slots=True)
class Header:
    """The columns of a file whose rows all have the same; comes before the first row."""

    columns: list[str]


class BlankLine:
    """A line without anything on it; counted, no row."""


BLANK_LINE = BlankLine()
Rows = Iterator[Row | Header | BadRow | BlankLine]
