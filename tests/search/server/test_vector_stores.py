"""The index as one of OpenAI's vector stores: the same hits as /v1/search, and filters that mean what they say."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, TypeAdapter, ValidationError

from indexer import BuildConfig, Document, add_documents, build_index
from indexer.config import ChunkConfig, EncoderConfig, StoreConfig
from search import SearchEngine
from search.filters import MetadataFilter
from search.ranking.ranker import SearchOptions
from search.server import vector_stores
from search.server.attribute_filters import ComparisonFilter, CompoundFilter, OutlinedFilter, condition_of
from search.server.embeddings import EmbeddingRequest
from search.server.failures import RequestError
from search.server.service import SearchReply, SearchService
from search.server.settings import ServerSettings
from search.server.vector_stores import HybridSearch, RankingOptions, StoreSearchRequest, attributes_of
from tests.documents import DOCUMENTS
from tests.search.filters.filtered import Row, open_filters, row_of
from tests.search.server.conftest import Serve

FILTERS: TypeAdapter[ComparisonFilter | CompoundFilter] = TypeAdapter(OutlinedFilter)
TEXTS = ["", "en", "EN", "it's “x”", 'say "no"', "naïve", "玻璃", "\U0001f40b", "\ue000", "--;", "\\"]
NUMBERS = [-3, 0, 1, 2, 7, 2.0, 2.5, -0.5, 0.1, 1e300, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 1e-9]
QUERY = "how do whales sing"


class Endless(list[Any]):
    """A list of so many that none of them may be looked at one by one."""

    def __init__(self, one: Any) -> None:
        super().__init__([one] * 300_000)

    def __iter__(self) -> Iterator[Any]:
        for number, one in enumerate(super().__iter__()):
            assert number < 1000
            yield one


@pytest.mark.parametrize("model", [StoreSearchRequest, RankingOptions, HybridSearch, EmbeddingRequest])
def test_many_unknown_fields_are_one_error(model: type[BaseModel]) -> None:
    with pytest.raises(ValidationError, match="no0: is no field") as caught:
        model.model_validate({f"no{number}": 1 for number in range(300_000)})
    assert caught.value.error_count() == 1


# --- filters against a slow reading of them


def corpus() -> list[list[Document]]:
    """Two parts in which every column has values and gaps."""
    found: list[list[Document]] = [[], []]
    for number in range(40):
        row: dict[str, Any] = {
            "lang": TEXTS[number % len(TEXTS)] if number % 4 else None,
            'we"ird “key”.': TEXTS[number % 5] if number % 3 else None,
            "select": number % 5 if number % 6 else None,
            "whole": NUMBERS[number % 5] if number % 5 else 2**53 + number % 3,
            "largest": 2**63 - 1 if number % 3 else None,
            "float": float(NUMBERS[number % 10]) if number % 7 else None,
            "ok": number % 3 == 0 if number % 5 else None,
            "tags": [TEXTS[number % 11], None, TEXTS[3]][: number % 4] if number % 3 else None,
            "years": [number % 4, 2**53 + 1] if number % 2 else None,
            "ratios": [0.1, float(number % 4)] if number % 2 else None,
            "author": {"name": TEXTS[number % 6], "born": number % 3} if number % 4 else None,
            "a.b": number % 2 if number > 20 else None,
        }
        metadata = {name: value for name, value in row.items() if value is not None}
        title = TEXTS[number % 11] if number % 2 else None
        found[number // 20].append(Document(f"d{number:02}", f"text {number}", title, metadata))
    return found


PARTS = corpus()
ROWS = [row_of(document) for part in PARTS for document in part]
KINDS: dict[str, list[str]] = {
    "text": ["id", "title", "text", "lang", 'we"ird “key”.', "author.name", "tags"],
    "number": ["select", "whole", "largest", "float", "years", "ratios", "author.born", "a.b"],
    "truth": ["ok"],
}
LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": st.sampled_from([*TEXTS, "d07", "text 3"]) | st.text(LETTERS, max_size=3),
    "number": st.sampled_from(NUMBERS) | st.integers(-5, 5) | st.floats(-3, 3),
    "truth": st.booleans(),
}


def value_at(row: Row, key: str) -> Any:
    if key in row:
        return row[key]
    first, _, inner = key.partition(".")
    return (row.get(first) or {}).get(inner)


def is_met(asked: dict[str, Any], row: Row) -> bool:
    """A filter read slowly. In a column of floats a number counts as the float that it is."""
    if asked["type"] in ("and", "or"):
        return (all if asked["type"] == "and" else any)(is_met(inner, row) for inner in asked["filters"])
    held = value_at(row, asked["key"])
    values = asked["value"] if isinstance(asked["value"], list) else [asked["value"]]
    if asked["key"] in ("float", "ratios"):
        values = [float(value) for value in values]
    there = held if isinstance(held, list) else [held]
    equal = any(one is not None and one == value for one in there for value in values)
    if asked["type"] in ("eq", "in"):
        return equal
    if asked["type"] in ("ne", "nin"):
        return not equal
    return held is not None and bool(
        {
            "gt": lambda one, other: one > other,
            "gte": lambda one, other: one >= other,
            "lt": lambda one, other: one < other,
            "lte": lambda one, other: one <= other,
        }[asked["type"]](held, values[0])
    )


@st.composite
def comparisons(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(list(KINDS)))
    key, value = (
        draw(st.sampled_from(KINDS[kind])),
        VALUES[kind].filter(lambda one: one != "\0" and "\0" not in str(one)),
    )
    ordered = key not in ("ok", "tags", "years", "ratios")
    sign = draw(st.sampled_from(["eq", "ne", "in", "nin", *(["gt", "gte", "lt", "lte"] if ordered else [])]))
    given = draw(st.lists(value, max_size=4) if sign in ("in", "nin") else value)
    return {"type": sign, "key": key, "value": given}


def compounds(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    kinds, lists = st.sampled_from(["and", "or"]), st.lists(inner, min_size=1, max_size=3)
    return st.builds(lambda kind, filters: {"type": kind, "filters": filters}, kinds, lists)


@pytest.fixture(scope="module")
def filters(tmp_path_factory: pytest.TempPathFactory) -> MetadataFilter:
    return open_filters(tmp_path_factory.mktemp("filters"), PARTS)


def found_by(filters: MetadataFilter, asked: dict[str, Any]) -> list[int]:
    """The numbers of the documents, by way of JSON as a request's filter."""
    parsed = FILTERS.validate_json(json.dumps(asked))
    found: list[int] = filters.documents(condition_of(parsed, filters._documents.schema)).tolist()
    return found


@given(asked=st.recursive(comparisons(), compounds, max_leaves=6))
def test_a_filter_equals_a_slow_reading_of_it(filters: MetadataFilter, asked: dict[str, Any]) -> None:
    assert found_by(filters, asked) == [number for number, row in enumerate(ROWS) if is_met(asked, row)]


@pytest.mark.check
def test_every_comparison_equals_a_slow_reading_of_it(filters: MetadataFilter) -> None:
    texts = [*TEXTS, "d07"]
    for kind, values in (("text", texts), ("number", NUMBERS), ("truth", [True, False])):
        for key in KINDS[kind]:
            signs = ["eq", "ne"] if key in ("ok", "tags", "years", "ratios") else ["eq", "ne", "gt", "gte", "lt", "lte"]
            several = [
                {"type": sign, "key": key, "value": [one, values[0]]} for one in values for sign in ("in", "nin")
            ]
            for asked in [{"type": sign, "key": key, "value": one} for sign in signs for one in values] + several:
                expected = [number for number, row in enumerate(ROWS) if is_met(asked, row)]
                assert found_by(filters, asked) == expected, asked


MOMENT = datetime(2020, 1, 1, 12, 30)
DATED: dict[str, Any] = {
    "day": date(2020, 1, 1),
    "moment": MOMENT,
    "hour": time(1, 2, 3),
    "price": Decimal("0.10"),
    "raw": b"\x01",
    "days": [date(2020, 1, 1)],
    "empty": [None],
    "author": {"name": "x"},
}


@pytest.fixture(scope="module")
def dated(tmp_path_factory: pytest.TempPathFactory) -> MetadataFilter:
    """One document with a value of each of the rarer kinds, and one without."""
    return open_filters(tmp_path_factory.mktemp("dated"), [[Document("a", "t", metadata=DATED), Document("b", "t")]])


@pytest.mark.parametrize(
    ("sign", "key", "value", "expected"),
    [
        ("eq", "day", "2020-01-01", [0]),
        ("gt", "day", "2019-12-31", [0]),
        ("nin", "day", ["2020-01-01", "2020-01-02"], [1]),
        ("eq", "moment", "2020-01-01T12:30:00", [0]),
        ("eq", "moment", "2020-01-01T13:30:00+01:00", [0]),
        ("lt", "moment", "2020-01-01T12:30:00Z", []),
        ("lte", "hour", "01:02:03", [0]),
        ("eq", "price", 0.1, [0]),
        ("gt", "price", 1e200, []),
        ("lt", "price", 1, [0]),
        ("eq", "empty", "x", []),
        ("ne", "empty", 1, [0, 1]),
    ],
)
def test_dates_and_decimals(dated: MetadataFilter, sign: str, key: str, value: Any, expected: list[int]) -> None:
    assert found_by(dated, {"type": sign, "key": key, "value": value}) == expected


def test_attributes_are_what_filters_take(dated: MetadataFilter) -> None:
    zoned = datetime(2020, 1, 1, 13, 30, tzinfo=timezone(timedelta(hours=1)))
    attributes = attributes_of(DATED | {"year": 7, "ok": True, "zoned": zoned.astimezone(UTC)})
    assert attributes == {
        "day": "2020-01-01",
        "moment": "2020-01-01T12:30:00",
        "hour": "01:02:03",
        "price": 0.1,
        "raw": '"01"',
        "days": '["2020-01-01"]',
        "empty": "[null]",
        "author": '{"name": "x"}',
        "year": 7,
        "ok": True,
        "zoned": "2020-01-01T12:30:00+00:00",
    }
    for key in ("day", "moment", "hour", "price"):
        assert found_by(dated, {"type": "eq", "key": key, "value": attributes[key]}) == [0]


@pytest.mark.parametrize(
    ("sign", "key", "value", "message"),
    [
        ("eq", "select", True, '"select" holds numbers; expected a number, found true or false.'),
        ("eq", "select", "1", '"select" holds numbers; expected a number, found text.'),
        ("in", "ok", [True, 1], '"ok" holds true or false; expected true or false, found a number.'),
        ("eq", "lang", 1, '"lang" holds text; expected text, found a number.'),
        ("gt", "ok", True, '"ok" holds true or false, which have no order'),
        ("gt", "tags", "a", '"tags" holds lists, which have no order'),
        ("eq", "author", "x", '"author" holds objects, which filters do not compare'),
        ("eq", "lnag", "en", 'no document has an attribute "lnag"; did you mean "lang"?'),
        ("eq", "author.nmae", "en", 'no document has an attribute "author.nmae"'),
    ],
)
def test_a_filter_that_fits_nothing_is_a_mistake(
    filters: MetadataFilter, sign: str, key: str, value: Any, message: str
) -> None:
    with pytest.raises(RequestError) as caught:
        found_by(filters, {"type": sign, "key": key, "value": value})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("day", "yesterday", "expected a date as text: \"2020-12-31\", found text that is none: 'yesterday'."),
        ("day", 20200101, '"day" holds dates; expected a date as text'),
        ("moment", "0001-01-01T00:00:00+10:00", "expected a date with a time as text"),
        ("hour", "01:02:03+01:00", "expected a time as text"),
        ("raw", "01", '"raw" holds bytes, which filters do not compare'),
        ("days", "2020-01-01", '"days" holds lists of dates, which filters do not compare'),
    ],
)
def test_values_of_rarer_kinds_are_checked(dated: MetadataFilter, key: str, value: Any, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        found_by(dated, {"type": "eq", "key": key, "value": value})
    assert message in str(caught.value)


def test_large_filters_are_taken_up_to_a_limit(filters: MetadataFilter) -> None:
    one: dict[str, Any] = {"type": "nin", "key": "tags", "value": ["en", "x"]}
    expected = found_by(filters, one)
    assert found_by(filters, {"type": "and", "filters": [one] * 64}) == expected
    with pytest.raises(RequestError, match="more than 64 comparisons; expected at most 64"):
        found_by(filters, {"type": "and", "filters": [one] * 65})
    ids = [f"d{number:02}" for number in range(1000)]
    assert found_by(filters, {"type": "in", "key": "id", "value": ids}) == list(range(40))
    with pytest.raises(RequestError, match="written as SQL; expected at most"):
        found_by(filters, {"type": "in", "key": "id", "value": ids * 4})
    deep = one
    for _ in range(9):
        deep = {"type": "or", "filters": [deep]}
    assert found_by(filters, deep) == expected
    for _ in range(200):
        deep = {"type": "or", "filters": [deep]}
        with pytest.raises(RequestError, match="more than 10 deep"):
            FILTERS.validate_python(deep)


COMPARISON = {"type": "eq", "key": "select", "value": 1}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"type": "or", "filters": Endless({"type": "eq"})}, "more than 64 comparisons"),
        ({"type": "or", "filters": [{"type": "and", "filters": Endless({})}]}, "more than 64 comparisons"),
        ({"type": "or", "filters": [{"type": "and", "filters": [COMPARISON] * 9}] * 9}, "more than 64 comparisons"),
        ({"type": "or", "filters": [COMPARISON, *[{"type": "eq"}] * 60]}, '"eq" takes key and value, and there is no'),
        (COMPARISON | {f"no{n}": n for n in range(300_000)}, '"eq" takes key and value, and no "no0"'),
        ({"type": "in", "key": "select", "value": Endless(None)}, "holds 300,000 values; expected at most 6,666"),
    ],
)  # fmt: skip
def test_filters_are_refused_at_the_first_fault(asked: dict[str, Any], message: str) -> None:
    """Few of them are looked at, however many there are."""
    with pytest.raises(RequestError) as caught:
        FILTERS.validate_python(asked)
    assert message in str(caught.value)
    assert caught.value.__cause__ is None


# --- the route, asked by the real client


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=32, precision="float32")
    folder = tmp_path_factory.mktemp("served") / "index"
    build_index(DOCUMENTS, folder, BuildConfig(encoder=encoder, store=StoreConfig(part_documents=4)))
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path) -> SearchEngine:
    return SearchEngine(folder)


@pytest.fixture(scope="module")
def url(folder: Path, serve: Serve) -> str:
    return serve(folder, "docs") + "/v1"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def post(url: str, **fields: Any) -> dict[str, Any]:
    """The answer to a body, which may be one that the real client would not send."""
    answer = httpx2.post(f"{url}/vector_stores/docs/search", json={"query": QUERY} | fields)
    body: dict[str, Any] = answer.json()
    return body | {"status": answer.status_code}


def pairs(found: Any) -> list[tuple[str, Any]]:
    return [(one.file_id, pytest.approx(one.score, abs=1e-5)) for one in found]


def test_a_search_gives_the_hits_of_the_engine(client: OpenAI, engine: SearchEngine) -> None:
    page = client.vector_stores.search("docs", query=QUERY)
    hits = engine.search(QUERY, 10)
    assert pairs(page.data) == [(hit.id, hit.score) for hit in hits]
    for found, hit in zip(page, hits, strict=True):
        assert (found.filename, found.attributes) == (hit.title, hit.metadata)
        assert [(one.type, one.text) for one in found.content] == [("text", hit.text)]
    assert page.object == "vector_store.search_results.page"
    assert not page.has_next_page()
    assert len(client.vector_stores.search("docs", query=QUERY, max_num_results=3).data) == 3


def test_the_async_client_gets_the_same(url: str, engine: SearchEngine) -> None:
    async def ask() -> list[str]:
        async with AsyncOpenAI(base_url=url, api_key="none") as client:
            return [one.file_id async for one in client.vector_stores.search("docs", query=QUERY)]

    assert asyncio.run(ask()) == [hit.id for hit in engine.search(QUERY, 10)]


def test_several_queries_are_answered_by_the_best_score_of_each_document(client: OpenAI, engine: SearchEngine) -> None:
    queries = [QUERY, "bread", "what are bridges made of"]
    best: dict[str, float] = {}
    for answer in engine.search_many(queries, 9):
        for hit in answer:
            best[hit.id] = max(best.get(hit.id, -1), hit.score)
    expected = sorted(best.items(), key=lambda one: -one[1])
    for most in (1, 4, 9):
        page = client.vector_stores.search("docs", query=queries, max_num_results=most)
        assert pairs(page.data) == expected[:most]


def test_filters_and_thresholds_reach_the_engine(client: OpenAI, engine: SearchEngine) -> None:
    page = client.vector_stores.search(
        "docs",
        query=QUERY,
        filters={
            "type": "or",
            "filters": [{"type": "gt", "key": "year", "value": 1995}, {"type": "eq", "key": "title", "value": "Bread"}],
        },
    )
    assert pairs(page.data) == [(hit.id, hit.score) for hit in engine.search(QUERY, 10, where="year>1995 OR id='d2'")]
    hits = engine.search(QUERY, 10)
    page = client.vector_stores.search("docs", query=QUERY, ranking_options={"score_threshold": hits[3].score - 1e-4})
    assert [one.file_id for one in page] == [hit.id for hit in hits[:4]]


def test_words_are_fused_where_that_is_asked_for(url: str, engine: SearchEngine) -> None:
    expected = [(hit.id, hit.score) for hit in engine.search("whales", 10, hybrid=True)]
    for options in ({}, {"embedding_weight": 0.5, "text_weight": 0.5}):
        found = post(url, query="whales", ranking_options={"hybrid_search": options, "score_threshold": 0})
        assert [(one["file_id"], one["score"]) for one in found["data"]] == expected
    vectors = {"embedding_weight": 1, "text_weight": 0}
    near = post(url, query="whales", ranking_options={"hybrid_search": vectors})
    assert [one["file_id"] for one in near["data"]] == [hit.id for hit in engine.search("whales", 10)]


def test_an_answer_says_its_queries_its_index_and_what_was_cut(url: str, engine: SearchEngine) -> None:
    body = post(url, query=["bread", " ".join(["whales"] * 100)])
    assert body["search_query"] == ["bread", " ".join(["whales"] * 100)]
    assert (body["has_more"], body["next_page"]) == (False, None)
    assert body["index"] == {"generation": 1, "fingerprint": engine.index.manifest.fingerprint}
    assert [(one["index"], one["limit"]) for one in body["truncated"]] == [(1, 32)]


def test_windows_are_the_content_of_chunked_documents(serve: Serve, tiny_config: BuildConfig, tmp_path: Path) -> None:
    long = Document("long", " ".join(document.text for document in DOCUMENTS), metadata={"tags": ["a"], "note": None})
    config = tiny_config.with_overrides(["chunk.tokens=16", "chunk.overlap=4"])
    assert config.chunk == ChunkConfig(tokens=16, overlap=4)
    build_index([long, *DOCUMENTS], tmp_path / "index", config)
    url = serve(tmp_path / "index", "docs") + "/v1"
    (file,) = post(url, filters={"type": "eq", "key": "id", "value": "long"})["data"]
    (hit,) = SearchEngine(tmp_path / "index").search(QUERY, 1, where="id = 'long'")
    assert hit.window is not None
    assert file["content"] == [{"type": "text", "text": hit.window.text}]
    assert len(hit.window.text) < len(long.text)
    assert (file["filename"], file["attributes"]) == ("long", {"tags": '["a"]'})


def test_a_filter_is_of_the_generation_that_answers(tiny_config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    service = SearchService(SearchEngine(tmp_path / "index"), ServerSettings("docs"), lambda _: None)
    asked = StoreSearchRequest.model_validate({"query": "x", "filters": {"type": "eq", "key": "year", "value": 1995}})
    conditions: list[str | None] = []
    search = service.search

    async def after_a_change(queries: Sequence[str], options: SearchOptions) -> SearchReply:
        if not conditions:
            add_documents([Document("new", "Half a year.", metadata={"year": 1995.5})], tmp_path / "index")
            await service.generations.reload()
        conditions.append(options.where)
        return await search(queries, options)

    async def ask() -> SearchReply:
        service.search = after_a_change  # type: ignore[method-assign]
        reply = await vector_stores._found(service, ["x"], asked)
        await service.stop()
        return reply

    reply = asyncio.run(ask())
    assert conditions == ['"year" IN (1995)', '"year" IN (1995.0e0)']  # whole numbers, then floats
    assert (reply.stamp.generation, [hit.id for hit in reply.answers[0]]) == (2, ["d5"])


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"query": []}, 400, "query: is an empty list"),
        ({"query": ["bread", " "]}, 400, "query.1: is blank"),
        ({"query": 7}, 400, "query: is of type int"),
        ({"query": ["bread"] * 300}, 422, "query: 300 texts; expected at most 256"),
        ({"max_num_results": 0}, 422, "max_num_results: "),
        ({"max_num_results": 51}, 422, "max_num_results: "),
        ({"rewrite_query": True}, 400, "rewrite_query: queries are not rewritten here; leave it out."),
        ({"ranking_options": {"ranker": "colbert"}}, 400, 'ranking_options.ranker: expected "none", "auto"'),
        ({"ranking_options": {"hybrid_search": {"embedding_weight": 2}}}, 400, "ranking_options.hybrid_search: "),
        ({"ranking_options": {"hybrid_search": {}, "score_threshold": 0.5}}, 422, "a lowest score and hybrid"),
        ({"filters": {"type": "like", "key": "year", "value": 1}}, 400, "filters: expected objects, each with a"),
        ({"filters": {"type": "and", "filters": []}}, 400, 'filters: "and" takes a list of filters, one at least.'),
        ({"filters": {"type": "or", "filters": None}}, 400, 'filters: "or" takes a list of filters, one at least.'),
        ({"filters": {"type": "eq", "key": "year"}}, 400, 'filters: "eq" takes key and value, and there is no "value"'),
        ({"filters": {"type": "eq", "key": 7, "value": 1}}, 400, "filters.eq.key: Input should be a valid string"),
        ({"filters": {"type": "eq", "key": "year", "value": 1, "k": 1}}, 400, 'takes key and value, and no "k".'),
        ({"filters": "year"}, 400, "filters: expected objects, each with a"),
        ({"query": [7] * 300_000}, 422, "query: 300,000 texts; expected at most 256"),
        ({"filters": {"type": "and", "filters": [1]}}, 400, "filters: expected objects, each with a"),
        ({"filters": {"type": "eq", "key": "year", "value": None}}, 400, "filters.eq.value: is null; expected text"),
        ({"filters": {"type": "eq", "key": "year", "value": [1]}}, 400, 'filters.eq: "eq" takes one value, not a list'),
        ({"filters": {"type": "in", "key": "year", "value": 1}}, 400, 'filters.in: "in" takes a list of values'),
        ({"filters": {"type": "eq", "key": "year", "value": 10**400}}, 400, "filters.eq.value: expected a finite"),
        ({"filters": {"type": "eq", "key": " ", "value": 1}}, 400, "filters.eq.key: is blank"),
        ({"filters": {"type": "eq", "key": "year", "value": "\0"}}, 400, "filters.eq.value: holds a null character"),
        ({"filters": {"type": "eq", "key": "yaer", "value": 1}}, 400, 'an attribute "yaer"; did you mean "year"?'),
        ({"k": 3}, 422, "k: "),
    ],
)
def test_what_cannot_be_asked_is_refused(url: str, fields: dict[str, Any], status: int, message: str) -> None:
    found = post(url, **fields)
    assert found["status"] == status
    assert message in found["error"]["message"]


@pytest.mark.parametrize("fields", [{"rewrite_query": False}, {"filters": None}, {"ranking_options": None}])
def test_what_changes_nothing_is_taken(url: str, fields: dict[str, Any]) -> None:
    assert post(url, **fields) == post(url)


@pytest.mark.parametrize("ranker", ["none", "auto", "default-2024-11-15"])
def test_rankers_of_that_api_mean_the_ranking_of_the_index(url: str, ranker: str) -> None:
    assert post(url, ranking_options={"ranker": ranker}) == post(url)


def test_there_is_one_store(client: OpenAI, engine: SearchEngine) -> None:
    (store,) = client.vector_stores.list(limit=5)
    assert store == client.vector_stores.retrieve("docs")
    assert (store.id, store.name, store.status, store.file_counts.completed) == ("docs", "docs", "completed", 9)
    assert store.metadata == {"generation": "1", "fingerprint": engine.index.manifest.fingerprint}
    assert list(client.vector_stores.list(after="docs")) == []
    for ask in (client.vector_stores.retrieve, lambda name: client.vector_stores.search(name, query=QUERY)):
        with pytest.raises(openai.NotFoundError, match='no vector store "other"; there is "docs"'):
            ask("other")
