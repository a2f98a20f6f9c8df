"""The filters of the search page in a browser: choices, counts, and faults of conditions."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.search.server.page.test_questions import asked, hits, ids, open_page, settle
from tests.servers import LiveServer

pytestmark = pytest.mark.check


def test_boxes_ranges_and_conditions_filter(page: Page, towns: LiveServer) -> None:
    open_page(page, towns, "/?q=river")
    panel = page.locator("#side")
    expect(panel.locator("legend")).to_contain_text(["day", "lang", "open", "place.row", "source", "tags", "year"])
    expect(panel.get_by_text("same", exact=True)).to_have_count(0)  # all have the same value: no choice
    panel.get_by_role("checkbox", name="la").check()
    expect(page.get_by_role("status")).to_contain_text("that meet the filters")
    assert {text.split("lang")[1][:2] for text in hits(page).locator(".chips").all_text_contents()} == {"la"}
    panel.get_by_label("year, from").fill("1520")
    panel.get_by_label("year, to").fill("1531")
    expect(hits(page)).to_have_count(2)
    assert sorted(map(str, ids(page))) == ["doc25", "doc32"]
    panel.get_by_role("checkbox", name="t0").check()
    expect(hits(page)).to_have_count(1)
    panel.get_by_label("day, to").fill("2020-01-31")
    settle(page)
    panel.get_by_label("Condition in SQL").fill("title LIKE 'A %'")
    settle(page)
    assert ids(page) == ["doc25"]
    assert asked(page)["is.lang"] == ["la"]
    assert asked(page)["where"] == ["title LIKE 'A %'"]
    page.get_by_role("button", name="Remove the filter lang: la").click()
    expect(panel.get_by_role("checkbox", name="la")).not_to_be_checked()
    panel.get_by_role("button", name="Remove all").click()
    expect(hits(page)).to_have_count(10)
    assert set(asked(page)) == {"q"}


def test_counts_are_those_of_the_documents_that_meet_the_other_filters(page: Page, towns: LiveServer) -> None:
    open_page(page, towns, "/?q=river")
    panel = page.locator("#side")

    def count(value: str) -> Locator:
        return panel.locator("label.value", has_text=re.compile(f"^{value}")).locator(".count")

    def under(where: str) -> int:
        return len(towns.search(query="river", k=100, where=where)["results"][0]["hits"])

    whole = count("t0").text_content()
    panel.get_by_role("checkbox", name="la").check()
    expect(count("t0")).to_have_text(str(under("lang = 'la' AND list_contains(tags, 't0')")))
    expect(count("en")).to_have_text(str(under("lang = 'en'")))  # what choosing it as well would add
    years = panel.locator("fieldset[data-column=year] .remark")
    expect(years).to_have_text(re.compile(r"^\d+ to 1\d+$"))  # no longer to 3000, which no document in Latin has
    panel.get_by_label("Condition in SQL").fill("open")
    expect(count("false")).to_have_text("0")
    expect(count("en")).to_have_text(str(under("lang = 'en' AND open")))
    page.route("**/v1/facets", lambda route: route.abort())
    panel.get_by_role("checkbox", name="t1").check()
    expect(count("en")).to_have_text("")  # not known: none is shown
    panel.get_by_role("button", name="Remove all").click()
    expect(count("t0")).to_have_text(str(whole))


def test_a_fault_of_a_condition_is_shown_next_to_it(page: Page, towns: LiveServer) -> None:
    """With its place in the written condition, under any other filters."""
    open_page(page, towns, "/?q=river&is.lang=en")
    sql = page.get_by_label("Condition in SQL")
    sql.fill("lang = 'en' AND yaer > 3")
    error = page.locator(".sql-error")
    expect(error).to_contain_text('At character 17: no column "yaer" (did you mean year?)')
    expect(sql).to_have_attribute("aria-invalid", "true")
    assert hits(page).count() == 10  # as they were, dimmed
    expect(page.locator(".hits")).to_have_css("opacity", "0.5")
    above = page.locator("#notice").get_by_role("alert")
    expect(above).to_contain_text('At character 17: no column "yaer" (did you mean year?)')
    sql.fill("lang = 'en' AND year > 3")
    expect(hits(page)).to_have_count(10)
    expect(error).to_be_hidden()
    expect(above).to_have_count(0)
    page.goto(f"{towns.url}/?q=river&where=yaer+>+3")
    above.get_by_role("button", name="Remove the condition").click()
    expect(hits(page)).to_have_count(10)
    expect(sql).to_have_value("")


def test_no_hits_suggest_removing_filters(page: Page, towns: LiveServer) -> None:
    open_page(page, towns, "/?q=river&min.year=5000")
    expect(page.locator("#notice")).to_contain_text("Nothing found. No document meets all the filters.")
    page.get_by_role("button", name="Remove the filters").click()
    expect(hits(page)).to_have_count(10)
    expect(page.get_by_label("year, from")).to_have_value("")


def test_one_hit_of_each_group(page: Page, towns: LiveServer) -> None:
    open_page(page, towns, "/?q=river")
    page.get_by_label("Group by").select_option("lang")
    expect(page.get_by_role("status")).to_contain_text("documents")
    languages = [
        text.split("lang")[1][:2] for text in hits(page).locator(".chips").all_text_contents() if "lang" in text
    ]
    assert len(languages) == len(set(languages))
    assert asked(page)["group"] == ["lang"]


def test_an_index_without_metadata_is_filtered_by_sql(page: Page, stories: LiveServer) -> None:
    open_page(page, stories, "/?q=comet")
    sql = page.get_by_label("Condition in SQL")
    expect(sql).to_be_hidden()
    page.get_by_text("Filter by SQL").click()
    expect(sql).to_have_attribute("placeholder", "title LIKE '%word%'")
    sql.fill("title LIKE")
    error = page.locator(".sql-error")
    expect(error).to_contain_text("the filter ends after LIKE")
    expect(error).not_to_contain_text("year")
    sql.fill("title LIKE '%0%'")
    expect(hits(page)).to_have_count(1)
    page.reload()
    expect(sql).to_be_visible()


def test_filters_without_a_query_show_a_notice(page: Page, towns: LiveServer) -> None:
    open_page(page, towns, "/?is.lang=la")
    expect(page.locator("#notice")).to_have_text("Type a query: the filters will apply to its results.")


def test_a_reversed_range_is_reported(page: Page, towns: LiveServer) -> None:
    open_page(page, towns, "/?q=river&min.year=1600&max.year=1510")
    said = page.locator("fieldset[data-column=year] .range-error")
    expect(said).to_contain_text("from is above to")
    page.get_by_label("year, to").fill("1700")
    expect(said).to_be_hidden()
