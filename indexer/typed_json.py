"""Decoding of stored or foreign JSON by a schema, with checked types and bounded depth.

A schema is a type that msgspec knows: a msgspec.Struct, a dataclass, `dict[str, int]` and so on.
"""

import re
from typing import Any, TypeVar

T = TypeVar("T")
MAX_DEPTH = 64  # nested lists and objects, on which Python recurses
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_OTHER = bytes(set(range(256)) - set(b"[]{}"))


def decode_json(data: bytes, kind: type[T], max_depth: int = MAX_DEPTH) -> T:
    """Return the value of a JSON text as type `kind`. Types are not converted: "1" is not a number.

    Unknown fields of a Struct are ignored unless it forbids them. Raises ValueError with the expected type and the
    place (`$.files[...].bytes`), also for text that is not UTF-8 and for nesting beyond `max_depth`.
    """
    import msgspec

    _check_depth(data, max_depth)
    try:
        return msgspec.json.decode(data, type=kind, strict=True)
    except msgspec.DecodeError as error:  # a ValidationError is one
        raise ValueError(str(error)) from None
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def convert_json(value: Any, kind: type[T]) -> T:
    """Return a value of JSON types, such as a decoded field of type Any, as type `kind`. Raises ValueError."""
    import msgspec

    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def _check_depth(data: bytes, most: int) -> None:
    if data.count(b"[") + data.count(b"{") <= most:
        return
    depth = 0
    for bracket in _STRING.sub(b"", data).translate(None, _OTHER):
        depth += 1 if bracket in b"[{" else -1
        if depth > most:
            raise ValueError(f"nested deeper than {most} levels")
