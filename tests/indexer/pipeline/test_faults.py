"""Crash safety: every write, sync and rename fails in turn, and stops the process in turn; then the build continues.
(`make test` runs one of each kind, `make check` every one.)

The directory must equal that of an uninterrupted build, finished parts must not be encoded again, and at every instant
a reader sees either no index or a complete one.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import Document, RunOptions, build_index, delete_documents
from indexer.encoders.load import load_encoder
from indexer.encoders.protocol import Encoder, EncodeStats
from indexer.errors import NotAnIndexError, StoreError
from indexer.models.encoder_spec import Tokens
from indexer.pipeline.steps import build_encoder
from indexer.recipe.config import BuildConfig
from indexer.store import files
from indexer.store.integrity import damaged_files
from indexer.store.manifest import load_manifest
from tests.directories import snapshot
from tests.documents import DOCUMENTS
from tests.faults import FAILURES, Dead, FaultyOs, Kind, every, one_of_each

Choice = Callable[[list[Kind]], list[int]]
swept = pytest.mark.parametrize("choice", [one_of_each, pytest.param(every, marks=pytest.mark.check)])


class Counting:
    """An encoder that counts the document texts it encodes."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder, self.texts = encoder, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def embed(self, tokens: Tokens, log: EncodeStats | None = None) -> Any:
        """Count documents; query-like texts use `encode`."""
        self.texts += len(tokens)
        return self._encoder.embed(tokens, log)


@pytest.fixture
def counting(tiny_config: BuildConfig, monkeypatch: pytest.MonkeyPatch) -> Counting:
    """The tiny encoder, loaded once for all builds of a test."""
    encoder = Counting(load_encoder(tiny_config.encoder))
    monkeypatch.setattr(build_encoder, "open_encoder", lambda *_, **__: encoder)
    monkeypatch.setattr(files, "os", FaultyOs())  # never fails, and syncs nothing
    return encoder


@pytest.fixture
def reference(tiny_config: BuildConfig, counting: Counting, tmp_path: Path) -> dict[str, str]:
    build_index(DOCUMENTS, tmp_path / "reference", tiny_config)
    return snapshot(tmp_path / "reference")


def operations(tiny_config: BuildConfig, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Kind]:
    """Return the operations of one build."""
    counter = FaultyOs()
    with monkeypatch.context() as patch:
        patch.setattr(files, "os", counter)
        build_index(DOCUMENTS, folder, tiny_config)
    return counter.kinds


def failure_of(work: Callable[[], object]) -> str:
    """Return the message of the StoreError that `work` raises; empty without one."""
    try:
        work()
    except StoreError as error:
        return str(error)
    return ""


def assert_nothing_torn(index: Path) -> None:
    """Assert that a reader sees no index, or an index with only intact files."""
    try:
        manifest = load_manifest(index)
    except NotAnIndexError:
        return
    assert not damaged_files(index, manifest)


def assert_goes_on(index: Path, config: BuildConfig, counting: Counting, reference: dict[str, str]) -> None:
    """Resume, and compare with an uninterrupted build."""
    assert_nothing_torn(index)
    complete = len(list(index.glob("parts/*/part.json")))
    before = counting.texts
    report = build_index(DOCUMENTS, index, config)
    assert counting.texts - before == max(0, len(DOCUMENTS) - 4 * complete)
    assert report.documents == len(DOCUMENTS)
    assert snapshot(index) == reference


@swept
def test_any_failing_operation_is_reported_and_the_build_goes_on(
    choice: Choice,
    tiny_config: BuildConfig,
    counting: Counting,
    reference: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = operations(tiny_config, tmp_path / "counted", monkeypatch)
    assert len(kinds) > 60
    for at in choice(kinds):
        index = tmp_path / f"index-{at}"
        faulty = FaultyOs(at, FAILURES[at % len(FAILURES)], watch=lambda index=index: assert_nothing_torn(index))  # type: ignore[misc]
        with monkeypatch.context() as patch:
            patch.setattr(files, "os", faulty)
            failure = failure_of(lambda index=index: build_index(DOCUMENTS, index, tiny_config))  # type: ignore[misc]
        if faulty.failed_on == "unlink":
            assert not failure  # only a temporary file is left, which the next build sweeps
        else:
            assert str(index) in failure
        assert_goes_on(index, tiny_config, counting, reference)


def every_third(kinds: list[Kind]) -> list[int]:
    return every(kinds)[::3]


@pytest.mark.parametrize(
    ("choice", "power_cut"),
    [
        (one_of_each, True),  # a power cut loses everything that a stop loses, and more
        pytest.param(every, True, marks=pytest.mark.check),
        pytest.param(every_third, False, marks=pytest.mark.check),
    ],
)
def test_stopping_dead_at_any_operation_loses_nothing_finished(
    choice: Choice,
    power_cut: bool,
    tiny_config: BuildConfig,
    counting: Counting,
    reference: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for at in choice(operations(tiny_config, tmp_path / "counted", monkeypatch)):
        index = tmp_path / f"index-{at}"
        with monkeypatch.context() as patch:
            patch.setattr(files, "os", FaultyOs(at, None, power_cut))
            with pytest.raises(Dead):
                build_index(DOCUMENTS, index, tiny_config)
        assert_goes_on(index, tiny_config, counting, reference)


@swept
def test_stopping_dead_while_overwriting_leaves_the_old_index_whole(
    choice: Choice, tiny_config: BuildConfig, counting: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = [Document("new", "A line inserted at the top moves every part."), *DOCUMENTS]
    overwrite = RunOptions(overwrite=True)
    reference = overwritten(tmp_path / "reference", changed, tiny_config, overwrite)
    counter = FaultyOs()
    build_index(DOCUMENTS, tmp_path / "before", tiny_config)
    shutil.copytree(tmp_path / "before", tmp_path / "counted")
    with monkeypatch.context() as patch:
        patch.setattr(files, "os", counter)
        build_index(changed, tmp_path / "counted", tiny_config, overwrite)
    for at in choice(counter.kinds):
        index = tmp_path / f"index-{at}"
        shutil.copytree(tmp_path / "before", index)
        with monkeypatch.context() as patch:
            patch.setattr(files, "os", FaultyOs(at, None, watch=lambda index=index: assert_nothing_torn(index)))  # type: ignore[misc]
            with pytest.raises(Dead):
                build_index(changed, index, tiny_config, overwrite)
        assert_nothing_torn(index)
        build_index(changed, index, tiny_config, overwrite)
        assert snapshot(index) == reference


def overwritten(index: Path, changed: list[Document], config: BuildConfig, options: RunOptions) -> dict[str, str]:
    build_index(DOCUMENTS, index, config)
    build_index(changed, index, config, options)
    return snapshot(index)


def test_a_second_writer_is_refused_while_the_first_is_at_work(
    tiny_config: BuildConfig, counting: Counting, tmp_path: Path
) -> None:
    from indexer.errors import LockedError

    index = tmp_path / "index"

    def corpus() -> Any:
        yield DOCUMENTS[0]
        with pytest.raises(LockedError, match="another process"):
            build_index(DOCUMENTS, index, tiny_config)
        yield from DOCUMENTS[1:]

    assert build_index(corpus(), index, tiny_config).documents == len(DOCUMENTS)


@pytest.mark.parametrize("poison", [np.nan, np.inf, 0.0])
def test_embeddings_that_cannot_be_vectors_fail_the_gate_and_nothing_is_published(
    poison: float, tiny_config: BuildConfig, counting: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from indexer.errors import QualityError

    real: Callable[..., Any] = counting.embed

    def poisoned(tokens: Tokens, log: EncodeStats | None = None) -> Any:
        rows = real(tokens, log)
        rows[0] = poison
        return rows

    monkeypatch.setattr(counting, "embed", poisoned)
    for encoded in (
        8,
        0,
    ):  # one part is ahead and the last one is not begun; a part that is found again is refused first
        before = counting.texts
        with pytest.raises(QualityError, match="1 are all zero" if poison == 0 else "1 embeddings contain NaN"):
            build_index(DOCUMENTS, tmp_path / "index", tiny_config)
        assert counting.texts - before == encoded
        with pytest.raises(NotAnIndexError):
            load_manifest(tmp_path / "index")


def test_parts_of_another_encoder_are_removed_before_the_first_publication(
    tiny_config: BuildConfig, tmp_path: Path
) -> None:
    shorter = replace(tiny_config, encoder=replace(tiny_config.encoder, max_length=16))
    build_index(DOCUMENTS, tmp_path / "fresh", tiny_config)
    build_index(DOCUMENTS, tmp_path / "index", shorter)
    shutil.rmtree(tmp_path / "index" / "manifests")  # as if it had stopped just before
    assert len(list((tmp_path / "index").glob("parts/*/part.json"))) == 3
    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    assert snapshot(tmp_path / "index") == snapshot(tmp_path / "fresh")


@pytest.mark.parametrize("names", [("state.json", "ranges.npz"), ("ranges.npz",)])
def test_fitted_state_that_no_generation_names_is_swept(
    names: Sequence[str], tiny_config: BuildConfig, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    build_index(DOCUMENTS, index, tiny_config)
    left = index / "encoder" / ("0" * 16)
    left.mkdir(parents=True)
    for name in names:
        (left / name).write_text("{}")
    delete_documents(index, ["d1"])
    assert not left.exists()
