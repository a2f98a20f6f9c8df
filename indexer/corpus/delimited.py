r"""CSV (RFC 4180: fields may be quoted, and then hold line breaks) and TSV (no quoting: a quote is literal).

Both need a header row. TSV is IANA text/tab-separated-values: a field holds no tab and no line break.
"""

import csv
import re
from collections import deque
from collections.abc import Iterator, Sequence

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
    """What is wrong with the record.

    The lines after that on which its broken field begins are read again, as records. Within the field every quote was
    a doubled one, so none of them but the last opens another: no line is read more than twice.
    """
    lines, ended = source.lines, source.ended
    opened = _broken_line(lines)
    quote = f"the quote opened on line {lines[opened][0]:,}"
    after = [number for number, _ in lines[opened + 1 :]]
    what = f"not valid CSV: {f'{quote} is not closed' if ended else error}"
    if opened:
        what += f" (the row is lines {lines[0][0]:,} to {lines[opened][0]:,})"
    if after:
        where = "" if ended else f" on line {after[-1]:,}, in the field of {quote}"
        span = f"line {after[0]:,} is" if len(after) == 1 else f"lines {after[0]:,} to {after[-1]:,} are"
        what += f"{where}; {span} read anew"
    way_out = "close the quote, put fields that hold commas, quotes or line breaks in quotes, double the quotes inside"
    source.read_again(opened + 1)
    return BadRow("malformed", what, way_out, line=source.first_line, raw=source.raw)


def _broken_line(lines: Sequence[NumberedLine]) -> int:
    """Which line of a record its broken field begins on, from 0."""
    record = b"".join(line + b"\n" for _, line in lines)
    position = 0
    while match := _FIELD.match(record, position):
        position = match.end()
    return min(record.count(b"\n", 0, position), len(lines) - 1)


_FIELD = re.compile(rb'(?:"[^"]*+(?:""[^"]*+)*+"|[^",\n][^,\n]*+)?\r?[,\n]')


class _CsvLines:
    """The lines csv.reader asks for, remembering those of the current record.

    A record ends, as if the file did, before a line that would make it longer than MAX_LINE_BYTES; csv.reader then
    finds its quote open. Not a generator: raising a BadRow must not end the iteration. Bytes that are not UTF-8 become
    lone surrogates here, and the record is rejected once it is complete; stopping at the bad line would leave
    csv.reader in the middle of a quoted field.
    """

    def __init__(self, lines: Iterator[NumberedLine | BadRow]) -> None:
        self._lines = lines
        self._again: deque[NumberedLine | BadRow] = deque()
        self.start_record()

    def start_record(self) -> None:
        self.lines: list[NumberedLine] = []
        self.ended = False  # whether csv.reader wanted more lines than the record may have
        self._bytes = 0

    @property
    def first_line(self) -> int:
        return self.lines[0][0]

    @property
    def raw(self) -> bytes:
        return b"".join(line + b"\n" for _, line in self.lines)

    def read_again(self, start: int) -> None:
        """Take lines out of the record, to be records of their own."""
        returned, self.lines = self.lines[start:], self.lines[:start]
        self._again.extendleft(reversed(returned))

    def __iter__(self) -> "_CsvLines":
        return self

    def __next__(self) -> str:
        self.ended = True
        item = self._next()
        self.ended = False
        if isinstance(item, BadRow):
            raise item
        self.lines.append(item)
        self._bytes += len(item[1])
        return item[1].decode("utf-8", "surrogateescape") + "\n"

    def _next(self) -> NumberedLine | BadRow:
        item = self._again.popleft() if self._again else next(self._lines)
        if self.lines and (isinstance(item, BadRow) or self._bytes + len(item[1]) > MAX_LINE_BYTES):
            self._again.appendleft(item)
            raise StopIteration
        return item


def _is_utf8(cell: str) -> bool:
    if cell.isascii():
        return True
    try:
        cell.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
