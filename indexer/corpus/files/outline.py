"""The structure of a text by its markup: Markdown, reStructuredText, plain text, source code.

    outline(text, kind_of(document.metadata))

Texts are scanned line by line in linear time. Any text has an outline: wrong markup is text.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from indexer.corpus.files.markup import FileKind
from indexer.corpus.files.structure import (
    AFTER_HEADING,
    DEEPEST_HEADING,
    DEEPEST_NESTED,
    ITEM,
    LINE,
    NESTED,
    PAGE,
    PARAGRAPH,
    Break,
    Heading,
    Outline,
)

_LINE = re.compile("[^\n\f]*[\n\f]?")
_LONGEST_TITLE = 300  # characters
_ITEM = re.compile(r"[ \t]*(?:[-*+\u2022]|#\.|\(?[0-9]{1,9}[.)])[ \t]+[^ \t\r\n\f]")
_HEADING = re.compile(r" {0,3}(#{1,6})(?=[ \t\r\n\f]|$)")
_FENCE = re.compile(r"[ \t]*(`{3,}(?=[^`]*$)|~{3,})")
_SETEXT = re.compile(r" {0,3}(?:(=+)|-+)[ \t]*$")
_RULER = re.compile(r"([!-/:-@\[-`{-~])\1*$")
_LINK = re.compile(r"!?\[([^\[\]]*)\](?:\([^()]*\)|\[[^\[\]]*\])")
_ROLE = re.compile(r":[a-z:+-]{1,40}:(?=`)")
_TARGET = re.compile(r"[ \t]*<[^<>`]*>(?=`)")


def outline(text: str, kind: FileKind) -> Outline:
    """Return the outline of a text."""
    if kind.markup == "code":
        return _outline_of_code(text, kind.language)
    return _SCANS[kind.markup](text)


def _outline_of_code(text: str, language: str) -> Outline:
    """Return the outline of source code; without a parser for it, blank lines before unindented lines."""
    try:
        from indexer.corpus.files.outline_code import outline_code
    except ImportError:
        return _plain(text)
    found: Outline = outline_code(text, language)
    return found


@dataclass
class _Draft:
    """An outline that grows line by line."""

    headings: list[Heading] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    indents: list[int] = field(default_factory=lambda: [0])
    below_heading: bool = False  # whether the last block was a heading

    def heading(self, start: int, level: int, title: str) -> None:
        while self.breaks and self.breaks[-1].at >= start:  # what the line seemed to be before its underline
            self.breaks.pop()
        self.headings.append(Heading(start, level, title))
        self._break(start, min(level, DEEPEST_HEADING) - 1)
        self.indents, self.below_heading = [0], True

    def block(self, start: int, indent: int, rank: int) -> None:
        """Begin a paragraph or a list item; the deeper it is indented, the weaker the break."""
        while self.indents[-1] > indent:
            self.indents.pop()
        if indent > self.indents[-1]:
            self.indents.append(indent)
        depth = min(len(self.indents) - 1, DEEPEST_NESTED)
        self._break(start, AFTER_HEADING if self.below_heading else rank + NESTED * depth)
        self.below_heading = False

    def line(self, start: int) -> None:
        self._break(start, LINE)

    def page(self, start: int) -> None:
        self._break(start, PAGE)
        self.below_heading = False

    def done(self) -> Outline:
        return Outline(tuple(self.headings), tuple(self.breaks))

    def _break(self, at: int, rank: int) -> None:
        if self.breaks and self.breaks[-1].at == at:  # a page that begins with a block
            rank = min(rank, self.breaks.pop().rank)
        if at > 0:
            self.breaks.append(Break(at, rank))


@dataclass(frozen=True, slots=True)
class _Line:
    start: int
    text: str  # without white space at the end
    begins_page: bool

    @property
    def indent(self) -> int:
        blank = self.text[: len(self.text) - len(self.text.lstrip())]
        return len(blank.expandtabs(4))


def _lines(text: str) -> Iterator[_Line]:
    begins_page = False
    for match in _LINE.finditer(text):
        if match.end() == match.start():
            return
        line = match[0]
        yield _Line(match.start(), line.rstrip(), begins_page)
        begins_page = line.endswith("\f")


class _Scan:
    """The part of a scan that all markups share: paragraphs and list items."""

    def __init__(self, items: bool = True) -> None:
        self.draft = _Draft()
        self._items = items
        self._in_list = False
        self.in_block = False  # whether the line before continues in this one
        self.block_lines = 0

    def blank(self) -> None:
        self.in_block = False

    def text(self, line: _Line) -> None:
        """Add a line that is no heading."""
        indent, is_item = line.indent if self._items else 0, self._items and _ITEM.match(line.text) is not None
        if is_item:
            continues = self._in_list or self.in_block  # also a list right below its introduction
            self.draft.block(line.start, indent, ITEM if continues else PARAGRAPH)
            self._in_list = True
            self.block_lines = 2  # not the title of an underlined heading
        elif self.in_block:
            self.draft.line(line.start)
            self.block_lines += 1
        else:
            self._in_list = self._in_list and indent > 0
            self.draft.block(line.start, indent, PARAGRAPH)
            self.block_lines = 1
        self.in_block = True

    def heading(self, start: int, level: int, title: str) -> None:
        self.draft.heading(start, level, title)
        self._in_list = self.in_block = False


def _plain(text: str) -> Outline:
    scan = _Scan(items=False)
    for line in _lines(text):
        if line.begins_page:
            scan.draft.page(line.start)
            scan.blank()
        scan.text(line) if line.text.strip() else scan.blank()
    return scan.draft.done()


def _markdown(text: str) -> Outline:
    scan, fence, previous = _Scan(), "", _Line(0, "", begins_page=False)
    matter = _end_of_front_matter(text)
    for line in _lines(text):
        if line.begins_page:
            scan.draft.page(line.start)
            scan.blank()
            fence = ""
        if line.start < matter:
            scan.draft.line(line.start)
        elif fence:
            scan.draft.line(line.start)
            if fence in line.text and not line.text.strip().strip(fence[0]):
                fence = ""
                scan.blank()
        elif not line.text.strip():
            scan.blank()
        elif opened := _FENCE.match(line.text):
            fence = opened[1]
            scan.text(line)
        elif atx := _HEADING.match(line.text):
            scan.heading(line.start, len(atx[1]), _title(_closed(line.text[atx.end() :])))
        elif scan.in_block and scan.block_lines == 1 and (underline := _SETEXT.match(line.text)):
            scan.heading(previous.start, 1 if underline[1] else 2, _title(previous.text))
        else:
            scan.text(line)
        previous = line
    return scan.draft.done()


def _closed(title: str) -> str:
    """Return the words of a heading without the # that may close it."""
    title = title.strip()
    words = title.rstrip("#")
    return words if not words or words[-1].isspace() else title


def _end_of_front_matter(text: str) -> int:
    """Return the first character after the YAML between two lines of --- at the beginning of a text, else 0."""
    if not text.startswith(("---\n", "---\r\n")):
        return 0
    end = text.find("\n---", 3)
    rest = text.find("\n", end + 1)
    if end < 0 or text[end + 4 : rest if rest >= 0 else len(text)].strip():
        return 0
    return rest + 1 if rest >= 0 else len(text)


def _rst(text: str) -> Outline:
    scan, levels, lines = _Scan(), dict[tuple[str, bool], int](), list(_lines(text))
    number = 0
    while number < len(lines):
        line = lines[number]
        if line.begins_page:
            scan.draft.page(line.start)
            scan.blank()
        first = not scan.in_block
        over = first and _is_overlined(lines, number)
        if over or (first and _is_underlined(lines, number)):
            title = lines[number + over]
            key = (lines[number + over + 1].text[0], over)
            scan.heading(line.start, levels.setdefault(key, len(levels) + 1), _title(title.text))
            number += 2 + over
            continue
        scan.text(line) if line.text.strip() else scan.blank()
        number += 1
    return scan.draft.done()


def _is_overlined(lines: list[_Line], number: int) -> bool:
    if number + 2 >= len(lines):
        return False
    over, title, under = (line.text for line in lines[number : number + 3])
    return bool(title.strip() and over == under and _rules(over, title) and not _RULER.match(title))


def _is_underlined(lines: list[_Line], number: int) -> bool:
    if number + 1 >= len(lines):
        return False
    title, under = lines[number].text, lines[number + 1].text
    return bool(title and not title[0].isspace() and _rules(under, title) and not _RULER.match(title))


_SHORTEST_RULER = 4  # characters, if the title is longer


def _rules(ruler: str, title: str) -> bool:
    return len(ruler) >= min(len(title.strip()), _SHORTEST_RULER) and _RULER.match(ruler) is not None


def _title(text: str) -> str:
    """Return the words of a heading without markup."""
    title = text[:_LONGEST_TITLE].strip()
    for markup, words in ((_LINK, r"\1"), (_ROLE, ""), (_TARGET, "")):
        title = markup.sub(words, title)
    return " ".join(title.replace("`", "").replace("**", "").split())


_SCANS: dict[str, Callable[[str], Outline]] = {"markdown": _markdown, "rst": _rst, "plain": _plain}
