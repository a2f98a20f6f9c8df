"""The grammar of filters: SQL conditions on one row.

DuckDB parses the filter. An allow-list decides which nodes, fields, functions and types of the syntax tree are
accepted; others are rejected with their position. New SQL is written from the tree, so only listed names, numbers and
quoted text of the filter are run. A filter has the meaning that DuckDB's parser gives it.
"""

import difflib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Never, TypeVar

import pyarrow as pa

from indexer.store.document_tables import numbers_array, texts_array
from search.filters.columns import ColumnNames
from search.filters.conditions import quote
from search.filters.database import Condition, FilterDatabase, FilterError, Tree
from search.filters.expressions import Kind, TypedExpression, combined, compared, shortened, united
from search.filters.functions import CASTS, FUNCTIONS, NAMES, call, cast
from search.filters.scanner import (
    DEEPEST,
    MOST,
    PARAMETERS,
    START,
    TOO_DEEP,
    UNFIT,
    UNFIT_TEXT,
    Scanner,
    refuse,
    refuse_byte,
    refuse_syntax,
)

Result = TypeVar("Result")

MOST_WEIGHT = 100_000  # times that a document is read
_NUMBER = re.compile(r"-?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)
_BEFORE_VALUE = re.compile(rb"([=<>,]|\b(in|like|ilike)\s*\(?)\s*\Z", re.IGNORECASE)
_NEAR = 20  # bytes before a name that tell whether it stands for a value
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
_ONE_SIDED = {"OPERATOR_NOT": "NOT {}", "OPERATOR_IS_NULL": "{} IS NULL", "OPERATOR_IS_NOT_NULL": "{} IS NOT NULL"}
_CALLS = {"OPERATOR_COALESCE": "coalesce", "ARRAY_CONSTRUCTOR": "list_value"}
_BOOLEAN = pa.bool_()
_TYPES = "BOOLEAN, INTEGER, BIGINT, DOUBLE, DECIMAL, VARCHAR, DATE, TIME, TIMESTAMP, INTERVAL"
_SIZED = ("DECIMAL", "NUMERIC", "DEC", "VARCHAR", "CHAR", "BPCHAR")
_PLACE = {"class", "type", "query_location", "query_location_length"}
_PLAIN_CALL = "write lower(x), not x.lower(), and only arguments: no DISTINCT, ORDER BY or FILTER"
_OTHERS = {
    "SUBQUERY": "a filter is one condition, without subqueries; for a list, write list_contains(column, value)",
    "LAMBDA": "filters do not support lambdas and JSON arrows",
    "STAR": "filters do not support *; name the column",
    "WINDOW": "a filter is about one document, without window functions",
    "PARAMETER": PARAMETERS,
    "POSITIONAL_REFERENCE": "name the column",
    "COLLATE": "filters do not support collations; write lower(...) = lower(...)",
}
_UNFIT_OPERATORS = {
    "ARRAY_EXTRACT": "write list_contains(column, value) for a list, and column.field for an object",
    "STRUCT_EXTRACT": "write column.field",
}


def compile_filter(where: str, columns: ColumnNames, database: FilterDatabase) -> Condition:
    """Return a filter as an SQL condition over the names of `columns`. Raises ConfigError."""
    scanned = Scanner(where, columns, database)
    statement = scanned.statement()
    try:
        tree = database.parse(statement)
    except FilterError as error:
        refuse_syntax(where, error)
    return _Walk(where, columns, scanned).condition(tree)


class _Walk:
    """Converts the syntax tree of a filter to SQL, with one method for each class of nodes."""

    def __init__(self, where: str, columns: ColumnNames, scanned: Scanner) -> None:
        self._where, self._columns, self._scanned = where, columns, scanned
        self._bytes = (START + where).encode()
        self._tables: list[pa.Array] = []
        self._depth, self._near = 0, len(START)

    def condition(self, tree: Tree) -> Condition:
        """Return the whole condition. Raises ConfigError."""
        clauses = {name for name in tree if tree[name] not in ({}, {"type": "EMPTY"}, "STANDARD_HANDLING")}
        if tree.get("type") != "SELECT_NODE" or clauses != {"type", "select_list", "where_clause"}:
            refuse(self._where, "a filter is one condition, without other parts of a query")
        whole = self._truth(self._walk(tree["where_clause"]))
        if whole.weight > MOST_WEIGHT:
            refuse(self._where, "too much work for each document. Fix: use shorter patterns or fewer functions")
        return Condition(whole.sql, tuple(self._tables), whole.weight, whole.made)

    def _walk(self, node: Tree) -> TypedExpression:
        near = self._near = node["query_location"] if self._has_place(node) else self._near
        if node["class"] not in _NODES:
            self._refuse(_OTHERS.get(node["class"], f"{self._text(node)} is not allowed in a filter"), near)
        method, fields = _NODES[node["class"]]
        if any(node[name] and name not in fields | _PLACE for name in node):
            self._refuse(f"{self._text(node)}: {_PLAIN_CALL}", near)
        self._depth += 1
        if self._depth > DEEPEST:
            self._refuse(TOO_DEEP, near)
        expression = method(self, node)
        self._depth -= 1
        if expression.nodes > MOST:
            self._refuse(
                f"more than {MOST} comparisons, columns and functions; write many values as one list: id IN ('a', 'b')",
                near,
            )
        return expression

    # --- leaves

    def _column(self, node: Tree) -> TypedExpression:
        span, (first, *fields) = self._span(node), node["column_names"]
        names = (self._scanned.names.get(node.get("query_location", 0), first), *fields)
        is_value = _BEFORE_VALUE.search(self._bytes[max(0, span[0] - _NEAR) : span[0]])
        quoted = self._bytes[span[0] : span[0] + 1] == b'"' if is_value else None
        sql, kind = self._checked(lambda: self._columns.find(names, quoted), span[0])
        return TypedExpression(sql, kind, self._shown(span), *span, column=True, weight=1)

    def _constant(self, node: Tree) -> TypedExpression:
        span, kind, text = self._span(node), node["literal"]["kind"], node["literal"].get("text", "")
        if kind == "STRING":
            if UNFIT.search(text):
                self._refuse(UNFIT_TEXT, span[0])
            typed = TypedExpression(quote(text), pa.string(), text=text, extra=len(text.encode()))
        elif kind in ("INTEGER", "NUMERIC"):
            if not _NUMBER.fullmatch(text):
                self._refuse(f"{shortened(text)} is not a number", span[0])
            typed = TypedExpression(text, pa.float64())
        elif kind == "BOOLEAN":
            typed = TypedExpression(text.upper(), pa.bool_())
        elif kind == "NULL_LITERAL":
            typed = TypedExpression("NULL", pa.null())
        else:
            self._refuse(
                f"{self._text(node)} is not allowed in a filter; write text in single quotes, or a number", span[0]
            )
        return replace(self._placed(typed, span), literal=True, nodes=0)

    # --- conditions

    def _conjunction(self, node: Tree) -> TypedExpression:
        word = {"CONJUNCTION_AND": " AND ", "CONJUNCTION_OR": " OR "}[node["type"]]
        parts = [self._truth(self._walk(child)) for child in node["children"]]
        return self._joined(node, word.join(part.sql for part in parts), parts)

    def _comparison(self, node: Tree) -> TypedExpression:
        if node["type"] not in _COMPARISONS:
            self._refuse(f"{self._text(node)} is not allowed in a filter", self._span(node)[0])
        sign = _COMPARISONS[node["type"]]
        left, right = self._compared([self._walk(node["left"]), self._walk(node["right"])], sign.startswith("IS"))
        return self._joined(node, f"{left.sql} {sign} {right.sql}", [left, right])

    def _between(self, node: Tree) -> TypedExpression:
        parts = self._compared([self._walk(node[name]) for name in ("input", "lower", "upper")], nulls=True)
        return self._joined(node, "{} BETWEEN {} AND {}".format(*(part.sql for part in parts)), parts)

    def _operator(self, node: Tree) -> TypedExpression:
        kind = node["type"]
        if kind in _ONE_SIDED:
            operand = self._walk(node["children"][0])
            operand = self._truth(operand) if kind == "OPERATOR_NOT" else operand
            return self._joined(node, _ONE_SIDED[kind].format(operand.sql), [operand])
        if kind == "COMPARE_IN":
            return self._in(node)
        if kind not in _CALLS:
            advice = f"; {_UNFIT_OPERATORS[kind]}" if kind in _UNFIT_OPERATORS else ""
            self._refuse(f"{self._text(node)} is not allowed in a filter{advice}", self._span(node)[0])
        return self._call(node, _CALLS[kind], node.get("children", []))

    def _in(self, node: Tree) -> TypedExpression:
        left, *values = map(self._walk, node["children"])
        listed = self._scanned.lists.get(values[0].start, [])
        if listed and (table := _table(left, listed)) is not None:
            self._tables.append(table)
            parts = self._compared([left, *values])
            name = f"list{len(self._tables) - 1}"
            return self._joined(node, f"{parts[0].sql} IN (SELECT value FROM {name})", parts)  # noqa: S608
        values = [_literal(value, values[0]) for value in listed] or values
        left, *values = self._compared([left, *values])
        return self._joined(node, f"{left.sql} IN ({', '.join(value.sql for value in values)})", [left, *values])

    def _case(self, node: Tree) -> TypedExpression:
        checks = node["case_checks"]
        whens = [self._truth(self._walk(check["when_expr"])) for check in checks]
        thens = [self._walk(node) for node in [*(check["then_expr"] for check in checks), node["else_expr"]]]
        kind, thens = self._checked(lambda: united("CASE", thens), self._near)
        pairs = " ".join(f"WHEN {when.sql} THEN {then.sql}" for when, then in zip(whens, thens, strict=False))
        return self._joined(node, f"CASE {pairs} ELSE {thens[-1].sql} END", [*whens, *thens], kind)

    # --- functions and casts

    def _function(self, node: Tree) -> TypedExpression:
        name, arguments, start = node["function_name"].lower(), node.get("arguments", []), self._span(node)[0]
        if node.get("order_bys", {}).get("orders") or node["qualified_name"]["path"] != [node["function_name"]]:
            self._refuse(f"{self._text(node)}: {_PLAIN_CALL}", start)
        if name not in FUNCTIONS or name == "coalesce":
            self._refuse_function(name, start)
        if any(argument.get("name") for argument in arguments):
            self._refuse(f"{name}() takes no named arguments", start)
        return self._call(node, name, [argument["expression"] for argument in arguments])

    def _call(self, node: Tree, name: str, nodes: list[Tree]) -> TypedExpression:
        near = self._near
        arguments = [self._walk(argument) for argument in nodes]
        span = self._span(node, arguments)
        if name == "contains" and arguments and arguments[0].kind != Kind.LISTS and not self._is_contains(node):
            first, values = arguments[0], f"{arguments[-1].shown} IN ('a', 'b')"
            self._refuse(f"{first.named} is not a list; write contains({first.shown}, ...) or {values}", first.start)
        if name.endswith("like_escape"):
            self._check_escape(*arguments[1:])
        return self._placed(self._checked(lambda: call(name, arguments), span[0] if span[1] else near), span)

    def _check_escape(self, pattern: TypedExpression, escape: TypedExpression) -> None:
        if pattern.text is None or escape.text is None:
            return
        if len(escape.text) != 1:
            self._refuse("ESCAPE takes one character", escape.start)
        if (len(pattern.text) - len(pattern.text.rstrip(escape.text))) % 2:
            self._refuse(f"the pattern ends with {escape.text}, which escapes no character", pattern.start)

    def _cast(self, node: Tree) -> TypedExpression:
        near = self._near
        operand = self._walk(node["child"])
        name, kind = self._type(node["type_expr"], near)
        if name == "BOOLEAN" and not self._has_place(node["type_expr"]):  # x IS TRUE
            return self._truth(operand)
        converted = self._checked(lambda: cast(operand, name, kind, bool(node.get("try_cast"))), operand.start)
        return self._placed(converted, self._span(node, [operand]))

    def _type(self, node: Tree, near: int) -> tuple[str, pa.DataType]:
        """Return the SQL name of a type and its Arrow type."""
        near = node["query_location"] if self._has_place(node) else near
        name = str(node.get("type_name", "")).upper()
        digits = [child.get("literal", {}).get("text", "") for child in node.get("children", [])]
        extra = set(node) - {"type_name", "children", "qualified_name"} - _PLACE
        sized = not digits or (name in _SIZED and len(digits) <= 2)
        if name not in CASTS or extra or not sized or not all(re.fullmatch("[0-9]+", digit) for digit in digits):
            zone = "; times are in UTC, without a zone" if "Z" in name or "ZONE" in name else ""
            self._refuse(f"found {shortened(name)}; expected a type: {_TYPES}{zone}", near)
        return f"{name}({', '.join(digits)})" if digits else name, CASTS[name]

    # --- shared

    def _truth(self, operand: TypedExpression) -> TypedExpression:
        """Return a condition; reject numbers and text, which SQL would convert."""
        if operand.kind not in (Kind.TRUTH, Kind.NULLS) or operand.sql == "NULL":
            self._refuse(f"{operand.named} is not a condition; compare it with a value", operand.start)
        return operand

    def _compared(self, parts: list[TypedExpression], nulls: bool = False) -> list[TypedExpression]:
        """Return the parts fitted for a comparison; reject NULL unless `nulls`."""
        for part in parts:
            if part.sql == "NULL" and not nulls:
                self._refuse("nothing equals NULL; write IS NULL or IS NOT NULL", part.start)
        return self._checked(lambda: compared(parts), parts[0].start)

    def _joined(
        self, node: Tree, sql: str, parts: list[TypedExpression], type_: pa.DataType = _BOOLEAN
    ) -> TypedExpression:
        return self._placed(combined(f"({sql})", type_, parts), self._span(node, parts))

    def _placed(self, expression: TypedExpression, span: tuple[int, int]) -> TypedExpression:
        return replace(expression, shown=self._shown(span), start=span[0], end=span[1])

    def _span(self, node: Tree, parts: list[TypedExpression] | None = None) -> tuple[int, int]:
        """Return the first and last byte of a node and its parts in the statement, or the last known position."""
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
        """Return whether the filter says contains(x, y): y IN x gives the same node."""
        return self._bytes[self._span(node)[0] :].lstrip(b'"').lower().startswith(b"contains")

    def _refuse_function(self, name: str, start: int) -> Never:
        if name == "row":
            self._refuse("compare values separately: year = 2020 AND lang = 'en'", start)
        close = difflib.get_close_matches(shortened(name), NAMES, n=1, cutoff=0.7)
        meant = f" (did you mean {close[0]}?)" if close else ""
        self._refuse(f"a filter has no function {shortened(name)}{meant}; it has {', '.join(NAMES)}", start)

    def _checked(self, make: Callable[[], Result], start: int) -> Result:
        """Return the result of `make`; report its ValueError at a position."""
        try:
            return make()
        except ValueError as error:
            self._refuse(str(error), start)

    def _refuse(self, reason: str, start: int) -> Never:
        refuse_byte(self._where, reason, start)


# The method for each class of nodes, and the fields that it reads. Nodes with other fields are rejected.
_NODES: dict[str, tuple[Callable[[_Walk, Tree], TypedExpression], set[str]]] = {
    "COLUMN_REF": (_Walk._column, {"column_names"}),
    "CONSTANT": (_Walk._constant, {"literal"}),
    "CONJUNCTION": (_Walk._conjunction, {"children"}),
    "COMPARISON": (_Walk._comparison, {"left", "right"}),
    "BETWEEN": (_Walk._between, {"input", "lower", "upper"}),
    "CASE": (_Walk._case, {"case_checks", "else_expr"}),
    "CAST": (_Walk._cast, {"child", "try_cast", "type_expr"}),
    "OPERATOR": (_Walk._operator, {"children"}),
    "FUNCTION": (_Walk._function, {"function_name", "is_operator", "arguments", "order_bys", "qualified_name"}),
}


def _table(left: TypedExpression, values: list[str] | list[int]) -> pa.Array | None:
    """Return the values of a long list as an array if they have the type of `left`."""
    if isinstance(values[0], str):
        return texts_array(values) if left.kind == Kind.TEXT else None
    exact = pa.types.is_integer(left.type) or pa.types.is_float64(left.type)
    return numbers_array(values) if left.column and exact else None


def _literal(value: str | int, first: TypedExpression) -> TypedExpression:
    return replace(first, sql=quote(value), text=value) if isinstance(value, str) else replace(first, sql=str(value))
