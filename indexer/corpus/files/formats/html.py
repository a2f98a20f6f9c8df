"""HTML as Markdown: the main content with its headings, lists, tables and code, without navigation and scripts."""

import codecs
import re
from html import escape
from typing import Any

from indexer.corpus.files.extracted import ExtractedText
from indexer.corpus.files.formats.text import decode
from indexer.lazy_imports import require_extra

_CHARSET = re.compile(rb"<(?:meta|\?xml)[^>]*?(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_NO_CONTENT = (
    "script, style, noscript, template, nav, footer, svg, iframe, object, button, select, input, textarea, dialog, "
    "[role=navigation], [role=search], [role=banner], [role=contentinfo], [hidden]"
)
_AROUND = "header, aside, [role=complementary]"  # of a page whose main content is not marked
_HEADINGS = "h1, h2, h3, h4, h5, h6, dt.sig[id]"  # Sphinx's terms name a function, class or option
_INLINE = ["a", "strong", "b", "em", "i", "u", "cite", "span", "abbr", "small", "var", "dfn", "font", "mark"]
_EMPTY_LINES = re.compile(r"\n{3,}")


def read_html(data: bytes) -> ExtractedText:
    """Return the main content of a page; the title is its h1, else its <title>."""
    return html_text(_decoded(data))


def html_text(page: str) -> ExtractedText:
    """Return the main content of a decoded page."""
    tree = require_extra("selectolax.lexbor", "files").LexborHTMLParser(page)
    title = tree.css_first("head > title, title")
    if tree.body is None:
        return ExtractedText("", _line(title))
    content = _main_content(tree)
    first = content.css_first("h1")
    named = _line(first) or _line(title) or _line(content.css_first("h2, h3"))
    return ExtractedText(_markdown(content.html), named)


def _decoded(data: bytes) -> str:
    found = _CHARSET.search(data[:4096])
    if found and not data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_BE, codecs.BOM_UTF16_LE)):
        try:
            return data.decode(found[1].decode("ascii"))
        except (LookupError, UnicodeError):
            pass
    return decode(data)


def _main_content(tree: Any) -> Any:
    """Return the node of the main content, without the parts that are no content."""
    for node in tree.css(_NO_CONTENT):
        node.decompose()
    main = tree.css_first("main, [role=main]")
    articles = tree.css("article")
    if main is None and len(articles) == 1:
        main = articles[0]
    if main is None or not main.text(strip=True):
        main = tree.body
        for node in tree.css(_AROUND):
            node.decompose()
    for link in main.css("a[href^='#']"):
        text = link.text(strip=True)
        if len(text) <= 1 and not text.isalnum():  # the anchor of a heading, such as ¶
            link.decompose()
    _mark_terms(tree, main)
    return main


def _mark_terms(tree: Any, main: Any) -> None:
    """Turn Sphinx's terms into headings below the section that they are in."""
    level = 1
    for node in main.css(_HEADINGS):
        if node.tag != "dt":
            level = int(node.tag[1])
            continue
        heading = tree.create_node(f"h{min(6, level + _lists_around(node))}")
        heading.inner_html = f"<code>{escape(' '.join(node.text().split()))}</code>"
        node.replace_with(heading)


def _lists_around(node: Any) -> int:
    depth = 0
    while (node := node.parent) is not None:
        depth += node.tag == "dl"
    return depth


def _markdown(html: str) -> str:
    converter = require_extra("html_to_markdown", "files")
    options = converter.ConversionOptions(
        skip_images=True,
        extract_metadata=False,
        strip_tags=_INLINE,
        bullets="-",
        compact_tables=True,
        expand_abbreviations=False,
    )
    return _EMPTY_LINES.sub("\n\n", converter.convert(html, options).content or "").strip()


def _line(node: Any) -> str | None:
    return " ".join(node.text().split()) or None if node is not None else None
