"""Checks of values that an index can store.

Texts and metadata: no NUL character, lone surrogate, NaN or infinity, and bounded nesting. Embeddings: finite numbers,
not all zero, as float32. Loads no pyarrow.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.corpus.row import FIX_ROW, BadRow, escape_surrogates, read_as

MAX_NESTING = 64  # levels of metadata; Arrow and Python recurse on it
LARGEST = 1e18  # number in an embedding: its square fits float32
_SMALLEST = float(np.finfo(np.float32).smallest_subnormal)  # smaller numbers are zero in float32
_NUMBER_TYPES = {int, float}
_TYPE_WORDS: dict[type, str] = {str: "text", bool: "true or false", int: "a number", float: "a number",
                                dict: "an object", list: "a list", type(None): "null"}  # fmt: skip
Vector = npt.NDArray[np.float32]


def check_value(value: Any, name: str, depth: int = 0) -> None:
    """Raises BadRow naming the column: "nul", "surrogate", "number" for NaN and infinity, "malformed" for nesting
    beyond MAX_NESTING.
    """
    if isinstance(value, str):
        check_string(value, name)
    elif isinstance(value, float):
        if not math.isfinite(value):
            what = f'column "{escape_surrogates(name)}" contains {"NaN" if math.isnan(value) else "infinity"}'
            raise BadRow("number", what, "write null instead")
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
        raise BadRow("nul", f'column "{escape_surrogates(name)}" contains a NUL character', "remove the character")
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        what = f'column "{escape_surrogates(name)}" contains half of a character (U+{ord(text[error.start]):04X})'
        raise BadRow("surrogate", what, "write the file with valid Unicode") from None


def to_vector(value: Any, name: str) -> Vector:
    """Return a list or array of numbers as a new vector (d,); `name` is the column's, for messages.

    Raises BadRow ("vector") for anything else, and for no numbers, NaN, infinity, a number beyond `LARGEST` or only
    zeros. Positions in messages count from 1.
    """
    numbers = _numbers(value, name)
    if not len(numbers):
        raise _unfit(name, "is empty")
    if not _SMALLEST <= float(np.abs(numbers).max()) <= LARGEST:  # False for NaN too
        raise _unfit(name, _fault(numbers))
    return numbers.astype(np.float32)


class DimensionCheck:
    """Check that all vectors of a corpus have the length of the first."""

    def __init__(self) -> None:
        self._size, self._where = 0, ""

    def check(self, vector: Vector | None) -> None:
        """Raises BadRow ("vector") for another length, with the place of the first vector."""
        if vector is not None and self._size and len(vector) != self._size:
            counted = f"{len(vector):,} number{'' if len(vector) == 1 else 's'}"
            what = f"the vector has {counted}, but that at {self._where} has {self._size:,}"
            raise BadRow("vector", what, "use vectors of one model, all of the same length")

    def take(self, vector: Vector | None, where: str) -> None:
        """Record a checked vector; `where` names its place in messages."""
        if vector is not None and not self._size:
            self._size, self._where = len(vector), where


def _fault(numbers: npt.NDArray[Any]) -> str:
    """Describe what is wrong with numbers that are not all finite, too large, or all (nearly) zero."""
    if not np.isfinite(numbers).all():
        place = int(np.flatnonzero(~np.isfinite(numbers))[0])
        return f"contains {'NaN' if np.isnan(numbers[place]) else 'infinity'} at position {place + 1}"
    largest = int(np.abs(numbers).argmax())
    if abs(float(numbers[largest])) > LARGEST:
        return f"contains {numbers[largest]:g} at position {largest + 1}, beyond {LARGEST:g}"
    return f"is all zero{' in float32' if numbers.any() else ''}, and has no direction"


def _numbers(value: Any, name: str) -> npt.NDArray[Any]:
    if value is None:
        raise _unfit(name, "is null")
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "fiu":
        return value if value.dtype.kind == "f" else value.astype(np.float64)
    if isinstance(value, list | tuple) and set(map(type, value)) <= _NUMBER_TYPES:
        try:
            return np.array(value, np.float64)
        except OverflowError:
            raise _unfit(name, "contains a whole number beyond the range of a 64-bit float") from None
    fix = f"{read_as(name, 'json')} to read it as JSON" if isinstance(value, str) else FIX_ROW
    raise BadRow("vector", f'the vector "{name}" is {_in_words(value)}; expected a list of numbers', fix)


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


def _unfit(name: str, what: str) -> BadRow:
    return BadRow("vector", f'the vector "{name}" {what}')
