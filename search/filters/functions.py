"""The functions and casts of filters: the allow-list.

Everything on the list is about one row, gives the same each time, and reads nothing but its arguments: no clock,
files, settings or chance. What it may cost is known beforehand. A result is at most so many times as large as the
document it is made of, and so many bytes more; what a single value takes grows with its length and that of the pattern.
Left out for that reason are `range`, `printf`, `list_resize`, `bar`, and the regular expressions that are looked for
again at every character (`regexp_extract_all`, `regexp_replace(..., 'g')`).
"""

import re
from dataclasses import dataclass, replace
from math import prod

import pyarrow as pa

from search.filters.expressions import (
    BYTES,
    DATES,
    INTERVALS,
    LISTS,
    MOMENTS,
    NULLS,
    NUMBERS,
    OBJECTS,
    TEXT,
    TIMES,
    TRUTH,
    TypedExpression,
    are_comparable,
    combined,
    fitted,
    kind_of,
    united,
)

MOST_PATTERN = 1000  # instructions of a regular expression, about
MOST_COMPARED = 200  # characters that the letters of a text are compared with, as by levenshtein()

# --- casts

_CASTS = {
    pa.bool_(): "BOOLEAN BOOL",
    pa.int64(): "INTEGER INT BIGINT TINYINT SMALLINT HUGEINT UTINYINT USMALLINT UINTEGER UBIGINT "
    "INT1 INT2 INT4 INT8 SIGNED SHORT LONG",
    pa.float64(): "DOUBLE FLOAT REAL FLOAT4 FLOAT8 DECIMAL NUMERIC DEC",
    pa.string(): "VARCHAR TEXT STRING CHAR BPCHAR",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.timestamp("us"): "TIMESTAMP DATETIME",
    pa.month_day_nano_interval(): "INTERVAL",
}
CASTS: dict[str, pa.DataType] = {name: kind for kind, names in _CASTS.items() for name in names.split()}


# --- functions

_KINDS: dict[str, frozenset[str]] = {
    "text": frozenset({TEXT}),
    "number": frozenset({NUMBERS}),
    "truth": frozenset({TRUTH}),
    "date": frozenset({DATES}),
    "moment": frozenset({MOMENTS}),
    "time": frozenset({TIMES}),
    "interval": frozenset({INTERVALS}),
    "bytes": frozenset({BYTES}),
    "list": frozenset({LISTS}),
    "object": frozenset({OBJECTS}),
    "scalar": frozenset({TEXT, NUMBERS, TRUTH, DATES, MOMENTS, TIMES}),
}
_KINDS["any"] = frozenset().union(*_KINDS.values()) - {OBJECTS}
# More is asked of some arguments: these are of a kind and written out in the filter, or fit another argument.
_KINDS |= dict.fromkeys(("pattern", "regex", "options", "short", "part", "format", "to"), _KINDS["text"])
_KINDS |= {"count": _KINDS["number"], "same": _KINDS["any"], "item": _KINDS["any"], "alike": _KINDS["list"]}
_GIVEN: dict[str, pa.DataType] = {
    "text": pa.string(),
    "number": pa.float64(),
    "truth": pa.bool_(),
    "date": pa.date32(),
    "moment": pa.timestamp("us"),
    "time": pa.time64("us"),
    "interval": pa.month_day_nano_interval(),
    "bytes": pa.binary(),
    "texts": pa.list_(pa.string()),
}

# `a/b` is of one kind or the other, `a?` may be left out, `a...` stands any number of times.
# alike: a list that fits the first. same, item: fit the
# others, or the elements of the list; given, they are of that type.
_SIGNATURES = """
text -> text: lower lcase upper ucase reverse strip_accents regexp_escape url_encode url_decode md5 sha1
text -> text: sha256
text, text? -> text: trim ltrim rtrim
text, number -> text: left right left_grapheme right_grapheme array_extract
text, number, number? -> text: substring substr substring_grapheme
text, text, number, number? -> text: overlay
text -> number: length len strlen char_length character_length length_grapheme bit_length ascii ord unicode
text, text -> truth: contains starts_with prefix ends_with suffix ^@
text, text -> number: strpos instr position
text, text -> texts: string_split str_split split string_to_array
text, text, number -> text: split_part
text, text, to -> text: replace
text, text, text -> text: translate
text, count -> text: repeat
text, count, text -> text: lpad rpad
text, pattern -> truth: ~~ !~~ ~~* !~~* ~~~
text, pattern, options -> truth: like_escape ilike_escape not_like_escape not_ilike_escape
text, regex, options? -> truth: regexp_matches regexp_full_match
text, regex, count?, options? -> text: regexp_extract
text, regex, to, options? -> text: regexp_replace
text, short -> number: levenshtein editdist3 hamming mismatches jaccard jaro_similarity jaro_winkler_similarity
scalar, scalar -> text: ||
scalar, scalar... -> text: concat
text, scalar, scalar... -> text: concat_ws
text -> bytes: encode from_base64 unhex
bytes -> text: decode base64 to_base64
bytes -> number: octet_length
text/number -> text: hex to_hex bin to_binary
number -> text: chr
number, number -> text: to_base
any -> text: typeof

number -> number: abs @ ceil ceiling floor round trunc sign sqrt cbrt exp ln log log10 log2 degrees radians
number -> number: sin cos tan cot asin acos atan sinh cosh tanh asinh acosh atanh even gamma lgamma factorial bit_count
number -> number: + - ~
number, number -> number: round trunc round_even log pow power atan2 mod fmod fdiv gcd lcm greatest_common_divisor
number, number -> number: least_common_multiple xor add subtract multiply divide nextafter
number, number -> number: + - * / // % ** ^ & | << >>
number -> truth: isnan isinf isfinite signbit
-> number: pi

date, number -> date: + -
number, date -> date: +
date, date -> number: -
date/moment, moment -> interval: -
moment, date -> interval: -
date, time -> moment: +
time, date -> moment: +
date/moment, interval -> moment: + - date_add
interval, date/moment -> moment: +
time, interval -> time: + - date_add
interval, time -> time: +
interval, interval -> interval: + -
interval -> interval: -
interval, number -> interval: * /
number, interval -> interval: *

date/moment -> number: year month day quarter decade century millennium epoch epoch_ms epoch_us
date/moment -> number: week weekofyear dayofweek weekday isodow dayofmonth dayofyear isoyear yearweek era julian
date/moment -> number: days_in_month
interval -> number: epoch epoch_ms epoch_us
moment/time/interval -> number: hour minute second millisecond microsecond
time -> number: epoch epoch_ms epoch_us
date/moment -> text: dayname monthname
date/moment -> date: last_day
part, date/moment/time/interval -> number: date_part datepart
part, date/moment -> moment: date_trunc datetrunc
part, interval -> interval: date_trunc datetrunc
part, date/moment, date/moment -> number: date_diff datediff date_sub datesub
part, time, time -> number: date_diff datediff date_sub datesub
date/moment, format -> text: strftime
text, format -> moment: strptime try_strptime
number, number, number -> date: make_date
number, number, number -> time: make_time
number, number, number, number, number, number -> moment: make_timestamp
number -> moment: make_timestamp epoch_ms
number -> interval: to_years to_quarters to_months to_weeks to_days to_hours to_minutes to_seconds to_milliseconds
number -> interval: to_microseconds to_decades to_centuries to_millennia
moment, moment -> interval: age
interval, date/moment -> moment: time_bucket

same, same... -> same: coalesce greatest least
same, same -> same: nullif
truth, same, same -> same: if

list -> number: len length array_length list_unique array_unique list_count list_sum list_avg list_product list_median
list -> number: list_stddev_pop list_stddev_samp list_var_pop list_var_samp
list -> truth: list_bool_and list_bool_or
list -> item: list_min list_max list_first list_last list_any_value list_mode flatten
list -> list: list_sort array_sort list_reverse_sort array_reverse_sort list_distinct array_distinct list_reverse
list -> list: array_reverse
list, item -> truth: contains list_contains array_contains list_has array_has
list, item -> number: list_position list_indexof array_position array_indexof
list, item -> list: list_append array_append array_push_back
list, number -> item: array_extract list_extract list_element
list/text, number, number -> same: array_slice list_slice
list, alike -> truth: list_has_any array_has_any list_has_all array_has_all && @> <@
list, alike -> list: || list_concat list_cat array_concat array_cat list_intersect array_intersect
list, alike -> number: list_distance list_cosine_distance list_cosine_similarity list_inner_product list_dot_product
list, alike -> number: <-> <=>
list, to -> text: array_to_string
same... -> list: list_value list_pack
"""
# How many times as large as its arguments a result may be; times the length of what is put in, for some.
_FACTORS = {"lower": 2, "lcase": 2, "upper": 2, "ucase": 2, "regexp_escape": 2, "url_encode": 3, "hex": 2, "to_hex": 2,
            "bin": 8, "to_binary": 8, "base64": 2, "to_base64": 2, "translate": 4, "string_split": 17, "str_split": 17,
            "split": 17, "string_to_array": 17, "split_part": 17}  # fmt: skip
_COPIES = {"nullif": 2, "split_part": 2, "fmod": 2, "array_to_string": 2}  # macros that write an argument twice
_BYTES = 64  # of what is made of a number or a date, at most
_WORDS = {"~~": "LIKE", "!~~": "NOT LIKE", "~~*": "ILIKE", "!~~*": "NOT ILIKE", "~~~": "GLOB", "like_escape": "LIKE",
          "ilike_escape": "ILIKE", "not_like_escape": "NOT LIKE", "not_ilike_escape": "NOT ILIKE"}  # fmt: skip
_SAID = {"pattern": "a pattern in single quotes, such as 'whale%'", "regex": "a regular expression in single quotes",
         "options": "text in single quotes", "short": "text in single quotes",
         "part": "a part of a date in single quotes, such as 'year'", "to": "text in single quotes",
         "format": "a format in single quotes, such as '%Y-%m'", "count": "a number written out"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function takes and gives: a role for each argument. `needs` must be given; the last may be `repeated`."""

    takes: tuple[str, ...]
    gives: str
    needs: int
    repeated: bool

    def roles(self, count: int) -> tuple[str, ...] | None:
        """The roles of so many arguments; None where it does not take so many."""
        if count < self.needs or (count > len(self.takes) and not self.repeated):
            return None
        return (*self.takes, *(self.takes[-1:] * (count - len(self.takes))))[:count]


def _signatures() -> dict[str, tuple[Signature, ...]]:
    found: dict[str, tuple[Signature, ...]] = {}
    for line in filter(None, _SIGNATURES.splitlines()):
        form, _, names = line.partition(":")
        takes, _, gives = form.partition("->")
        roles = [role.strip() for role in takes.split(",") if role.strip()]
        needs = sum(not role.endswith(("?", "...")) for role in roles)
        signature = Signature(tuple(role.rstrip("?.") for role in roles), gives.strip(), needs, "..." in takes)
        for name in names.split():
            found[name] = (*found.get(name, ()), signature)
    return found


FUNCTIONS = _signatures()
NAMES = sorted(name for name in FUNCTIONS if name[0].isalpha())


def call(name: str, arguments: list[TypedExpression], shown: str, start: int, end: int) -> TypedExpression:
    """A call of one of FUNCTIONS, or an operator. Raises ValueError saying what does not fit."""
    signature, roles = _chosen(name, arguments)
    for role, argument in zip(roles, arguments, strict=True):
        _check_role(name, role, argument)
    arguments = _fitted_to(name, roles, arguments)
    kind = _given(name, signature.gives, roles, arguments)
    copies, (factor, extra, pattern) = _COPIES.get(name, 1), _size(name, roles, arguments)
    made = combined(_sql(name, arguments), kind, arguments, (factor, extra), copies=copies, pattern=pattern)
    return replace(made, shown=shown, start=start, end=end)


def cast(operand: TypedExpression, name: str, kind: pa.DataType, attempt: bool) -> TypedExpression:
    """A value as another type, which SQL calls `name`; an `attempt` gives NULL where there is no such value."""
    operand = fitted(operand, kind)
    growth = (1 if operand.kind == kind_of(kind) else 8, _BYTES)
    return combined(f"{'TRY_CAST' if attempt else 'CAST'}({operand.sql} AS {name})", kind, [operand], growth)


def _chosen(name: str, arguments: list[TypedExpression]) -> tuple[Signature, tuple[str, ...]]:
    count = len(arguments)
    forms = [(form, roles) for form in FUNCTIONS[name] if (roles := form.roles(count)) is not None]
    if not forms:
        raise ValueError(f"{_title(name)} takes {_counts(FUNCTIONS[name])}, not {count}")
    for form, roles in forms:
        if all(argument.kind in _taken(role) for role, argument in zip(roles, arguments, strict=True)):
            return form, roles
    for number, argument in enumerate(arguments):
        taken = [roles[number] for _, roles in forms]
        kinds = frozenset().union(*map(_taken, taken)) - {NULLS}
        if argument.kind not in kinds | {NULLS}:
            said = _SAID.get(taken[0]) or " or ".join(sorted(kinds))
            hint = _hint(name, argument, kinds) if number == 0 or taken[0] not in _SAID else ""
            raise ValueError(f"{_title(name)} takes {said}, not {argument.named}{hint}")
    raise ValueError(f"{_title(name)} does not take {' and '.join(argument.named for argument in arguments)} together")


def _taken(role: str) -> frozenset[str]:
    return frozenset({NULLS}).union(*(_KINDS[kind] for kind in role.split("/")))


def _hint(name: str, argument: TypedExpression, kinds: frozenset[str]) -> str:
    if name in _WORDS and argument.kind != LISTS:
        return f"; write CAST({argument.shown} AS VARCHAR) {_WORDS[name]} ..."
    if argument.text is not None and kinds & {DATES, MOMENTS}:
        return f"; write {'DATE' if DATES in kinds else 'TIMESTAMP'} {argument.shown}"
    return ""


def _title(name: str) -> str:
    """A function for messages."""
    return _WORDS.get(name, f"{name}()" if name[0].isalpha() else name)


def _counts(forms: tuple[Signature, ...]) -> str:
    least = min(form.needs for form in forms)
    if any(form.repeated for form in forms):
        return f"{least} argument{'s' * (least != 1)} or more" if least else "any number of arguments"
    most = max(len(form.takes) for form in forms)
    noun = "argument" if most == 1 else "arguments"
    return f"{most} {noun}" if least == most else f"{least} to {most} {noun}"


def _check_role(name: str, role: str, argument: TypedExpression) -> None:
    """Raise ValueError for an argument that is of the right kind but may not be just anything of it."""
    if role in _SAID and not argument.literal:
        raise ValueError(f"{_title(name)} takes {_SAID[role]}, not {argument.shown}")
    text = argument.text or ""
    if role == "short" and len(text) > MOST_COMPARED:
        raise ValueError(f"{_title(name)} takes at most {MOST_COMPARED} characters to compare with")
    if role == "regex" and _regex_size(text) > MOST_PATTERN:
        raise ValueError(f"this regular expression is too large; it may have about {MOST_PATTERN:,} parts")
    if role == "format" and re.search("%-?[zZ]", text):
        raise ValueError("times count in UTC, so a format has no zone (%z, %Z)")
    if role == "options" and name == "regexp_replace" and "g" in text:
        raise ValueError("regexp_replace() puts in the first match only; option 'g' is not to be had (see replace())")


def _regex_size(pattern: str) -> int:
    """About how many instructions a regular expression becomes, and rather more."""
    groups = [int(found[1]) for found in re.finditer(r"\)\{(?:\d*,)?(\d{1,9})", pattern)]
    single = [int(found[1]) for found in re.finditer(r"[^)]\{(?:\d*,)?(\d{1,9})", pattern)]
    classes = 300 * len(re.findall(r"\\[pP]", pattern))  # a class of letters of all scripts is hundreds of ranges
    return (len(pattern) + classes * max(1, sum(single)) + sum(single)) * prod(max(1, count) for count in groups)


def _fitted_to(name: str, roles: tuple[str, ...], arguments: list[TypedExpression]) -> list[TypedExpression]:
    """The arguments, those that are to be of one type so."""
    if "item" in roles:
        held, value = arguments
        element = replace(held, type=_element(held), text=None)
        if not are_comparable(element, value):
            raise ValueError(f"{held.shown} holds lists of {element.kind}, so not {value.named}")
        return [held, fitted(value, element.type)]
    if "alike" in roles:
        united(_title(name), arguments)
    same = [argument for role, argument in zip(roles, arguments, strict=True) if role == "same"]
    if same:
        return [*arguments[: len(arguments) - len(same)], *united(_title(name), same)[1]]
    return arguments


def _given(name: str, gives: str, roles: tuple[str, ...], arguments: list[TypedExpression]) -> pa.DataType:
    """The type of a result."""
    if gives in _GIVEN:
        return _GIVEN[gives]
    if gives == "item":
        return _element(arguments[0])
    same = [argument for role, argument in zip(roles, arguments, strict=True) if role == "same"]
    if gives == "same" and not same:
        return arguments[0].type
    kind = united(_title(name), same)[0] if same else pa.null()
    if gives == "same":
        return kind
    return next((argument.type for argument in arguments if argument.kind == LISTS), pa.list_(kind))


def _element(held: TypedExpression) -> pa.DataType:
    return held.type.value_type if held.kind == LISTS else pa.null()


def _size(name: str, roles: tuple[str, ...], arguments: list[TypedExpression]) -> tuple[int, int, int]:
    """How many times as large as its arguments a result may be, how many bytes more, and the size of its pattern."""
    factor, extra, pattern = _FACTORS.get(name, 1), _BYTES, 0
    for role, argument in zip(roles, arguments, strict=True):
        text = argument.text or ""
        if role == "count" and name in ("repeat", "lpad", "rpad"):
            count = _whole(argument)
            factor, extra = (max(1, count), extra) if name == "repeat" else (1, extra + 4 * count)
        elif role == "to":
            factor, extra = 1 + len(text.encode()), extra + len(text.encode())
        elif role == "format":
            extra += 16 * len(text)
        elif role == "regex":
            pattern += _regex_size(text)
        elif role in ("pattern", "short"):
            pattern += len(text)
        elif name == "concat_ws":
            factor = len(arguments)
    return factor, extra, pattern


def _whole(argument: TypedExpression) -> int:
    if not re.fullmatch("-?[0-9]{1,9}", argument.sql):
        raise ValueError(f"a whole number of times was expected, of nine digits at most, not {argument.shown}")
    return int(argument.sql)


def _sql(name: str, arguments: list[TypedExpression]) -> str:
    pieces = [argument.sql for argument in arguments]
    if name == "coalesce":  # no function to DuckDB, but syntax
        return f"COALESCE({', '.join(pieces)})"
    if name[0].isalpha():  # quoted, as some have a syntax of their own: position(... IN ...)
        return f'"{name}"({", ".join(pieces)})'
    return f"({name}({pieces[0]}))" if len(pieces) == 1 else f"({pieces[0]} {name} {pieces[1]})"
