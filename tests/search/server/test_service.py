"""Many callers of one open index: limits, deadlines, batches, and answers of a single generation."""

import asyncio
import contextlib
import gc
import shutil
import threading
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import replace
from logging import getLevelName
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from indexer import BuildConfig, Document, add_documents, build_index, compact_index, delete_documents
from indexer.errors import ConfigError, MachineError, StoreError, UnknownDocumentError, written_for
from indexer.recipe.config import Role
from indexer.store import layout
from search import SearchEngine
from search.filters.filters import MetadataFilter
from search.ranking.options import SearchOptions
from search.server import service as service_module
from search.server.generations import Generations, prepare
from search.server.service import BusyError, DeadlineError, SearchReply, SearchService
from search.server.settings import ServerLimits, ServerSettings
from tests.documents import DOCUMENTS
from tests.waiting import PATIENCE, until

QUERIES = ["how do whales sing", "bread", "what are bridges made of", "a map of the stars"]
FIVE = SearchOptions(5)


def with_service(
    index: Path, use: Callable[[SearchService], Coroutine[Any, Any, Any]], watched: bool = False, **limits: Any
) -> list[str]:
    """Run `use` with a service of this index, and return its messages on generations."""
    said = list[str]()
    engine = SearchEngine(index)
    prepare(engine)

    async def run() -> None:
        settings = ServerSettings("tests", limits=ServerLimits(**limits))
        with written_for("shell"):  # as `isotrope serve` does before it answers
            service = SearchService(engine, settings, lambda line, level: said.append(f"{getLevelName(level)} {line}"))
        if watched:
            await service.start()
        try:
            await use(service)
        finally:
            await service.stop()
        assert service.pending == 0

    asyncio.run(run())
    return said


def ids(reply: SearchReply) -> list[list[str]]:
    return [[hit.id for hit in answer] for answer in reply.answers]


class Slow:
    """The encoder of a service, blocked until released, except while a new generation is tested."""

    def __init__(self, service: SearchService) -> None:
        self.encoder = service.generations.current.engine.encoder
        self.begun, self.go, self.batches = threading.Semaphore(0), threading.Event(), list[int]()
        service.generations.current.engine._open._encoder = self  # type: ignore[assignment]

    def encode(self, texts: list[str], role: Any, log: Any = None) -> Any:
        if not threading.current_thread().name.startswith("encode"):
            return self.encoder.encode(texts, role, log)
        self.batches.append(len(texts))
        self.begun.release()
        assert self.go.wait(PATIENCE)
        return self.encoder.encode(texts, role, log)

    async def held(self, task: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        started = asyncio.create_task(task)
        await asyncio.to_thread(self.begun.acquire)
        return started


def test_answers_are_those_of_the_engine(served_folder: Path) -> None:
    engine = SearchEngine(served_folder)
    asked = [FIVE, SearchOptions(3, where="year > 1992"), SearchOptions(2, hybrid=True), SearchOptions(4, exact=True)]

    async def use(service: SearchService) -> None:
        replies = await asyncio.gather(*(service.search([query], one) for one in asked for query in QUERIES))
        alone = [engine.search(query, one) for one in asked for query in QUERIES]
        for reply, expected in zip(replies, alone, strict=True):
            assert [hit.id for hit in reply.answers[0]] == [hit.id for hit in expected]
            np.testing.assert_allclose(
                [hit.score for hit in reply.answers[0]], [hit.score for hit in expected], atol=1e-5
            )
        together = await service.search(QUERIES, FIVE)
        assert ids(together) == [[hit.id for hit in answer] for answer in engine.search_many(QUERIES, FIVE)]
        assert len(together.lengths) == len(QUERIES)
        assert (await service.search([], FIVE)).answers == []
        assert (await service.neighbours("d3", FIVE)).answers == [engine.neighbours("d3", FIVE)]
        assert (await service.document("d3"))[0] == DOCUMENTS[3]
        for role in get_args(Role):
            given = await service.embed(QUERIES * 20, role)
            np.testing.assert_allclose(given.vectors, engine.embed(QUERIES * 20, role), atol=1e-5)
        assert (await service.embed([], "query")).vectors.shape == (0, engine.index.transform.dim)

    with_service(served_folder, use)


def test_mistakes_are_raised_where_they_were_made(served_folder: Path) -> None:
    async def use(service: SearchService) -> None:
        wrong = service.search(["whales"], SearchOptions(where="yaer > 3"))
        right = service.search(["whales"], FIVE)
        fault, reply = await asyncio.gather(wrong, right, return_exceptions=True)
        assert isinstance(fault, ConfigError)
        assert isinstance(reply, SearchReply)
        for asked in (service.neighbours("no such", FIVE), service.document("no such")):
            with pytest.raises(UnknownDocumentError):
                await asked

    with_service(served_folder, use)


def test_requests_that_wait_are_encoded_together(served_folder: Path) -> None:
    async def use(service: SearchService) -> None:
        slow = Slow(service)
        first = await slow.held(service.search(["whales"], FIVE))
        others = [asyncio.create_task(service.search([query], FIVE)) for query in QUERIES]
        await asyncio.sleep(0.01)
        slow.go.set()
        await asyncio.gather(first, *others)
        assert slow.batches == [1, 4]

    with_service(served_folder, use)


def test_a_large_request_lets_small_ones_in_between(served_folder: Path) -> None:
    async def use(service: SearchService) -> None:
        slow = Slow(service)
        large = await slow.held(service.embed(["text"] * (3 * service_module.PIECE), "document"))
        small = asyncio.create_task(service.search(["whales"], FIVE))
        await asyncio.sleep(0.01)
        slow.go.set()
        await asyncio.gather(large, small)
        assert slow.batches == [16, 1, 16, 16]

    with_service(served_folder, use)


def test_requests_beyond_the_limit_are_refused_and_a_client_that_leaves_frees_a_place(served_folder: Path) -> None:
    async def use(service: SearchService) -> None:
        slow = Slow(service)
        tasks = [await slow.held(service.search(["whales"], FIVE))]
        tasks.append(asyncio.create_task(service.search(["bread"], FIVE)))
        await asyncio.sleep(0)
        with pytest.raises(BusyError) as caught:
            await service.search(["stars"], FIVE)
        assert 1 <= caught.value.retry_after <= 60
        assert service.pending == 2
        tasks[1].cancel()
        await asyncio.sleep(0.01)
        assert (service.pending, len(service.encoding)) == (1, 0)
        tasks[1] = asyncio.create_task(service.search(["stars"], FIVE))
        await asyncio.sleep(0)
        slow.go.set()
        await asyncio.gather(*tasks)
        assert slow.batches == [1, 1]

    with_service(served_folder, use, pending=2)


def test_a_request_has_a_deadline(served_folder: Path) -> None:
    async def use(service: SearchService) -> None:
        slow = Slow(service)
        with pytest.raises(DeadlineError, match=r"0\.05 s"):
            await service.search(["whales"], FIVE)
        assert service.pending == 0
        slow.go.set()
        service.settings = replace(service.settings, limits=replace(service.settings.limits, deadline=PATIENCE))
        assert (await service.search(["bread"], FIVE)).answers

    with_service(served_folder, use, deadline=0.05)


def test_no_answer_mixes_generations_and_none_fails_while_they_change(served_folder: Path, tmp_path: Path) -> None:
    """While documents change and old generations are removed, each answer is of its stamp's generation."""
    index = shutil.copytree(served_folder, tmp_path / "index")
    options = [FIVE, SearchOptions(5, hybrid=True), SearchOptions(5, where="year > 1990")]
    expected = dict[int, list[list[list[str]]]]()

    def note() -> None:
        engine = SearchEngine(index)
        answers = [[[hit.id for hit in found] for found in engine.search_many(QUERIES, one)] for one in options]
        expected[engine.index.manifest.generation] = answers

    def change(done: threading.Event) -> None:
        for number in range(4):
            add_documents([Document(f"new{number}", f"{QUERIES[number]} number {number}")], index)
            note()
            delete_documents(index, [f"d{number}"])
            note()
            compact_index(index, keep=1, grace=0)
            note()
        done.set()

    async def use(service: SearchService) -> None:
        done, seen = threading.Event(), set[int]()
        changing = asyncio.create_task(asyncio.to_thread(change, done))
        while not done.is_set():
            replies = await asyncio.gather(*(service.search(QUERIES, one) for one in options))
            for reply, answers in zip(replies, range(len(options)), strict=True):
                found.append((reply.stamp.generation, answers, ids(reply)))
            seen |= {reply.stamp.generation for reply in replies}
            await asyncio.sleep(0.005)
        await changing
        assert len(seen) > 3
        assert service.generations.current.leases.users == 0

    note()
    found = list[tuple[int, int, list[list[str]]]]()
    generations_watched = pytest.MonkeyPatch()
    generations_watched.setattr(service_module, "_CHECK_SECONDS", 0.01)
    try:
        said = with_service(index, use, watched=True)
    finally:
        generations_watched.undo()
    assert said
    for generation, place, answer in found:
        assert answer == expected[generation][place]


def test_an_old_generation_is_let_go_with_its_last_question(served_folder: Path, tmp_path: Path) -> None:
    index = shutil.copytree(served_folder, tmp_path / "index")

    async def use(service: SearchService) -> None:
        slow = Slow(service)
        question = await slow.held(service.search(["whales"], FIVE))
        old = weakref.ref(service.generations.current)
        add_documents([Document("new", "how do whales sing")], index)
        assert await service.generations.reload()
        assert not await service.generations.reload()
        assert (await asyncio.to_thread(old().engine.search_vectors, np.ones((1, 32)), 1))[0]  # type: ignore[union-attr]
        slow.go.set()
        reply = await question
        assert reply.stamp.generation == 1
        assert "new" not in ids(reply)[0]
        assert (await service.search(["how do whales sing"], FIVE)).answers[0][0].id == "new"
        del question, reply
        await asyncio.sleep(0.05)
        gc.collect()
        assert old() is None

    assert with_service(index, use) == ["INFO generation 2 replaces 1"]


def test_a_replaced_generation_is_closed_with_its_last_lease_and_at_once_without_one(
    served_folder: Path, tmp_path: Path
) -> None:
    index = shutil.copytree(served_folder, tmp_path / "index")
    closed = list[int]()

    def watched(generations: Generations) -> None:
        """Record when the current generation is closed."""
        number, engine = generations.current.stamp.generation, generations.current.engine
        close = engine.close

        def recorded() -> None:
            closed.append(number)
            close()

        engine.close = recorded  # type: ignore[method-assign]

    async def use() -> None:
        generations = Generations(SearchEngine(index), lambda *_: None)
        watched(generations)
        with generations.lease():
            with generations.lease():
                delete_documents(index, ["d0"])
                assert await generations.reload()
            assert closed == []
            with generations.lease() as newest:
                assert newest.stamp.generation == 2
            assert closed == []
        assert closed == [1]
        watched(generations)
        delete_documents(index, ["d1"])
        assert await generations.reload()
        assert closed == [1, 2]

    asyncio.run(use())


def test_a_generation_that_cannot_be_opened_leaves_the_one_before(
    served_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "_CHECK_SECONDS", 0.01)
    index = shutil.copytree(served_folder, tmp_path / "index")

    async def use(service: SearchService) -> None:
        broken = index / layout.MANIFESTS / Path(layout.manifest_name(2)).name
        broken.write_text("{}")
        await until(lambda: service.generations.failure is not None)
        await asyncio.sleep(0.1)
        assert (await service.search(["whales"], FIVE)).stamp.generation == 1
        with pytest.raises(StoreError):
            await service.generations.reload()
        broken.unlink()
        add_documents([Document("new", "how do whales sing")], index)
        await until(lambda: service.generations.current.stamp.generation == 2)
        assert service.generations.failure is None

    said = with_service(index, use, watched=True)
    assert said[0].startswith("WARNING the next generation cannot be loaded: ")
    assert "build again with --overwrite" in said[0]
    assert said[1:] == ["INFO the newest generation can be loaded again", "INFO generation 2 replaces 1"]


def test_what_was_used_is_loaded_before_a_generation_is_served(
    served_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = shutil.copytree(served_folder, tmp_path / "index")
    prepared = list[int]()
    real = SearchEngine.prepare_hybrid

    def prepare_and_note(engine: SearchEngine, progress: Any) -> None:
        prepared.append(engine.index.manifest.generation)
        real(engine, progress)

    monkeypatch.setattr(SearchEngine, "prepare_hybrid", prepare_and_note)

    async def use(service: SearchService) -> None:
        encoder = service.generations.current.engine.encoder
        wrong = SearchOptions(hybrid=True, where="yaer > 3")
        for number, options in enumerate([FIVE, wrong, SearchOptions(hybrid=True)]):
            with contextlib.suppress(ConfigError):
                await service.search(["whales"], options)
            add_documents([Document(f"new{number}", "whales")], index)
            await service.generations.reload()
        assert service.generations.current.engine.encoder is encoder

    with_service(index, use)
    assert prepared == [2, 3, 4]  # by two queries, and before the last is loaded


def test_bm25_that_cannot_be_made_keeps_no_generation_away(
    served_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = shutil.copytree(served_folder, tmp_path / "index")

    def fail(*_: Any) -> None:
        raise MachineError("bm25s is not installed")

    async def use(service: SearchService) -> None:
        await service.search(["whales"], SearchOptions(hybrid=True))
        monkeypatch.setattr(SearchEngine, "prepare_hybrid", fail)
        add_documents([Document("new", "whales")], index)
        assert await service.generations.reload()

    assert with_service(index, use) == [
        "WARNING BM25 of the next generation was not built: bm25s is not installed",
        "INFO generation 2 replaces 1",
    ]


def test_another_index_in_its_place_is_taken_up(
    served_folder: Path, tmp_path: Path, tiny_config: BuildConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with the same generation number, as after swapping indexes, and for a changed link."""
    monkeypatch.setattr(service_module, "_CHECK_SECONDS", 0.01)
    index = shutil.copytree(served_folder, tmp_path / "index")
    build_index([Document("other", "how do whales sing")], tmp_path / "other", tiny_config)

    async def use(service: SearchService) -> None:
        assert len((await service.search(["whales"], FIVE)).answers[0]) == 5
        index.rename(tmp_path / "old")
        (tmp_path / "other").rename(index)
        await until(lambda: service.generations.reloads == 1)
        assert ids(await service.search(["whales"], FIVE)) == [["other"]]
        assert (await service.info())["documents"] == 1

    with_service(index, use, watched=True)


def test_a_generation_is_loaded_once_however_many_ask_for_it(
    served_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = shutil.copytree(served_folder, tmp_path / "index")
    opened, real = list[bool](), SearchEngine.newest
    go = threading.Event()

    def slowly(engine: SearchEngine) -> SearchEngine:
        opened.append(True)
        assert go.wait(PATIENCE)
        return real(engine)

    monkeypatch.setattr(SearchEngine, "newest", slowly)

    async def use(service: SearchService) -> None:
        add_documents([Document("new", "whales")], index)
        asked = [asyncio.create_task(service.generations.reload()) for _ in range(5)]
        await asyncio.sleep(0.05)
        asked[0].cancel()
        go.set()
        assert await asyncio.gather(*asked[1:]) == [True] * 4
        assert service.generations.current.stamp.generation == 2

    with_service(index, use)
    assert opened == [True]


def test_unreadable_files_are_reported_until_they_are_readable(
    served_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "_CHECK_SECONDS", 0.01)
    index = shutil.copytree(served_folder, tmp_path / "index")

    async def use(service: SearchService) -> None:
        service.generations.current.engine.close()
        (index / "parts").rename(tmp_path / "parts")
        with pytest.raises(StoreError):
            await service.document("d3")
        assert service.generations.unreadable
        await asyncio.sleep(0.1)
        (tmp_path / "parts").rename(index / "parts")
        await until(lambda: not service.generations.unreadable)
        assert (await service.document("d3"))[0].id == "d3"

    with_service(index, use, watched=True)


def test_slow_questions_do_not_hold_up_light_ones(served_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    real = SearchEngine.rank

    def slow_filters(engine: SearchEngine, embeddings: Any, options: Any, *of_texts: Any) -> Any:
        assert options.where is None or go.wait(PATIENCE)
        return real(engine, embeddings, options, *of_texts)

    monkeypatch.setattr(SearchEngine, "rank", slow_filters)

    async def use(service: SearchService) -> None:
        slow = [
            asyncio.create_task(service.search(["whales"], SearchOptions(5, where=f"year > {1990 + n}")))
            for n in range(4)
        ]
        await asyncio.sleep(0.05)
        for _ in range(3):
            assert (await service.search(["whales"], FIVE)).answers[0]
        assert not any(task.done() for task in slow)
        go.set()
        await asyncio.gather(*slow)

    with_service(served_folder, use)


@pytest.mark.parametrize("like", [False, True])
def test_a_filter_that_cannot_be_used_is_worked_out_once_for_all_who_ask(
    like: bool, served_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked_out, go = list[str](), threading.Event()
    real = MetadataFilter.documents

    def count(filters: MetadataFilter, where: str) -> Any:
        worked_out.append(where)
        assert go.wait(PATIENCE)
        return real(filters, where)

    monkeypatch.setattr(MetadataFilter, "documents", count)

    async def use(service: SearchService) -> None:
        def ask(where: str) -> Coroutine[Any, Any, SearchReply]:
            options = SearchOptions(5, where=where)
            return service.neighbours("d3", options) if like else service.search(["whales"], options)

        tasks = [asyncio.create_task(ask("year > 3"))]  # the thread for such queries is busy
        await until(lambda: len(worked_out) == 1)
        tasks += [asyncio.create_task(ask("yaer > 3")) for _ in range(50)]
        await until(lambda: len(service.ranking) == 50)
        go.set()
        first, *others = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(first, SearchReply)
        assert {type(one) for one in others} == {ConfigError}
        assert worked_out == ["year > 3", "yaer > 3", "yaer > 3"]

    with_service(served_folder, use)


def test_an_index_that_is_gone_says_so(served_folder: Path, tmp_path: Path) -> None:
    index = shutil.copytree(served_folder, tmp_path / "index")

    async def use(service: SearchService) -> None:
        service.generations.current.engine.close()
        shutil.rmtree(index)
        with pytest.raises(StoreError):
            await service.document("d3")
        assert service.generations.current.leases.users == 0

    with_service(index, use)
