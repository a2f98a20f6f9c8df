"""A user's file of queries."""

import codecs
from dataclasses import dataclass
from pathlib import Path

from indexer.errors import IsotropeError


@dataclass(frozen=True)
class QueryFile:
    """The queries of a file, in its order, and how many lines were blank."""

    texts: list[str]
    blank: int


def read_query_file(path: Path, error: type[IsotropeError], where: str = "") -> QueryFile:
    r"""Queries, one a line, UTF-8, stripped; only "\n" ends a line, and a byte order mark is dropped.

    Raises `error`, its message beginning with `where`, for a file that cannot be read or holds no query.
    """
    try:
        lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    except OSError as cause:
        raise error(f"{where}{path}: cannot be read: {cause.strerror or cause}.") from cause
    if not lines[-1]:
        del lines[-1]  # what follows the last line's end is no line
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(line.decode().strip())
        except UnicodeDecodeError as cause:
            way_out = "Convert the file to UTF-8."
            raise error(f"{where}{path}:{number}: not UTF-8 text ({cause.reason}). {way_out}") from None
    texts = [text for text in found if text]
    if not texts:
        raise error(f"{where}{path}: holds no queries; expected one a line.")
    return QueryFile(texts, len(found) - len(texts))
