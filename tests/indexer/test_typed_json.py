"""Stored and foreign JSON is decoded by type, to a bounded depth; errors name the place."""

from dataclasses import dataclass
from typing import Any

import pytest

from indexer.typed_json import MAX_DEPTH, convert_json, decode_json


@dataclass(frozen=True)
class Stamp:
    bytes: int
    sha256: str


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "truncated"),
        (b"[1]", "Expected `object`, got `array`"),
        (b'{"bytes": "12", "sha256": "ab"}', r"Expected `int`, got `str` - at `\$\.bytes`"),
        (b'{"bytes": 1.5, "sha256": "ab"}', r"at `\$\.bytes`"),
        (b'{"bytes": true, "sha256": "ab"}', r"at `\$\.bytes`"),
        (b'{"bytes": 12}', "missing required field `sha256`"),
        (b'{"bytes": 12, "sha256": "\xff"}', "UTF-8"),
        (b'{"bytes": NaN, "sha256": "ab"}', "malformed"),
    ],
)
def test_what_is_not_of_the_type_is_refused_with_its_place(data: bytes, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        decode_json(data, Stamp)


def test_depth_is_bounded_and_brackets_in_strings_do_not_count() -> None:
    deep = b'{"a":' * (MAX_DEPTH - 1) + b"[1]" + b"}" * (MAX_DEPTH - 1)
    assert decode_json(deep, Any)
    for data in (b"[" + deep + b"]", b"[" * 500_000, b'{"a":' * 500_000):
        with pytest.raises(ValueError, match="deeper than 64"):
            decode_json(data, Any)
    text = '[["[[{\\"[' * 100
    assert decode_json(b'{"a": "' + text.replace('"', '\\"').replace("\\\\", "\\").encode() + b'"}', dict[str, str])


def test_values_are_converted_by_the_same_rules() -> None:
    assert convert_json({"bytes": 3, "sha256": "x"}, Stamp) == Stamp(3, "x")
    with pytest.raises(ValueError, match=r"\$\.bytes"):
        convert_json({"bytes": "3", "sha256": "x"}, Stamp)
