"""Splitting of texts into windows that end at headings, paragraphs, list items and functions.

A section that fits into a window is one window, together with its neighbours below the same heading, as many as fit. A
longer section is split at the strongest breaks inside it, and so on. A piece without breaks is split by tokens.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from indexer.corpus.files.extracted import PAGE_BREAK
from indexer.corpus.files.structure import LINE, Break
from indexer.encoders.windows import TokenOffsets, add_span, split_text

Span = tuple[int, int]
_TINY = 8  # the eighth part of a window: a heading or an introduction, which stays with the text below it
_BELOW_TINY = LINE - 1  # rank of the place between them


def split_by_structure(
    text: str, offsets: TokenOffsets, breaks: Sequence[Break], tokens: int, overlap: int
) -> list[Span]:
    """Return (start, end) in characters of each window of a text, at most `tokens` tokens each.

    Windows follow each other without a gap and overlap only where a piece without breaks was split (`split_text`).
    Every window has text other than white space, unless the whole text is white space. A window is on one page.
    """
    splitter, spans = _Splitter(text, offsets, tokens, overlap), list[Span]()
    pages = [0, *(match.end() for match in re.finditer(PAGE_BREAK, text) if match.end() < len(text)), len(text)]
    for first, last in pairwise(pages):
        inner = breaks[bisect_right(breaks, first, key=_place) : bisect_left(breaks, last, key=_place)]
        for start, end in splitter.split(first, last, inner):
            add_span(spans, text, start, end)
    return spans


def _place(each: Break) -> int:
    return each.at


class _Splitter:
    def __init__(self, text: str, offsets: TokenOffsets, tokens: int, overlap: int) -> None:
        starts = np.maximum.accumulate(np.clip(offsets.starts, 0, len(text)))
        self._text, self._offsets = text, TokenOffsets(starts, offsets.words)
        self._starts: list[int] = starts.tolist()
        self._tokens, self._overlap = tokens, overlap

    def split(self, start: int, end: int, breaks: Sequence[Break]) -> list[Span]:
        """Return the windows of a piece; `breaks` lie within it."""
        if self._count(start, end) <= self._tokens:
            return [(start, end)]
        if not breaks:
            return self._by_tokens(start, end)
        strongest = min(each.rank for each in breaks)
        spans: list[Span] = []
        whole = False  # whether the last span consists of whole pieces
        for first, last, inner in _pieces(start, end, breaks, strongest):
            fits = self._count(first, last) <= self._tokens
            if whole and fits and self._count(spans[-1][0], last) <= self._tokens:
                spans[-1] = (spans[-1][0], last)
            elif whole and not fits and self._count(*spans[-1]) <= self._tokens // _TINY:
                lead, _ = spans.pop()
                between = [Break(first, _BELOW_TINY)] if strongest < _BELOW_TINY else []
                spans += self.split(lead, last, [*between, *inner])
            else:
                spans += self.split(first, last, inner)
            whole = fits
        return spans

    def _count(self, start: int, end: int) -> int:
        """Return the number of tokens that begin in a piece."""
        return bisect_left(self._starts, end) - bisect_left(self._starts, start)

    def _by_tokens(self, start: int, end: int) -> list[Span]:
        first, last = bisect_left(self._starts, start), bisect_left(self._starts, end)
        offsets = TokenOffsets(self._offsets.starts[first:last] - start, self._offsets.words[first:last])
        spans = split_text(self._text[start:end], offsets, self._tokens, self._overlap)
        return [(start + low, start + high) for low, high in spans]


def _pieces(start: int, end: int, breaks: Sequence[Break], rank: int) -> Iterator[tuple[int, int, list[Break]]]:
    """Yield the pieces between the breaks of a rank: start, end and the other breaks inside."""
    inner: list[Break] = []
    for each in breaks:
        if each.rank == rank:
            yield start, each.at, inner
            start, inner = each.at, []
        else:
            inner.append(each)
    yield start, end, inner
