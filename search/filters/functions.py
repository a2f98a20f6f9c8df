"""The functions a filter may use, and the types it may cast to."""

from dataclasses import dataclass

from search.filters.operands import (
    DATES,
    LISTS,
    MOMENTS,
    NULLS,
    NUMBERS,
    TEXT,
    TIMES,
    TRUTH,
    Operand,
    are_comparable,
    fitted,
)

_ANY = frozenset({TEXT, NUMBERS, TRUTH, DATES, MOMENTS, TIMES, LISTS})


@dataclass(frozen=True)
class Function:
    """What a function takes and gives. `takes` holds the kinds of each argument, `needs` how many must be given."""

    takes: tuple[frozenset[str], ...]
    gives: str
    needs: int


def _function(gives: str, *takes: set[str] | frozenset[str], needs: int = 0) -> Function:
    return Function(tuple(frozenset(kinds) for kinds in takes), gives, needs or len(takes))


FUNCTIONS = {
    "lower": _function(TEXT, {TEXT}),
    "upper": _function(TEXT, {TEXT}),
    "trim": _function(TEXT, {TEXT}),
    "length": _function(NUMBERS, {TEXT, LISTS}),
    "len": _function(NUMBERS, {TEXT, LISTS}),
    "contains": _function(TRUTH, {TEXT}, {TEXT}),
    "starts_with": _function(TRUTH, {TEXT}, {TEXT}),
    "ends_with": _function(TRUTH, {TEXT}, {TEXT}),
    "list_contains": _function(TRUTH, {LISTS}, _ANY - {LISTS}),
    "year": _function(NUMBERS, {DATES, MOMENTS}),
    "month": _function(NUMBERS, {DATES, MOMENTS}),
    "day": _function(NUMBERS, {DATES, MOMENTS}),
    "hour": _function(NUMBERS, {MOMENTS, TIMES}),
    "abs": _function(NUMBERS, {NUMBERS}),
    "floor": _function(NUMBERS, {NUMBERS}),
    "ceil": _function(NUMBERS, {NUMBERS}),
    "round": _function(NUMBERS, {NUMBERS}, {NUMBERS}, needs=1),
}
COALESCE = "coalesce"  # takes any number of arguments of one kind, and gives that kind

CASTS = {
    "BOOLEAN": TRUTH,
    "BOOL": TRUTH,
    "INTEGER": NUMBERS,
    "INT": NUMBERS,
    "BIGINT": NUMBERS,
    "DOUBLE": NUMBERS,
    "FLOAT": NUMBERS,
    "VARCHAR": TEXT,
    "TEXT": TEXT,
    "DATE": DATES,
    "TIME": TIMES,
    "TIMESTAMP": MOMENTS,
}
TYPED_LITERALS = ("DATE", "TIME", "TIMESTAMP")


def call(name: str, arguments: list[Operand], shown: str, start: int) -> Operand:
    """A call of one of FUNCTIONS, or of COALESCE. Raises ValueError saying what does not fit."""
    if name == COALESCE:
        return _coalesce(arguments, shown, start)
    function = FUNCTIONS[name]
    if not function.needs <= len(arguments) <= len(function.takes):
        raise ValueError(f"{name}() takes {_counts(function)}, not {len(arguments)}")
    for argument, kinds in zip(arguments, function.takes, strict=False):
        if argument.kind not in kinds | {NULLS}:
            raise ValueError(f"{name}() takes {' or '.join(sorted(kinds))}, not {argument.named}")
    if name == "list_contains":
        arguments = [arguments[0], _element(*arguments)]
    return Operand(_sql(name, arguments), function.gives, shown, start)


def _element(held: Operand, value: Operand) -> Operand:
    """What is looked for in a list."""
    element = Operand("", held.element, "", 0)
    if not are_comparable(element, value):
        raise ValueError(f"{held.shown} holds lists of {held.element}, so not {value.named}")
    return fitted(value, element)


def _coalesce(arguments: list[Operand], shown: str, start: int) -> Operand:
    known = [argument for argument in arguments if argument.kind != NULLS] or arguments
    if not known:
        raise ValueError("coalesce() takes one argument or more")
    first = next((argument for argument in known if not argument.literal), known[0])
    for argument in known:
        if LISTS in (argument.kind, first.kind) or not are_comparable(first, argument):
            raise ValueError(f"coalesce() takes values of one kind, not {first.named} and {argument.named}")
    return Operand(_sql(COALESCE, [fitted(argument, first) for argument in arguments]), first.kind, shown, start)


def _sql(name: str, arguments: list[Operand]) -> str:
    return f"{name}({', '.join(argument.sql for argument in arguments)})"


def _counts(function: Function) -> str:
    most = len(function.takes)
    noun = "argument" if most == 1 else "arguments"
    return f"{most} {noun}" if function.needs == most else f"{function.needs} to {most} {noun}"
