"""The search page in unusual states: no server, no key, hostile text, a phone, the dark theme."""

import dataclasses
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, Route, expect

from search.server.settings import ServerSettings
from tests.search.server.page.test_questions import BRIDGES, ask, asked, box, hits, ids, open_page, settle
from tests.servers import LiveServer, keys, live_server

pytestmark = pytest.mark.check
READ = "a-key-that-opens-it"
WIDTHS = (320, 390, 620, 900, 1440)
CONTRAST = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour, under) => {
    canvas.globalCompositeOperation = "copy";
    canvas.fillStyle = under;
    canvas.fillRect(0, 0, 1, 1);
    canvas.globalCompositeOperation = "source-over";
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b];
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/rgba\\(.*, 0\\)|transparent/.test(colour)) return colour;
    }
    return "white";
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || !node.checkVisibility()) continue;
    if (node.closest(":disabled, label:has(:disabled), .hidden")) continue;
    const [one, other] = [light(rgb(getComputedStyle(node).color, ground(node))), light(rgb(ground(node), "white"))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${node.tagName}.${node.className}: ${text.data.slice(0, 40)}`);
  }
  return poor;
}
"""


def test_a_server_that_stops_is_waited_for(page: Page, page_folder: Path) -> None:
    with live_server(page_folder) as server:
        open_page(page, server, "/?q=river")
        found, port = ids(page), int(server.url.rpartition(":")[2])
    box(page).fill(f"Bridges {BRIDGES}")
    notice = page.get_by_role("alert")
    expect(notice).to_contain_text("The server does not answer. Trying again in")
    assert ids(page) == found  # what was there stays, dimmed
    with live_server(page_folder, ServerSettings("tests", port=port)):
        expect(hits(page).first).to_have_attribute("data-id", "doc2", timeout=20_000)
        expect(notice).to_have_count(0)


def test_a_page_that_is_loaded_before_its_server_answers(page: Page, towns: LiveServer) -> None:
    page.route("**/v1/**", lambda route: route.abort())
    page.goto(f"{towns.url}/?q=river")
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer.")
    page.unroute("**/v1/**")
    page.get_by_role("button", name="Try now").click()
    expect(hits(page)).to_have_count(10)
    expect(page.locator("#side")).to_be_visible()


def locked(index: Path, folder: Path) -> AbstractContextManager[LiveServer]:
    """A server that requires the key READ."""
    return live_server(index, ServerSettings("tests", port=0, read_keys=keys(f"{READ}\n", folder)))


def test_only_a_key_that_was_accepted_is_kept(page: Page, page_folder: Path, tmp_path: Path) -> None:
    stored = "sessionStorage.length + localStorage.length"
    with locked(page_folder, tmp_path) as server:
        page.goto(f"{server.url}/?q=Bridges+{quote(BRIDGES)}")
        dialog = page.get_by_role("dialog", name="This index requires a key")
        key = dialog.get_by_label("Key", exact=True)
        for typed, said in ((f"\u201c{READ}\u201d", "Character 1 is \u201c,"), (f"{READ}\u200b", "invisible (U+200B)")):
            key.fill(typed)
            page.keyboard.press("Enter")
            expect(dialog.get_by_role("alert")).to_contain_text(said)
        key.fill("no-such-key-is-here")
        page.keyboard.press("Enter")
        expect(dialog.get_by_role("alert")).to_contain_text("This key was rejected.")
        assert page.evaluate(stored) == 0
        page.evaluate("key => sessionStorage.setItem('isotrope-key', key)", f"\u201c{READ}\u201d")  # of an older page
        page.reload()
        key.fill(READ)
        page.keyboard.press("Enter")
        expect(hits(page).first).to_have_attribute("data-id", "doc2")
        assert page.evaluate(stored) == 1


def test_a_key_that_is_remembered_opens_links_in_other_tabs(
    context: BrowserContext, page_folder: Path, tmp_path: Path
) -> None:
    with locked(page_folder, tmp_path) as server:
        first, second = context.new_page(), context.new_page()
        first.goto(server.url)
        first.get_by_label("Key", exact=True).fill(READ)
        first.get_by_label("Remember the key on this device").check()
        first.keyboard.press("Enter")
        expect(first.get_by_role("heading", name="Search 48 documents")).to_be_visible()
        open_page(second, server, "/?q=river")
        expect(hits(second)).to_have_count(10)
        first.get_by_role("button", name="Forget the key").click()
        expect(first.get_by_role("dialog", name="This index requires a key")).to_be_visible()
        assert first.evaluate("sessionStorage.length + localStorage.length") == 0
        box(second).fill("town")
        expect(second.get_by_role("dialog", name="This index requires a key")).to_be_visible()


def test_a_key_is_asked_for_and_kept_in_the_tab(page: Page, page_folder: Path, tmp_path: Path) -> None:
    held = keys(f"{READ}\n", tmp_path)
    with live_server(page_folder, ServerSettings("tests", port=0, read_keys=held)) as server:
        page.goto(f"{server.url}/?q=Bridges+{quote(BRIDGES)}")
        dialog = page.get_by_role("dialog", name="This index requires a key")
        expect(dialog).to_be_visible()
        assert page.get_by_text("documents").count() == 0
        expect(dialog.get_by_label("Key", exact=True)).to_be_focused()
        page.keyboard.type("no-such-key-is-here")
        page.keyboard.press("Enter")
        expect(dialog.get_by_role("alert")).to_contain_text("This key was rejected.")
        page.keyboard.type(READ)
        page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        expect(hits(page).first).to_have_attribute("data-id", "doc2")
        expect(page.locator("#side")).to_be_visible()
        page.reload()
        expect(hits(page).first).to_have_attribute("data-id", "doc2")
        assert page.evaluate("localStorage.length") == 0
        assert READ not in page.url


def test_a_key_that_is_not_given_can_be_given_later(page: Page, page_folder: Path, tmp_path: Path) -> None:
    held = keys(f"{READ}\n", tmp_path)
    with live_server(page_folder, ServerSettings("tests", port=0, read_keys=held)) as server:
        page.goto(server.url)
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("alert")).to_contain_text("This index requires a key.")
        page.get_by_role("button", name="Enter a key").click()
        page.get_by_label("Key", exact=True).fill(READ)
        page.get_by_role("button", name="Continue").click()
        expect(page.get_by_role("heading", name="Search 48 documents")).to_be_visible()


def test_a_busy_server_is_asked_again_when_it_said_so(page: Page, towns: LiveServer) -> None:
    refused: list[Request] = []

    def busy(route: Route) -> None:
        if refused:
            route.continue_()
            return
        refused.append(route.request)
        headers = {"Retry-After": "1", "Content-Type": "application/json"}
        route.fulfill(status=429, headers=headers, body='{"error": {"message": "full"}}')

    open_page(page, towns)
    page.route("**/v1/search", busy)
    box(page).fill("river")
    expect(page.get_by_role("alert")).to_contain_text("The server is busy. Trying again now.")
    expect(hits(page)).to_have_count(10)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (504, '{"error": {"message": "x"}}', "The answer took too long."),
        (422, '{"error": {"message": "k: is 5,000; expected less."}}', "K: is 5,000; expected less."),
        (500, "<html>no JSON</html>", "The server answered 500 Internal Server Error."),
        (200, "<html>a proxy</html>", "The server answered 200 OK."),
    ],
)
def test_failures_are_shown_as_a_message(status: int, body: str, said: str, page: Page, towns: LiveServer) -> None:
    open_page(page, towns)
    page.route("**/v1/search", lambda route: route.fulfill(status=status, body=body))
    box(page).fill("river")
    expect(page.get_by_role("alert")).to_contain_text(said)


def test_unknown_words_and_truncation_are_noted(page: Page, towns: LiveServer) -> None:
    open_page(page, towns)
    ask(page, "qqqqq zzzzz")
    expect(page.locator("#notice")).to_contain_text("The model knows none of these words")
    ask(page, "river " * 150)
    expect(page.locator("#notice")).to_contain_text("the model read the first 100 of its 150 tokens")
    ask(page, "river")
    expect(page.locator("#notice")).to_have_text("")


def test_an_unknown_document_is_said_to_be_unknown(page: Page, towns: LiveServer) -> None:
    open_page(page, towns, "/?doc=nothing")
    expect(page.get_by_role("dialog")).to_contain_text("The index contains no document with this id.")
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="Search 48 documents")).to_be_visible()
    open_page(page, towns, "/?like=nothing")
    expect(page.get_by_role("alert")).to_contain_text('contains no document with id "nothing"')


def test_hostile_text_stays_text(page: Page, towns: LiveServer) -> None:
    """No script of a document runs, and its markup is shown as text; `context` checks for violations of the CSP."""
    open_page(page, towns, "/?q=bait&k=50&fold=0")
    hostile = page.locator('article[data-id="<b>id</b>"]')
    expect(hostile.locator("h2")).to_have_text("<script>window.hacked=3</script> bait")
    expect(hostile.locator(".passage")).to_contain_text('<img src=x onerror="window.hacked=1"> & &amp; <script>')
    expect(hostile.locator(".chips a")).to_have_count(0)
    link = page.locator('article[data-id="a/../b c?#%"] .chips a')
    expect(link).to_have_attribute("href", "https://example.org/?a=%3Cb%3E")
    expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")
    hostile.get_by_role("link", name="<script>").click()
    sheet = page.get_by_role("dialog")
    expect(sheet.locator(".text")).to_contain_text("<script>window.hacked=2</script>")
    expect(sheet.locator("dl a, img, script")).to_have_count(0)
    page.keyboard.press("Escape")
    page.locator('article[data-id="a/../b c?#%"] a.open').click()
    expect(sheet.locator(".text")).to_contain_text("no good in addresses")
    page.reload()
    expect(sheet.locator(".text")).to_contain_text("no good in addresses")
    page.keyboard.press("Escape")
    hostile.get_by_role("link", name="More like this").click()
    expect(page.get_by_role("button", name="Stop: more like <b>id</b>")).to_be_visible()
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main script, dialog img, dialog script").count() == 0


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_screen(width: int, browser: Browser, towns: LiveServer) -> None:
    with browser.new_context(viewport={"width": width, "height": 800}) as context:
        page = context.new_page()
        for address in (
            "/",
            "/?q=bait&k=20&fold=0&where=" + "length(text)+>+1+OR+" * 9 + "true",
            "/?like=long",
            "/?doc=long",
        ):
            open_page(page, towns, address)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, address
        sheet = page.get_by_role("dialog").locator(".sheet-body")
        assert sheet.evaluate("body => body.scrollWidth <= body.clientWidth")


def test_a_phone_has_its_filters_in_a_drawer(browser: Browser, towns: LiveServer) -> None:
    with browser.new_context(viewport={"width": 390, "height": 800}) as context:
        page = context.new_page()
        open_page(page, towns, "/?q=river")
        expect(page.locator("#side")).to_be_hidden()
        page.get_by_role("switch", name="Fold near-duplicates").uncheck()  # in sight, whether it is on or off
        expect(page.get_by_role("switch", name="Match words too")).to_be_in_viewport()
        page.get_by_role("button", name="Filters").click()
        drawer = page.get_by_role("dialog", name="Filters")
        drawer.get_by_role("checkbox", name="la").check()
        drawer.get_by_role("button", name="Show results").click()
        expect(page.get_by_role("button", name="Filters (1)")).to_be_focused()
        assert asked(page) == {"q": ["river"], "is.lang": ["la"], "fold": ["0"]}
        expect(page.get_by_role("button", name="Remove the filter lang: la")).to_be_visible()


LONG = "concurrent.futures.process.BrokenProcessPool.add_done_callback"


def test_a_long_name_breaks_between_its_words(browser: Browser, towns: LiveServer) -> None:
    def named(route: Route) -> None:
        body = route.fetch().json()
        found = body["results"][0]["hits"]
        found[0] |= {"id": LONG, "title": LONG, "text": f"See {LONG}.", "metadata": {"name": LONG, "see": LONG}}
        route.fulfill(json=body)

    broken = """() => [...document.querySelectorAll("article.hit")].slice(0, 1).flatMap((hit) => {
      const walker = document.createTreeWalker(hit, NodeFilter.SHOW_TEXT);
      const found = [];
      for (let text = walker.nextNode(); text; text = walker.nextNode())
        for (const word of text.data.matchAll(/[A-Za-z]+/g)) {
          const range = new Range();
          range.setStart(text, word.index);
          range.setEnd(text, word.index + word[0].length);
          if (range.getClientRects().length > 1) found.push(word[0]);
        }
      return found;
    })"""
    with browser.new_context(viewport={"width": 390, "height": 800}) as context:
        page = context.new_page()
        page.route("**/v1/search", named)
        open_page(page, towns, "/?q=futures")
        expect(hits(page).first.locator("h2")).to_have_text(LONG)
        assert page.evaluate(broken) == []


@pytest.mark.parametrize("width", [390, 1280])
def test_controls_are_large_enough(width: int, browser: Browser, towns: LiveServer) -> None:
    """At least 24 pixels high, as WCAG 2.2 requires for level AA; links in a line of text are exempt."""
    small = """() => [...document.querySelectorAll("button, summary, select, label:has(input), .action")]
        .filter((node) => node.checkVisibility() && !node.closest("p"))
        .map((node) => [node.getBoundingClientRect().height, node.outerHTML.slice(0, 80)])
        .filter(([height]) => height < 24)"""
    with browser.new_context(viewport={"width": width, "height": 800}) as context:
        page = context.new_page()
        for address in ("/", "/?q=Kettles&is.lang=la&hybrid=1", "/?q=river&where=yaer>3", "/?q=town&doc=doc9"):
            open_page(page, towns, address)
            assert page.evaluate(small) == [], address


def test_the_dark_is_chosen_and_kept(browser: Browser, towns: LiveServer) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with browser.new_context(color_scheme="light") as context:
        page = context.new_page()
        open_page(page, towns)
        light = page.evaluate(ground)
        page.get_by_role("button", name="Dark or light").click()
        dark = page.evaluate(ground)
        assert dark != light
        page.reload()
        assert page.evaluate(ground) == dark
        page.get_by_role("button", name="Dark or light").click()
        assert page.evaluate(ground) == light
        assert page.evaluate("localStorage.length") == 0  # as the system has it: nothing to keep
    with browser.new_context(color_scheme="dark") as context:
        page = context.new_page()
        open_page(page, towns)
        assert page.evaluate(ground) == dark


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read(scheme: str, browser: Browser, towns: LiveServer) -> None:
    """A contrast of at least 4.5, as WCAG 2 requires for level AA."""
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light", reduced_motion="reduce")
        for address in ("/", f"/?q=Bridges+{quote(BRIDGES)}&is.lang=en", "/?q=river&where=yaer>3", "/?q=town&doc=doc9"):
            open_page(page, towns, address)
            assert page.evaluate(CONTRAST) == [], address
        assert page.evaluate("document.getAnimations().length") == 0


def test_controls_have_names(page: Page, towns: LiveServer) -> None:
    open_page(page, towns, "/?q=river&is.lang=la")
    nameless = """() => [...document.querySelectorAll("button, input, select, textarea, a[href], dialog")]
        .filter((node) => node.checkVisibility())
        .filter((node) => !node.ariaLabel && !node.ariaLabelledByElements)
        .filter((node) => !node.labels?.length && !node.textContent.trim())
        .map((node) => node.outerHTML.slice(0, 80))"""
    assert page.evaluate(nameless) == []
    assert (
        page.evaluate("new Set([...document.querySelectorAll('[id]')].map((n) => n.id)).size")
        == page.locator("[id]").count()
    )
    expect(page.get_by_role("search")).to_be_visible()
    expect(page.get_by_role("status")).to_have_attribute("aria-live", "polite")


def test_a_new_generation_is_taken_up(context: BrowserContext, towns: LiveServer) -> None:
    """An answer of another generation makes the page reload the description of the index."""
    page = context.new_page()
    known: list[Request] = []
    page.on("request", lambda request: known.append(request) if request.url.endswith("/v1/info") else None)
    open_page(page, towns)
    assert len(known) == 1

    def newer(route: Route) -> None:
        response = route.fetch()
        body = response.json()
        route.fulfill(response=response, json=body | {"index": dataclasses.asdict(stamp)})

    stamp = dataclasses.replace(towns.served.service.generations.current.stamp, generation=2)
    page.route("**/v1/search", newer)
    ask(page, "river")
    settle(page)
    assert len(known) == 2
