"""The content of a page, rendered by `page.html`. Everything except plots is escaped."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from indexer.lazy_imports import require_extra
from search.formatting import escape

# text, remark: a string. facts: pairs of a name and a value, without empty values. cards: pairs of a name and a value.
# table, explained (with a wrapped last column): a `cells.Table`. figure: an SVG and its caption. meanings: pairs of a
# term and its meaning. clusters: see `duplicates`.
Kind = Literal["text", "remark", "facts", "cards", "table", "explained", "figure", "meanings", "clusters"]
Block = tuple[Kind, Any]


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it."""

    heading: str
    blocks: list[Block]


def figure(svg: str | None, caption: str) -> list[Block]:
    """Return the block of a plot; none without a plot."""
    return [] if svg is None else [("figure", {"svg": svg, "caption": caption})]


def fill_page(**content: Any) -> str:
    """Return the page."""
    return str(_template().render(content))


@cache
def _template() -> Any:
    environment = require_extra("jinja2", "plots").Environment(autoescape=True, finalize=_shown)
    return environment.from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))


def _shown(value: Any) -> Any:
    """Return markup unchanged, and text with control and formatting characters escaped."""
    return value if hasattr(value, "__html__") else escape(str(value))
