"""The texts of files. Only UTF-8 text is decoded."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from indexer.corpus.files.extracted import ExtractedText
from indexer.corpus.readers.streams import open_source
from indexer.corpus.row import BadRow
from indexer.corpus.sources import SourceFile


@dataclass(frozen=True)
class ExtractionLimits:
    """Limits of the extraction of one file."""

    seconds: float = 60.0
    memory: int = 1 << 30
    file_bytes: int = 256 << 20
    text_bytes: int = 32 << 20


def extract_files(
    files: Iterable[SourceFile],
    workers: int = 0,
    limits: ExtractionLimits = ExtractionLimits(),
) -> Iterator[tuple[SourceFile, ExtractedText | BadRow]]:
    """Yield the text of each file, or the reason why it has none, in order."""
    for file in files:
        yield file, _extracted(file)


def _extracted(file: SourceFile) -> ExtractedText | BadRow:
    try:
        with open_source(file) as content:
            return ExtractedText(content.read().decode("utf-8"))
    except OSError as error:
        return BadRow("unreadable", f"cannot be read: {error.strerror or error}", "change its permissions")
    except UnicodeDecodeError as error:
        return BadRow("encoding", f"byte {error.start + 1} is not UTF-8", "convert the file to UTF-8")
