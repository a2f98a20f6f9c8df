"""Workers that share only the object storage with the process that started them."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import (
    BuildConfig,
    RunOptions,
    build_index,
    encode_pending,
    executors,
    prepare_parts,
)
from indexer.errors import StoreError
from indexer.executors import ray_actors
from indexer.pipeline.steps import encode, part_encoder
from indexer.pipeline.train import train_for_index
from indexer.recipe.loading import named_path
from indexer.store import layout
from indexer.store.manifest import load_manifest
from indexer.system.cache import cache_folder
from search import shards, verify_index
from tests.documents import DOCUMENTS
from tests.fleets import LocalFleet
from tests.object_storage import Storage
from tests.remote_indexes import PARTS, answers, names, require_same
from tests.search.test_shards import FakeSegment


@contextmanager
def elsewhere(machine: Callable[[str], None], name: str) -> Iterator[None]:
    """Act as another machine than "a", without access to its files."""
    a = cache_folder()
    assert a.name == "a"
    hidden = a.rename(a.with_name("hidden"))
    machine(name)
    try:
        yield
    finally:
        hidden.rename(a)
        machine("a")


class ElsewhereFleet(LocalFleet):
    """Workers of another machine: what goes there and comes back is pickled, and the cache is another one."""

    def __init__(self, prepare: Any, machine: Callable[[str], None]) -> None:
        self._machine, self._pickled = machine, pickle.dumps(prepare)
        super().__init__(self._prepared)

    def _prepared(self, number: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
        def work(tasks: Iterator[Any]) -> Iterator[Any]:
            with elsewhere(self._machine, f"worker{number}"):
                prepare = pickle.loads(self._pickled)  # noqa: S301
                results = list(prepare(number)(iter(pickle.loads(pickle.dumps(list(tasks))))))  # noqa: S301
                return iter(pickle.loads(pickle.dumps(results)))  # noqa: S301

        return work


@pytest.fixture
def workers_elsewhere(machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run Ray tasks on workers without access to this machine, "a"."""
    machine("a")
    monkeypatch.setattr(executors, "_fleet", lambda prepare, pool: nullcontext(ElsewhereFleet(prepare, machine)))
    monkeypatch.setattr(encode, "_LOOKS", 1)


ON_RAY = RunOptions(executor="ray", workers=2)


@pytest.mark.usefixtures("workers_elsewhere")
@pytest.mark.check
def test_workers_on_other_machines_read_from_the_store_and_send_to_it(
    url: str, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    built = build_index(DOCUMENTS, url, tiny_config, ON_RAY)
    assert (built.parts_encoded, built.rows_encoded) == (PARTS, len(DOCUMENTS))
    assert set(names(url)) == {*load_manifest(named_path(url, "the index")).files, layout.manifest_name(1)}
    require_same(url, tiny_config, tmp_path)
    changed = [replace(DOCUMENTS[3], id="new", text="Another text."), *DOCUMENTS]
    again = build_index(changed, url, tiny_config, replace(ON_RAY, overwrite=True))
    assert (again.rows_encoded, again.rows_reused) == (1, len(DOCUMENTS))
    assert verify_index(url).passed


@pytest.mark.usefixtures("workers_elsewhere")
@pytest.mark.check
def test_prepared_parts_are_encoded_by_workers_on_other_machines(
    url: str, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    prepare_parts(DOCUMENTS, url, tiny_config)
    report = encode_pending(url, slice(0, 3), ON_RAY)
    assert (report.parts_encoded, report.left) == (3, PARTS - 3)
    assert build_index(DOCUMENTS, url, tiny_config).parts_kept == 3
    require_same(url, tiny_config, tmp_path)


@pytest.mark.usefixtures("workers_elsewhere")
@pytest.mark.check
def test_an_encoder_that_was_fitted_goes_with_the_parts(
    url: str,
    tiny_config: BuildConfig,
    machine: Callable[[str], None],
    tmp_path: Path,
    tiny_model: Callable[[str], Path],
) -> None:
    encoder = replace(tiny_config.encoder, pooling="sif")
    config = replace(tiny_config, encoder=encoder)
    train_for_index(DOCUMENTS, url, config)
    prepare_parts(DOCUMENTS, url, config)
    machine("b")
    encode_pending(url, slice(0, 2))
    machine("a")
    encode_pending(url, slice(2, 3), ON_RAY)
    machine("c")
    assert build_index(DOCUMENTS, url, config).parts_kept == 3
    require_same(url, config, tmp_path)


def test_a_worker_whose_part_does_not_arrive_is_an_error(
    url: str, tiny_config: BuildConfig, workers_elsewhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_encoder, "send_written", lambda index, name, record: record)
    with pytest.raises(StoreError, match=rf"^{url}/parts/\d+: a worker wrote this part, but it is not visible here"):
        build_index(DOCUMENTS, url, tiny_config, ON_RAY)


def test_segments_are_opened_by_url_where_they_are_held(
    url: str, tiny_config: BuildConfig, machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class SegmentElsewhere(FakeSegment):
        def _of_fake(self, question: bytes) -> Any:
            with elsewhere(machine, "holder"):
                return super()._of_fake(question)

    monkeypatch.setattr(ray_actors, "connect", lambda address: None)
    monkeypatch.setattr(shards, "HostedSegment", SegmentElsewhere)
    machine("a")
    build_index(DOCUMENTS, url, replace(tiny_config, index=replace(tiny_config.index, segment_rows=8)))
    assert answers(url, shards="ray") == answers(url)
    question = shards.Question(np.zeros((1, 16), np.float32), 1, None, False, {})
    with pytest.raises(StoreError, match=r"missing: is not an index on .* or an index in object storage"):
        shards.SegmentProcess(f"{url}/missing", 1, 0).search(question)


@pytest.mark.check
@pytest.mark.filterwarnings("ignore")
def test_with_ray(
    url: str, tiny_config: BuildConfig, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers and holders of segments have separate caches, as on separate machines."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    ray = pytest.importorskip("ray")
    elsewhere = tmp_path / "elsewhere"
    settings = {"runtime_env": {"env_vars": storage.environment(elsewhere)}, "include_dashboard": False}
    ray.init("local", num_cpus=4, log_to_driver=False, configure_logging=False, **settings)
    try:
        config = replace(tiny_config, index=replace(tiny_config.index, segment_rows=8))
        assert build_index(DOCUMENTS, url, config, ON_RAY).parts_encoded == PARTS
        assert any((elsewhere / "remote" / "blobs").iterdir())
        require_same(url, config, tmp_path)
        assert answers(url, shards="ray") == answers(url)
        changed = [replace(one, text=f"{one.text} indeed") for one in DOCUMENTS]
        overwrite = replace(ON_RAY, overwrite=True)
        prepare_parts(changed, url, config, overwrite)
        assert encode_pending(url, options=ON_RAY).parts_encoded == PARTS
        assert build_index(changed, url, config, overwrite).parts_kept == PARTS
        assert verify_index(url).passed
    finally:
        ray.shutdown()
