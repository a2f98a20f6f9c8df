"""JSON Lines: one object a line."""

import json
import math
from collections import Counter
from typing import Any, NoReturn

from indexer.corpus.lines import decoded, split_lines
from indexer.corpus.rejection import BadRow, printable
from indexer.corpus.row import BLANK_LINE, Row, Rows
from indexer.corpus.sources import SourceFile
from indexer.corpus.streams import ByteStream
from indexer.errors import CorpusError


def read_jsonl(file: SourceFile) -> Rows:
    """One row a line. Raises CorpusError for a file that is one JSON array."""
    first = True
    with ByteStream(file) as stream:
        for item in split_lines(stream):
            if isinstance(item, BadRow):
                yield item
                continue
            number, line = item
            if not line or line.isspace():
                yield BLANK_LINE
                continue
            if first and line.lstrip().startswith(b"["):
                raise _array(file, number)
            first = False
            yield _row(number, line)


def parse_json(text: str) -> Any:
    """Standard JSON: NaN and Infinity are refused, written as such or as a number that overflows; so is a key that an
    object has twice, of which json.loads would take the last.

    Raises ValueError; RecursionError for very deep nesting.
    """
    return _DECODER.decode(text)


def _row(number: int, line: bytes) -> Row | BadRow:
    text = decoded(line, number)
    if isinstance(text, BadRow):
        return text
    try:
        values = parse_json(text)
    except json.JSONDecodeError as error:
        what = f"not a JSON object on one line: {error.msg} (character {error.pos + 1})"
        return BadRow("malformed", what, line=number, raw=line)
    except ValueError as error:  # a forbidden constant, a key twice, or an integer of thousands of digits
        return BadRow("malformed", f"not valid JSON: {error}", line=number, raw=line)
    except RecursionError:
        return BadRow("malformed", "the JSON is nested too deeply", line=number, raw=line)
    if not isinstance(values, dict):
        what = f"expected a JSON object, found {_NAMES[type(values)]}"
        return BadRow("malformed", what, line=number, raw=line)
    return Row(number, values, line)


_NAMES: dict[type, str] = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _array(file: SourceFile, number: int) -> CorpusError:
    return CorpusError(
        f"{file.shown}:{number}: the file is one JSON array; expected JSON Lines, one object a line. "
        f"Way out: jq -c '.[]' {file.shown} > {file.label}l"
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is beyond the range of a 64-bit float")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f'one object has the key "{printable(twice)[:40]}" twice')
    return found


# one decoder, since json.loads with hooks builds a new one for every call
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique)
