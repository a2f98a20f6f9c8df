"""What every reader yields: a header, rows, blank lines and bad rows; and the file that lists the rows left out."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from indexer.errors import CorpusError, StoreError
from indexer.store.files import DigestBuilder, FileDigest, digest_file, sync_folder
from indexer.system.output_files import OutputFile, check_output, is_stream, open_output
from indexer.system.regular_files import open_regular
from indexer.typed_json import decode_json

RAW_CHARACTERS = 2_000  # of a rejected row, kept to recognise it by
OPTION = "--rejects"
ENDING = ".rejects.jsonl"  # of such files, by which readers of folders know them
_FIRST_LINE = 1 << 20  # bytes of one that are read to know it
FIX_ROW = "fix the row"
SKIP_ROWS = "pass --on-error skip to leave such rows out and list them"
SKIP_FILES = "pass --on-error skip to leave out the rest of such files"


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


class BadRow(CorpusError):  # noqa: N818 - yielded as a value as often as raised
    """One row that cannot become a document.

    `reason` is a short slug to count by, `what` the finding and `way_out` what to do about it. Readers yield it
    in place of the row, or raise it; `line`, `id` and `raw` are filled in by whoever knows them.
    """

    def __init__(self, reason: str, what: str, way_out: str = FIX_ROW, *, line: int = 0, raw: bytes | str = "") -> None:
        super().__init__(f"{what}. Way out: {way_out}.")
        self.reason = reason
        self.what = what
        self.way_out = way_out
        self.line = line
        self.id: str | None = None
        self.raw = raw
        self.skip_hint = SKIP_ROWS

    def message(self, path: str) -> str:
        """The finding as one line: where, what, and the ways out."""
        whose = f' (id "{escape_surrogates(self.id)}")' if self.id is not None else ""
        return f"{path}:{self.line}: {self.what}{whose}. Way out: {self.way_out}, or {self.skip_hint}."


class BrokenFile(BadRow):
    """Nothing after this point of a file can be read: a cut or corrupt stream, or a decompression bomb."""

    def __init__(self, reason: str, what: str, way_out: str, *, line: int = 0) -> None:
        super().__init__(reason, f"{what}; the rest of the file is left out", way_out, line=line)
        self.skip_hint = SKIP_FILES


RowStream = Iterator[Row | Header | BadRow | BlankLine]


class RejectsFile:
    """A JSON Lines file of the rows left out, in the order met; every pass over a corpus writes it anew.

    It is created at the first row and takes its final name in `close`, so a reader never sees half of it and a corpus
    without bad rows leaves no file. A pipe or a device is written row by row instead. The list of an earlier run is not
    lost, nor left as if it were this run's: it moves aside, to NAME.1.rejects.jsonl or the next number that is free.
    Any other file that is there already is overwritten only with `force`.
    """

    def __init__(self, path: Path, force: bool = False) -> None:
        """Raises ConfigError and ExistsError as `check_output`."""
        self.path = path
        self.moved_to: Path | None = None
        self._force = force
        self._writing: ExitStack | None = None
        self._file: OutputFile | None = None
        self._ours = False  # whether the list that is there is of an earlier pass of this run
        self._older: FileDigest | None = None  # the list that is there, unless it is ours or says nothing
        self._stamper, self._size = DigestBuilder(), 0
        self._check()

    def write(self, path: str, bad: BadRow) -> None:
        """Append one row. Raises StoreError when the file cannot be written."""
        entry = {
            "file": path,
            "line": bad.line,
            "id": None if bad.id is None else escape_surrogates(bad.id),
            "reason": bad.reason,
            "message": bad.what,
            "raw": excerpt(bad.raw),
        }
        line = (json.dumps(entry, ensure_ascii=False) + "\n").encode()
        if self._file is None:
            self._older, self._stamper, self._size = self._found(), DigestBuilder(), 0
            self._writing = ExitStack()
            self._file = self._writing.enter_context(open_output(self.path, OPTION, force=True))
        self._file.write(line)
        self._stamper.update(line)
        self._size += len(line)
        if self._older and self._size == self._older.bytes and self._stamper.digest() == self._older:
            self._older = None  # all of it is in this one: such as the list of a run that was interrupted

    def close(self, complete: bool) -> bool:
        """Give the file its final name; False when there was nothing to write. `complete`: all was read."""
        if self._writing is None:
            self._older = self._found() if complete else None
            self._move_aside()
            return False
        writing, self._writing, self._file = self._writing, None, None
        with writing:  # which gives the file its name in the end
            self._check()
            self._move_aside()
        self._ours = True
        return True

    def _check(self) -> None:
        check_output(self.path, OPTION, self._force or self._ours or _is_list(self.path))

    def _found(self) -> FileDigest | None:
        if self._ours or is_stream(self.path) or not _is_list(self.path):
            return None
        stamp = digest_file(self.path)
        return stamp if stamp.bytes else None

    def _move_aside(self) -> None:
        if self._older is None:
            return
        target = self.path.resolve() if self.path.is_symlink() else self.path
        free = next(name for name in map(partial(_numbered, target), count(1)) if not os.path.lexists(name))
        try:
            target.rename(free)
            sync_folder(target.parent)
        except OSError as error:
            raise StoreError(f"{target}: cannot be renamed to {free.name}: {error.strerror or error}.") from error
        self.moved_to = free


@dataclass(frozen=True)
class _Entry:
    """A line of the file, to tell it from others."""

    file: str
    line: int
    id: str | None
    reason: str
    message: str
    raw: str


def _is_list(path: Path) -> bool:
    """Whether a file is one of rejected rows, which its first line tells, or empty."""
    try:
        with open_regular(path) as file:
            first = file.readline(_FIRST_LINE)
        if first:
            decode_json(first, _Entry)
    except (OSError, ValueError):
        return False
    return True


def _numbered(path: Path, number: int) -> Path:
    """i.rejects.jsonl as i.1.rejects.jsonl, which readers of folders leave out too; others as name.1.jsonl."""
    ending = ENDING if path.name.endswith(ENDING) else path.suffix
    return path.with_name(f"{path.name.removesuffix(ending)}.{number}{ending}")


def escape_surrogates(text: str) -> str:
    """The text with lone surrogates written as escapes, so that it can be printed and stored."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def excerpt(raw: bytes | str) -> str:
    """At most RAW_CHARACTERS of a row, bytes that are not UTF-8 written as escapes."""
    if isinstance(raw, str):
        return escape_surrogates(raw[:RAW_CHARACTERS])
    # a character takes at most four bytes, so the cut never has to decode a line of 32 MiB
    return raw[: 4 * RAW_CHARACTERS].decode("utf-8", "backslashreplace")[:RAW_CHARACTERS]
