"""Pages of a report, without plots where they do not matter, and a parser for them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import patch

from search.evaluation.report import svg
from search.evaluation.report.page import render
from search.evaluation.report.statistics import IndexStatistics, measure_statistics
from search.evaluation.result import Result
from search.index import Index

Built = Callable[..., Path]
PROVENANCE = {"command": "isotrope report", "created": "2026-11-20T12:00:00+00:00", "versions": {"isotrope": "0.1.0"}}


class Page(HTMLParser):
    """A parsed page: correctly nested elements, ids, references, and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page_of(index: Path, *files: Result, pictures: bool = False) -> Page:
    """The page with empty plots, because drawing takes most of the time."""
    opened = Index.open(index)
    with nullcontext() if pictures else undrawn():
        return Page(render(opened, measure_statistics(opened), files, PROVENANCE))


def undrawn() -> AbstractContextManager[Any]:
    """Plots have their label only."""

    def labelled(name: str, label: str, draw: Callable[[Any], None]) -> str:
        return f'<svg role="img" aria-label="{label}"></svg>'

    return patch.object(svg, "_picture", labelled)


def figures_of(index: Path) -> IndexStatistics:
    return measure_statistics(Index.open(index))


HOSTILE = '</style><script>alert(1)</script><img src=x onerror="alert(2)">&\u202e\x00\ud800'
