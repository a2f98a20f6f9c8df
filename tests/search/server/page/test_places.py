"""Hits of files on the search page: path, lines, headings, links, previews, and filters by folder."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

import search.engine
from indexer import BuildConfig, Document, build_index
from indexer.recipe.corpus_config import ChunkConfig
from search.hits import Answer, Hit, Place
from search.server.links import LinkTemplate
from search.server.settings import ServerSettings
from tests.search.server.page.test_modules import call
from tests.search.server.page.test_questions import hits, ids, open_page, settle
from tests.servers import LiveServer, live_server

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
    def fetch_hits(*given: Any) -> list[Answer[Hit]]:
        answers: Sequence[Answer[Hit]] = fetch(*given)
        return [Answer(replace(hit, place=PLACES[hit.id]) for hit in answer) for answer in answers]

    return fetch_hits


@pytest.fixture(scope="module")
def files(page_config: BuildConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server of `file_documents` with places and links."""
    folder = tmp_path_factory.mktemp("page") / "files"
    build_index(file_documents(), folder, replace(page_config, chunk=ChunkConfig(tokens=16, overlap=2)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search.engine, "fetch_hits", placed(search.engine.fetch_hits))
        with live_server(folder, ServerSettings("files", port=0, link=LINK)) as server:
            yield server
