"""The site: it builds without warnings, every link and anchor leads somewhere, and `llms.txt` lists every page."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import DOCS, ROOT

REPOSITORY = "https://github.com/isotrope/isotrope/"
SITE = "https://isotrope.github.io/isotrope/"
BUILT = ROOT / "build/site"
SETTINGS = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md", "configs", "docs", "notebooks", "search")
TYPES = (".html", ".ipynb", ".js", ".md", ".py", ".toml", ".txt")


def navigation(entries: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield title and path of each page of the navigation."""
    for entry in entries:
        for title, below in entry.items():
            if isinstance(below, str):
                yield title, below
            else:
                yield from navigation(below)


NAVIGATION = dict(navigation(SETTINGS["nav"]))


def page_at(address: str) -> Path:
    """Return the source of a page, or the file, at an address of the site."""
    path = urlsplit(address.removeprefix(SITE)).path
    return DOCS / (f"{path[:-1]}.md" if path.endswith("/") else path or "index.md")


def test_every_page_is_in_the_navigation_and_begins_with_a_title() -> None:
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert pages == set(NAVIGATION.values())
    for path in pages:
        assert (DOCS / path).read_text(encoding="utf-8").startswith("# "), path


def test_llms_txt_lists_every_page_of_the_navigation_and_no_other() -> None:
    """The form of llmstxt.org: a title, a summary as a quotation, then sections of links with a sentence each."""
    text = (DOCS / "llms.txt").read_text(encoding="utf-8")
    assert re.match(r"# Isotrope\n\n> .+\n", text)
    entries = re.findall(rf"^- \[(.+?)\]\({SITE}(\S*)\): \S.*\.$", text, re.MULTILINE)
    assert len(entries) == text.count("\n- ")
    listed = {title: str(page_at(path).relative_to(DOCS)) for title, path in entries}
    assert listed == NAVIGATION


def test_links_to_the_site_and_the_repository_lead_to_pages_and_files() -> None:
    files = [
        path for name in OUTSIDE for path in ((ROOT / name).rglob("*") if (ROOT / name).is_dir() else [ROOT / name])
    ]
    found = 0
    for path in files:
        if path.suffix not in TYPES or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        for address in re.findall(rf"{re.escape(SITE)}[\w./-]*", text):
            found += 1
            assert page_at(address).is_file(), (path, address)
        for name in re.findall(rf"{re.escape(REPOSITORY)}(?:blob|tree|raw)/main/([\w./-]*)", text):
            found += 1
            assert (ROOT / name).exists(), (path, name)
    assert found > 50


def test_relative_links_of_files_outside_of_the_site_lead_to_files() -> None:
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"):
        for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", (ROOT / name).read_text(encoding="utf-8")):
            assert name == "CONTRIBUTING.md", f"{name} is shown by other sites: link to {REPOSITORY}blob/main/{link}"
            assert (ROOT / link).exists(), (name, link)


class Links(HTMLParser):
    """The addresses that a page refers to, those that it loads, and the anchors that it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.links, self.loaded, self.anchors = path, set[str](), set[str](), {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        is_loaded = tag in ("script", "img") or dict(attrs).get("rel") == "stylesheet"
        for name, value in attrs:
            if name in ("href", "src") and value:
                (self.loaded if is_loaded else self.links).add(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


@pytest.mark.check
def test_the_site_builds_without_warnings_and_no_link_is_broken() -> None:
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "issues found" not in done.stdout
    built = {str(path.parent.relative_to(BUILT)) for path in BUILT.rglob("index.html")}
    assert built == {path.removesuffix(".md") for path in NAVIGATION.values()} - {"index"} | {"."}
    assert (BUILT / "llms.txt").is_file()
    assert broken_links() == []


def broken_links() -> list[str]:
    """Return the links of the built site to files or anchors that are not there, and what it loads from other sites."""
    pages = {path.resolve(): Links(path) for path in BUILT.rglob("*.html") if path.name != "404.html"}
    broken = []
    for page in pages.values():
        for link in sorted(page.links | page.loaded):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                broken += [f"{page.path.relative_to(BUILT)}: {link}"] * (link in page.loaded and parts.scheme != "data")
                continue
            target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path.resolve()
            target = target / "index.html" if target.is_dir() else target
            anchors = pages[target].anchors if target in pages else {""}
            if not target.is_file() or (target in pages and unquote(parts.fragment) not in anchors):
                broken.append(f"{page.path.relative_to(BUILT)}: {link}")
    return broken
