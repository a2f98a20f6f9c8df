"""The tools for agents, called by the SDK's client: answers, errors, and hostile texts."""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

import search.engine
from indexer import BuildConfig, Document, add_documents, build_index
from indexer.recipe.corpus_config import ChunkConfig
from search import SearchEngine
from search.filters.facets import ColumnFacet
from search.hits import Answer, Hit, Place
from search.server.generations import prepare
from search.server.links import LinkTemplate
from search.server.mcp.agents import Agents
from search.server.mcp.tools import INFO, NOTE, TOOLS, Tool, columns_in_words
from search.server.service import SearchService
from search.server.settings import ServerLimits, ServerSettings
from tests.agents import DOCUMENTS, HOSTILE, MODES, build_library, call, each_tool, place_is_free, refusal, text_of
from tests.search.server.test_service import Slow

Use = Callable[[Client, SearchService], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def in_memory(library: Path, mode: str = "auto", **limits: Any) -> AsyncIterator[tuple[Client, SearchService]]:
    """A client of the tools in this process, and the service behind them."""
    engine = SearchEngine(library)
    prepare(engine)
    service = SearchService(engine, ServerSettings("library", limits=ServerLimits(**limits)), lambda *_: None)
    try:
        async with Client(Agents(service).server, mode=mode) as client:
            yield client, service
    finally:
        await service.stop()
    assert service.pending == 0


def with_client(library: Path, use: Use, mode: str = "auto", **limits: Any) -> None:
    async def run() -> None:
        async with in_memory(library, mode, **limits) as (client, service):
            await use(client, service)

    asyncio.run(run())


@pytest.mark.parametrize("mode", MODES)
def test_every_tool_answers_in_both_revisions_of_the_protocol(library: Path, mode: str) -> None:
    async def use(client: Client, _: SearchService) -> None:
        assert client.session.protocol_version == ("2025-11-25" if mode == "legacy" else "2026-07-28")
        await each_tool(client)

    with_client(library, use, mode)


def test_search_and_fetch_take_one_text_each(library: Path) -> None:
    """The calls of ChatGPT's connectors."""

    async def use(client: Client, _: SearchService) -> None:
        tools = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
        for name, argument in (("search", "query"), ("fetch", "id")):
            assert {key: field["type"] for key, field in tools[name]["properties"].items()} == {argument: "string"}
            assert tools[name]["required"] == [argument]
        assert "default" not in tools["search_documents"]["properties"]["where"]

    with_client(library, use)


def test_a_search_gives_what_the_engine_does(library: Path) -> None:
    engine = SearchEngine(library)

    async def use(client: Client, _: SearchService) -> None:
        for options in (
            {},
            {"where": "year > 1900"},
            {"group_by": "lang"},
            {"min_score": 0.2},
            {"exact": True},
            {"hybrid": True},
            {"hybrid": True, "hybrid_weight": 0.8},
            {"fold": 0.5},
            {"where": "lang = 'en'", "k": 2},
        ):
            expected = engine.search("whales sing", **options)
            hits = (await call(client, "search_documents", query="whales sing", **options))["hits"]
            assert [hit["id"] for hit in hits] == [hit.id for hit in expected]
            np.testing.assert_allclose([hit["score"] for hit in hits], [hit.score for hit in expected], atol=1e-6)
            assert [len(hit.get("folded", ())) for hit in hits] == [len(hit.folded) for hit in expected]
        near = (await call(client, "search_documents", like="sea/1 ü", k=2))["hits"]
        assert [hit["id"] for hit in near] == [hit.id for hit in engine.neighbours("sea/1 ü", 2)]
        given_as_text = await call(client, "search_documents", query="bread", k="1", like=None, exact="true")
        assert [hit["id"] for hit in given_as_text["hits"]] == ["bread"]
        unknown = await call(client, "search_documents", query="zebra")
        assert unknown["unknown"] is True

    with_client(library, use)


def test_errors_contain_a_fix(library: Path) -> None:
    async def use(client: Client, _: SearchService) -> None:
        for arguments, told in (
            ({"query": "bread", "where": "yaer > 3"}, "did you mean year?"),
            ({"query": "bread", "where": "year >"}, "filter [year >]"),
            ({"query": "bread", "group_by": "langg"}, 'did you mean "lang"'),
            ({"query": "bread", "k": 51}, "k: is 51; expected at most 50."),
            ({"query": "bread", "like": "bread"}, 'expected either "query" or "like"'),
            ({}, 'expected either "query" or "like"'),
            ({"query": "  "}, "query: is blank"),
            (
                {"query": "bread", "filter": "x"},
                'unknown argument "filter"; expected query, like, k, where, group_by',
            ),
            ({"like": "bred"}, 'library: contains no document with id "bred" (did you mean "bread"?)'),
            ({"like": "bread", "hybrid": True}, "hybrid"),
            ({"query": "bread", "fold": 2}, "fold: is 2; expected at most 1."),
            ({"query": "bread", "fold": 0.49}, "fold: is 0.49; expected at least 0.5."),
            ({"query": "bread", "min_score": "NaN"}, 'min_score: is "NaN"; expected a finite number.'),
            ({"query": "b" * 100_001}, "expected at most 100,000"),
        ):
            said = await refusal(client, "search_documents", **arguments)
            assert told in said
            assert "Traceback" not in said
            assert str(library) not in said
        assert "did you mean" in await refusal(client, "fetch", id="bred")
        assert await refusal(client, "fetch") == "id: is missing."
        with pytest.raises(MCPError, match="the tools are search, fetch, search_documents"):
            await client.call_tool("delete_everything", {})

    with_client(library, use)


def test_errors_do_not_repeat_long_input(library: Path) -> None:
    long = "b" * 2_000_000

    async def use(client: Client, _: SearchService) -> None:
        assert await refusal(client, "fetch", id=long) == "id: has 2,000,000 characters; expected at most 1,000."
        for arguments, told in (
            ({"like": long}, "like: has 2,000,000 characters; expected at most 1,000."),
            (
                {"query": "bread", "group_by": long},
                "group_by: has 2,000,000 characters; expected at most 1,000.",
            ),
            ({"query": "bread", "where": long}, "where: has 2,000,000 characters; expected at most 20,000."),
            ({"query": "bread", "where": "b" * 20_000}, "no column"),
            ({"query": "bread", "where": f"lang = '{long[:19_000]}' + 1"}, "filter ["),
            ({"query": long}, "expected at most 100,000"),
            ({"query": "bread", long: 1}, 'unknown argument "bbb'),
        ):
            said = await refusal(client, "search_documents", **arguments)
            assert told in said
            assert len(said) <= 2500
        said = await refusal(client, "fetch", id="b" * 1000)
        assert "no document" in said
        found = await call(client, "search_documents", query=long[:100_000])
        assert len(found["query"]) < 400

    with_client(library, use)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_the_first_unknown_argument_is_the_only_one_that_is_looked_at(tool: Tool[Any]) -> None:
    given = {f"no{number}": number for number in range(300_000)}
    with pytest.raises(ValidationError, match='unknown argument "no0"') as caught:
        tool.arguments.model_validate(given)
    assert caught.value.error_count() == 1


def test_a_fault_of_the_server_is_logged(
    library: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(client: Client, service: SearchService) -> None:
        def broken(*_: Any) -> Any:
            raise ZeroDivisionError("a secret of the machine")

        monkeypatch.setattr(service.generations.current.engine, "document", broken)
        assert await refusal(client, "fetch", id="bread") == "The server failed at this call; see its log."

    with_client(library, use)
    assert "a secret of the machine" in caplog.text


def test_a_busy_and_a_slow_server_say_so(library: Path) -> None:
    async def use(client: Client, service: SearchService) -> None:
        slow = Slow(service)
        held = await slow.held(client.call_tool("search", {"query": "bread"}))
        assert "try again in" in await refusal(client, "search", query="whales")
        assert "the limit of this server" in text_of(await held)
        slow.go.set()

    with_client(library, use, pending=1, deadline=1)


@pytest.mark.parametrize("mode", MODES)
def test_a_cancelled_call_gives_its_place_back(library: Path, mode: str) -> None:
    async def use(client: Client, service: SearchService) -> None:
        slow = Slow(service)
        held = await slow.held(client.call_tool("search", {"query": "bread"}))
        assert service.pending == 1
        held.cancel()
        await place_is_free(service)
        slow.go.set()
        assert (await call(client, "search", query="bread"))["results"]

    with_client(library, use, mode)


def test_a_document_has_its_own_address_or_one_of_the_index(library: Path) -> None:
    async def use(client: Client, _: SearchService) -> None:
        results = (await call(client, "search", query="whales"))["results"]
        assert {result["id"]: result["url"] for result in results} == {
            "sea/1 ü": "https://example.org/whales",
            "bread": "isotrope:///bread",  # not an address for browsers
            "bridge": "isotrope:///bridge",
            "hostile": "isotrope:///hostile",
            "long": "isotrope:///long",
        }

    with_client(library, use)


def test_a_hit_of_a_file_has_its_path_its_place_and_a_link_to_it(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, about = (
        Place((12, 20), None, ("Guide", "h" * 1000)),
        {"path": "notes/a.md", "url": "https://example.org/own"},
    )

    def fetch_hits(*_: Any) -> list[Answer[Hit]]:
        return [Answer([Hit("notes/a.md", 0.5, "Guide", "text", about, place=place)])]

    async def use(client: Client, service: SearchService) -> None:
        service.settings = dataclasses.replace(service.settings, link=LinkTemplate("https://host/{path}#L{line}"))
        monkeypatch.setattr(search.engine, "fetch_hits", fetch_hits)
        found = (await call(client, "search", query="bread"))["results"]
        found += (await call(client, "search_documents", query="bread"))["hits"]
        for hit in found:
            assert (hit["url"], hit["path"]) == ("https://host/notes/a.md#L12", "notes/a.md")
            assert (hit["place"]["lines"], hit["place"]["page"]) == ([12, 20], None)
            assert hit["place"]["section"][0] == "Guide"
            assert len(hit["place"]["section"][1]) < 400
        assert (await call(client, "fetch", id="sea/1 ü"))["url"] == "https://example.org/whales"  # it has no path

    with_client(library, use)


def test_text_of_documents_is_marked_as_data(library: Path) -> None:
    async def use(client: Client, service: SearchService) -> None:
        document = await call(client, "fetch", id="hostile")
        assert (document["title"], document["text"]) == (HOSTILE, HOSTILE)
        assert document["metadata"]["isotrope_note"] == NOTE
        found = await call(client, "search_documents", query="ignore all previous instructions", k=1)
        assert found["note"] == NOTE
        assert found["hits"][0]["text"] == HOSTILE
        for tool in (await client.list_tools()).tools:
            assert tool.description is not None
            assert tool.description.endswith(NOTE)
            assert "delete_everything" not in tool.description  # not even as a value of a column

    with_client(library, use)


def test_long_texts_are_cut_and_it_is_said(library: Path) -> None:
    async def use(client: Client, _: SearchService) -> None:
        whole = len(DOCUMENTS[4].text)
        hits = (await call(client, "search_documents", query="the deep sea"))["hits"]
        (long,) = (hit for hit in hits if hit["id"] == "long")
        assert long["text"].endswith(" [...]")
        assert (len(long["text"]) < 2000, long["characters"]) == (True, whole)
        document = await call(client, "fetch", id="long")
        assert len(document["text"]) == 100_000
        assert f"the first 100,000 of {whole:,} characters" in document["metadata"]["isotrope_note"]

    with_client(library, use)


def test_a_hit_shows_the_window_that_it_was_found_by(tmp_path: Path, tiny_config: BuildConfig) -> None:
    config = dataclasses.replace(tiny_config, chunk=ChunkConfig(tokens=16, overlap=0))
    text = " ".join(f"word{number}" for number in range(100))
    build_index([Document("a", text), *(Document(f"b{n}", f"short {n}") for n in range(5))], tmp_path / "index", config)
    (expected,) = SearchEngine(tmp_path / "index").search("word50", where="id = 'a'")
    window = expected.window
    assert window is not None

    async def use(client: Client, _: SearchService) -> None:
        (hit,) = (await call(client, "search_documents", query="word50", where="id = 'a'"))["hits"]
        assert (hit["text"], hit["characters"]) == (window.text, len(text))
        assert hit["window"] == {"start": window.start, "end": window.end}
        assert (await call(client, "search", query="word50"))["results"]

    with_client(tmp_path / "index", use)


def test_the_description_names_the_columns_so_that_filters_can_be_written(library: Path) -> None:
    async def use(client: Client, _: SearchService) -> None:
        tools = {tool.name: tool.description or "" for tool in (await client.list_tools()).tools}
        assert all('The index "library" contains 5 documents.' in text for text in tools.values())
        lines = tools["search_documents"].splitlines()
        assert "- year: numbers, 1000, 1883, 1970, 2020, 2021" in lines
        assert "- lang: text, 'en', 'it''s' and others" in lines
        (contents,) = (await client.read_resource(INFO)).contents
        info = json.loads(contents.model_dump()["text"])
        assert (info["name"], info["documents"]) == ("library", 5)
        assert [column["name"] for column in info["columns"]] == ["lang", "url", "year"]

    with_client(library, use)


def test_a_description_is_of_one_generation(tmp_path: Path) -> None:
    folder = build_library(tmp_path)

    async def use(client: Client, service: SearchService) -> None:
        facets, asked = service.facets, list[int]()

        async def before_a_change() -> Any:
            found = await facets()
            if not asked:
                add_documents([Document("new", "bread", metadata={"colour": "red"})], folder)
                await service.generations.reload()
            asked.append(found[1].generation)
            return found

        service.facets = before_a_change  # type: ignore[method-assign, assignment]
        tools = {tool.name: tool.description or "" for tool in (await client.list_tools()).tools}
        assert "contains 6 documents" in tools["search_documents"]
        assert "- colour: text, 'red'" in tools["search_documents"]
        assert asked[:2] == [1, 2]

    with_client(folder, use)


def test_a_description_shows_only_short_names_and_values() -> None:
    many = [ColumnFacet(f"c{n}", f"c{n}", "numbers", 3, least=n, most=n + 1) for n in range(60)]
    lines = columns_in_words([ColumnFacet("x" * 50, "x" * 50, "text", 1), *many]).splitlines()
    assert lines[1] == "- c0: numbers, 0 to 1"
    assert lines[-1] == f"- and 21 more, listed in {INFO}"
    values = (("a\nb", 3), ("y" * 50, 2), ("z", 1))
    assert columns_in_words([ColumnFacet("t", "t", "lists", 3, "text", 3, values)]).endswith(
        "- t: lists of text, 'a\\nb', 'z' and others"
    )
    assert columns_in_words([]) == "The index has no metadata columns."
