"""The index as a vector store of OpenAI's API: the hits of /v1/search, and errors."""

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ValidationError

from indexer import BuildConfig, Document, add_documents, build_index, refit_index
from indexer.recipe.corpus_config import ChunkConfig
from search import SearchEngine
from search.ranking.options import SearchOptions
from search.server.byte_limit import RoomShare
from search.server.openai import vector_stores
from search.server.openai.embeddings import EmbeddingRequest
from search.server.openai.vector_stores import HybridSearch, RankingOptions, StoreSearchRequest
from search.server.service import SearchReply, SearchService
from search.server.settings import ServerSettings
from tests.documents import DOCUMENTS
from tests.search.server.conftest import Serve
from tests.waiting import PATIENCE

QUERY = "how do whales sing"


@pytest.mark.parametrize("model", [StoreSearchRequest, RankingOptions, HybridSearch, EmbeddingRequest])
def test_many_unknown_fields_are_one_error(model: type[BaseModel]) -> None:
    with pytest.raises(ValidationError, match="no0: unknown field") as caught:
        model.model_validate({f"no{number}": 1 for number in range(300_000)})
    assert caught.value.error_count() == 1


# --- the route, called by the real client


@pytest.fixture(scope="module")
def folder(served_folder: Path) -> Path:
    return served_folder


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
    """Return the answer to any body, including those that the real client would not send."""
    answer = httpx2.post(f"{url}/vector_stores/docs/search", json={"query": QUERY} | fields, timeout=PATIENCE)
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
    found = post(url, query="whales", ranking_options={"hybrid_search": {}, "score_threshold": 0})
    assert [(one["file_id"], one["score"]) for one in found["data"]] == expected
    for options, weight in (
        ({"embedding_weight": 0.5, "text_weight": 0.5}, 0.5),
        ({"embedding_weight": 3}, 0.75),
        ({"embedding_weight": 0}, 0.0),
        ({"embedding_weight": 1e308, "text_weight": 1e308}, 0.5),
        ({"embedding_weight": 1.5e308, "text_weight": 5e307}, 0.75),
        ({"embedding_weight": 5e-324, "text_weight": 5e-324}, 0.5),
    ):
        found = post(url, query="whales", ranking_options={"hybrid_search": options})
        expected = [(hit.id, hit.score) for hit in engine.search("whales", 10, hybrid=True, hybrid_weight=weight)]
        assert [(one["file_id"], one["score"]) for one in found["data"]] == expected
    vectors = {"embedding_weight": 1, "text_weight": 0}
    near = post(url, query="whales", ranking_options={"hybrid_search": vectors})
    assert [one["file_id"] for one in near["data"]] == [hit.id for hit in engine.search("whales", 10)]


def test_equal_weights_are_those_of_reciprocal_ranks(serve: Serve, served_folder: Path, tmp_path: Path) -> None:
    index = shutil.copytree(served_folder, tmp_path / "index")
    refit_index(index, ["hybrid.fusion=rrf"])
    url = serve(index, "docs") + "/v1"
    expected = [(hit.id, hit.score) for hit in SearchEngine(index).search(QUERY, 10, hybrid=True)]
    for options in ({}, {"embedding_weight": 1}, {"embedding_weight": 0.5, "text_weight": 0.5}):
        found = post(url, query=QUERY, ranking_options={"hybrid_search": options})
        assert [(one["file_id"], one["score"]) for one in found["data"]] == expected
    refused = post(url, query=QUERY, ranking_options={"hybrid_search": {"embedding_weight": 2}})
    assert refused["status"] == 422
    assert 'the recipe fuses by "rrf", which has no weight' in refused["error"]["message"]


def test_an_answer_says_its_queries_its_index_and_what_was_cut(url: str, engine: SearchEngine) -> None:
    body = post(url, query=["bread", " ".join(["whales"] * 100)])
    assert body["search_query"] == ["bread", " ".join(["whales"] * 100)]
    assert (body["has_more"], body["next_page"]) == (False, None)
    assert body["index"] == {"generation": 1, "fingerprint": engine.index.manifest.fingerprint}
    assert [(one["index"], one["limit"]) for one in body["truncated"]] == [(1, 32)]


def test_windows_are_the_content_of_chunked_documents(serve: Serve, tiny_config: BuildConfig, tmp_path: Path) -> None:
    long = Document("long", " ".join(document.text for document in DOCUMENTS), metadata={"tags": ["a"], "note": None})
    config = tiny_config.with_overrides(["chunk.tokens=16", "chunk.overlap=4"])
    assert config.chunk == ChunkConfig(tokens=16, overlap=4).resolved("rows")
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
    service = SearchService(SearchEngine(tmp_path / "index"), ServerSettings("docs"), lambda *_: None)
    asked = StoreSearchRequest.model_validate({"query": "x", "filters": {"type": "eq", "key": "year", "value": 1995}})
    conditions: list[str | None] = []
    search = service.search

    async def after_a_change(
        queries: Sequence[str], options: SearchOptions, share: RoomShare | None = None
    ) -> SearchReply:
        if not conditions:
            add_documents([Document("new", "Half a year.", metadata={"year": 1995.5})], tmp_path / "index")
            await service.generations.reload()
        conditions.append(options.condition)
        return await search(queries, options, share)

    async def ask() -> SearchReply:
        service.search = after_a_change  # type: ignore[method-assign]
        with service.room.share() as share:
            reply = await vector_stores._search(service, ["x"], asked, share)
        await service.stop()
        return reply

    reply = asyncio.run(ask())
    assert conditions == ['"year" IN (1995)', '"year" IN (1995.0e0)']  # integers, then floats
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
        ({"rewrite_query": True}, 400, "rewrite_query: queries are never rewritten; leave it out."),
        ({"ranking_options": {"ranker": "colbert"}}, 400, 'ranking_options.ranker: expected "none", "auto"'),
        (
            {"ranking_options": {"hybrid_search": {"embedding_weight": 0, "text_weight": 0}}},
            400,
            "ranking_options.hybrid_search: embedding_weight and text_weight are both 0",
        ),
        (
            {"ranking_options": {"hybrid_search": {}, "score_threshold": 0.5}},
            422,
            "min_score cannot be combined with hybrid",
        ),
        ({"filters": {"type": "like", "key": "year", "value": 1}}, 400, "filters: expected objects, each with a"),
        ({"filters": {"type": "and", "filters": []}}, 400, 'filters: "and" needs a list of at least one filter.'),
        ({"filters": {"type": "or", "filters": None}}, 400, 'filters: "or" needs a list of at least one filter.'),
        ({"filters": {"type": "eq", "key": "year"}}, 400, 'filters: "eq" needs key and value, but "value" is missing'),
        ({"filters": {"type": "eq", "key": 7, "value": 1}}, 400, "filters.eq.key: is 7; expected text."),
        ({"filters": {"type": "eq", "key": "year", "value": 1, "k": 1}}, 400, 'needs key and value; "k" is unknown.'),
        ({"filters": "year"}, 400, "filters: expected objects, each with a"),
        ({"query": [7] * 300_000}, 422, "query: 300,000 texts; expected at most 256"),
        ({"filters": {"type": "and", "filters": [1]}}, 400, "filters: expected objects, each with a"),
        ({"filters": {"type": "eq", "key": "year", "value": None}}, 400, "filters.eq.value: is null; expected text"),
        ({"filters": {"type": "eq", "key": "year", "value": [1]}}, 400, 'filters.eq: "eq" needs one value, not a list'),
        ({"filters": {"type": "in", "key": "year", "value": 1}}, 400, 'filters.in: "in" needs a list of values'),
        ({"filters": {"type": "eq", "key": "year", "value": 10**400}}, 400, "filters.eq.value: expected a finite"),
        ({"filters": {"type": "eq", "key": " ", "value": 1}}, 400, "filters.eq.key: is blank"),
        ({"filters": {"type": "eq", "key": "year", "value": "\0"}}, 400, "filters.eq.value: contains a null character"),
        ({"filters": {"type": "eq", "key": "yaer", "value": 1}}, 400, 'an attribute "yaer"; did you mean "year"?'),
        ({"k": 3}, 422, "k: "),
    ],
)
def test_invalid_requests_are_refused(url: str, fields: dict[str, Any], status: int, message: str) -> None:
    found = post(url, **fields)
    assert found["status"] == status
    assert message in found["error"]["message"]


@pytest.mark.parametrize("fields", [{"rewrite_query": False}, {"filters": None}, {"ranking_options": None}])
def test_fields_without_effect_are_accepted(url: str, fields: dict[str, Any]) -> None:
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
        with pytest.raises(openai.NotFoundError, match='unknown vector store "other"; expected "docs"'):
            ask("other")
