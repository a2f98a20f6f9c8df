"""Workers on other machines: their parts must be visible here, and lost parts are encoded again."""

import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import BuildConfig, RunOptions, build_index
from indexer.errors import ModelError, StoreError
from indexer.executors import WorkerPool
from indexer.executors.ray_actors import cluster
from indexer.executors.scheduler import Scheduler
from indexer.models.resolution import resolve_spec
from indexer.pipeline.steps import build_encoder, encode
from indexer.pipeline.steps.build_encoder import LazyEncoder
from indexer.recipe.config import EncoderConfig
from indexer.store import layout
from indexer.store.manifest import load_manifest
from tests.directories import snapshot
from tests.documents import DOCUMENTS
from tests.fleets import LocalFleet

RAY = RunOptions(device="cpu", workers=2, executor="ray")


def run_here(lose: Any, setup: Any, tasks: Sequence[Any], pool: WorkerPool, lost: Any = None) -> Iterator[Any]:
    """Do Ray's work in this process; `lose` damages each part before it is checked."""
    for encoded in Scheduler[Any, Any](LocalFleet(setup), tasks, pool, lost).results():
        lose(tasks[0].index / encoded.name)
        yield encoded


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "_PAUSE", 0.0)
    monkeypatch.setattr(encode, "threads_per_worker", lambda pool: 1)


def nothing(part: Path) -> None:
    """Lose nothing."""


def the_embeddings(part: Path) -> None:
    """Lose the embeddings."""
    (part / "embeddings.npy").unlink()


def half_of_the_embeddings(part: Path) -> None:
    """Lose half of the embeddings."""
    data = (part / "embeddings.npy").read_bytes()
    (part / "embeddings.npy").write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize("lose", [the_embeddings, half_of_the_embeddings, shutil.rmtree])
def test_a_part_that_is_not_seen_here_is_named_and_the_next_run_makes_it(
    lose: Any, tiny_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "run_tasks", partial(run_here, lose))
    with pytest.raises(StoreError, match=r"parts/0000\d: a worker wrote this part, but it is not visible here.*shared"):
        build_index(DOCUMENTS, tmp_path / "index", tiny_config, RAY)
    monkeypatch.setattr(encode, "run_tasks", partial(run_here, nothing))
    build_index(DOCUMENTS, tmp_path / "index", tiny_config, RAY)
    build_index(DOCUMENTS, tmp_path / "alone", tiny_config)
    assert contents(tmp_path / "index") == contents(tmp_path / "alone")


def contents(index: Path) -> list[str]:
    """Return the hashes of all files that the manifest names; a damaged part's folder keeps its number."""
    named = load_manifest(index).files
    return sorted(digest for name, digest in snapshot(index).items() if name in named)


def leave_a_temporary_file(part: Path) -> None:
    """As a worker does that is killed during a write, before another one writes the part."""
    (part / f"part.json.0123456789ab{layout.TEMPORARY}").write_bytes(b"{")


def test_what_killed_workers_leave_behind_goes_when_the_index_is_there(
    tiny_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "run_tasks", partial(run_here, leave_a_temporary_file))
    build_index(DOCUMENTS, tmp_path / "index", tiny_config, RAY)
    assert not list((tmp_path / "index").rglob(f"*{layout.TEMPORARY}"))


@pytest.mark.check  # starting Ray
def test_ray_makes_the_bytes_of_one_process(
    tiny_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, cluster(""):  # its workers run in the folder that it was started in
        patch.chdir(tmp_path)
        build_index(DOCUMENTS, "ray", tiny_config, RAY)
    build_index(DOCUMENTS, tmp_path / "alone", tiny_config)
    assert snapshot(tmp_path / "ray") == snapshot(tmp_path / "alone")


def test_a_hub_models_files_may_lie_elsewhere_on_a_workers_machine(
    tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder named by the user must exist; the files of a hub id are resolved again, and compared."""
    here, there = tmp_path / "cache-here", tmp_path / "cache-there"
    shutil.copytree(tiny_model("bert"), here)
    config = BuildConfig(encoder=EncoderConfig(model=str(here), max_length=32, precision="float32"))
    named = resolve_spec(config.encoder)
    encoder = LazyEncoder(config, RunOptions(device="cpu"), replace(named, local=False))
    sent = pickle.dumps(encoder)
    expected = encoder.get().encode(["whales sing"], "document")
    here.rename(there)
    monkeypatch.setattr(
        build_encoder, "resolve_spec", lambda config, folder, rules: resolve_spec(config, folder or there, rules)
    )
    received = pickle.loads(sent)  # noqa: S301 - pickled here
    assert np.array_equal(received.get().encode(["whales sing"], "document"), expected)
    assert Path(received.spec.folder) == there
    with pytest.raises(ModelError):
        LazyEncoder(config, RunOptions(device="cpu"), named).get()
