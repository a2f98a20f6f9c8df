"""The search page in a browser: queries, hits, filters, documents, and their address."""

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.search.server.page.conftest import TWIN
from tests.servers import LiveServer

pytestmark = pytest.mark.check
BRIDGES = "A bridge hangs from cables."


def asked(page: Page) -> dict[str, list[str]]:
    """Return the parameters of the page's address."""
    return parse_qs(urlsplit(page.url).query)


def box(page: Page) -> Locator:
    return page.get_by_role("searchbox", name="Search")


def hits(page: Page) -> Locator:
    return page.locator("article.hit")


def ids(page: Page) -> list[str | None]:
    return [hit.get_attribute("data-id") for hit in hits(page).all()]


def open_page(page: Page, server: LiveServer, address: str = "/") -> None:
    """Open an address, and wait for its answer."""
    page.goto(server.url + address)
    expect(page.locator("footer#about")).to_contain_text("generation")
    settle(page)


def settle(page: Page) -> None:
    """Wait until no request is pending."""
    page.wait_for_timeout(200)
    expect(page.locator("main[aria-busy]")).to_have_count(0)


def ask(page: Page, text: str) -> None:
    box(page).fill(text)
    settle(page)


def test_hits_come_as_one_types(page: Page, towns: LiveServer) -> None:
    open_page(page, towns)
    expect(page.get_by_role("heading", name="Search 48 documents")).to_be_visible()
    box(page).press_sequentially(f"Bridges {BRIDGES}", delay=5)
    first = hits(page).first
    expect(first).to_have_attribute("data-id", "doc2")
    expect(first.locator(".score")).to_contain_text("1.000")
    expect(first.locator(".chips")).to_contain_text("year1883")
    expect(page.get_by_role("status")).to_contain_text("The 10 closest of 48")
    assert hits(page).count() == 10
    assert page.title() == f"Bridges {BRIDGES} - tests"
    fill = first.locator(".fill").evaluate(
        "fill => fill.getBoundingClientRect().width / fill.parentElement.clientWidth"
    )
    assert fill == pytest.approx(1, abs=0.02)
    page.get_by_role("button", name="More results").click()
    expect(hits(page)).to_have_count(20)
    expect(page.locator("a.open").nth(10)).to_be_focused()
    assert asked(page)["k"] == ["20"]


def test_the_words_of_the_question_are_marked(page: Page, towns: LiveServer) -> None:
    open_page(page, towns, "/?q=the+BRIDGE+hanging")
    marks = hits(page).filter(has=page.locator("[href*=doc2]")).locator("mark")
    expect(marks.first).to_be_visible()
    assert [mark.text_content() for mark in marks.all()] == ["Bridges", "bridge", "hangs"]


def test_a_long_text_that_is_full_of_words_of_the_question_is_shown_whole(page: Page, towns: LiveServer) -> None:
    text = "river, " * 30_000

    def long(route: Route) -> None:
        body = route.fetch().json()
        body["results"][0]["hits"][0]["text"] = text
        route.fulfill(json=body)

    page.route("**/v1/search", long)
    open_page(page, towns, "/?q=river")
    hits(page).first.get_by_role("button", name="Show all").click()
    assert hits(page).first.locator(".passage").text_content() == text
    assert 1000 < hits(page).first.locator("mark").count() < 10_000


def test_a_late_answer_does_not_replace_a_newer_one(page: Page, towns: LiveServer) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        if (route.request.post_data or "").find("Whales") >= 0:
            held.append(route)
        else:
            route.continue_()

    open_page(page, towns)
    page.route("**/v1/search", hold)
    box(page).fill("Whales sing")
    page.wait_for_timeout(400)
    box(page).fill(f"Bridges {BRIDGES}")
    expect(hits(page).first).to_have_attribute("data-id", "doc2")
    assert len(held) == 1
    late = {"results": [{"query": "Whales sing", "hits": []}], "index": towns.search(query="bread")["index"]}
    held[0].fulfill(json=late)
    page.wait_for_timeout(300)
    expect(hits(page).first).to_have_attribute("data-id", "doc2")


def test_an_example_is_a_question_to_click_on(page: Page, towns: LiveServer) -> None:
    open_page(page, towns)
    examples = page.get_by_role("group", name="Examples").get_by_role("link")
    titles = [one.text_content() or "" for one in examples.all()]
    assert 2 <= len(titles) <= 4
    examples.first.click()
    expect(box(page)).to_have_value(titles[0])
    expect(hits(page).first.locator("h2")).to_have_text(titles[0])


def test_a_document_is_opened_and_closed(page: Page, towns: LiveServer) -> None:
    open_page(page, towns, f"/?q={BRIDGES}")
    page.get_by_role("link", name="Bridges").click()
    sheet = page.get_by_role("dialog", name="Bridges")
    expect(sheet.locator(".text")).to_have_text(BRIDGES)
    expect(sheet.locator("dl")).to_contain_text("1883")
    assert asked(page)["doc"] == ["doc2"]
    page.keyboard.press("Escape")
    expect(sheet).to_be_hidden()
    assert "doc" not in asked(page)
    expect(page.get_by_role("link", name="Bridges")).to_be_focused()
    page.go_forward()
    expect(sheet).to_be_visible()
    page.reload()
    expect(sheet.locator(".text")).to_have_text(BRIDGES)
    page.get_by_role("button", name="Close").click()
    expect(sheet).to_be_hidden()
    expect(hits(page)).to_have_count(10)


def test_more_like_a_document(page: Page, towns: LiveServer) -> None:
    open_page(page, towns, f"/?q=Kettles+{TWIN}&fold=0")
    expect(hits(page).first).to_have_attribute("data-id", "twin0")
    hits(page).first.get_by_role("link", name="More like this").click()
    chip = page.get_by_role("button", name="Stop: more like twin0")
    expect(chip).to_be_visible()
    expect(hits(page).first).to_have_attribute("data-id", "twin1")
    assert "twin0" not in ids(page)
    expect(box(page)).to_have_value("")
    assert asked(page) == {"like": ["twin0"], "fold": ["0"]}
    expect(page.get_by_role("switch", name="Match words too")).to_be_disabled()
    ask(page, BRIDGES)
    expect(chip).to_be_hidden()
    expect(hits(page).first).to_have_attribute("data-id", "doc2")
    page.go_back()
    expect(chip).to_be_visible()
    chip.click()
    expect(page.get_by_role("heading", name="Search 48 documents")).to_be_visible()


def test_near_duplicates_are_folded_until_one_looks(page: Page, towns: LiveServer) -> None:
    open_page(page, towns, f"/?q=Kettles+{TWIN}")
    first = hits(page).first
    folded = first.locator("details")
    expect(folded.locator("li", has_text="twin2")).to_be_hidden()
    folded.get_by_text("near-duplicate").click()
    expect(folded.locator("li", has_text="twin2")).to_contain_text("1.000 alike")
    folded.locator("li", has_text="twin2").get_by_role("link").click()
    expect(page.get_by_role("dialog").locator(".text")).to_have_text(TWIN)
    page.keyboard.press("Escape")
    page.get_by_role("switch", name="Fold near-duplicates").uncheck()
    expect(hits(page).nth(2)).to_have_attribute("data-id", "twin2")


def test_words_can_be_matched_too(page: Page, towns: LiveServer) -> None:
    open_page(page, towns, "/?q=dough")
    page.get_by_role("switch", name="Match words too").check()
    expect(hits(page).first).to_have_attribute("data-id", "doc3")
    expect(page.get_by_role("switch", name="Match words too")).to_be_focused()
    scores = hits(page).locator(".score")
    expect(scores.first).to_contain_text(re.compile(r"^Score \d\.\d\d\d"))
    width = "fill => fill.getBoundingClientRect().width / fill.parentElement.clientWidth"
    assert scores.first.locator(".fill").evaluate(width) == pytest.approx(1, abs=0.02)  # beside the best of the answer
    parts = scores.locator("dl")
    expect(parts.first).to_be_hidden()
    scores.first.locator("summary").click()
    expect(parts.first).to_have_text(re.compile(r"^meaning-?\d\.\d\d\d cosine similaritywords\d+\.\d BM25$"))
    scores.nth(1).locator("summary").click()
    expect(parts.nth(1)).to_be_visible()
    expect(parts.first).to_be_hidden()
    assert asked(page)["hybrid"] == ["1"]


def test_back_and_forward_go_from_question_to_question(page: Page, towns: LiveServer) -> None:
    open_page(page, towns)
    box(page).press_sequentially("Bridges", delay=20)
    settle(page)
    page.wait_for_timeout(1600)  # typing has ended
    box(page).fill("Kettles")
    settle(page)
    page.go_back()
    expect(box(page)).to_have_value("Bridges")
    settle(page)
    page.go_back()
    expect(page.get_by_role("heading", name="Search 48 documents")).to_be_visible()
    page.go_forward()
    page.go_forward()
    expect(box(page)).to_have_value("Kettles")
    expect(hits(page)).to_have_count(10)


def test_an_address_shows_the_same_again(page: Page, towns: LiveServer) -> None:
    address = "/?q=river+%F0%9F%90%8B&is.lang=en&is.lang=la&min.year=1510&where=open&group=tags&hybrid=1&fold=0&k=20"
    open_page(page, towns, address.replace("group=tags", "group=source"))
    before, url = ids(page), page.url
    assert before
    expect(page.get_by_label("year, from")).to_have_value("1510")
    expect(page.get_by_label("Condition in SQL")).to_have_value("open")
    expect(page.get_by_role("checkbox", name="la")).to_be_checked()
    expect(page.get_by_role("switch", name="Fold near-duplicates")).not_to_be_checked()
    page.reload()
    expect(hits(page)).to_have_count(len(before))
    assert (ids(page), page.url) == (before, url)


def test_a_question_that_is_too_long_for_an_address_is_answered(page: Page, towns: LiveServer) -> None:
    """Servers refuse the head of a request with such a long address."""
    open_page(page, towns)
    ask(page, f"{BRIDGES} " * 3000)
    expect(hits(page).first).to_have_attribute("data-id", "doc2")
    page.reload()
    expect(page.get_by_role("heading", name="Search 48 documents")).to_be_visible()


def test_an_address_that_means_harm_is_only_data(page: Page, towns: LiveServer) -> None:
    """It reaches neither markup, nor SQL, nor the prototype of objects."""
    harm = "min.year=1);DROP&max.day=%27--&is.lang=%27%20OR%201=1--&is.__proto__=x&is.open=maybe&k=-5&q=<img+src=x>"
    open_page(page, towns, f"/?{harm}")
    expect(page.locator("#notice")).to_contain_text("Nothing found")
    expect(box(page)).to_have_value("<img src=x>")
    assert page.locator("img").count() == 0


def test_everything_can_be_done_from_the_keyboard(page: Page, towns: LiveServer) -> None:
    open_page(page, towns)
    expect(box(page)).to_be_focused()
    page.keyboard.type(f"Bridges {BRIDGES}")
    settle(page)  # a beginning of the question finds the same first
    expect(hits(page).first).to_have_attribute("data-id", "doc2")
    links = page.locator("a.open")
    page.keyboard.press("ArrowDown")
    expect(links.nth(0)).to_be_focused()
    page.keyboard.press("j")
    expect(links.nth(1)).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("k")
    expect(links.nth(0)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Bridges")).to_be_visible()
    page.keyboard.press("Escape")
    expect(links.nth(0)).to_be_focused()
    page.keyboard.press("k")
    expect(box(page)).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("m")
    expect(page.get_by_role("button", name="Stop: more like doc2")).to_be_visible()
    page.keyboard.press("/")
    expect(box(page)).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="Search 48 documents")).to_be_visible()


def test_a_name_that_is_typed_offers_its_document(page: Page, towns: LiveServer) -> None:
    line = page.locator("#named")
    open_page(page, towns, "/?q=doc2&is.lang=la")
    expect(line).to_have_text("Document doc2 Bridges")
    line.get_by_role("link").click()
    expect(page.get_by_role("dialog", name="Bridges").locator(".text")).to_have_text(BRIDGES)
    assert asked(page)["doc"] == ["doc2"]
    page.keyboard.press("Escape")
    ask(page, "doc2x")
    expect(line).to_have_text("")
    expect(page.get_by_role("alert")).to_have_count(0)
    ask(page, " a/../b c?#% ")
    expect(line).to_have_text("Document a/../b c?#%")
    page.get_by_role("button", name="Clear").click()
    expect(line).to_have_text("")


def test_a_document_that_is_the_first_hit_is_not_offered_as_well(page: Page, towns: LiveServer) -> None:
    open_page(page, towns, "/?q=long&fold=0")
    page.route("**/v1/search", lambda route: route.fulfill(json=first_is_long(route)))
    expect(page.locator("#named")).not_to_have_text("")
    page.get_by_role("switch", name="Match words too").check()
    expect(hits(page).first).to_have_attribute("data-id", "long")
    expect(page.locator("#named")).to_have_text("")


def first_is_long(route: Route) -> dict[str, Any]:
    """The document is shown above the hits, which are by vectors alone, as the table does not know the word."""
    asked: dict[str, Any] = route.request.post_data_json or {}
    answer: dict[str, Any] = route.fetch(post_data=asked | {"hybrid": False}).json()
    found = answer["results"][0]["hits"]
    found.insert(0, found[0] | {"id": "long"})
    return answer


def test_a_name_that_is_slow_or_fails_holds_nothing_up(page: Page, towns: LiveServer) -> None:
    held: list[Route] = []
    asks: list[str] = []
    page.route("**/v1/documents?*", lambda route: held.append(route))
    page.on("request", lambda request: asks.append(request.url) if "documents?id=" in request.url else None)
    open_page(page, towns, "/?q=doc2")
    expect(hits(page)).to_have_count(10)
    expect(page.locator("#named")).to_have_text("")
    ask(page, "doc3")
    assert [parse_qs(urlsplit(one.request.url).query)["id"] for one in held] == [["doc2"], ["doc3"]]
    held[0].abort()  # it was given up: nobody waits
    held[1].fulfill(status=503, json={"error": {"message": "busy"}})
    settle(page)
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator("#named")).to_have_text("")
    page.unroute("**/v1/documents?*")
    ask(page, "x" * 201)
    assert len(asks) == 2  # too long for a name
    ask(page, "doc3")
    expect(page.locator("#named")).to_contain_text("Document doc3")


def focused_hit(page: Page) -> str | None:
    """Return the id of the focused hit."""
    found: str | None = page.evaluate("document.activeElement?.closest('article.hit')?.dataset.id ?? null")
    return found


@pytest.mark.parametrize("way", ["key", "click", "sheet"])
def test_arrows_go_on_after_more_like_this(way: str, page: Page, towns: LiveServer) -> None:
    open_page(page, towns, "/?q=river")
    hit = hits(page).first
    if way == "key":
        page.keyboard.press("ArrowDown")
        page.keyboard.press("m")
    elif way == "click":
        hit.get_by_role("link", name="More like this").click()
    else:
        hit.locator("a.open").click()
        page.get_by_role("dialog").get_by_role("button", name="More like this").click()
    expect(page.get_by_role("button", name="Stop: more like")).to_be_visible()
    settle(page)
    expect(page.locator("#hits")).to_be_focused()
    page.keyboard.press("ArrowDown")
    assert focused_hit(page) == ids(page)[0]
    page.keyboard.press("ArrowUp")
    expect(box(page)).to_be_focused()


def test_arrows_continue_at_the_visible_hits_after_a_click_elsewhere(page: Page, towns: LiveServer) -> None:
    open_page(page, towns, "/?q=river&k=30")
    page.locator("#status").click()
    expect(page.locator("body")).to_be_focused()
    page.keyboard.press("ArrowDown")
    assert focused_hit(page) == ids(page)[0]
    page.evaluate("document.activeElement.blur(); scrollTo(0, 2000)")
    page.wait_for_timeout(100)
    page.keyboard.press("ArrowDown")
    seen = ids(page).index(focused_hit(page))
    assert seen > 3
    page.keyboard.press("ArrowUp")
    assert focused_hit(page) == ids(page)[seen - 1]
    page.get_by_role("switch", name="Match words too").focus()
    page.keyboard.press("ArrowDown")
    assert focused_hit(page) is not None
    group = page.get_by_label("Group by")
    group.focus()
    page.keyboard.press("ArrowDown")
    expect(group).to_be_focused()


def test_a_long_document_shows_its_matching_window(page: Page, stories: LiveServer) -> None:
    open_page(page, stories, "/?q=Suddenly+a+comet+appeared.")
    expect(page.locator("#side")).to_be_hidden()  # nothing to choose from
    expect(page.get_by_label("Group by")).to_have_count(0)
    hit = page.locator("article.hit", has_text="Story 1")
    passage = hit.locator(".passage")
    expect(passage).to_contain_text("comet")
    text = passage.text_content() or ""
    assert text.startswith("… ")
    assert text.endswith(" …")
    assert len(text) < 400
    hit.get_by_role("button", name="Show all").click()
    assert len(passage.text_content() or "") > 1000
    hit.get_by_role("button", name="Show less").click()
    expect(passage).to_have_text(text)
    hit.get_by_role("link", name="Story 1").click()
    window = page.get_by_role("dialog").locator(".window")
    expect(window).to_be_in_viewport()
    expect(window).to_contain_text("comet")
