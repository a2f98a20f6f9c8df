"""Faults that pydantic finds in fields, in the words of this server: `is 0; expected at least 1.`"""

import json
from collections.abc import Mapping
from typing import Any

_SHOWN = 40  # characters of a text that a message repeats
_EXPECTED = {
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "list_type": "a list",
    "dict_type": "a JSON object",
    "model_type": "a JSON object",
    "model_attributes_type": "a JSON object",
    "literal_error": "{expected}",
    "greater_than": "more than {gt:,.15g}",
    "greater_than_equal": "at least {ge:,.15g}",
    "less_than": "less than {lt:,.15g}",
    "less_than_equal": "at most {le:,.15g}",
    "string_too_long": "at most {max_length:,}",
    "too_long": "at most {max_length:,} items",
}


def in_words(fault: Mapping[str, Any]) -> str:
    """Return an item of `ValidationError.errors()` as a message, without a value that is long."""
    if fault["type"] == "missing":
        return "is missing."
    if expected := _EXPECTED.get(fault["type"]):
        return f"{_found(fault['input'])}; expected {expected.format(**fault.get('ctx', {}))}."
    return str(fault["msg"]).removeprefix("Value error, ")


def _found(value: object) -> str:
    if isinstance(value, str):
        return f"is {json.dumps(value)}" if len(value) <= _SHOWN else f"has {len(value):,} characters"
    if isinstance(value, list):
        return "is a list"
    if isinstance(value, Mapping):
        return "is an object"
    if isinstance(value, int) and not -(10**_SHOWN) < value < 10**_SHOWN:
        return "is a huge number"
    return f"is {json.dumps(value, default=repr)}"  # NaN, true and null as in JSON
