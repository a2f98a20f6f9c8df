"""Crash safety of changes: every operation of every verb fails in turn, and stops the process in turn; then it runs
again. (`make test` runs one of each kind, `make check` every one.)

The previous generation stays readable at every instant, and the result equals that of an uninterrupted change.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from indexer.recipe.config import BuildConfig
from indexer.store import files
from indexer.store.integrity import damaged_files
from indexer.store.manifest import load_manifest
from tests.directories import snapshot
from tests.faults import FAILURES, Dead, FaultyOs, Kind, every, one_of_each_operation
from tests.indexer.pipeline.test_faults import Choice, failure_of
from tests.indexer.pipeline.test_life import Counting
from tests.indexer.pipeline.test_life import counting as counting  # a fixture
from tests.life import VERBS, grown

swept = pytest.mark.parametrize("choice", [one_of_each_operation, pytest.param(every, marks=pytest.mark.check)])


def assert_whole(index: Path) -> None:
    assert not damaged_files(index, load_manifest(index))


def run_with(faulty: FaultyOs, change: Callable[[Path], object], index: Path, patch: pytest.MonkeyPatch) -> None:
    with patch.context() as patched:
        patched.setattr(files, "os", faulty)
        change(index)


@pytest.fixture
def before(tiny_config: BuildConfig, counting: Counting, tmp_path: Path) -> Path:
    """An index with deleted documents and two segments, so that every verb has something to do."""
    grown(tmp_path / "before", tiny_config)
    return tmp_path / "before"


def undisturbed(
    before: Path, change: Callable[[Path], object], patch: pytest.MonkeyPatch
) -> tuple[dict[str, str], list[Kind]]:
    """Return the index after a change of a copy, and the operations of the change."""
    reference, counter = before.with_name("reference"), FaultyOs()
    shutil.copytree(before, reference)
    run_with(counter, change, reference, patch)
    assert counter.count > 5
    return snapshot(reference), counter.kinds


@swept
@pytest.mark.parametrize("verb", VERBS)
def test_any_failing_operation_of_a_change_is_reported_and_it_goes_on(
    verb: str, choice: Choice, before: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = VERBS[verb]
    reference, kinds = undisturbed(before, change, monkeypatch)
    published = load_manifest(before.with_name("reference")).generation
    for at in choice(kinds):
        index = tmp_path / f"index-{at}"
        shutil.copytree(before, index)
        faulty = FaultyOs(at, FAILURES[at % len(FAILURES)], watch=lambda index=index: assert_whole(index))  # type: ignore[misc]
        failure = failure_of(lambda: run_with(faulty, change, index, monkeypatch))  # noqa: B023
        # removing leftovers may fail silently: the next change sweeps them
        assert str(index) in failure if failure else faulty.failed_on in ("unlink", "rmdir", "open")
        if not failure and faulty.failed_on == "open":  # of a folder, to remove something in it
            assert load_manifest(index).generation == published
        assert_whole(index)
        change(index)
        assert_ends_alike(verb, index, reference)
        shutil.rmtree(index)


@swept
@pytest.mark.parametrize("verb", VERBS)
def test_a_change_that_stops_dead_leaves_the_index_whole_and_can_be_run_again(
    verb: str, choice: Choice, before: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = VERBS[verb]
    reference, kinds = undisturbed(before, change, monkeypatch)
    for at in choice(kinds):
        index = tmp_path / f"index-{at}"
        shutil.copytree(before, index)
        with pytest.raises(Dead):
            # every other time it also loses unsynced data
            run_with(FaultyOs(at, None, power_cut=at % 2 == 1), change, index, monkeypatch)
        assert_whole(index)
        change(index)
        assert_ends_alike(verb, index, reference)
        shutil.rmtree(index)


def assert_ends_alike(verb: str, index: Path, reference: dict[str, str]) -> None:
    """Compare all files. A refit that was published before it failed is published again."""
    assert_whole(index)
    ended = snapshot(index)
    if verb == "refit" and len(ended) != len(reference):
        again = {name: digest for name, digest in ended.items() if name in reference}
        assert again == reference
        return
    assert ended == reference
