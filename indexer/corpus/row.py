"""The items that readers yield (headers, rows, blank lines, bad rows) and the file that lists rejected rows."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from indexer.errors import CorpusError, StoreError, as_argument, spelled
from indexer.store.files import DigestBuilder, FileDigest, digest_file, sync_folder
from indexer.system.output_files import OutputFile, check_output, is_stream, open_output
from indexer.system.regular_files import open_regular
from indexer.typed_json import decode_json

RAW_CHARACTERS = 2_000  # of a rejected row, kept in the list
ENDING = ".rejects.jsonl"  # by which folders skip these files
_FIRST_LINE = 1 << 20  # bytes read to recognise a list
FIX_ROW = "correct the row"


def read_as(column: str, kind: str) -> str:
    """Return the fix that reads a metadata column as a type."""
    return spelled(f'set corpus.columns = {{"{column}": "{kind}"}}', f"pass --column {column}:{kind}")


def column_of(role: str) -> str:
    """Return the name of the setting of the column with a role, such as "id"."""
    return spelled(f"corpus.{role}_column", f"--{role}-column")


def name_column(role: str) -> str:
    """Return the beginning of a fix that names this column."""
    argument = "" if role == "vector" else f"the argument {role}_column, or "
    return spelled(f"set {argument}{column_of(role)} to", f"pass {column_of(role)} with")


def described(counts: Mapping[str, int]) -> str:
    """Return counts by reason as words: "40 hidden, 12 ignored by .gitignore"."""
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.items()))


def place_in(path: str, line: int) -> str:
    """Return the place of a row in messages; line 0 is a whole file."""
    return f"{path}:{line}" if line else path


def _by_skipping(what: str) -> str:
    return f"pass {as_argument('on_error', 'skip')} to {what}"


@dataclass(frozen=True, slots=True)
class Header:
    """The columns of a file with a fixed set of them; comes before the first row.

    `raw` is the header line as written (CSV, TSV); `schema` is the file's own (Parquet, Arrow). `stream` is the other
    framing of Arrow.
    """

    columns: list[str]
    raw: bytes = b""
    schema: Any = None  # pyarrow.Schema
    stream: bool = False


@dataclass(slots=True)
class Row:
    """One row of a file; `line` counts from 1 (physical line, or row number in Parquet and Arrow).

    `raw` is the whole row as written; in Parquet and Arrow it is empty, and the row is number `place` of a `batch`.
    `cells` means that all values are text cells, and empty cells are null.
    """

    line: int
    values: dict[str, Any]
    raw: bytes = b""
    cells: bool = False
    header: Header | None = None
    batch: Any = None  # pyarrow.RecordBatch
    place: int = 0


class BlankLine:
    """A blank line; counted, but no row."""


BLANK_LINE = BlankLine()


class BadRow(CorpusError):  # noqa: N818 - yielded as a value as often as raised
    """A row that cannot become a document.

    `reason` is a slug to count by, `what` the finding and `way_out` the fix. Readers yield it instead of the row
    or raise it; callers that know `line`, `id` and `raw` set them.
    """

    def __init__(self, reason: str, what: str, way_out: str = FIX_ROW, *, line: int = 0, raw: bytes | str = "") -> None:
        super().__init__(f"{what}. Fix: {way_out}.")
        self.reason, self.what, self.way_out = reason, what, way_out
        self.skip_hint = _by_skipping(spelled("skip such rows", "skip and list such rows"))
        self.line, self.raw = line, raw
        self.id: str | None = None

    def message(self, path: str) -> str:
        """Return the error as one line: place, finding and fixes. Without a line it is about a whole file."""
        if not self.line:
            hint = _by_skipping(spelled("skip such files", "skip and list such files"))
            return f"{path}: {self.what}. Fix: {self.way_out}, or {hint}."
        whose = f' (id "{escape_surrogates(self.id)}")' if self.id is not None else ""
        return f"{path}:{self.line}: {self.what}{whose}. Fix: {self.way_out}, or {self.skip_hint}."


class BrokenFile(BadRow):
    """The rest of a file is unreadable: a truncated or corrupt stream, or a decompression bomb."""

    def __init__(self, reason: str, what: str, way_out: str, *, line: int = 0) -> None:
        super().__init__(reason, f"{what}; the rest of the file is skipped", way_out, line=line)
        self.skip_hint = _by_skipping("skip the rest of such files")


RowStream = Iterator[Row | Header | BadRow | BlankLine]


class RejectsFile:
    """A JSON Lines file of rejected rows in order; every pass over a corpus rewrites it.

    It is created at the first row and gets its final name in `close`, so readers never see half of it and a corpus
    without bad rows leaves no file. A pipe or a device is written row by row instead. The list of an earlier run moves
    to NAME.1.rejects.jsonl or the next free number. Any other existing file is overwritten only with `force`.
    """

    def __init__(self, path: Path, force: bool = False) -> None:
        """Raises ConfigError and ExistsError as `check_output`."""
        self.path = path
        self.moved_to: Path | None = None
        self._force = force
        self._writing: ExitStack | None = None
        self._file: OutputFile | None = None
        self._ours = False  # whether the existing list is of an earlier pass of this run
        self._older: FileDigest | None = None  # the existing list, unless it is ours or empty
        self._stamper, self._size = DigestBuilder(), 0
        self._check()

    def write(self, path: str, bad: BadRow) -> None:
        """Append a row. Raises StoreError if the file cannot be written."""
        row_id = None if bad.id is None else escape_surrogates(bad.id)
        entry = {"file": escape_surrogates(path), "line": bad.line, "id": row_id, "reason": bad.reason}
        line = (json.dumps(entry | {"message": bad.what, "raw": excerpt(bad.raw)}, ensure_ascii=False) + "\n").encode()
        if self._file is None:
            self._older, self._stamper, self._size = self._older_list(), DigestBuilder(), 0
            self._writing = ExitStack()
            self._file = self._writing.enter_context(open_output(self.path, as_argument("rejects"), force=True))
        self._file.write(line)
        self._stamper.update(line)
        self._size += len(line)
        if self._older and self._size == self._older.bytes and self._stamper.digest() == self._older:
            self._older = None  # this list contains all of it, for example after an interrupted run

    def close(self, complete: bool) -> bool:
        """Give the file its final name; False if there was no row. `complete`: the whole corpus was read."""
        if self._writing is None:
            self._older = self._older_list() if complete else None
            self._move_aside()
            return False
        writing, self._writing, self._file = self._writing, None, None
        with writing:  # renames the file at the end
            self._check()
            self._move_aside()
        self._ours = True
        return True

    def _check(self) -> None:
        check_output(self.path, as_argument("rejects"), self._force or self._ours or _is_list(self.path))

    def _older_list(self) -> FileDigest | None:
        if self._ours or is_stream(self.path) or not _is_list(self.path):
            return None
        digest = digest_file(self.path)
        return digest if digest.bytes else None

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
    """The fields of a line, by which a list is recognised."""

    file: str
    line: int
    id: str | None
    reason: str
    message: str
    raw: str


def _is_list(path: Path) -> bool:
    """Return whether a file is empty or a list of rejected rows, by its first line."""
    try:
        with open_regular(path) as file:
            first = file.readline(_FIRST_LINE)
        if first:
            decode_json(first, _Entry)
    except (OSError, ValueError):
        return False
    return True


def _numbered(path: Path, number: int) -> Path:
    """Return name.1.rejects.jsonl for name.rejects.jsonl, and name.1.jsonl for name.jsonl."""
    ending = ENDING if path.name.endswith(ENDING) else path.suffix
    return path.with_name(f"{path.name.removesuffix(ending)}.{number}{ending}")


def escape_surrogates(text: str) -> str:
    """Return the text with lone surrogates as escapes, so that it can be printed and stored."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def excerpt(raw: bytes | str) -> str:
    """Return at most RAW_CHARACTERS of a row, bytes that are not UTF-8 as escapes."""
    if isinstance(raw, str):
        return escape_surrogates(raw[:RAW_CHARACTERS])
    # a character has at most four bytes, so a line of 32 MiB is cut before it is decoded
    return raw[: 4 * RAW_CHARACTERS].decode("utf-8", "backslashreplace")[:RAW_CHARACTERS]
