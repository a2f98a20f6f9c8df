"""A browser (Debian's Chromium, driven by Playwright), and an index of documents for the page."""

import os
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from indexer import BuildConfig, Document, build_index
from indexer.recipe.config import EncoderConfig, WhiteningConfig
from indexer.recipe.corpus_config import ChunkConfig
from tests.playground import documents
from tests.servers import LiveServer, live_server

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FEATURES = ["--no-sandbox"]  # containers have none
TWIN = "Copper kettles whistle in the kitchen."
HOSTILE = [
    Document(
        "<b>id</b>",
        '<img src=x onerror="window.hacked=1"> & &amp; <script>window.hacked=2</script> bait',
        title="<script>window.hacked=3</script> bait",
        metadata={"link": "javascript:window.hacked=4", "source": "<i onclick=window.hacked=5>s</i>"},
    ),
    Document(
        "a/../b c?#%", "An id that is no good in addresses. bait", metadata={"link": "https://example.org/?a=<b>"}
    ),
    Document("rtl", "\u202eهذا نص يكتب من اليمين إلى اليسار bait", title="عنوان"),  # noqa: RUF001
    Document("emoji", "🐋🏳️‍🌈👩‍👩‍👧 bait " * 60, title="🐋"),
    Document("long", "w" * 10_000 + " bait", title="t" * 3000, metadata={"source": "s" * 3000}),
]


def page_documents() -> list[Document]:
    """Forty documents about towns with metadata of many types, three near-duplicates, and hostile documents."""
    found = []
    for number, row in enumerate(documents(40)):
        metadata: dict[str, Any] = {name: row[name] for name in ("year", "lang", "source") if name in row}
        metadata |= {"open": number % 2 == 0, "tags": ["all", f"t{number % 3}"], "day": date(2020, 1 + number % 12, 3)}
        metadata |= {"place": {"row": number}, "same": "one"}
        found.append(Document(str(row["id"]), str(row["text"]), title=str(row["title"]), metadata=metadata))
    twins = [Document(f"twin{number}", TWIN, title="Kettles", metadata={"year": 3000}) for number in range(3)]
    return [*found, *twins, *HOSTILE]


def chunked_documents() -> list[Document]:
    """Long documents with their significant words in the middle."""
    filler = "The weather was neither good nor bad that day. "
    return [
        Document(
            f"long{number}", filler * 12 + f"🐋 Suddenly a {thing} appeared. " + filler * 12, title=f"Story {number}"
        )
        for number, thing in enumerate(("violin", "comet", "glacier"))
    ]


@pytest.fixture(scope="session")
def page_config(tmp_path_factory: pytest.TempPathFactory) -> BuildConfig:
    """A table of random vectors for the words of all documents: texts are close if they share words."""
    texts = " ".join(f"{one.title} {one.text}" for one in (*page_documents(), *chunked_documents()))
    table, chance = tmp_path_factory.mktemp("table") / "words.txt", random.Random(0)
    words = sorted(set(re.findall("[a-z]{1,20}", texts.lower())))
    rows = (" ".join(f"{chance.gauss(0, 1):.3f}" for _ in range(48)) for _ in words)
    table.write_text("".join(f"{word} {row}\n" for word, row in zip(words, rows, strict=True)))
    encoder = EncoderConfig(kind="static", model=str(table), max_length=100)
    return BuildConfig(encoder=encoder, whitening=WhiteningConfig(strength=0.5, centre="none"))


@pytest.fixture(scope="session")
def page_folder(page_config: BuildConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of `page_documents`."""
    folder = tmp_path_factory.mktemp("page") / "secret-towns"
    build_index(page_documents(), folder, page_config)
    return folder


@pytest.fixture(scope="session")
def chunked_folder(page_config: BuildConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of windows of `chunked_documents`, which have no metadata."""
    folder = tmp_path_factory.mktemp("page") / "stories"
    config = replace(page_config, chunk=ChunkConfig(tokens=16, overlap=2))
    build_index(chunked_documents(), folder, config)
    return folder


@pytest.fixture(scope="module")
def towns(page_folder: Path) -> Iterator[LiveServer]:
    with live_server(page_folder) as server:
        yield server


@pytest.fixture(scope="module")
def stories(chunked_folder: Path) -> Iterator[LiveServer]:
    with live_server(chunked_folder) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One per module, because its thread has an event loop, which other tests must not find."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        missing = "needs a browser: apt-get install chromium fonts-dejavu-core"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    with sync_playwright() as started, started.chromium.launch(executable_path=path, args=_FEATURES) as launched:
        yield launched


class Watch:
    """Return the errors of scripts and violations of the policy of a page."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def follow(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("console", self._listen)

    def _listen(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.said.append(message.text)


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A separate browser, 1280 pixels wide, whose pages must have no errors."""
    watch = Watch()
    with browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB") as made:
        made.set_default_timeout(15_000)
        made.on("page", watch.follow)
        yield made
        assert watch.said == []


@pytest.fixture
def page(context: BrowserContext) -> Page:
    """A tab."""
    return context.new_page()
