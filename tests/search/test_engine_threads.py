"""Many threads of one engine get the answers of a single thread."""

import importlib.util
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from indexer import Document, RunOptions, add_documents, build_index, delete_documents, refit_index
from indexer.recipe.config import BuildConfig, EncoderConfig
from indexer.recipe.index_config import StoreConfig
from indexer.recipe.run_options import Backend
from indexer.store import documents as documents_module
from indexer.store import embeddings as embeddings_module
from indexer.store import open_files
from indexer.system import threads as parallel
from indexer.system.threads import single_blas_thread
from search import SearchEngine, open_index
from search import index as index_module
from search.filters import database
from search.filters import filters as filters_module
from search.ranking import hybrid as hybrid_module
from tests.search.ranking.test_ranker import CORPUS

THREADS = 8
QUERIES = ["text about whales", "bread and maps", "stars", "about 7 and 10"]
BACKENDS = [name for name in get_args(Backend) if name != "auto"]
Call = Callable[[SearchEngine], object]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("threads")


@pytest.fixture(scope="module")
def flat(folder: Path, tiny_model: Callable[[str], Path]) -> Path:
    """Nine small parts, with deleted documents."""
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=32, precision="float32")
    build_index(CORPUS[:50], folder / "flat", BuildConfig(encoder=encoder, store=StoreConfig(part_documents=7)))
    add_documents([*CORPUS[50:], Document("gone", "text about whales")], folder / "flat")
    delete_documents(folder / "flat", ["gone", "d04", "d20"])
    return folder / "flat"


@pytest.fixture(scope="module")
def approximate(folder: Path, tiny_model: Callable[[str], Path]) -> Path:
    """Overlapping windows in inverted lists of short codes; candidates are scored by the stored embeddings."""
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=32, precision="float32")
    config = BuildConfig(encoder=encoder, store=StoreConfig(part_documents=16)).with_overrides(
        ["chunk.tokens=8", "chunk.overlap=2"]
    )
    build_index(CORPUS, folder / "windows", config)
    refit_index(folder / "windows", ["index.type=IVF4,SQ8"], RunOptions(allow_low_recall=True))
    return folder / "windows"


@pytest.fixture(autouse=True)
def races(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Switch threads often, and keep few files and row groups open."""
    monkeypatch.setattr(documents_module, "OPEN_PARTS", 2)
    monkeypatch.setattr(documents_module, "HELD_BYTES", 1)
    monkeypatch.setattr(embeddings_module, "OPEN_PARTS", 2)
    monkeypatch.setattr(open_files, "_MOST", 1)
    monkeypatch.setattr(open_files, "_FEWEST", 1)
    monkeypatch.setattr(database, "_STEP_BYTES", 1)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def calls(raw: np.ndarray[Any, Any]) -> list[Call]:
    """Return calls of every kind; `raw` are the embeddings of `QUERIES`."""
    years = [f"year > {year}" for year in range(1990, 2009, 2)]
    asked: list[Call] = [lambda engine, where=where: engine.search("stars", 5, where=where) for where in years]  # type: ignore[misc]
    asked += [lambda engine, query=query: engine.search(query, 7) for query in QUERIES]  # type: ignore[misc]
    asked += [lambda engine, name=name: engine.neighbours(name, 4, where="year < 2005") for name in ("d01", "d33")]  # type: ignore[misc]
    return [
        *asked,
        lambda engine: engine.search_many(QUERIES, 3),
        lambda engine: engine.search("bread", 6, group_by="colour"),
        lambda engine: engine.search("bread", 6, group_by="year", where="colour = 'red'"),
        lambda engine: engine.search("maps", 6, where="colour = 'blue' OR id LIKE 'd1%'", exact=True),
        lambda engine: engine.search("whales 12", 6, hybrid=True),
        lambda engine: engine.search("whales 12", 6, hybrid=True, where="year > 2000", group_by="colour"),
        lambda engine: engine.search_vectors(raw, 5),
        lambda engine: engine.search_vectors(engine.embed(QUERIES[:2]), 5, where="year <> 1999"),
        lambda engine: engine.embed(QUERIES, "document").tolist(),
        lambda engine: engine.search("whales", 20, min_score=0.0),
        lambda engine: engine.search("whales", 5, fold=0.6, group_by="year"),
        lambda engine: engine.search("whales 12", 5, fold=0.6, hybrid=True),
    ]


def outcome(call: Call, engine: SearchEngine) -> object:
    """Return the result or the error of a call."""
    try:
        return call(engine)
    except Exception as error:  # noqa: BLE001  # compared as a result
        return f"{type(error).__name__}: {error}"


def asked_by_threads(engine: SearchEngine, questions: list[Call], times: int = 1) -> list[list[object]]:
    """Return the answers of each thread in the order of the calls; each thread has its own random order."""
    start = threading.Barrier(THREADS)

    def ask(number: int) -> list[object]:
        order, answers = list(range(len(questions))) * times, list[object]([None] * len(questions))
        random.Random(number).shuffle(order)
        start.wait(60)  # all threads make the first call at once
        for place in order:
            answers[place] = outcome(questions[place], engine)
        return answers

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(ask, range(THREADS)))


@pytest.mark.check
@pytest.mark.parametrize(
    ("backend", "ahead"),
    [(backend, ahead) for backend in BACKENDS for ahead in (False, True)],
)
def test_threads_get_the_answers_of_one(
    backend: Backend, ahead: bool, flat: Path, request: pytest.FixtureRequest
) -> None:
    if backend == "openvino" and importlib.util.find_spec("openvino") is None:
        pytest.skip("needs OpenVINO (pip install 'isotrope[fast]')")
    index = request.getfixturevalue("approximate") if ahead else flat
    options = RunOptions(backend=backend, threads=2)
    alone = SearchEngine(index, options=options)
    questions = calls(alone.encoder.encode(QUERIES, "query"))
    expected = [outcome(question, alone) for question in questions]
    assert not [answer for answer in expected if isinstance(answer, str)]
    shared = SearchEngine(index, options=options, ahead=ahead)
    for answers in asked_by_threads(shared, questions, times=2):
        assert answers == expected


def test_shared_files_are_loaded_once(flat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def counted(module: object, name: str) -> None:
        real = getattr(module, name)

        def load(*given: Any, **named: Any) -> Any:
            loaded.append(name)
            return real(*given, **named)

        monkeypatch.setattr(module, name, load)

    counted(open_index, "open_encoder")
    counted(index_module, "open_segment")
    counted(hybrid_module, "BM25Index")
    counted(filters_module, "MetadataFilter")
    ask: list[Call] = [lambda engine: engine.search("stars", 3, where="year > 2000", hybrid=True)]
    engine = SearchEngine(flat)
    answers = asked_by_threads(engine, ask)
    assert [answer for answer in answers if answer != answers[0] or isinstance(answer[0], str)] == []
    segments = len(engine.index.manifest.segments)
    assert sorted(loaded) == sorted(["open_encoder", "BM25Index", "MetadataFilter", *["open_segment"] * segments])


def test_an_engine_may_be_closed_while_others_search(approximate: Path) -> None:
    alone = SearchEngine(approximate)
    questions = calls(alone.encoder.encode(QUERIES, "query"))[::2]
    expected = [outcome(question, alone) for question in questions]
    shared, done = SearchEngine(approximate), threading.Event()

    def close_again_and_again() -> None:
        while not done.wait(0.001):
            shared.close()

    closing = threading.Thread(target=close_again_and_again)
    closing.start()
    try:
        for answers in asked_by_threads(shared, questions):
            assert answers == expected
    finally:
        done.set()
        closing.join()


def test_a_filter_that_fails_fails_for_those_who_asked_it(flat: Path) -> None:
    engine = SearchEngine(flat)
    questions: list[Call] = [
        lambda engine: engine.search("stars", 3, where="CAST(text AS BIGINT) > 5"),
        lambda engine: engine.search("stars", 3, where="yeer > 5"),
        lambda engine: engine.search("stars", 3, where="year > 2000"),
        lambda engine: engine.search("stars", 3, group_by="color"),
    ]
    expected = [beginning(outcome(question, engine)) for question in questions]
    assert [isinstance(answer, str) for answer in expected] == [True, True, False, True]
    for answers in asked_by_threads(SearchEngine(flat), questions, times=5):
        assert [beginning(answer) for answer in answers] == expected


def beginning(answer: object) -> object:
    """Return a message without its value: DuckDB names the value that a thread finds first."""
    return answer[:70] if isinstance(answer, str) else answer


def test_products_stay_on_one_thread_until_the_last_who_asked_for_that_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from threadpoolctl import ThreadpoolController, threadpool_info

    monkeypatch.setattr(parallel, "_threads", cache(ThreadpoolController))  # one that has seen all that is loaded now

    def threads() -> set[int]:
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with single_blas_thread():
            inside.set()
            leave.wait(60)

    with ThreadpoolController().limit(limits=2, user_api="blas"):
        first = threading.Thread(target=stay)
        first.start()
        inside.wait(60)
        with single_blas_thread():
            leave.set()
            first.join()
            assert threads() == {1}
        assert threads() == {2}
