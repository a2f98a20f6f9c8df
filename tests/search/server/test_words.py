"""BM25 of a served index is built in the background, and slow queries delay no others."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from indexer import BuildConfig, Document, build_index
from search import SearchEngine
from search.ranking.hybrid import HybridRanking
from search.ranking.options import SearchOptions
from search.server import service as service_module
from search.server.generations import OpenGeneration
from search.server.service import SearchService
from tests.documents import DOCUMENTS
from tests.search.server.test_service import FIVE, QUERIES, with_service
from tests.waiting import PATIENCE


def test_hybrid_questions_wait_for_bm25_and_hold_up_nobody(
    served_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, real = threading.Event(), threading.Event(), SearchEngine.prepare_hybrid

    def slowly(engine: SearchEngine, progress: Any) -> None:
        begun.set()
        assert go.wait(PATIENCE)
        real(engine, progress)

    monkeypatch.setattr(SearchEngine, "prepare_hybrid", slowly)

    async def use(service: SearchService) -> None:
        await asyncio.to_thread(begun.wait, PATIENCE)  # without a query
        hybrid = [asyncio.create_task(service.search(["whales"], SearchOptions(k, hybrid=True))) for k in (1, 2, 3)]
        for options in (FIVE, SearchOptions(5, where="year > 1990"), SearchOptions(5, exact=True)):
            assert (await service.search(["whales"], options)).answers[0]
        assert not any(task.done() for task in hybrid)
        go.set()
        assert [len(reply.answers[0]) for reply in await asyncio.gather(*hybrid)] == [1, 2, 3]

    with_service(served_folder, use, watched=True)


def test_a_server_that_stops_does_not_wait_for_bm25(served_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def without_end(_: SearchEngine, progress: Any) -> None:
        try:
            while True:
                progress.advance(1)
                time.sleep(0.001)
        finally:
            ended.set()

    monkeypatch.setattr(SearchEngine, "prepare_hybrid", without_end)

    async def use(service: SearchService) -> None:
        assert (await service.search(["whales"], FIVE)).answers[0]

    assert with_service(served_folder, use, watched=True) == []
    assert ended.wait(PATIENCE)


def test_a_server_that_stops_waits_for_no_step_of_bm25(served_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    def without_progress(*_: Any) -> None:
        begun.set()
        assert go.wait(PATIENCE)
        ended.set()

    monkeypatch.setattr(SearchEngine, "prepare_hybrid", without_progress)

    async def use(_: SearchService) -> None:
        await asyncio.to_thread(begun.wait, PATIENCE)

    assert with_service(served_folder, use, watched=True) == []
    assert not ended.is_set()
    go.set()
    assert ended.wait(PATIENCE)


def test_info_is_returned_while_filtered_values_are_counted(
    served_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, real = threading.Event(), SearchEngine.facets

    def slowly(*given: Any) -> Any:
        assert go.wait(PATIENCE)
        return real(*given)

    monkeypatch.setattr(SearchEngine, "facets", slowly)

    async def use(service: SearchService) -> None:
        counted = asyncio.create_task(service.facets("year > 1990"))
        await asyncio.sleep(0)
        assert (await service.info())["documents"] == len(DOCUMENTS)
        assert not counted.done()
        go.set()
        assert (await counted)[0]

    with_service(served_folder, use)


def test_abandoned_work_ends_between_two_steps(served_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, fused = threading.Event(), threading.Event(), list[int]()
    real = HybridRanking.fused

    def slowly(*given: Any) -> Any:
        fused.append(1)
        begun.set()
        assert go.wait(PATIENCE)
        return real(*given)

    monkeypatch.setattr(HybridRanking, "fused", slowly)

    async def use(service: SearchService) -> None:
        abandoned = asyncio.create_task(service.search(QUERIES, SearchOptions(5, hybrid=True, fold=0.6)))
        await asyncio.to_thread(begun.wait, PATIENCE)
        abandoned.cancel()
        with pytest.raises(asyncio.CancelledError):
            await abandoned
        go.set()
        assert (await service.search(["whales"], SearchOptions(5, where="year > 1990"))).answers[0]
        assert fused == [1]  # of four

    with_service(served_folder, use)


def test_only_what_takes_little_counts_as_light(served_folder: Path, tiny_config: BuildConfig, tmp_path: Path) -> None:
    """The neighbours of a book are searched by thousands of windows."""
    chunked = tiny_config.with_overrides(["chunk.tokens=8", "chunk.overlap=0"])
    build_index([Document("book", "whales sing in the deep sea " * 20), *DOCUMENTS], tmp_path / "index", chunked)
    for index, is_light in ((served_folder, True), (tmp_path / "index", False)):
        generation = OpenGeneration(SearchEngine(index))
        assert service_module._is_light(service_module._RankKey(generation, FIVE))
        assert service_module._is_light(service_module._RankKey(generation, FIVE, like=True)) == is_light
