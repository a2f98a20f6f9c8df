"""What is wrong with a row, and the file that lists the rows left out."""

import json
import os
from pathlib import Path
from typing import IO

from indexer.errors import CorpusError

RAW_CHARACTERS = 2_000  # of a rejected row, kept to recognise it by
FIX_ROW = "fix the row"
SKIP_ROWS = "pass --on-error skip to leave such rows out and list them"
SKIP_FILES = "pass --on-error skip to leave out the rest of such files"


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
        whose = f' (id "{printable(self.id)}")' if self.id is not None else ""
        return f"{path}:{self.line}: {self.what}{whose}. Way out: {self.way_out}, or {self.skip_hint}."


class BrokenFile(BadRow):
    """Nothing after this point of a file can be read: a cut or corrupt stream, or a decompression bomb."""

    def __init__(self, reason: str, what: str, way_out: str, *, line: int = 0) -> None:
        super().__init__(reason, f"{what}; the rest of the file is left out", way_out, line=line)
        self.skip_hint = SKIP_FILES


class RejectsFile:
    """A JSON Lines file of the rows left out, in the order met.

    It is created at the first row and takes its final name in `close`, so a reader never sees half of it and
    a corpus without bad rows leaves no file. An older file of that name stays until then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._file: IO[str] | None = None

    def write(self, path: str, bad: BadRow) -> None:
        """Append one row. Raises CorpusError when the file cannot be written."""
        entry = {
            "file": path,
            "line": bad.line,
            "id": None if bad.id is None else printable(bad.id),
            "reason": bad.reason,
            "message": bad.what,
            "raw": shown(bad.raw),
        }
        try:
            if self._file is None:
                self._partial.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._partial.open("w", encoding="utf-8", newline="\n")
            self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        except OSError as error:
            raise self._unwritable(error) from error

    def close(self) -> bool:
        """Give the file its final name; False when there was nothing to write."""
        if self._file is None:
            return False
        try:
            self._file.close()
            self._partial.replace(self.path)
        except OSError as error:
            raise self._unwritable(error) from error
        return True

    def _unwritable(self, error: OSError) -> CorpusError:
        reason = error.strerror or error
        return CorpusError(f"{self.path}: the list of rejected rows cannot be written: {reason}.")


def printable(text: str) -> str:
    """The text with lone surrogates written as escapes, so that it can be printed and stored."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def shown(raw: bytes | str) -> str:
    """At most RAW_CHARACTERS of a row, bytes that are not UTF-8 written as escapes."""
    if isinstance(raw, str):
        return printable(raw[:RAW_CHARACTERS])
    # a character takes at most four bytes, so the cut never has to decode a line of 32 MiB
    return raw[: 4 * RAW_CHARACTERS].decode("utf-8", "backslashreplace")[:RAW_CHARACTERS]
