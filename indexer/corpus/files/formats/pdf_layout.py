"""Paragraphs, headings and code of a PDF from the positions of its lines."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from indexer.corpus.files.formats.pdf_lines import Line

_BULLET = re.compile(r"[•●▪■◦‣·∙*\u2013\u2014\u2043\u25cb\uf0b7-]\s+(?=\S)")
_NUMBER = re.compile(r"(?:\(?\d{1,3}|\(?[a-z])[.)]\s+\S")
_HYPHEN = re.compile(r"(\w+)[-\xad\x02\ufffe]$")
_WORD = re.compile(r"\w+(?:-\w+)*")
_LEADER = re.compile(r"(?:\s*\.){4,}\s*")  # of a table of contents
_END = (".", "!", "?", ":", ";", "”", '"')
_LARGER = 1.15  # times the size of the text: a heading
_LONGEST_HEADING = 150
_REPEATED = 4  # pages with the same first or last line: a running header or footer

Bookmarks = Iterable[tuple[int, int, str]]


@dataclass
class _Heading:
    level: int
    text: str


def markdown_of(pages: list[list[Line]], bookmarks: Bookmarks) -> tuple[list[str], str | None]:
    """Return the Markdown of each page, and the largest line of the first page if it is larger than the text."""
    pages = _without_running_lines(pages)
    lines = [line for page in pages for line in page]
    words = {word.lower() for line in lines for word in _WORD.findall(line.text)}
    headings = _Headings(lines, bookmarks)
    texts = ["\n\n".join(_blocks(page, headings.levels(number, page), words)) for number, page in enumerate(pages)]
    return texts, headings.largest(pages[0]) if pages else None


def _without_running_lines(pages: list[list[Line]]) -> list[list[Line]]:
    """Return the pages without headers, footers and page numbers, which have the same text but for digits."""

    def key(line: Line) -> tuple[str, int]:
        return re.sub(r"\d+|\b[ivxlc]+\b", "0", line.text), round(line.bottom / 4)

    edges = [{key(line) for line in _edges(page)} for page in pages]
    times = Counter(each for edge in edges for each in edge)
    running = {each for each, count in times.items() if count >= max(_REPEATED, len(pages) // 10)}
    return [[line for line in page if key(line) not in running or line not in _edges(page)] for page in pages]


def _edges(page: list[Line]) -> list[Line]:
    by_height = sorted(page, key=lambda line: line.bottom)
    return [*by_height[:2], *by_height[-2:]]


class _Headings:
    """Headings by the bookmarks, else by the size of their type."""

    def __init__(self, lines: list[Line], bookmarks: Bookmarks) -> None:
        self._marked = {(page, _key(title)): min(level, 6) for page, level, title in bookmarks}
        sizes: Counter[float] = Counter()
        for line in lines:
            sizes[_rounded(line.size)] += len(line.text)
        body = sizes.most_common(1)[0][0] if sizes else 0
        self._least = body * _LARGER
        larger = sorted((size for size in sizes if size > self._least), reverse=True)
        self._by_size = {} if self._marked else {size: min(rank, 4) for rank, size in enumerate(larger, 1)}

    def largest(self, page: list[Line]) -> str | None:
        """Return the first line in the largest type of a page; None if the text is as large."""
        line = max(page, key=lambda line: line.size, default=None)
        return line.text if line and line.size > self._least and len(line.text) <= _LONGEST_HEADING else None

    def levels(self, number: int, page: list[Line]) -> list[int]:
        """Return the level of each line of a page; 0 for text."""
        found = [self._marked.get((number, _key(line.text)), 0) for line in page]
        if self._marked:
            return found
        return [
            self._by_size.get(_rounded(line.size), 0)
            if len(line.text) <= _LONGEST_HEADING and any(map(str.isalpha, line.text)) and not line.is_fixed
            else 0
            for line in page
        ]


def _key(text: str) -> str:
    """Return the letters of a heading, without its number."""
    return "".join(filter(str.isalnum, re.sub(r"^(?:(?:chapter|appendix|part)\s+)?[\d.]+\s+", "", text.lower())))


def _rounded(size: float) -> float:
    return round(size * 2) / 2


def _blocks(page: list[Line], levels: list[int], words: set[str]) -> Iterator[str]:
    """Yield the headings, paragraphs, list items and blocks of code of a page."""
    spacing = _spacing(page)
    group: list[Line] = []
    level = 0
    for line, its_level in zip(page, levels, strict=True):
        if group and (its_level != level or not _continues(group, line, spacing, bool(level))):
            yield _block(group, level, words)
            group = []
        group.append(line)
        level = its_level
    if group:
        yield _block(group, level, words)


def _spacing(page: list[Line]) -> float:
    """Return the usual distance of lines, in heights of their type."""
    gaps = [(above.bottom - below.bottom) / above.size for above, below in pairwise(page) if above.size > 0]
    usual = [gap for gap in gaps if 0.5 < gap < 2.5]
    return median(usual) if usual else 1.2


def _continues(group: list[Line], line: Line, spacing: float, in_heading: bool) -> bool:
    above = group[-1]
    size = max(above.size, 1.0)
    if above.is_fixed != line.is_fixed or abs(line.size - above.size) > 0.15 * size:
        return False
    gap = (above.bottom - line.bottom) / size
    if line.is_fixed or in_heading:
        return -0.3 < gap < 1.5 * spacing + (0.6 if line.is_fixed else 0)
    if _BULLET.match(line.text) or _NUMBER.match(line.text) or _LEADER.search(above.text):
        return False
    ended = above.text.endswith(_END)
    if ended and _BULLET.match(group[0].text) and line.left < group[0].left + 0.3 * size:  # below the list
        return False
    if gap < -0.3:  # the next column
        return not ended
    right = max(each.right for each in group)
    is_short = ended and above.right < right - 0.15 * (right - above.left)
    is_indented = ended and line.left > above.left + 0.8 * size and len(group) > 1
    return gap < 1.3 * spacing and not is_short and not is_indented


def _block(group: list[Line], level: int, words: set[str]) -> str:
    if level:
        return f"{'#' * level} {_joined(group, words)}"
    if all(line.is_fixed for line in group) and len(group) > 1:
        return "\n".join(["```", *_code(group), "```"])
    text = _LEADER.sub(" ... ", _joined(group, words))
    bullet = _BULLET.match(text)
    return f"- {text[bullet.end() :]}" if bullet else text


def _code(group: list[Line]) -> Iterator[str]:
    margin = min(line.left for line in group)
    for line in group:
        width = (line.right - line.left) / len(line.text)
        yield " " * round((line.left - margin) / width if width > 0 else 0) + line.text


def _joined(group: list[Line], words: set[str]) -> str:
    """Return the lines as one, with the words that line ends divide in one piece."""
    text = group[0].text
    for line in group[1:]:
        hyphen = _HYPHEN.search(text)
        following = _WORD.match(line.text)
        if hyphen is None or following is None or not following[0][0].islower():
            text = f"{text} {line.text}"
            continue
        written = f"{hyphen[1]}-{following[0]}".lower()
        text = f"{text[: hyphen.end(1)]}{'-' if written in words else ''}{line.text}"
    return text
