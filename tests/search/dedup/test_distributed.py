"""Near-duplicates over workers: the pairs do not depend on the workers and the number of attempts."""

import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import BuildConfig, Document, build_index
from indexer.errors import MachineError
from indexer.executors import Executor, WorkerPool
from indexer.executors.scheduler import Scheduler
from indexer.recipe.config import EncoderConfig
from search import Index
from search.dedup import deduplicate_index
from search.dedup.inputs import open_inputs
from search.dedup.join import distributed, exact
from search.dedup.join.approximate import ApproximateJoin
from search.dedup.join.exact import ExactJoin
from search.dedup.join.quantised import Basis, Int8Kernel
from search.dedup.pairs import Pairs
from search.dedup.pairs_file import PairsFileWriter
from search.dedup.settings import DedupSettings, JoinOptions, PairFiles
from tests.fleets import LocalFleet, LocalWorker

TWO = WorkerPool(2, threads=2)


def clouds(rows: int, seed: int = 0) -> Any:
    """Return unit vectors (rows, 24), many of them close to each other."""
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(rows // 4, 24))
    found = centres[draw.integers(0, len(centres), rows)] + 0.08 * draw.normal(size=(rows, 24))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def copy_of(sent: bytes) -> Any:
    """Return the object that a worker receives."""
    return pickle.loads(sent)  # noqa: S301 - pickled here


@pytest.fixture(params=[0, 1, 2])
def dying(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run workers in this process, each with an unpickled join; some fail on the way."""
    choice = random.Random(request.param)

    def run(prepare: Any, tasks: Sequence[Any], pool: WorkerPool) -> Iterator[Any]:
        sent = pickle.dumps(prepare)

        def kills(worker: LocalWorker) -> bool:
            return worker.is_ready and len(worker.held) > 1 and choice.random() < 0.2

        fleet = LocalFleet(lambda worker: copy_of(sent)(worker), choice.randrange, kills)
        return Scheduler[Any, Any](fleet, tasks, pool).results()

    monkeypatch.setattr(distributed, "run_tasks", run)


def pairs_of(batches: Iterator[Any]) -> list[tuple[int, int, float]]:
    return sorted(
        pair
        for batch in batches
        for pair in zip(batch.left.tolist(), batch.right.tolist(), batch.scores.tolist(), strict=True)
    )


@pytest.mark.usefixtures("dying")
@pytest.mark.parametrize(
    ("join_type", "rows"),
    [
        *((ExactJoin, rows) for rows in (0, 1, 2, 5000)),
        (ApproximateJoin, 1),
        pytest.param(ApproximateJoin, 5000, marks=pytest.mark.check),
    ],
)
def test_workers_find_the_pairs_that_threads_find(join_type: type[ExactJoin], rows: int, tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", clouds(max(rows, 8))[:rows])
    vectors = np.load(tmp_path / "vectors.npy", mmap_mode="r") if rows else clouds(8)[:0]
    join = join_type(vectors, np.float32(0.9), tmp_path)
    members = np.arange(rows)
    expected = pairs_of(join.within(members))
    apart = distributed.DistributedJoin(join, tmp_path, TWO)
    assert pairs_of(apart.within(members)) == expected
    assert len(expected) > (1000 if rows > 2 else -1)
    left, right = members[::3], np.setdiff1d(members, members[::3])
    if rows > 1:
        assert pairs_of(apart.between(left, right)) == pairs_of(join.between(left, right))
    assert not list(tmp_path.glob("tiles-*"))


@pytest.fixture
def index(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    return built(tmp_path / "index", tiny_model("bert"), 1)


@pytest.fixture
def other(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    return built(tmp_path / "other", tiny_model("bert"), 2)


def built(folder: Path, model: Path, seed: int) -> Path:
    words = ["whale", "bridge", "bread", "star", "river", "clock", "bee", "glass", "map"]
    draw = random.Random(seed)
    texts = [" ".join(draw.choices(words, k=3)) for _ in range(150)]
    config = BuildConfig(encoder=EncoderConfig(model=str(model), max_length=32))
    build_index([Document(f"d{number}", text) for number, text in enumerate(texts)], folder, config)
    return folder


@pytest.mark.usefixtures("dying")
@pytest.mark.parametrize("settings", [DedupSettings(0.9), DedupSettings(0.97, "longest", "ann", "drop")])
def test_the_decision_is_the_same(settings: DedupSettings, index: Path, tmp_path: Path) -> None:
    alone = deduplicate_index(index, settings)
    shared = deduplicate_index(index, settings, options=JoinOptions(pool=TWO))
    assert len(alone.table) > 10
    assert shared.table.equals(alone.table)
    assert shared.facts == alone.facts
    for name, found in (("alone.parquet", alone), ("shared.parquet", shared)):
        found.write(tmp_path / name)
    assert (tmp_path / "alone.parquet").read_bytes() == (tmp_path / "shared.parquet").read_bytes()


@pytest.mark.usefixtures("dying")
@pytest.mark.parametrize(
    "settings", [DedupSettings(0.9), DedupSettings(0.9, only_against=True), DedupSettings(0.95, method="ann")]
)
def test_the_documents_of_another_index_are_not_compared_with_each_other(
    settings: DedupSettings, index: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[Pairs] = []
    add = PairsFileWriter.add

    def noted(writer: PairsFileWriter, left: Any, right: Any, scores: Any, identical: bool = False) -> None:
        saved.append(Pairs(left, right, scores))
        add(writer, left, right, scores, identical)

    monkeypatch.setattr(PairsFileWriter, "add", noted)
    alone = deduplicate_index(index, settings, other)
    assert not saved
    shared = deduplicate_index(index, settings, other, options=JoinOptions(pool=TWO))
    assert shared.table.equals(alone.table)
    assert "against" in "".join(alone.table["reason"].to_pylist())
    found = Pairs.concatenate(saved[:-1])  # the last ones are copies
    with open_inputs(index, other) as inputs:
        number = inputs.distinct.number_of
        own = np.unique(number[inputs.document_of >= inputs.others])
        assert len(found)
        assert (np.isin(number[found.left], own) | np.isin(number[found.right], own)).all()


@pytest.mark.usefixtures("dying")
def test_pairs_that_are_kept_are_the_same_to_the_byte(index: Path, tmp_path: Path) -> None:
    for name, options in (("alone.parquet", JoinOptions()), ("shared.parquet", JoinOptions(pool=TWO))):
        deduplicate_index(Index.open(index), 0.9, pairs=PairFiles(write=tmp_path / name), options=options)
    assert (tmp_path / "alone.parquet").read_bytes() == (tmp_path / "shared.parquet").read_bytes()


def test_a_worker_that_does_not_see_the_files_says_so(tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", clouds(100))
    join = ExactJoin(np.load(tmp_path / "vectors.npy", mmap_mode="r"), np.float32(0.9), tmp_path)
    sent = pickle.dumps(distributed.TileWorker(join, np.arange(100), None, tmp_path / "tiles", 1))
    for name in ("quantised", "vectors.npy"):
        (tmp_path / name).rename(tmp_path / "elsewhere")
        with pytest.raises(MachineError, match=rf"{name}: a worker's machine does not see.*TMPDIR"):
            copy_of(sent)
        (tmp_path / "elsewhere").rename(tmp_path / name)
    copy_of(sent)


def test_a_processor_that_rounds_int8_products_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Int8Kernel.of(Basis(np.eye(24, dtype=np.float32), 1))
    monkeypatch.setattr(exact, "choose_kernel", lambda *_: kernel)
    join = ExactJoin(clouds(100), np.float32(0.9), tmp_path)
    monkeypatch.setattr(distributed, "int8_is_exact", lambda: False)
    with pytest.raises(MachineError, match="int8 products are not exact"):
        distributed.TileWorker(join, np.arange(100), None, tmp_path / "tiles", 1)(0)


@pytest.mark.check  # starting processes, and Ray
@pytest.mark.parametrize("executor", ["processes", "ray"])
def test_real_workers(executor: Executor, index: Path) -> None:
    alone = deduplicate_index(index, 0.9)
    shared = deduplicate_index(index, 0.9, options=JoinOptions(pool=replace(TWO, executor=executor)))
    assert shared.table.equals(alone.table)
    assert shared.facts == alone.facts
