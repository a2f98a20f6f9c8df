"""Readers of text files.

JSON Lines  one object a line
CSV         RFC 4180: fields may be quoted, and quoted fields may contain line breaks; with a header
TSV         IANA text/tab-separated-values: fields contain no tabs or line breaks, and quotes are literal; with a header
plain text  one document a line, without columns
"""

import csv
import json
import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from indexer.corpus.readers.streams import MAX_LINE_BYTES, ByteStream, NumberedLine, decode_line, numbered_lines
from indexer.corpus.row import BLANK_LINE, BadRow, BlankLine, Header, Row, RowStream, escape_surrogates
from indexer.corpus.sources import SourceFile
from indexer.errors import CorpusError

_JSON_TYPES: dict[type, str] = {list: "an array", str: "a string", int: "a number", float: "a number",
                                bool: "true or false", type(None): "null"}  # fmt: skip
# a CSV field, quoted or not, and its end
_FIELD = re.compile(rb'(?:"[^"]*+(?:""[^"]*+)*+"|[^",\n][^,\n]*+)?\r?[,\n]')


def read_jsonl(file: SourceFile) -> RowStream:
    """Yield a row a line. Raises CorpusError for a file that is one JSON array."""
    first = True
    with ByteStream(file) as stream:
        for item in numbered_lines(stream):
            if isinstance(item, BadRow):
                yield item
                continue
            number, line = item
            if not line or line.isspace():
                yield BLANK_LINE
                continue
            if first and line.lstrip().startswith(b"["):
                raise CorpusError(
                    f"{file.display_name}:{number}: the file is one JSON array; expected JSON Lines, with one object "
                    f"per line. Fix: jq -c '.[]' {file.display_name} > {file.label}l"
                )
            first = False
            yield _json_row(number, line)


def parse_json(text: str) -> Any:
    """Parse standard JSON, without NaN, Infinity, numbers that overflow, and duplicate keys of an object.

    Raises ValueError; RecursionError for very deep nesting.
    """
    try:
        value, end = _SCAN(text, 0)
    except StopIteration:
        return _DECODER.decode(text)  # accepts leading white space, and reports errors
    return _DECODER.decode(text) if text[end:].strip(" \t\n\r") else value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is beyond the range of a 64-bit float")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f'one object has the key "{escape_surrogates(twice)[:40]}" twice')
    return values


# one decoder, since json.loads with hooks builds a decoder for every call
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique)
# a single value: twice as fast as `decode` for a short line
_SCAN: Callable[[str, int], tuple[Any, int]] = _DECODER.scan_once  # type: ignore[attr-defined]


def _json_row(number: int, line: bytes) -> Row | BadRow:
    text = decode_line(line, number)
    if isinstance(text, BadRow):
        return text
    try:
        values = parse_json(text)
        if isinstance(values, dict):
            return Row(number, values, line)
        what = f"expected a JSON object, found {_JSON_TYPES[type(values)]}"
    except json.JSONDecodeError as error:
        what = f"not a JSON object on one line: {error.msg} (character {error.pos + 1})"
    except ValueError as error:  # a forbidden constant, a duplicate key, or an integer of thousands of digits
        what = f"not valid JSON: {error}"
    except RecursionError:
        what = "the JSON is nested too deeply"
    return BadRow("malformed", what, line=number, raw=line)


def read_csv(file: SourceFile) -> RowStream:
    """Yield a Header, then a row a record, numbered by its first line."""
    with ByteStream(file) as stream:
        yield from _table(file, _csv_records(numbered_lines(stream)))


def read_tsv(file: SourceFile) -> RowStream:
    """Yield a Header, then a row a line."""
    with ByteStream(file) as stream:
        yield from _table(file, _tsv_records(numbered_lines(stream)))


@dataclass(slots=True)
class _Record:
    """The cells of one record, before they have names."""

    line: int
    cells: list[str]
    raw: bytes


_Records = Iterator[_Record | BadRow | BlankLine]


def _table(file: SourceFile, records: _Records) -> RowStream:
    header: Header | None = None
    for record in records:
        if not isinstance(record, _Record):
            if isinstance(record, BadRow) and header is None:
                raise CorpusError(f"{file.display_name}:{record.line}: the header cannot be read: {record}")
            yield record
        elif header is None:
            header = _header(file, record)
            yield header
        else:
            yield _delimited_row(record, header)


def _header(file: SourceFile, record: _Record) -> Header:
    where = f"{file.display_name}:{record.line}"
    twice = sorted({name for name in record.cells if record.cells.count(name) > 1})
    if "" in record.cells:
        place = record.cells.index("") + 1
        raise CorpusError(f"{where}: column {place} of the header has no name. Fix: name every column.")
    if twice:
        raise CorpusError(f'{where}: the header names "{twice[0]}" twice. Fix: give each column its own name.')
    return Header(record.cells, record.raw)


def _delimited_row(record: _Record, header: Header) -> Row | BadRow:
    if len(record.cells) != len(header.columns):
        what = f"the number of fields is {len(record.cells)}, but the header has {len(header.columns)}"
        return BadRow("malformed", what, line=record.line, raw=record.raw)
    values = {name: cell or None for name, cell in zip(header.columns, record.cells, strict=True)}
    return Row(record.line, values, record.raw, cells=True, header=header)


def _tsv_records(lines: Iterator[NumberedLine | BadRow]) -> _Records:
    for item in _decoded(lines):
        if isinstance(item, BadRow):
            yield item
            continue
        number, line, text = item
        text = text.removesuffix("\r")
        yield _Record(number, text.split("\t"), line) if text else BLANK_LINE


def _csv_records(lines: Iterator[NumberedLine | BadRow]) -> _Records:
    # the csv module has one limit for the whole process, 128 KiB by default, which is too short for long documents
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
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:
        fix = "convert the file to UTF-8 (iconv -t UTF-8)"
        what = "the row contains bytes that are not UTF-8"
        return BadRow("encoding", what, fix, line=source.first_line, raw=source.raw)
    return _Record(source.first_line, cells, source.raw)


def _malformed(source: "_CsvLines", error: csv.Error) -> BadRow:
    """Return the error of a record.

    The lines after the first line of its broken field are read again as records. All quotes in the field are doubled,
    so only the last can open another field: no line is read more than twice.
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
        what += f"{where}; {span} read again"
    fix = "close the quote, put fields that contain commas, quotes or line breaks in quotes, and double inner quotes"
    source.read_again(opened + 1)
    return BadRow("malformed", what, fix, line=source.first_line, raw=source.raw)


def _broken_line(lines: Sequence[NumberedLine]) -> int:
    """Return the line of a record on which its broken field begins, from 0."""
    record = b"".join(line + b"\n" for _, line in lines)
    position = 0
    while match := _FIELD.match(record, position):
        position = match.end()
    return min(record.count(b"\n", 0, position), len(lines) - 1)


class _CsvLines:
    """The lines that csv.reader consumes, with those of the current record.

    A record ends, as at the end of the file, before a line that would make it longer than MAX_LINE_BYTES; csv.reader
    then reports an open quote. Not a generator, because raising a BadRow must not end the iteration. Bytes that are not
    UTF-8 become lone surrogates, and the complete record is rejected: an error at the line would leave csv.reader in
    the middle of a quoted field.
    """

    def __init__(self, lines: Iterator[NumberedLine | BadRow]) -> None:
        self._lines = lines
        self._again: deque[NumberedLine | BadRow] = deque()
        self.start_record()

    def start_record(self) -> None:
        self.lines: list[NumberedLine] = []
        self.ended = False  # whether csv.reader requested a line beyond the limit
        self._bytes = 0

    @property
    def first_line(self) -> int:
        return self.lines[0][0]

    @property
    def raw(self) -> bytes:
        return b"".join(line + b"\n" for _, line in self.lines)

    def read_again(self, start: int) -> None:
        """Return lines of the record to the input."""
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


def read_text(file: SourceFile, column: str) -> RowStream:
    """Yield a row a line, with its text in `column`."""
    with ByteStream(file) as stream:
        for item in _decoded(numbered_lines(stream)):
            if isinstance(item, BadRow):
                yield item
                continue
            number, line, text = item
            yield Row(number, {column: text.removesuffix("\r")}, line) if text.strip() else BLANK_LINE


def _decoded(lines: Iterator[NumberedLine | BadRow]) -> Iterator[tuple[int, bytes, str] | BadRow]:
    for item in lines:
        if isinstance(item, BadRow):
            yield item
            continue
        number, line = item
        text = decode_line(line, number)
        yield text if isinstance(text, BadRow) else (number, line, text)
