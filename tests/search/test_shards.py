"""Segments in other processes: same answers as one process; a lost one raises an error or marks partial answers."""

import dataclasses
import json
import os
import pickle
import socket
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from indexer import Document, build_index, delete_documents
from indexer.errors import ConfigError, CorruptIndexError, MachineError, ShardLostError, StoreError
from indexer.executors import ray_actors
from indexer.executors.ray_actors import connect
from search import SearchEngine, ShardOptions, shards
from search.hits import Answer
from search.segments import Finish
from search.shards import HostedSegment, Question, SegmentProcess
from tests.indexer.pipeline.test_segments import COUNT, documents, questions, recipe
from tests.search.cli.test_cli import isotrope
from tests.waiting import PATIENCE


class FakeSegment(HostedSegment):
    """A segment in a fake process: its input and output are pickled, and it can be lost."""

    is_lost = False

    def ask(self, question: Question) -> Finish:
        self._actor = self._actor or SegmentProcess(*self._process)
        return partial(self._of_fake, pickle.dumps(question))

    def close(self) -> None:
        self._actor = None

    def _of_fake(self, question: bytes) -> Any:
        if self.is_lost:
            raise self.lost("it was killed")
        return pickle.loads(pickle.dumps(self._actor.search(pickle.loads(question))))  # noqa: S301


def with_columns() -> list[Document]:
    return [dataclasses.replace(one, metadata={"n": number, "group": number // 40})
            for number, one in enumerate(documents())]  # fmt: skip


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three exact segments, with deleted documents."""
    index = tmp_path_factory.mktemp("flat") / "index"
    build_index(with_columns(), index, recipe(700))
    delete_documents(index, [f"d{number}" for number in range(0, COUNT, 9)])
    return index


@pytest.fixture(scope="module")
def coded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three approximate segments."""
    index = tmp_path_factory.mktemp("coded") / "index"
    build_index(with_columns(), index, recipe(700, type="IVF16,SQ8", recall=0.8))
    return index


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_actors, "connect", lambda address: None)
    monkeypatch.setattr(shards, "HostedSegment", FakeSegment)


def lose(engine: SearchEngine, *numbers: int) -> None:
    for number, segment in enumerate(engine.index.hosted):
        assert isinstance(segment, FakeSegment)
        segment.is_lost = number in numbers


def plain(answers: list[Answer[Any]]) -> list[list[tuple[Any, ...]]]:
    return [[(hit.id, hit.score, *hit.folded) for hit in answer] for answer in answers]


ASKED: list[dict[str, Any]] = [
    {},
    {"k": 1},
    {"k": 900},  # more rows than any segment has
    {"k": COUNT + 5},
    {"where": "n % 7 = 3"},
    {"where": "n < 5", "k": 20},  # all in one segment
    {"group_by": "group", "k": 30},
    {"exact": True},
    {"min_score": 0.3},
    {"fold": 0.7, "k": 30},
]


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.parametrize("name", ["flat", "coded"])
def test_the_answers_are_those_of_one_process(name: str, asked: dict[str, Any], request: pytest.FixtureRequest) -> None:
    index = request.getfixturevalue(name)
    with SearchEngine(index) as here, SearchEngine(index, shards="ray") as there:
        expected = here.search_vectors(questions(), **asked)
        found = there.search_vectors(questions(), **asked)
        assert plain(found) == plain(expected)
        assert not any(answer.partial for answer in found)
        assert "segments" not in vars(there.index)  # no file of vectors was opened here
        assert plain([there.neighbours("d1", **asked)]) == plain([here.neighbours("d1", **asked)])


@pytest.mark.usefixtures("fakes")
def test_a_recall_is_asked_of_the_processes_too(coded: Path) -> None:
    with SearchEngine(coded, recall=0.97) as here, SearchEngine(coded, recall=0.97, shards="ray") as there:
        assert plain(there.search_vectors(questions())) == plain(here.search_vectors(questions()))
        parameters = [one.parameters for one in there.index.hosted if isinstance(one, HostedSegment)]
        assert parameters != [one.search_parameters for one in there.index.manifest.segments]


@pytest.mark.usefixtures("fakes")
def test_a_lost_process_is_an_error_that_names_its_rows(flat: Path) -> None:
    with SearchEngine(flat, shards="ray") as engine:
        lose(engine, 1)
        with pytest.raises(ShardLostError, match=r"segments/0001-01\.faiss: .* rows 700 to 1,399 .*it was killed"):
            engine.search_vectors(questions())
        lose(engine)
        assert engine.search_vectors(questions())


@pytest.mark.usefixtures("fakes")
def test_a_partial_answer_is_that_of_the_others_and_says_so(flat: Path) -> None:
    with SearchEngine(flat) as here, SearchEngine(flat, shards="ray") as there:
        lose(there, 0, 2)
        expected = here.search_vectors(questions(), where="n BETWEEN 700 AND 1399")
        for found in (there.search_vectors(questions(), partial=True), there.rank(questions(), partial=True)):
            assert all(answer.partial for answer in found)
            assert [(one.first_row, one.rows) for one in found[0].missing] == [(0, 700), (1400, 600)]
        assert plain(there.search_vectors(questions(), partial=True)) == plain(expected)
        assert there.neighbours("d1", partial=True).partial
        lose(there)
        assert not there.search_vectors(questions(), partial=True)[0].partial


@pytest.mark.usefixtures("fakes")
def test_nothing_is_left_of_an_index_that_is_lost(flat: Path) -> None:
    with SearchEngine(flat, shards="ray") as engine:
        lose(engine, 0, 1, 2)
        (answer,) = engine.search_vectors(questions()[:1], partial=True)
        assert (len(answer), len(answer.missing)) == (0, 3)
        assert answer[:5].missing == answer.missing


class HungRay:
    """A cluster whose processes never answer, and its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.exceptions = SimpleNamespace(RayTaskError=KeyError, RayError=TimeoutError)
        self.search = self

    def remote(self, *_: Any) -> "HungRay":
        return self

    def options(self, **_: Any) -> "HungRay":
        return self

    def is_initialized(self) -> bool:
        return False

    def get(self, _: Any, timeout: float) -> Any:
        self.now += timeout
        raise TimeoutError("it hangs")


def test_processes_that_hang_are_waited_for_together_and_once(flat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = HungRay()
    monkeypatch.setattr(ray_actors, "connect", lambda address: ray)
    monkeypatch.setattr(shards, "time", SimpleNamespace(monotonic=lambda: ray.now))
    with SearchEngine(flat, shards=ShardOptions(timeout=300)) as engine:
        (answer,) = engine.search_vectors(questions()[:1], partial=True, group_by="group")
        assert (len(answer), len(answer.missing)) == (0, 3)
        assert 300 <= ray.now < 301
        with pytest.raises(ShardLostError, match="it hangs"):
            engine.search_vectors(questions()[:1])
        assert 600 <= ray.now < 602


@pytest.mark.usefixtures("fakes")
def test_a_damaged_segment_is_an_error_of_the_index_also_from_afar(flat: Path, tmp_path: Path) -> None:
    import shutil

    index = Path(shutil.copytree(flat, tmp_path / "index"))
    with SearchEngine(index, shards="ray") as engine:
        path = index / "segments" / "0001-01.faiss"
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)
        for asked in (False, True):
            with pytest.raises(CorruptIndexError, match=r"0001-01\.faiss"):
                engine.search_vectors(questions(), partial=asked)


@pytest.mark.usefixtures("fakes")
def test_the_command_line_gives_segments_out_and_marks_partial_answers(
    flat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    like, gone = ["query", str(flat), "--like", "d1", "--json"], ["--shards", "ray", "--partial"]
    whole = isotrope(*like)
    assert (whole.returncode, isotrope(*like, *gone)) == (0, whole)
    monkeypatch.setattr(FakeSegment, "is_lost", True)
    done = isotrope(*like, "--shards", "ray")
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: segments/0001-00.faiss: the process of rows 0 to 699 of the index does not" in done.stderr
    done = isotrope(*like, *gone)
    assert (done.returncode, json.loads(done.stdout)["partial"], json.loads(done.stdout)["hits"]) == (0, True, [])
    assert json.loads(done.stdout)["missing"][1] == {"segment": "segments/0001-01.faiss", "first_row": 700, "rows": 700}
    assert 'note: the answer to "like d1" is partial: nothing came from segments/0001-00.faiss (rows 0' in done.stderr
    for option in (["--partial"], ["--ray-address", "auto"]):
        done = isotrope(*like, *option)
        assert (done.returncode, f"{option[0]} needs --shards" in done.stderr) == (
            2,
            True,
        )


def test_invalid_options_are_refused(flat: Path) -> None:
    with pytest.raises(ConfigError, match='shards is "spark"; expected ShardOptions or "ray"'):
        SearchEngine(flat, shards="spark")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match='host is "spark"; expected "ray"'):
        ShardOptions("spark")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="timeout of shards is 0"):
        ShardOptions(timeout=0)


def test_without_ray_the_way_to_install_it_is_named(flat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MachineError, match=r"pip install '.*isotrope\[ray\]"):
        SearchEngine(flat, shards="ray")


def test_an_address_where_nobody_listens_is_named_at_once() -> None:
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(MachineError, match=f'no Ray cluster can be reached at "{address}"'):
            connect(address)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    os.environ["RAY_AUTH_MODE"] = "token"
    module = pytest.importorskip("ray")
    module.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield module
    module.shutdown()


@pytest.mark.check
@pytest.mark.filterwarnings("ignore")
def test_with_ray(ray: Any, flat: Path, coded: Path) -> None:
    for index in (flat, coded):
        with SearchEngine(index) as here, SearchEngine(index, shards=ShardOptions(timeout=PATIENCE)) as there:
            for asked in ASKED:
                assert plain(there.search_vectors(questions(), **asked)) == plain(
                    here.search_vectors(questions(), **asked)
                )
    engine = SearchEngine(flat, shards=ShardOptions(timeout=PATIENCE))
    expected = plain(engine.search_vectors(questions()))
    lost: Any = engine.index.hosted[1]
    ray.kill(lost._actor, no_restart=True)
    with pytest.raises(ShardLostError, match=r"segments/0001-01\.faiss"):
        engine.search_vectors(questions())
    assert [one.first_row for one in engine.search_vectors(questions(), partial=True)[0].missing] == [700]
    engine.close()  # the next query restarts all of them
    assert plain(engine.search_vectors(questions())) == expected
    ray.kill(lost._actor, no_restart=False)
    until, found = time.monotonic() + PATIENCE, engine.search_vectors(questions(), partial=True)
    while found[0].partial and time.monotonic() < until:  # until Ray has restarted it
        found = engine.search_vectors(questions(), partial=True)
    assert plain(found) == expected
    question = Question(np.zeros((1, 16), np.float32), 1, None, False, {})
    with pytest.raises(StoreError, match=r"missing: is not an index on .* every machine of the cluster sees"):
        HostedSegment(ray, lost.entry, (flat.parent / "missing", 1, 0), PATIENCE).ask(question)()
    engine.close()
