"""The grammar of filters: what SQL has for a condition on one row.

DuckDB's own parser gives the syntax tree. It is walked by an allow-list: a kind of node, a field of it, a function or a
type that is not known here is refused, with its place. SQL is written anew from what was understood, so nothing of the
filter's own text is run but names that are on the list, numbers, and text between quotes. It means what DuckDB takes it
to mean.
"""

import difflib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Never, TypeVar

import pyarrow as pa

from search.filters.columns import ColumnNames
from search.filters.database import Condition, FilterDatabase, FilterError, Tree
from search.filters.expressions import (
    LISTS,
    NULLS,
    TEXT,
    TRUTH,
    TypedExpression,
    combined,
    compared,
    quote,
    shortened,
    united,
)
from search.filters.functions import CASTS, FUNCTIONS, NAMES, call, cast
from search.filters.scanner import DEEPEST, MOST, PARAMETERS, START, UNFIT, Scanner, refuse, refuse_byte, refuse_syntax

Made = TypeVar("Made")

MOST_WEIGHT = 100_000  # looks at what a document holds
_NUMBER = re.compile(r"-?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)
_COMPARISONS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
    "COMPARE_DISTINCT_FROM": "IS DISTINCT FROM",
    "COMPARE_NOT_DISTINCT_FROM": "IS NOT DISTINCT FROM",
}
_ESCAPES = ("like_escape", "ilike_escape", "not_like_escape", "not_ilike_escape")
_TYPES = "BOOLEAN, INTEGER, BIGINT, DOUBLE, DECIMAL, VARCHAR, DATE, TIME, TIMESTAMP, INTERVAL"
_USUAL = "lower, length, contains, regexp_matches, list_contains, len, abs, round, year, date_part, strftime, coalesce"
_PLACE = {"class", "type", "query_location", "query_location_length"}
_FIELDS = {  # of each class of node; with any other, it is more than a condition on a row
    "COLUMN_REF": {"column_names"},
    "CONSTANT": {"literal"},
    "CONJUNCTION": {"children"},
    "COMPARISON": {"left", "right"},
    "BETWEEN": {"input", "lower", "upper"},
    "CASE": {"case_checks", "else_expr"},
    "CAST": {"child", "try_cast", "type_expr"},
    "OPERATOR": {"children"},
    "FUNCTION": {"function_name", "is_operator", "arguments", "order_bys", "qualified_name"},
    "TYPE": {"type_name", "children", "qualified_name"},
}
_OTHERS = {
    "SUBQUERY": "a filter is one condition, without subqueries; for a list, write list_contains(column, value)",
    "LAMBDA": "a filter has no lambdas, and no arrows into JSON",
    "STAR": "a filter has no stars; name the column",
    "WINDOW": "a filter is about one document, without windows",
    "PARAMETER": PARAMETERS,
    "POSITIONAL_REFERENCE": "name the column",
    "COLLATE": "a filter has no collations; write lower(...) = lower(...)",
}


def compile_filter(where: str, columns: ColumnNames, database: FilterDatabase) -> Condition:
    """A filter as an SQL condition over the columns that `columns` gives names to. Raises ConfigError."""
    scanned = Scanner(where, columns, database)
    statement = scanned.statement()
    try:
        tree = database.parse(statement)
    except FilterError as error:
        refuse_syntax(where, error)
    return _Walk(where, columns, scanned, database).condition(tree)


class _Walk:
    """The tree of a filter, from above: a method takes a class of nodes and returns it as SQL."""

    def __init__(self, where: str, columns: ColumnNames, scanned: Scanner, database: FilterDatabase) -> None:
        self._where, self._columns, self._database = where, columns, database
        self._lists, self._names = scanned.lists, scanned.names
        self._bytes = (START + where).encode()
        self._tables: list[pa.Array] = []
        self._depth, self._near = 0, len(START)
        self._classes: dict[str, Callable[[Tree], TypedExpression]] = {
            "COLUMN_REF": self._column,
            "CONSTANT": self._constant,
            "CONJUNCTION": self._conjunction,
            "COMPARISON": self._comparison,
            "BETWEEN": self._between,
            "CASE": self._case,
            "CAST": self._cast,
            "OPERATOR": self._operator,
            "FUNCTION": self._function,
        }

    def condition(self, tree: Tree) -> Condition:
        """The whole of it. Raises ConfigError."""
        clauses = {name for name in tree if tree[name] not in ({}, {"type": "EMPTY"}, "STANDARD_HANDLING")}
        if tree.get("type") != "SELECT_NODE" or clauses != {"type", "select_list", "where_clause"}:
            refuse(self._where, "a filter is one condition, without other parts of a query")
        made = self._truth(self._walk(tree["where_clause"]))
        if made.weight > MOST_WEIGHT:
            refuse(self._where, "too much work for each document: long patterns, or too many values made of long texts")
        return Condition(made.sql, tuple(self._tables), made.weight, made.made)

    def _walk(self, node: Tree) -> TypedExpression:
        kind = node["class"]
        near = self._near = node["query_location"] if self._has_place(node) else self._near
        if kind not in self._classes:
            self._refuse(_OTHERS.get(kind, f"{self._text(node)} has no place in a filter"), near)
        self._check_fields(node, near)
        with self._deeper(near):
            made = self._classes[kind](node)
        if made.nodes > MOST:
            self._refuse(
                f"more than {MOST} comparisons, columns and functions; many values go in one list: id IN ('a', 'b')",
                near,
            )
        return made

    def _check_fields(self, node: Tree, near: int) -> None:
        known = _FIELDS[node["class"]] | _PLACE
        if any(node[name] and name not in known for name in node):
            self._refuse(
                f"{self._text(node)}: a function has no name before it (write lower(x), not x.lower()), and "
                "nothing but arguments: no DISTINCT, ORDER BY, FILTER and the like",
                near,
            )

    # --- leaves

    def _column(self, node: Tree) -> TypedExpression:
        return self._named(self._path(node) or (), self._span(node))

    def _named(self, names: tuple[str, ...], span: tuple[int, int]) -> TypedExpression:
        quoted = self._bytes[span[0] : span[0] + 1] == b'"'
        sql, kind = self._checked(lambda: self._columns.find(names, quoted), span[0])
        return TypedExpression(sql, kind, self._shown(span), *span, column=True, times=1, weight=1)

    def _constant(self, node: Tree) -> TypedExpression:
        literal, span = node["literal"], self._span(node)
        kind, text = literal["kind"], literal.get("text", "")
        if kind == "STRING":
            if UNFIT.search(text):
                self._refuse("a null character or half a surrogate pair, which no document holds", span[0])
            sql, given = quote(text), pa.string()
        elif kind in ("INTEGER", "NUMERIC"):
            if not _NUMBER.fullmatch(text):
                self._refuse(f"{shortened(text)} is no number", span[0])
            sql, given = text, pa.float64()
        elif kind in ("BOOLEAN", "NULL_LITERAL"):
            sql = "NULL" if kind == "NULL_LITERAL" else {"true": "TRUE", "false": "FALSE"}[text]
            given = pa.null() if sql == "NULL" else pa.bool_()
        else:
            self._refuse(
                f"{self._text(node)} has no place in a filter; write text in single quotes, or a number", span[0]
            )
        said, size = (text, len(text.encode())) if kind == "STRING" else (None, 0)
        return TypedExpression(sql, given, self._shown(span), *span, text=said, literal=True, nodes=0, extra=size)

    # --- conditions

    def _conjunction(self, node: Tree) -> TypedExpression:
        word = {"CONJUNCTION_AND": " AND ", "CONJUNCTION_OR": " OR "}[node["type"]]
        return self._made(node, lambda parts: word.join(part.sql for part in parts), self._truths(node["children"]))

    def _comparison(self, node: Tree) -> TypedExpression:
        sign = self._known(_COMPARISONS, node)
        sides = [self._walk(node["left"]), self._walk(node["right"])]
        for side in sides:
            if side.sql == "NULL" and not sign.startswith("IS"):
                self._refuse("nothing equals NULL; write IS NULL or IS NOT NULL", side.start)
        return self._made(node, lambda parts: f"{parts[0].sql} {sign} {parts[1].sql}", self._compared(sides))

    def _between(self, node: Tree) -> TypedExpression:
        parts = self._compared([self._walk(node[name]) for name in ("input", "lower", "upper")])
        return self._made(node, lambda parts: f"{parts[0].sql} BETWEEN {parts[1].sql} AND {parts[2].sql}", parts)

    def _operator(self, node: Tree) -> TypedExpression:
        methods: dict[str, Callable[[Tree], TypedExpression]] = {
            "OPERATOR_NOT": self._not,
            "OPERATOR_IS_NULL": lambda node: self._null(node, "IS NULL"),
            "OPERATOR_IS_NOT_NULL": lambda node: self._null(node, "IS NOT NULL"),
            "COMPARE_IN": self._in,
            "OPERATOR_COALESCE": lambda node: self._call(node, "coalesce", node["children"]),
            "ARRAY_CONSTRUCTOR": lambda node: self._call(node, "list_value", node.get("children", [])),
            "ARRAY_EXTRACT": self._extract,
            "STRUCT_EXTRACT": self._extract,
            "ARRAY_SLICE": self._slice,
        }
        if node["type"] not in methods:
            self._refuse(f"{self._text(node)} has no place in a filter", self._span(node)[0])
        return methods[node["type"]](node)

    def _not(self, node: Tree) -> TypedExpression:
        return self._made(node, lambda parts: f"NOT {parts[0].sql}", self._truths(node["children"]))

    def _null(self, node: Tree, word: str) -> TypedExpression:
        return self._made(node, lambda parts: f"{parts[0].sql} {word}", [self._walk(node["children"][0])])

    def _in(self, node: Tree) -> TypedExpression:
        left, *values = map(self._walk, node["children"])
        for value in values:
            if value.sql == "NULL":
                self._refuse("nothing equals NULL; write IS NULL or IS NOT NULL", value.start)
        held = self._lists.get(values[0].start, [])
        if held and (table := _table(left, values[0], held)) is not None:
            self._tables.append(table)
            name, parts = f"list{len(self._tables) - 1}", self._compared([left, *values])
            return self._made(node, lambda parts: f"{parts[0].sql} IN (SELECT value FROM {name})", parts)  # noqa: S608
        values = [_literal(literal, values[0]) for literal in held] or values
        parts = self._compared([left, *values])
        return self._made(node, lambda parts: f"{parts[0].sql} IN ({', '.join(part.sql for part in parts[1:])})", parts)

    def _case(self, node: Tree) -> TypedExpression:
        checks = node["case_checks"]
        whens = self._truths([check["when_expr"] for check in checks])
        given = [self._walk(node) for node in [*(check["then_expr"] for check in checks), node["else_expr"]]]
        kind, given = self._checked(lambda: united("CASE", given), self._near)
        pairs = zip(whens, given, strict=False)
        sql = "CASE " + " ".join(f"WHEN {when.sql} THEN {then.sql}" for when, then in pairs)
        return self._made(node, lambda _: f"{sql} ELSE {given[-1].sql} END", [*whens, *given], kind)

    # --- functions and casts

    def _function(self, node: Tree) -> TypedExpression:
        name = node["function_name"].lower()
        arguments = node.get("arguments", [])
        span = self._span(node)
        if node.get("order_bys", {}).get("orders") or node["qualified_name"]["path"] != [node["function_name"]]:
            self._refuse(f"{self._text(node)}: write lower(x), not x.lower(), and nothing but arguments", span[0])
        if name not in FUNCTIONS or name == "coalesce":
            self._refuse_function(name, span[0])
        if any(argument.get("name") for argument in arguments):
            self._refuse(f"{name}() takes no named arguments", span[0])
        return self._call(node, name, [argument["expression"] for argument in arguments])

    def _call(self, node: Tree, name: str, arguments: list[Tree]) -> TypedExpression:
        near = self._near
        given = [self._walk(argument) for argument in arguments]
        span = self._span(node, given)
        start = span[0] if span[1] else near
        if name == "contains" and given and given[0].kind != LISTS and not self._is_contains(node):
            values = f"{given[-1].shown} IN ('a', 'b')"
            self._refuse(
                f"{given[0].named} is no list; write contains({given[0].shown}, ...) or {values}", given[0].start
            )
        if name in _ESCAPES:
            self._check_escape(*given[1:])
        return self._checked(lambda: call(name, given, self._shown(span), *span), start)

    def _check_escape(self, pattern: TypedExpression, escape: TypedExpression) -> None:
        if pattern.text is None or escape.text is None:
            return
        if len(escape.text) != 1:
            self._refuse("ESCAPE takes one character", escape.start)
        if (len(pattern.text) - len(pattern.text.rstrip(escape.text))) % 2:
            self._refuse(f"the pattern ends with {escape.text}, which stands for no character", pattern.start)

    def _extract(self, node: Tree) -> TypedExpression:
        """An element of a list, a character of a text, or a field of an object, which may be written as one."""
        if names := self._path(node):
            return self._named(names, self._span(node))
        if node["type"] == "ARRAY_EXTRACT":
            return self._call(node, "array_extract", node["children"])
        held, field = self._walk(node["children"][0]), node["children"][1]["literal"]["text"]
        kinds = {} if not pa.types.is_struct(held.type) else {inner.name: inner.type for inner in held.type}
        if field not in kinds:
            there = f"its fields are {', '.join(map(shortened, kinds))}" if kinds else f"{held.named} is no object"
            self._refuse(f'no field "{shortened(field)}": {there}', held.start)
        name = quote(field)
        return self._made(node, lambda parts: f'"struct_extract"({parts[0].sql}, {name})', [held], kinds[field])

    def _path(self, node: Tree) -> tuple[str, ...] | None:
        """The names of a field of a column's objects: meta['kind'] and (meta).kind are meta.kind."""
        if node["class"] == "COLUMN_REF":
            first, *fields = node["column_names"]
            return (self._names.get(node.get("query_location", 0), first), *fields)
        if node["type"] not in ("ARRAY_EXTRACT", "STRUCT_EXTRACT") or node["children"][1]["class"] != "CONSTANT":
            return None
        literal, inner = node["children"][1]["literal"], self._path(node["children"][0])
        if literal["kind"] != "STRING" or not inner or not self._columns.holds_objects(inner):
            return None
        return (*inner, literal.get("text", ""))

    def _slice(self, node: Tree) -> TypedExpression:
        """Part of a list or text; an end that is left out is an empty list to DuckDB."""
        held, *ends = node["children"]
        if len(ends) != 2:
            self._refuse("a slice has no step; write [first:last]", self._span(node)[0])
        given = [self._walk(held)]
        for end in ends:
            left_out = end["class"] == "FUNCTION" and not end.get("arguments")
            given.append(self._walk(end) if not left_out else TypedExpression("[]", pa.null(), "", 0, 0, nodes=0))
        span = self._span(node, given)
        made = self._checked(lambda: call("array_slice", given, self._shown(span), *span), span[0])
        return replace(
            made, sql=f"({given[0].sql})[{':'.join('' if one.sql == '[]' else one.sql for one in given[1:])}]"
        )

    def _cast(self, node: Tree) -> TypedExpression:
        near = self._near
        operand = self._walk(node["child"])
        name, kind = self._type(node["type_expr"], near)
        if name == "BOOLEAN" and not self._has_place(node["type_expr"]):  # x IS TRUE
            return self._truth(operand)
        made = self._checked(lambda: cast(operand, name, kind, bool(node.get("try_cast"))), operand.start)
        return self._placed(made, self._span(node, [operand]))

    def _type(self, node: Tree, near: int) -> tuple[str, pa.DataType]:
        """A type as SQL writes it, and its kind."""
        near = node["query_location"] if self._has_place(node) else near
        name, children = str(node.get("type_name", "")).upper(), node.get("children", [])
        extra = set(node) - _FIELDS["TYPE"] - _PLACE
        if name == "LIST" and len(children) == 1 and not extra:
            inner, kind = self._type(children[0], near)
            return f"{inner}[]", pa.list_(kind)
        digits = [child.get("literal", {}).get("text", "") for child in children]
        sized = name in ("DECIMAL", "NUMERIC", "DEC", "VARCHAR", "CHAR", "BPCHAR") and len(digits) <= 2
        if (
            name not in CASTS
            or extra
            or not all(re.fullmatch("[0-9]+", digit) for digit in digits)
            or (digits and not sized)
        ):
            zone = "; times count in UTC, and have no zone" if "Z" in name or "ZONE" in name else ""
            self._refuse(f"found {shortened(name)}; expected a type: {_TYPES}, or a list of one: INTEGER[]{zone}", near)
        return f"{name}({', '.join(digits)})" if digits else name, CASTS[name]

    # --- shared

    def _truth(self, operand: TypedExpression) -> TypedExpression:
        """A condition, and not a number or a text, which SQL would take for one."""
        if operand.kind not in (TRUTH, NULLS) or operand.sql == "NULL":
            self._refuse(f"{operand.named} is no condition; compare it with something", operand.start)
        return operand

    def _truths(self, nodes: list[Tree]) -> list[TypedExpression]:
        return [self._truth(self._walk(node)) for node in nodes]

    def _compared(self, parts: list[TypedExpression]) -> list[TypedExpression]:
        return self._checked(lambda: compared(parts), parts[0].start)

    def _made(
        self,
        node: Tree,
        sql: Callable[[list[TypedExpression]], str],
        parts: list[TypedExpression],
        kind: pa.DataType | None = None,
    ) -> TypedExpression:
        span = self._span(node, parts)
        kind = pa.bool_() if kind is None else kind
        return self._placed(self._checked(lambda: combined(f"({sql(parts)})", kind, parts), span[0]), span)

    def _placed(self, made: TypedExpression, span: tuple[int, int]) -> TypedExpression:
        return replace(made, shown=self._shown(span), start=span[0], end=span[1])

    def _span(self, node: Tree, parts: list[TypedExpression] | None = None) -> tuple[int, int]:
        """Where a node stands, its parts included: bytes of the statement. Where there is no place, the last known."""
        place = node.get("query_location", 0)
        places = [(place, place + node.get("query_location_length", 0))] if self._has_place(node) else []
        places += [(part.start, part.end) for part in parts or [] if part.end]
        if not places:
            return self._near, self._near
        return min(start for start, _ in places), max(end for _, end in places)

    def _has_place(self, node: Tree) -> bool:
        return 0 < int(node.get("query_location", 0)) < len(self._bytes)

    def _shown(self, span: tuple[int, int]) -> str:
        return shortened(" ".join(self._bytes[span[0] : span[1]].decode(errors="replace").split()))

    def _text(self, node: Tree) -> str:
        return self._shown(self._span(node)) or node["class"]

    def _is_contains(self, node: Tree) -> bool:
        """Whether contains(x, y) was written so: y IN x gives the same node."""
        return self._bytes[self._span(node)[0] :].lstrip(b'"').lower().startswith(b"contains")

    def _known(self, table: dict[str, str], node: Tree) -> str:
        if node["type"] not in table:
            self._refuse(f"{self._text(node)} has no place in a filter", self._span(node)[0])
        return table[node["type"]]

    def _refuse_function(self, name: str, start: int) -> Never:
        if name == "row":
            self._refuse("compare values one by one: year = 2020 AND lang = 'en'", start)
        if self._database.has_function(name):
            self._refuse(
                f"{name} has no place in a filter, which is about one document: no function that reads other rows or "
                "files, gives something else each time, grows without bounds or takes a lambda (x -> ...)", start
            )  # fmt: skip
        close = difflib.get_close_matches(shortened(name), NAMES, n=1, cutoff=0.7)
        meant = f" (did you mean {close[0]}?)" if close else ""
        self._refuse(f"no function {shortened(name)}{meant}; there are, among others, {_USUAL}", start)

    def _checked(self, make: Callable[[], Made], start: int) -> Made:
        """What is made, a ValueError being a mistake at that place."""
        try:
            return make()
        except ValueError as error:
            self._refuse(str(error), start)

    def _refuse(self, reason: str, start: int) -> Never:
        refuse_byte(self._where, reason, max(0, start - len(START)))

    @contextmanager
    def _deeper(self, near: int) -> Iterator[None]:
        self._depth += 1
        if self._depth > DEEPEST:
            self._refuse(f"conditions lie more than {DEEPEST} deep in one another", near)
        yield
        self._depth -= 1


def _table(left: TypedExpression, first: TypedExpression, held: list[bytes]) -> pa.Array | None:
    """The literals of a list as a table's values, if they are of the type of what is looked for among them."""
    if left.kind == TEXT and first.text is not None:
        return pa.array([_says(literal) for literal in held], pa.string())
    exact = pa.types.is_integer(left.type) or pa.types.is_float64(left.type)
    if left.column and exact and first.text is None:
        return pa.array([int(literal) for literal in held], pa.int64())
    return None


def _literal(literal: bytes, first: TypedExpression) -> TypedExpression:
    """A literal of a long list, like its first but for what it says."""
    if first.text is None:
        return replace(first, sql=literal.decode())
    return replace(first, sql=quote(_says(literal)), text=_says(literal))


def _says(literal: bytes) -> str:
    """What stands between the quotes of a literal that is text."""
    return literal.decode()[1:-1].replace("''", "'")
