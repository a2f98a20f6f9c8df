"""Plain text: one document a line, without columns."""

from indexer.corpus.lines import decoded, split_lines
from indexer.corpus.rejection import BadRow
from indexer.corpus.row import BLANK_LINE, Row, Rows
from indexer.corpus.sources import SourceFile
from indexer.corpus.streams import ByteStream


def read_text(file: SourceFile, column: str) -> Rows:
    """One row a line, its text under the name `column`."""
    with ByteStream(file) as stream:
        for item in split_lines(stream):
            if isinstance(item, BadRow):
                yield item
                continue
            number, line = item
            text = decoded(line, number)
            if isinstance(text, BadRow):
                yield text
            elif not text or text.isspace():
                yield BLANK_LINE
            else:
                yield Row(number, {column: text.removesuffix("\r")}, line)
