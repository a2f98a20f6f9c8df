"""The structure of source code: its definitions by tree-sitter's grammars, else by blank lines and indentation.

A grammar is a small package of its own (extra `files`). Node types that stand for definitions are looked up in every
grammar by the same list, so a language needs one line here. The work of a parser is limited by a count of its steps,
not by time: the same text always gets the same structure.
"""

import importlib
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain, pairwise
from threading import Lock
from typing import Any

from indexer.corpus.files.structure import Break, Heading, Outline

DEFINITION, MEMBER, BLANK_LINE, LINE = range(4)  # ranks of breaks, from the strongest
_GRAMMARS = {
    "bash": ("tree_sitter_bash", "language"),
    "c": ("tree_sitter_c", "language"),
    "cpp": ("tree_sitter_cpp", "language"),
    "csharp": ("tree_sitter_c_sharp", "language"),
    "go": ("tree_sitter_go", "language"),
    "java": ("tree_sitter_java", "language"),
    "javascript": ("tree_sitter_javascript", "language"),
    "php": ("tree_sitter_php", "language_php"),
    "python": ("tree_sitter_python", "language"),
    "ruby": ("tree_sitter_ruby", "language"),
    "rust": ("tree_sitter_rust", "language"),
    "typescript": ("tree_sitter_typescript", "language_tsx"),
}
"""Language -> module of its grammar and the function that returns it."""
_DEFINITIONS = (
    "abstract_class_declaration", "class", "class_declaration", "class_definition", "class_specifier",
    "constructor_declaration", "enum_declaration", "enum_item", "enum_specifier", "function_declaration",
    "function_definition", "function_item", "function_signature_item", "generator_function_declaration", "impl_item",
    "interface_declaration", "internal_module", "macro_definition", "method", "method_declaration", "method_definition",
    "mod_item", "module", "namespace_declaration", "namespace_definition", "preproc_function_def", "record_declaration",
    "singleton_method", "struct_declaration", "struct_item", "struct_specifier", "trait_declaration", "trait_item",
    "type_alias_declaration", "type_item", "type_spec", "union_item", "union_specifier",
)  # fmt: skip
_NEED_BODY = frozenset(
    {"class", "class_specifier", "enum_specifier", "struct_specifier", "union_specifier"}
)  # else uses
_WRAPPERS = (
    "ambient_declaration", "decorated_definition", "export_statement", "lexical_declaration", "template_declaration",
    "type_declaration", "type_definition", "variable_declaration",
)  # fmt: skip
"""Nodes around a definition that begin before it: decorators, `export`, `template <...>`."""
_VARIABLE = "variable_declarator"
_FUNCTION_VALUES = ("arrow_function", "function_expression", "class")  # of `const name = ...`
_LEADS = ("attribute_item", "block_comment", "comment", "decorator", "line_comment")
_MOST_BYTES = 4 << 20  # of a text that is parsed
_LONGEST_LINE = 5000  # characters; a parser takes quadratic memory for an unfinished statement, as in minified code
_STEPS = 2000  # of the parser, and one more for each _BYTES_A_STEP
_BYTES_A_STEP = 16
_SHORTEST = 8  # bytes of a node that can hold a definition
_READ = 1 << 16  # bytes given to the parser together
_BUFFER, _PARSING = memoryview(bytearray(_READ)), Lock()
_TITLE = 120  # characters
_DECLARATORS = 20  # around a name in C
_CODE = re.compile(r"^[^\S\n]*[^\W\d]\w*[^\w\n][^\n]*", re.MULTILINE)  # no comment, no bracket, no lone `end`


@dataclass(frozen=True)
class Definition:
    """A class, a function or another named piece of code, with the comments and decorators above it."""

    start: int
    end: int
    named: int  # the last character of its name
    level: int  # from 1
    title: str  # its first line up to the name: "class Foo", "def bar"

    @property
    def name(self) -> str:
        """Return its name, without those of the definitions around it; empty if the title has none."""
        words = re.findall(r"\w+", self.title)
        return words[-1] if words else ""


def outline_code(text: str, language: str) -> Outline:
    """Return the definitions of source code as headings, and the places where a window may end.

    Any text has an outline: one that cannot be parsed has no headings.
    """
    definitions = definitions_of(text, language)
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    ranks = dict(_ranked_lines(text, starts, bool(definitions)))
    for each in definitions:
        rank = DEFINITION if each.level == 1 else MEMBER
        for at in (each.start, _next_line(starts, each.end, len(text))):
            ranks[at] = min(rank, ranks.get(at, LINE))
    breaks = tuple(Break(at, rank) for at, rank in sorted(ranks.items()) if 0 < at < len(text))
    return Outline(tuple(_headings(text, definitions)), breaks)


def definitions_of(text: str, language: str) -> list[Definition]:
    """Return the definitions of source code, in order; none without a grammar or for a text that cannot be parsed."""
    grammar = _grammar(language)
    data = text.encode("utf-8", "replace")
    if grammar is None or len(data) > _MOST_BYTES or max(map(len, text.split("\n"))) > _LONGEST_LINE:
        return []
    spans = list(_spans(data, grammar.nodes(data)))
    at = _characters(text, data, chain.from_iterable(span[:3] for span in spans))
    found, open_ends = list[Definition](), list[int]()
    for start, end, named, title in spans:
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        open_ends.append(end)
        found.append(Definition(at[start], at[end], at[named] - 1, len(open_ends), title))
    return found


@cache
def _read_part(size: int) -> memoryview:
    """Return the first bytes of the buffer, always as the same object: tree-sitter 0.26 never frees what it reads."""
    return _BUFFER[:size]


class _Grammar:
    """A parser of a language, and the kinds of its nodes that count."""

    def __init__(self, module: str, function: str) -> None:
        import tree_sitter

        language = tree_sitter.Language(getattr(importlib.import_module(module), function)())
        self._parser = tree_sitter.Parser(language)
        kinds = (*_DEFINITIONS, *_WRAPPERS, *_LEADS, _VARIABLE)
        self._kinds = frozenset(filter(None, (language.id_for_node_kind(kind, True) for kind in kinds)))

    def nodes(self, data: bytes) -> Iterator[Any]:
        """Yield the definitions, wrappers and leads of a text in order; none if its parser takes too many steps."""
        left = _STEPS + len(data) // _BYTES_A_STEP

        def is_too_long(*_: object) -> bool:
            nonlocal left
            left -= 1
            return left < 0

        def read(at: int, _: object) -> memoryview | None:
            chunk = data[at : at + _READ]
            _BUFFER[: len(chunk)] = chunk
            return _read_part(len(chunk)) if chunk else None

        with _PARSING:  # a parser is not for two threads, and they do change within its calls
            try:
                tree = self._parser.parse(read, progress_callback=is_too_long)
            except ValueError:  # it was stopped
                self._parser.reset()
                return
        cursor = tree.walk()  # a query takes quadratic time over broken text
        while True:
            node: Any = cursor.node
            if node.kind_id in self._kinds:
                yield node
            if node.end_byte - node.start_byte >= _SHORTEST and cursor.goto_first_child():
                continue
            while not cursor.goto_next_sibling():
                if not cursor.goto_parent():
                    return


@cache
def _grammar(language: str) -> _Grammar | None:
    if language not in _GRAMMARS:
        return None
    try:
        return _Grammar(*_GRAMMARS[language])
    except (ImportError, AttributeError, ValueError):  # not installed, or of another version
        return None


def _spans(data: bytes, nodes: Iterable[Any]) -> Iterator[tuple[int, int, int, str]]:
    """Yield start, end, end of the name and title of each definition in bytes, outer ones first."""
    leads, around = dict[int, Any](), list[Any]()
    for node in nodes:
        if node.type in _LEADS:
            leads[node.end_point[0]] = node
            continue
        while around and around[-1].end_byte <= node.start_byte:
            around.pop()
        is_definition, first = _defines(node), node
        while is_definition and around and around[-1].type in _WRAPPERS:
            first = around.pop()  # its later definitions begin where they are written
        if is_definition or node.type in _WRAPPERS:
            around.append(node)
        if is_definition:
            yield _begin(data, leads, first), node.end_byte, *_title(data, first, node)


def _defines(node: Any) -> bool:
    if node.type == _VARIABLE:
        value = node.child_by_field_name("value")
        return value is not None and value.type in _FUNCTION_VALUES
    if node.type == "module":  # the whole file in Python, a definition in Ruby
        return node.child_by_field_name("name") is not None
    return node.type in _DEFINITIONS and (node.type not in _NEED_BODY or node.child_by_field_name("body") is not None)


def _begin(data: bytes, leads: dict[int, Any], node: Any) -> int:
    """Return where a definition begins: with the comments and attributes in the lines directly above it."""
    start = _line_start(data, node.start_byte)
    while start is not None and (above := leads.get(node.start_point[0] - 1)) is not None:
        before = _line_start(data, above.start_byte)
        if before is None:  # a comment at the end of a line of code
            break
        node, start = above, before
    return int(node.start_byte if start is None else start)


def _line_start(data: bytes, at: int) -> int | None:
    """Return the start of the line of `at`; None if other characters than blanks are before it."""
    start = at
    while start and data[start - 1 : start] in (b" ", b"\t"):
        start -= 1
    return start if not start or data[start - 1 : start] == b"\n" else None


def _title(data: bytes, first: Any, node: Any) -> tuple[int, str]:
    """Return the end of a definition's name, or where its body begins if it has none, and the source up to there.

    `first` is the node around it, whose words in the same line belong to the title.
    """
    name = node.child_by_field_name("name")
    below = node
    for _ in range(_DECLARATORS):
        if name is not None or (inner := below.child_by_field_name("declarator")) is None:
            break
        name = inner.child_by_field_name("name") or (None if inner.child_count else inner)
        below = inner
    body = node.child_by_field_name("body")
    end = name.end_byte if name is not None else body.start_byte if body is not None else node.end_byte
    start = max((first if first.start_point[0] == node.start_point[0] else node).start_byte, end - 4 * _TITLE)
    return end, " ".join(data[start:end].decode("utf-8", "replace").split())[-_TITLE:]


def _characters(text: str, data: bytes, places: Iterable[int]) -> dict[int, int]:
    """Return the number of the character at each byte."""
    wanted = sorted({0, *places})
    if len(text) == len(data):
        return {at: at for at in wanted}
    lengths = (len(data[start:end].decode("utf-8", "replace")) for start, end in pairwise(wanted))
    return dict(zip(wanted, accumulate(lengths, initial=0), strict=True))


def _next_line(starts: list[int], at: int, end: int) -> int:
    """Return the start of the line after the one that `at` is in."""
    place = bisect_left(starts, at)
    return starts[place] if place < len(starts) else end


def _ranked_lines(text: str, starts: list[int], has_definitions: bool) -> Iterator[tuple[int, int]]:
    """Yield the start and the rank of each line with text.

    Without definitions, an unindented line after a blank one is taken for the start of a definition.
    """
    after_blank = False
    for start, end in pairwise([*starts, len(text)]):
        if text[start:end].isspace() or start == end:
            after_blank = True
            continue
        outer = not has_definitions and not text[start].isspace()
        yield start, (DEFINITION if outer else BLANK_LINE) if after_blank else LINE
        after_blank = False


def _headings(text: str, definitions: list[Definition]) -> Iterator[Heading]:
    """Yield a heading for each definition, and one for the code that follows definitions at its level.

    Such code belongs to the definition around it, whose heading is repeated; at the top its first line is the heading.
    """
    around = list[Definition]()
    for number, each in enumerate(definitions):
        while around and around[-1].level >= each.level:
            around.pop()
        around.append(each)
        yield Heading(each.start, each.level, each.title)
        until = definitions[number + 1].start if number + 1 < len(definitions) else len(text)
        for outer in reversed(around):  # that end before the next definition
            if outer.end > until:
                break
            enclosing = around[outer.level - 2] if outer.level > 1 else None
            end = min(until, enclosing.end if enclosing else len(text))
            if code := _CODE.search(text, outer.end, end):
                at = code.start()
                title = enclosing.title if enclosing else text[at : code.end()].strip()[:_TITLE]
                yield Heading(at, enclosing.level if enclosing else 1, title)
