"""Files as rows of a corpus: the text of each, its title and its metadata."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Any

from indexer.corpus.files.extracted import ExtractedText
from indexer.corpus.files.extraction import ExtractionLimits, extract_files
from indexer.corpus.files.folder import file_digest, unreadable_file
from indexer.corpus.files.markup import kind_of
from indexer.corpus.row import RAW_CHARACTERS, BadRow, Row
from indexer.corpus.sources import SourceFile, suffix_of

MOST_SECTIONS = 200  # headings in the metadata of a file
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class _Facts:
    """Properties of a stored file."""

    bytes: int
    modified: datetime | None
    digest: dict[str, str]  # "sha256", or "etag" of an object


def file_rows(files: Sequence[SourceFile]) -> Generator[Row | BadRow]:
    """Yield a row for each file, in order, or the reason why it cannot become a document.

    The digest is taken before the text: if a file changes between the two, the next comparison of digests finds it.
    """
    limits = ExtractionLimits()
    facts: dict[int, _Facts | BadRow] = {}

    def ahead() -> Iterator[SourceFile]:
        for number, file in enumerate(files):
            facts[number] = _facts(file, limits.file_bytes)
            yield file

    for number, (file, extracted) in enumerate(extract_files(ahead(), limits=limits)):
        known = facts.pop(number)
        if isinstance(known, BadRow):
            yield known
        elif isinstance(extracted, BadRow):
            yield extracted
        elif not extracted.text.strip():  # its title would be its name
            yield BadRow("blank", "the file has no text", "add text to the file, or remove it")
        else:
            yield _row(file, extracted, known)


def _facts(file: SourceFile, most_bytes: int) -> _Facts | BadRow:
    """Return the facts of a file; one with more than `most_bytes`, which is rejected, is not hashed."""
    if file.path is None:
        stored = file.stored
        etag = {"etag": file.etag} if file.etag else {}
        return _Facts(stored.bytes if stored else 0, stored.modified.astimezone(UTC) if stored else None, etag)
    try:
        status = file.path.stat()
        digest = {"sha256": file_digest(file)} if status.st_size <= most_bytes else {}
    except OSError as error:
        return unreadable_file(error)
    except BadRow as bad:
        return bad
    return _Facts(status.st_size, _time_of(status.st_mtime_ns), digest)


def _time_of(nanoseconds: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(seconds=nanoseconds // 10**9)
    except OverflowError:  # some file systems store any number
        return None


def _row(file: SourceFile, extracted: ExtractedText, facts: _Facts) -> Row:
    path, suffix = PurePosixPath(file.label), suffix_of(file.label)
    kind = kind_of({"suffix": suffix})
    values: dict[str, Any] = {
        "id": file.label,
        "title": (extracted.title or "").strip() or path.name,
        "text": extracted.text,
        "path": file.label,
        "folder": str(path.parent),  # "." at the top
        "suffix": suffix or None,
        "modified": facts.modified,
        "bytes": facts.bytes,
        "pages": extracted.pages,
        "sections": _sections(extracted.text, suffix) or None,
        "language": kind.language or None,
        **facts.digest,
    }
    return Row(0, values, extracted.text[:RAW_CHARACTERS].encode(errors="backslashreplace"))


def _sections(text: str, suffix: str) -> list[str]:
    from indexer.corpus.files.outline import outline

    return [heading.title for heading in outline(text, kind_of({"suffix": suffix})).headings[:MOST_SECTIONS]]
