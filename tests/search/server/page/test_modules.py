"""The pure functions of the page, run in a browser: marks, passages, conditions, addresses."""

from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.servers import LiveServer

pytestmark = pytest.mark.check
COLUMN: dict[str, Any] = {"name": "c", "sql": "c", "kind": "text", "elements": None}
HAS_1, HAS_2 = "list_contains(c, 1)", "list_contains(c, 2)"
PICK: dict[str, Any] = {"values": [], "least": "", "most": ""}


@pytest.fixture(scope="module")
def module_page(browser: Any, towns: LiveServer) -> Any:
    """One tab for all computations."""
    page = browser.new_page()
    page.goto(towns.url)
    return page


def call(page: Page, module: str, name: str, *arguments: Any) -> Any:
    """Return the result of a function of the page's modules."""
    script = "([module, name, given]) => import(`/assets/${module}.js`).then((found) => found[name](...given))"
    return page.evaluate(script, [module, name, list(arguments)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("bridge", "bridges"),
        ("parse", "parsing"),
        ("run", "runs"),
        ("stopped", "stopping"),
        ("query", "queries"),
        ("compute", "computers"),
        ("книга", "книги"),
        ("sorted", "sort"),
    ],
)
def test_forms_of_a_word_are_one(one: str, other: str, module_page: Page) -> None:
    assert call(module_page, "marks", "isSame", one, other)
    assert call(module_page, "marks", "isSame", other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [("date", "data"), ("car", "card"), ("her", "here"), ("station", "state"), ("1999", "1998"), ("v100", "v1000")],
)
def test_other_words_are_others(one: str, other: str, module_page: Page) -> None:
    assert not call(module_page, "marks", "isSame", one, other)


@pytest.mark.parametrize(
    ("query", "text", "marked"),
    [
        ("the whale", "The whales and THE WHALE", ["whales", "WHALE"]),
        ("to be", "To be or not to be", ["To", "be", "to", "be"]),  # nothing but common words: then those
        ("Straße café", "STRASSE, Straße, CAFE\u0301", ["Straße", "CAFE\u0301"]),
        ("wal", "walrus wall", ["walrus", "wall"]),  # the last word may not be finished
        ("wal ", "walrus wal", ["wal"]),
        ("東京 タワー", "ここは東京タワーです", ["東京", "タワー"]),
        ("שלום", "אמר שלום לכולם", ["שלום"]),
        ("C++ 🐋", "C++ and 🐋", ["C"]),
        ("", "nothing", []),
    ],
)
def test_marks_are_the_words_of_the_question(query: str, text: str, marked: list[str], module_page: Page) -> None:
    terms = call(module_page, "marks", "termsOf", query)
    found = call(module_page, "marks", "marksOf", text, terms)
    units = text.encode("utf-16-le")
    assert [units[2 * start : 2 * end].decode("utf-16-le") for start, end, _ in found] == marked


def test_marking_takes_steps_in_proportion_to_the_text(browser: Browser, towns: LiveServer) -> None:
    """Also for a text without spaces of only query words: the browser counts the steps."""

    def steps(repeated: int) -> int:
        page = browser.new_page()
        counter = page.context.new_cdp_session(page)
        page.goto(towns.url)
        counter.send("Profiler.enable")
        counter.send("Profiler.startPreciseCoverage", {"callCount": True, "detailed": True})
        text = "\u6771\u4eac\u90fd" * repeated
        terms = {"terms": ["\u6771\u4eac", "\u4eac\u90fd", "\u90fd"], "open": ""}
        marks = call(page, "marks", "marksOf", text, terms)
        assert len(marks) == 2 * repeated
        assert call(page, "marks", "passageOf", text, marks, 280)[1] == 280
        found = counter.send("Profiler.takePreciseCoverage")["result"]
        page.close()
        marked = [one for script in found if script["url"].endswith("/marks.js") for one in script["functions"]]
        return sum(part["count"] for one in marked for part in one["ranges"])

    assert steps(2000) < 2.5 * steps(1000)


def test_a_question_without_a_space_has_as_many_words_as_others(module_page: Page) -> None:
    assert len(call(module_page, "marks", "termsOf", "".join(map(chr, range(0x4E00, 0x5600))))["terms"]) <= 200


def test_a_passage_is_where_most_words_of_the_question_are(module_page: Page) -> None:
    filler = "Nothing of note was said. " * 20
    text = f"{filler}A whale was seen. {filler}The whale sang a song near the bridge. {filler}"
    marks = call(module_page, "marks", "marksOf", text, call(module_page, "marks", "termsOf", "whale song bridge"))
    start, end = call(module_page, "marks", "passageOf", text, marks, 280)
    assert text[start:].startswith("The whale sang")
    assert 200 < end - start <= 320
    assert text[end : end + 1].isspace()


def test_a_passage_never_cuts_a_character(module_page: Page) -> None:
    text = "🐋" * 1000
    for mark in (0, 501, 1999):
        start, end = call(module_page, "marks", "passageOf", text, [[mark - mark % 2, mark - mark % 2 + 2, 0]], 101)
        assert (start % 2, end % 2) == (0, 0)


@pytest.mark.parametrize("characters", [0, 1, 2, 3, 4, 9])
def test_places_of_python_become_places_of_javascript(characters: int, module_page: Page) -> None:
    text = "a🐋b🐋c"
    expected = len(text[:characters].encode("utf-16-le")) // 2
    assert call(module_page, "marks", "unitsUpTo", text, characters) == expected


@pytest.mark.parametrize(
    ("column", "pick", "condition"),
    [
        ({}, {"values": ["it's"]}, "c = 'it''s'"),
        ({"sql": '"a b"'}, {"values": ["x", "y"]}, "\"a b\" IN ('x', 'y')"),
        ({"kind": "true or false"}, {"values": ["true", "maybe"]}, "c = true"),
        ({"kind": "numbers"}, {"least": "-1.5e3", "most": "2"}, "c >= -1.5e3 AND c <= 2"),
        ({"kind": "numbers"}, {"least": "1) OR (1", "most": "0x10", "values": ["NaN"]}, ""),
        ({"kind": "dates"}, {"least": "2020-02-29", "most": "2020-13-01"}, "c >= '2020-02-29'"),
        ({"kind": "dates with a time of day"}, {"least": "2019-12-31"}, "c >= '2019-12-31'"),
        ({"kind": "dates with a time of day"}, {"most": "2019-12-31"}, "c < '2020-01-01'"),
        ({"kind": "times of day"}, {"least": "09:30", "most": "noon"}, "c >= '09:30'"),
        ({"kind": "lists", "elements": "text"}, {"values": ["a"]}, "list_contains(c, 'a')"),
        ({"kind": "lists", "elements": "numbers"}, {"values": ["1", "x", "2"]}, f"({HAS_1} OR {HAS_2})"),
        ({"kind": "bytes"}, {"values": ["a"], "least": "1"}, ""),
        ({"name": "other"}, {"values": ["a"]}, ""),
    ],
)  # fmt: skip
def test_picks_become_a_condition(
    column: dict[str, Any], pick: dict[str, Any], condition: str, module_page: Page
) -> None:
    question = {"where": "", "picks": {"c": PICK | pick}}
    assert call(module_page, "conditions", "conditionOf", question, [COLUMN | column]) == condition
    both = call(module_page, "conditions", "conditionOf", question | {"where": " a OR b "}, [COLUMN | column])
    assert both == (f"(a OR b) AND {condition}" if condition else "a OR b")


@pytest.mark.parametrize(
    ("column", "choice"),
    [
        ({"values": [{"value": "a", "count": 3}, {"value": "b", "count": 1}], "distinct": 2, "documents": 4}, "values"),
        ({"values": [{"value": "a", "count": 4}], "distinct": 1, "documents": 4}, None),  # all the same
        ({"values": [{"value": str(n), "count": 1} for n in range(20)], "distinct": 20, "documents": 20}, None),  # ids
        ({"kind": "numbers", "values": [], "distinct": None, "documents": 9, "least": 0, "most": 1}, "range"),
        ({"kind": "numbers", "values": [], "distinct": 1, "documents": 9, "least": 1, "most": 1}, None),
        ({"kind": "dates", "values": [], "distinct": 3, "documents": 9, "least": "2020-01-01", "most": "2021-01-01"},
         "range"),
        ({"kind": "bytes", "values": [], "distinct": None, "documents": 9}, None),
    ],
)  # fmt: skip
def test_a_column_is_offered_where_it_tells_documents_apart(
    column: dict[str, Any], choice: str | None, module_page: Page
) -> None:
    assert call(module_page, "conditions", "choiceOf", COLUMN | column) == choice


def test_addresses_hold_a_question_and_nothing_else(module_page: Page) -> None:
    picks = {"a b&": {"values": ["x=y", "ä"], "least": "", "most": ""}, "n": {"values": [], "least": "1", "most": "2"}}
    question = {
        "query": "a + b & c=d #%",
        "like": "",
        "where": "x > '1'",
        "group": "g",
        "hybrid": True,
        "fold": False,
        "k": 30,
        "picks": picks,
        "doc": "a/../b",
    }
    address = call(module_page, "question", "toAddress", question)
    assert call(module_page, "question", "fromAddress", address) == question
    assert (
        call(module_page, "question", "toAddress", call(module_page, "question", "fromAddress", "?unknown=1")) == "./"
    )


def test_a_column_may_be_called_like_what_every_object_has(module_page: Page) -> None:
    script = """() => import("/assets/question.js").then(({ BLANK, withPick }) => {
        const year = withPick(BLANK, "year", { values: ["1990"], least: "", most: "" });
        const none = withPick(year, "year", { values: [], least: "", most: "" });
        return [BLANK, year, none].map(({ picks }) => [Object.keys(picks), typeof picks.constructor]);
    })"""
    assert module_page.evaluate(script) == [[[], "undefined"], [["year"], "undefined"], [[], "undefined"]]
