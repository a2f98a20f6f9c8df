"""A server reranks as the index's recipe says, unless a request sets a lower depth."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from indexer import refit_index
from indexer.errors import ConfigError
from search import SearchClient, SearchEngine
from search.server.generations import prepare
from search.server.mcp.tools import TOOLS
from search.server.service import SearchService
from search.server.settings import ServerLimits, ServerSettings
from tests.search.cli.test_cli import isotrope
from tests.servers import LiveServer, live_server
from tests.tiny_models import make_tiny_cross_encoder

QUERIES = ["how do whales sing", "bread and dough"]


@pytest.fixture(scope="module")
def index(served_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index whose recipe reranks the first six hits."""
    root = tmp_path_factory.mktemp("reranked")
    model = make_tiny_cross_encoder(root / "cross-encoder")
    index = shutil.copytree(served_folder, root / "index")
    refit_index(index, [f"rerank.model={model}", "rerank.depth=6", "rerank.precision=float32"])
    return index


@pytest.fixture(scope="module")
def server(index: Path) -> Any:
    with live_server(index, rerank_depth=8, reranked=20) as live:
        yield live


def posted(server: LiveServer, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    response = server.client.post(path, json=body)
    return response.status_code, response.json()


def hits_of(body: dict[str, Any]) -> list[list[tuple[str, float | None]]]:
    return [[(hit["id"], hit.get("rerank_score")) for hit in one["hits"]] for one in body["results"]]


def expected(index: Path, **asked: Any) -> list[list[tuple[str, Any]]]:
    answers = SearchEngine(index).search_many(QUERIES, **asked)
    return [[(hit.id, hit.rerank_score and pytest.approx(hit.rerank_score, abs=1e-5)) for hit in a] for a in answers]


@pytest.mark.parametrize(
    "asked", [{}, {"k": 3}, {"rerank_depth": 0}, {"rerank_depth": 4, "k": 5}, {"hybrid": True, "k": 4}], ids=str
)
def test_hits_are_those_of_the_engine(server: LiveServer, index: Path, asked: dict[str, Any]) -> None:
    found = hits_of(server.search(query=QUERIES, **asked))
    assert found == expected(index, **asked)
    assert any(score is not None for one in found for _, score in one) == (asked.get("rerank_depth") != 0)


def test_a_request_may_ask_for_so_much_and_no_more(server: LiveServer) -> None:
    status, body = posted(server, "/v1/search", {"query": "whales", "rerank_depth": 9})
    assert (status, body["error"]["param"]) == (422, "rerank_depth")
    assert "expected at most 8" in body["error"]["message"]
    status, body = posted(server, "/v1/search", {"query": ["whales"] * 4})  # of six hits each
    assert (status, body["error"]["param"]) == (422, "query")
    assert "4 texts with 6 reranked hits each; expected 20 in all" in body["error"]["message"]
    assert posted(server, "/v1/search", {"query": ["whales"] * 4, "rerank_depth": 0})[0] == 200
    assert posted(server, "/v1/search", {"query": "whales", "rerank_depth": -1})[0] == 422


def test_a_client_passes_it_on_and_sends_less_where_it_is_too_much(server: LiveServer, index: Path) -> None:
    with SearchClient(server.url) as client:
        answers = client.search_many(QUERIES * 4, k=4)
        engine = SearchEngine(index).search_many(QUERIES * 4, k=4)
        assert [[hit.id for hit in one] for one in answers] == [[hit.id for hit in one] for one in engine]
        assert all(hit.rerank_score is not None for one in answers for hit in one)
        assert all(hit.rerank_score is None for hit in client.search("whales", rerank_depth=0))
        with pytest.raises(ConfigError, match="expected at most 8"):
            client.search("whales", rerank_depth=9)
        with pytest.raises(ConfigError, match="reranking needs the text of a query"):
            client.neighbours("d1", rerank_depth=2)
    shown = isotrope("query", "--url", server.url, "--json", "-k", "3", "--no-rerank", QUERIES[0]).stdout
    assert all("rerank_score" not in hit for hit in json.loads(shown)["hits"])
    refused = isotrope("query", "--url", server.url, "--rerank", "model", QUERIES[0])
    assert "--rerank is for an INDEX" in refused.stderr


def test_what_is_served_says_so_without_a_path(server: LiveServer, index: Path) -> None:
    with SearchClient(server.url) as client:
        info = client.info()
    assert info["recipe"]["rerank"]["model"] == "cross-encoder"
    assert (info["recipe"]["rerank"]["depth"], info["limits"]["rerank_depth"]) == (6, 8)


def test_stores_put_answers_together_by_the_score_they_were_found_by(server: LiveServer, index: Path) -> None:
    status, body = posted(server, "/v1/vector_stores/tests/search", {"query": QUERIES[0], "max_num_results": 4})
    assert status == 200
    plain = SearchEngine(index).search(QUERIES[0], k=4, rerank_depth=0)
    assert [one["file_id"] for one in body["data"]] == [hit.id for hit in plain]


def test_agents_get_reranked_hits_too(index: Path) -> None:
    (tool,) = [tool for tool in TOOLS if tool.name == "search_documents"]
    engine = SearchEngine(index)
    prepare(engine)
    service = SearchService(engine, ServerSettings("index", limits=ServerLimits()), lambda *_: None)

    async def run() -> list[Any]:
        try:
            asked = [{"query": QUERIES[0], "k": 3, **more} for more in ({}, {"rerank_depth": 0})]
            return [json.loads(await tool.answer(service, given, lambda *_: "")) for given in asked]
        finally:
            await service.stop()

    reranked, plain = asyncio.run(run())
    assert [hit["id"] for hit in reranked["hits"]] == [hit.id for hit in SearchEngine(index).search(QUERIES[0], k=3)]
    assert [hit["id"] for hit in plain["hits"]] == [
        hit.id for hit in SearchEngine(index).search(QUERIES[0], k=3, rerank_depth=0)
    ]
