"""A user's queries, one a line: in a file, or arriving on a stream."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from indexer.corpus.lines import text_lines
from indexer.errors import IsotropeError
from indexer.regular_files import open_regular


@dataclass(frozen=True)
class QueryFile:
    """The queries of a file, in its order, and how many lines were blank."""

    texts: list[str]
    blank: int


def read_query_lines(stream: IO[bytes], shown: str, error: type[IsotropeError]) -> Iterator[tuple[int, str]]:
    r"""Queries with the numbers of their lines (1 is the first), as they arrive: UTF-8, stripped; a blank line is "".

    Only "\n" ends a line, and a byte order mark is dropped. Raises `error`, naming the stream as `shown`, the line and
    the byte, for what is not UTF-8; OSError as the stream does.
    """
    for number, line in text_lines(stream, shown, error):
        yield number, line.strip()


def read_query_file(path: Path, error: type[IsotropeError], where: str = "") -> QueryFile:
    """The queries of a file, read as `read_query_lines` does.

    Raises `error`, its message beginning with `where`, for a file that cannot be read or holds no query.
    """
    try:
        with open_regular(path) as file:
            found = [text for _, text in read_query_lines(file, f"{where}{path}", error)]
    except OSError as cause:
        raise error(f"{where}{path}: cannot be read: {cause.strerror or cause}.") from cause
    texts = [text for text in found if text]
    if not texts:
        raise error(f"{where}{path}: holds no queries; expected one a line.")
    return QueryFile(texts, len(found) - len(texts))
