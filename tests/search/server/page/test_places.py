"""Hits of files on the search page: path, lines, headings, links, previews, and filters by folder."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from indexer import BuildConfig, Document, build_index
from indexer.recipe.corpus_config import ChunkConfig
from search.hits import Answer, Hit, Place
from search.ranking.fetch import fetch_hits
from search.server.links import LinkTemplate
from search.server.settings import ServerSettings
from tests.search.server.page.test_modules import call
from tests.search.server.page.test_questions import hits, ids, open_page, settle
from tests.servers import LiveServer, live_server

pytestmark = pytest.mark.check
FILLER = "The weather was neither good nor bad that day. "
HOSTILE = '<img src=x onerror="window.hacked=1">'
PLACES = {
    "guide/install.md": Place((12, 20), None, ("Guide", "Install", HOSTILE)),
    "guide/a b/paper.pdf": Place(None, 3, ("Methods",)),
    "top.txt": Place((7, 7)),
    "code/net/tcp.py": Place((1, 9), None, ("connect",)),
}
TITLES = {"guide/install.md": "Guide", "guide/a b/paper.pdf": "A paper", "top.txt": None, "code/net/tcp.py": "tcp.py"}
LINK = LinkTemplate("https://git.invalid/main/{path}#L{line}")


def file_documents() -> list[Document]:
    """Four files with their significant words in the middle."""
    found = []
    for path, place in PLACES.items():
        folder, _, _ = path.rpartition("/")
        text = f"{FILLER * 12}🐋 Suddenly a violin appeared. {FILLER * 12}"
        about: dict[str, Any] = {"path": path, "folder": folder or ".", "suffix": path[path.rindex(".") :], "bytes": 9}
        about |= {"sections": list(place.section), "sha256": "0" * 64, "pages": place.page}
        found.append(Document(path, text, title=TITLES[path], metadata=about))
    return found


def placed(fetch: Any) -> Any:
    """Return `fetch_hits` that sets `PLACES`."""

    def fetch_with_places(*given: Any) -> list[Answer[Hit]]:
        answers: Sequence[Answer[Hit]] = fetch(*given)
        return [Answer(replace(hit, place=PLACES[hit.id]) for hit in answer) for answer in answers]

    return fetch_with_places


@pytest.fixture(scope="module")
def files(page_config: BuildConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server of `file_documents` with places and links."""
    folder = tmp_path_factory.mktemp("page") / "files"
    build_index(file_documents(), folder, replace(page_config, chunk=ChunkConfig(tokens=16, overlap=2)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("search.engine.fetch_hits", placed(fetch_hits))
        with live_server(folder, ServerSettings("files", port=0, link=LINK)) as server:
            yield server


def test_a_hit_of_a_file_shows_its_path_lines_or_page_and_headings(page: Page, files: LiveServer) -> None:
    open_page(page, files, "/?q=violin&fold=0")
    shown = dict(zip(ids(page), (hit.locator("p.id").inner_text() for hit in hits(page).all()), strict=True))
    assert shown == {
        "guide/install.md": f"guide/install.md lines 12-20 Install > {HOSTILE}",  # the title is the first heading
        "guide/a b/paper.pdf": "guide/a b/paper.pdf page 3 Methods",
        "top.txt": "line 7",  # the id is the title
        "code/net/tcp.py": "code/net/tcp.py lines 1-9 connect",
    }
    assert not page.evaluate("'hacked' in window")
    labels = page.locator(".chips .label").all_inner_texts()
    assert labels == ["pages"]  # the line of the place has the rest, and all have the same bytes


def test_the_title_opens_the_file_and_the_preview_the_document(page: Page, files: LiveServer) -> None:
    open_page(page, files, "/?q=violin&fold=0")
    links = {hit.get_attribute("data-id"): hit.locator("a.open") for hit in hits(page).all()}
    found = {name: link.get_attribute("href") for name, link in links.items()}
    assert found == {
        "guide/install.md": "https://git.invalid/main/guide/install.md#L12",
        "guide/a b/paper.pdf": "https://git.invalid/main/guide/a%20b/paper.pdf",  # it has no lines
        "top.txt": "https://git.invalid/main/top.txt#L7",
        "code/net/tcp.py": "https://git.invalid/main/code/net/tcp.py#L1",
    }
    assert links["top.txt"].get_attribute("rel") == "noopener noreferrer"
    hits(page).filter(has=page.locator("a.open", has_text="Guide")).get_by_role("link", name="Preview").click()
    sheet = page.locator("#document")
    expect(sheet.locator(".window")).to_contain_text("violin")
    expect(sheet.locator("p.id")).to_contain_text("guide/install.md lines 12-20")
    expect(sheet.get_by_role("link", name="Open file")).to_have_attribute("href", str(found["guide/install.md"]))
    open_page(page, files, "/?doc=guide/install.md")  # no hit, so no line
    expect(sheet.get_by_role("link", name="Open file")).to_have_attribute(
        "href", "https://git.invalid/main/guide/install.md"
    )


def test_a_folder_holds_those_below_it(page: Page, files: LiveServer) -> None:
    open_page(page, files, "/?q=violin&fold=0")
    folders = page.locator("fieldset[data-column=folder] label.value")
    expect(folders).to_have_text(["guide2", ".1", "code/net1", "guide/a b1"])
    expect(page.locator("fieldset[data-column=sha256]")).to_have_count(0)
    folders.filter(has_text="guide2").click()
    settle(page)
    assert sorted(map(str, ids(page))) == ["guide/a b/paper.pdf", "guide/install.md"]
    folders.filter(has_text="code/net").click()
    settle(page)
    assert len(ids(page)) == 3


def test_folders_above_are_choices_if_they_hold_several(page: Page, files: LiveServer) -> None:
    page.goto(files.url)
    counts = {"a/b/c": 1, "a/b/d": 2, "a/e": 1, "x/y/z": 9, ".": 1}
    values = [{"value": name, "count": count} for name, count in counts.items()]
    column = {"name": "folder", "sql": "folder", "kind": "text", "values": values}
    assert call(page, "folders", "choicesOf", column) == ["x/y/z", "a", "a/b", "a/b/d", "a/b/c", "a/e", "."]
    assert call(page, "folders", "choicesOf", column | {"name": "other"}) == list(counts)
    question = {"where": "", "picks": {"folder": {"values": ["it's"], "least": "", "most": ""}}}
    condition = "(folder = 'it''s' OR starts_with(folder, 'it''s/'))"
    assert call(page, "conditions", "conditionOf", question, [column]) == condition
