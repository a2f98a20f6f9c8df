r"""CSV (RFC 4180: fields may be quoted, and then hold line breaks) and TSV (no quoting: a quote is literal).

Both need a header row. TSV is IANA text/tab-separated-values: a field holds no tab and no line break.
"""

import csv
from collections.abc import Iterator

from indexer.corpus.lines import MAX_LINE_BYTES, NumberedLine, decoded, split_lines
from indexer.corpus.rejection import BadRow
from indexer.corpus.row import BLANK_LINE, BlankLine, Header, Row, Rows
from indexer.corpus.sources import SourceFile
from indexer.corpus.streams import ByteStream
from indexer.errors import CorpusError


def read_csv(file: SourceFile) -> Rows:
    """A Header, then one row a record, numbered by the line it starts on."""
    with ByteStream(file) as stream:
        yield from _table(file, _csv_records(split_lines(stream)))


def read_tsv(file: SourceFile) -> Rows:
    """A Header, then one row a line."""
    with ByteStream(file) as stream:
        yield from _table(file, _tsv_records(split_lines(stream)))


class _Record:
    """The cells of one record, before they have names."""

    __slots__ = ("cells", "line", "raw")

    def __init__(self, line: int, cells: list[str], raw: bytes) -> None:
        self.line = line
        self.cells = cells
        self.raw = raw


_Records = Iterator[_Record | BadRow | BlankLine]


def _table(file: SourceFile, records: _Records) -> Rows:
    header: Header | None = None
    for record in records:
        if not isinstance(record, _Record):
            if isinstance(record, BadRow) and header is None:
                raise CorpusError(f"{file.shown}:{record.line}: the header cannot be read: {record}")
            yield record
        elif header is None:
            header = _header(file, record)
            yield header
        else:
            yield _row(record, header)


def _header(file: SourceFile, record: _Record) -> Header:
    where = f"{file.shown}:{record.line}"
    twice = sorted({name for name in record.cells if record.cells.count(name) > 1})
    if "" in record.cells:
        place = record.cells.index("") + 1
        raise CorpusError(f"{where}: column {place} of the header has no name. Way out: name every column.")
    if twice:
        raise CorpusError(f'{where}: the header names "{twice[0]}" twice. Way out: give each column its own name.')
    return Header(record.cells, record.raw)


def _row(record: _Record, header: Header) -> Row | BadRow:
    if len(record.cells) != len(header.columns):
        what = f"the number of fields is {len(record.cells)}, but the header has {len(header.columns)}"
        return BadRow("malformed", what, line=record.line, raw=record.raw)
    values = {name: cell or None for name, cell in zip(header.columns, record.cells, strict=True)}
    return Row(record.line, values, record.raw, cells=True, header=header)


def _tsv_records(lines: Iterator[NumberedLine | BadRow]) -> _Records:
    for item in lines:
        if isinstance(item, BadRow):
            yield item
            continue
        number, line = item
        text = decoded(line, number)
        if isinstance(text, BadRow):
            yield text
        elif not (text := text.removesuffix("\r")):
            yield BLANK_LINE
        else:
            yield _Record(number, text.split("\t"), line)


def _csv_records(lines: Iterator[NumberedLine | BadRow]) -> _Records:
    # The limit is the csv module's own, for the whole process, and its default (128 KiB) is less than a long
    # document. It is only ever raised here.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    source = _CsvLines(lines)
    reader = csv.reader(source, strict=True)
    while True:
        source.start_record()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except BadRow as bad:
            yield bad
        except csv.Error as error:
            yield _malformed(source, error)
        else:
            yield _checked(source, cells)


def _checked(source: "_CsvLines", cells: list[str]) -> _Record | BadRow | BlankLine:
    if not cells:
        return BLANK_LINE
    if not all(map(_is_utf8, cells)):
        what, way_out = "the row holds bytes that are not UTF-8", "convert the file to UTF-8 (iconv -t UTF-8)"
        return BadRow("encoding", what, way_out, line=source.first_line, raw=source.raw)
    return _Record(source.first_line, cells, source.raw)


def _malformed(source: "_CsvLines", error: csv.Error) -> BadRow:
    span = f" (lines {source.first_line} to {source.line})" if source.line > source.first_line else ""
    what = f"not valid CSV: {error}{span}"
    way_out = "put fields that hold commas, quotes or line breaks in quotes, and double the quotes inside"
    return BadRow("malformed", what, way_out, line=source.first_line, raw=source.raw)


class _CsvLines:
    """The lines csv.reader asks for, remembering where the current record began and how it was written.

    Not a generator: raising a BadRow must not end the iteration. Bytes that are not UTF-8 become lone surrogates
    here, and the record is rejected once it is complete; stopping at the bad line would leave csv.reader in the
    middle of a quoted field.
    """

    def __init__(self, lines: Iterator[NumberedLine | BadRow]) -> None:
        self._lines = lines
        self._written: list[str] = []
        self.line = 0
        self.first_line = 0

    def start_record(self) -> None:
        self._written = []
        self.first_line = 0

    @property
    def raw(self) -> bytes:
        return "".join(self._written).encode("utf-8", "surrogateescape")

    def __iter__(self) -> "_CsvLines":
        return self

    def __next__(self) -> str:
        item = next(self._lines)
        if isinstance(item, BadRow):
            raise item
        self.line, line = item
        self.first_line = self.first_line or self.line
        text = line.decode("utf-8", "surrogateescape") + "\n"
        self._written.append(text)
        return text


def _is_utf8(cell: str) -> bool:
    if cell.isascii():
        return True
    try:
        cell.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
