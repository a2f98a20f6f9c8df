"""What can be stored, and what cannot.

Of texts and metadata: no NUL character, no lone surrogate, no NaN or infinity, and nothing nested beyond reason. Of the
embedding that stands in a row: finite numbers, not all of them zero, as float32. Loads no pyarrow.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.corpus.row import BadRow, escape_surrogates

MAX_NESTING = 64  # levels of metadata; Arrow and Python recurse on it
LARGEST = 1e18  # of a number in an embedding: float32 holds its square
_SMALLEST = float(np.finfo(np.float32).smallest_subnormal)  # what is less is zero in float32
_NUMBER_TYPES = {int, float}
_TYPE_WORDS: dict[type, str] = {  # in messages
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    dict: "an object",
    list: "a list",
    type(None): "null",
}
Vector = npt.NDArray[np.float32]


def check_value(value: Any, name: str, depth: int = 0) -> None:
    """Raises BadRow naming the column: "nul", "surrogate", "number" for NaN and infinity, "malformed" for nesting
    beyond MAX_NESTING.
    """
    if isinstance(value, str):
        check_string(value, name)
    elif isinstance(value, float):
        if not math.isfinite(value):
            found = "NaN" if math.isnan(value) else "infinity"
            what = f'column "{escape_surrogates(name)}" holds {found}, which is no number'
            raise BadRow("number", what, "write null where there is no number")
    elif isinstance(value, dict | list):
        if depth == MAX_NESTING:
            raise BadRow("malformed", f'column "{name}" is nested deeper than {MAX_NESTING} levels')
        if isinstance(value, list):
            for element in value:
                check_value(element, name, depth + 1)
        else:
            for key, element in value.items():
                check_string(key, name)
                check_value(element, name, depth + 1)


def check_string(text: str, name: str) -> None:
    """Raises BadRow ("nul", "surrogate") naming the column."""
    if "\0" in text:
        raise BadRow("nul", f'column "{escape_surrogates(name)}" holds a NUL character', "take the character out")
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        what = f'column "{escape_surrogates(name)}" holds half of a character (U+{ord(text[error.start]):04X})'
        raise BadRow("surrogate", what, "write the file with valid Unicode") from None


def to_vector(value: Any, name: str) -> Vector:
    """A list or array of numbers as a vector (d,) of its own memory; `name` is the column's, for messages.

    Raises BadRow ("vector") for anything else, and for an empty one, NaN, infinity, a number beyond `LARGEST` and a
    vector of zeros. Positions in messages count from 1.
    """
    numbers = _numbers(value, name)
    if not len(numbers):
        raise _unfit(name, "is empty")
    if not _SMALLEST <= float(np.abs(numbers).max()) <= LARGEST:  # false for NaN too; one look at each number is enough
        raise _unfit(name, _fault(numbers))
    vector: Vector = numbers.astype(np.float32)
    return vector


class DimensionCheck:
    """The length that all vectors of a corpus have: that of the first one taken."""

    def __init__(self) -> None:
        self._size, self._where = 0, ""

    def check(self, vector: Vector | None) -> None:
        """Raises BadRow ("vector") for a vector of another length, naming where the first one is."""
        if vector is not None and self._size and len(vector) != self._size:
            what = f"the vector has {_counted(len(vector))}, but that at {self._where} has {self._size:,}"
            raise BadRow("vector", what, "give vectors of one model: all of the same length")

    def take(self, vector: Vector | None, where: str) -> None:
        """Note a vector that has been checked; `where` names its place in messages."""
        if vector is not None and not self._size:
            self._size, self._where = len(vector), where


def _fault(numbers: npt.NDArray[Any]) -> str:
    """What is wrong with numbers of which one is not finite or too large, or all are next to nothing."""
    if not np.isfinite(numbers).all():
        place = int(np.flatnonzero(~np.isfinite(numbers))[0])
        return f"holds {'NaN' if np.isnan(numbers[place]) else 'infinity'} at position {place + 1}"
    largest = int(np.abs(numbers).argmax())
    if abs(float(numbers[largest])) > LARGEST:
        return f"holds {numbers[largest]:g} at position {largest + 1}, beyond {LARGEST:g}"
    return f"is all zero{' in float32' if numbers.any() else ''}, and has no direction"


def _numbers(value: Any, name: str) -> npt.NDArray[Any]:
    if value is None:
        raise _unfit(name, "is null")
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "fiu":
        return value if value.dtype.kind == "f" else value.astype(np.float64)
    if isinstance(value, list | tuple) and set(map(type, value)) <= _NUMBER_TYPES:
        return _from_list(value, name)
    raise BadRow(
        "vector", f'the vector "{name}" is {_in_words(value)}; expected a list of numbers', _way_out(value, name)
    )


def _from_list(value: Sequence[int | float], name: str) -> npt.NDArray[np.float64]:
    try:
        return np.array(value, np.float64)
    except OverflowError:
        raise _unfit(name, "holds a whole number beyond the range of a 64-bit float") from None


def _in_words(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of type {value.dtype} and shape {value.shape}"
    if isinstance(value, list | tuple):
        odd = next(place for place, element in enumerate(value) if type(element) not in _NUMBER_TYPES)
        return f"a list with {_TYPE_WORDS.get(type(value[odd]), 'something else')} at position {odd + 1}"
    return type_in_words(value)


def type_in_words(value: Any) -> str:
    """Return the type of a value, for messages."""
    return _TYPE_WORDS.get(type(value), f"of type {type(value).__name__}")


def _way_out(value: Any, name: str) -> str:
    return f"pass --column {name}:json to read it as JSON" if isinstance(value, str) else "fix the row"


def _unfit(name: str, what: str) -> BadRow:
    return BadRow("vector", f'the vector "{name}" {what}')


def _counted(numbers: int) -> str:
    return f"{numbers:,} number{'' if numbers == 1 else 's'}"
