"""Indexes filled by several workers: bytes and figures of one worker, no leftovers, lost workers reported."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import ann
from indexer.errors import CorruptIndexError, MachineError
from indexer.pipeline.generation import open_generation
from indexer.pipeline.rows import RowView, even_runs
from indexer.pipeline.steps import parallel_segments as shards
from indexer.pipeline.steps.auto_index import IndexRequest
from indexer.pipeline.steps.index_segment import Segment, fill_segment
from indexer.progress import NoProgress
from indexer.recipe.index_config import IndexConfig
from indexer.recipe.run_options import RunOptions
from indexer.store.integrity import CheckedFile
from indexer.transforms import Normalisation
from tests.indexer.ann.test_selection import unit
from tests.indexer.pipeline.test_index_segment import no_encoder, source_of

DIM, ROWS = 16, 6500
Fill = Callable[..., Segment]


@pytest.fixture
def fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fill:
    monkeypatch.setattr(shards, "SHARD_ROWS", 1800)  # two parts of a thousand rows each

    def filled(factory: str, workers: int, transform: Any = None, **given: Any) -> Segment:
        folder = tmp_path / f"{factory.replace(',', '-')}-{workers}"
        rows = source_of(folder / "parts", unit(ROWS, DIM), given.get("live"))
        (folder / "segments").mkdir()
        path = folder / "segments" / "0001-00.faiss"
        config = IndexConfig(type=factory, recall=0.5)
        options = RunOptions(workers=workers, device="cpu", executor="processes" if workers > 1 else "auto")
        transform = transform or Normalisation(DIM, "")
        return fill_segment(IndexRequest(rows, transform, options, NoProgress(), path, config, no_encoder))

    return filled


@pytest.mark.parametrize(
    "factory", ["Pad16,IVF1,PQ8x4fs,Refine(SQ8)", pytest.param("IVF64,Flat", marks=pytest.mark.check)]
)
def test_two_workers_make_the_bytes_and_figures_of_one(factory: str, fill: Fill) -> None:
    live: npt.NDArray[np.bool_] = np.arange(ROWS) % 5 != 0
    alone, together = fill(factory, 1, live=live), fill(factory, 2, live=live)
    assert together.digest == alone.digest
    assert together.figures == alone.figures
    assert (together.recall, together.rows, together.zero) == (alone.recall, ROWS, 0)
    assert together.notes == ()
    assert [path.name for path in together.path.parent.iterdir()] == ["0001-00.faiss"]


def test_runs_are_whole_parts_whoever_works(tmp_path: Path) -> None:
    live = np.arange(ROWS) % 3 == 0
    view = source_of(tmp_path, unit(ROWS, DIM), live)
    found = [(view.firsts[parts.start], view.run(parts)) for parts in even_runs(view.rows, 1800)]
    assert [(first, run.stored) for first, run in found] == [(0, 2000), (2000, 2000), (4000, 1000), (5000, 1500)]
    assert [folder for _, run in found for folder in run.folders] == list(view.folders)
    for first, run in found:
        here = slice(first, first + run.stored)
        np.testing.assert_array_equal(run.id_hashes, view.id_hashes[here])
        np.testing.assert_array_equal(run.live_rows, live[here])


@given(rows=st.lists(st.integers(1, 50), min_size=1, max_size=40), most=st.integers(0, 200))
def test_runs_are_even_and_hold_every_part(rows: list[int], most: int) -> None:
    runs = even_runs(rows, most)
    assert [row for run in runs for row in rows[run]] == rows
    assert all(rows[run] for run in runs)
    assert len(runs) <= (-(-sum(rows) // most) if most else 1)
    assert all(sum(rows[run]) < sum(rows) / len(runs) + 2 * max(rows) for run in runs) or len(runs) < len(rows)


def test_zero_vectors_are_counted_in_shards_too(fill: Fill) -> None:
    assert fill("SQ8", 2, FirstIsZero(DIM, "")).zero == fill("SQ8", 1, FirstIsZero(DIM, "")).zero == 7


def test_a_path_that_is_relative_here_is_found_from_elsewhere(
    fill: Fill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of a cluster run in other working directories."""
    given: list[shards.ShardTask] = []

    def elsewhere(filler: shards.ShardFiller, tasks: list[shards.ShardTask], pool: object) -> Any:
        given.extend(tasks)
        assert filler.trained.is_absolute()
        yield from filler(0)(iter(tasks))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shards, "run_tasks", elsewhere)
    (tmp_path / "segments").mkdir()
    rows = source_of(Path("parts"), unit(ROWS, DIM))
    index = ann.IndexTrainer(unit(ROWS, DIM)).trained("SQ8")
    options = RunOptions(workers=2, executor="processes")
    shards.ShardedFill(rows, Normalisation(DIM, ""), options, NoProgress(), Path("segments/a.faiss")).fill(index, None)
    assert index.ntotal == ROWS
    assert given
    assert all(task.path.is_absolute() and all(map(Path.is_absolute, task.rows.folders)) for task in given)
    ann.set_threads(2)


@pytest.mark.check
def test_a_graph_is_filled_by_one_and_a_note_says_so(fill: Fill) -> None:
    assert fill("HNSW8", 1).notes == ()
    segment = fill("HNSW8", 2)
    assert segment.digest.bytes == segment.path.stat().st_size
    assert segment.notes == ("HNSW8 was filled by one process: this kind cannot be merged from shards",)


@pytest.mark.check
def test_a_lost_worker_is_an_error_and_nothing_stays(fill: Fill, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="died"):
        fill("SQ8", 2, Killed(DIM, "", os.getpid()))
    assert list(tmp_path.glob("*/segments/*")) == []


def test_a_shard_that_is_not_what_was_written_is_refused(fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard passes through a file, which may be on another machine."""

    def damaged(path: Path, digest: Any) -> CheckedFile:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        return CheckedFile(path, digest)

    monkeypatch.setattr(shards, "CheckedFile", damaged)  # in this process, which merges
    with pytest.raises(CorruptIndexError, match="checksum"):
        fill("SQ8", 2)


def test_shards_of_a_killed_run_are_swept(tmp_path: Path) -> None:
    with open_generation(tmp_path / "index", create=True) as generation:
        workers = shards.ShardedFill(RowView([], [], [], np.zeros(0, np.uint64)), Normalisation(DIM, ""), RunOptions(),
                                     NoProgress(), generation.index / generation.next_segment)  # fmt: skip
        left = workers.scratch("00003")
        left.parent.mkdir()
        left.write_bytes(b"codes")
        generation.sweep_before("")
        assert not left.exists()


@dataclass(frozen=True)
class FirstIsZero(Normalisation):
    """The first vector of each part is zero."""

    def transform(self, embeddings: Any, role: Any) -> Any:
        vectors = super().transform(embeddings, role)
        if len(vectors) in (500, 1000):
            vectors[0] = 0
        return vectors


@dataclass(frozen=True)
class Killed(Normalisation):
    """Kills every process except one when it reaches the last part."""

    parent: int = 0

    def transform(self, embeddings: Any, role: Any) -> Any:
        if os.getpid() != self.parent and len(embeddings) == 500:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().transform(embeddings, role)
