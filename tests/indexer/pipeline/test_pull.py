"""`pull_index`: only missing files are downloaded, every byte is checked, and the manifest is written last."""

import shutil
from pathlib import Path

import pytest

from indexer import BuildConfig, add_documents, build_index, delete_documents, prepare_parts, pull_index
from indexer.corpus.corpus import read_corpus
from indexer.errors import (
    ConfigError,
    CorruptIndexError,
    ExistsError,
    LockedError,
    NotAnIndexError,
    StoreError,
)
from indexer.pipeline import pull
from indexer.store import files
from indexer.store.files import writer_lock
from indexer.store.manifest import list_generations, load_manifest
from search import SearchEngine, verify_index
from search.export import PushOptions, push_index
from tests.directories import snapshot
from tests.documents import DOCUMENTS
from tests.faults import FAILURES, Dead, FaultyOs, one_of_each, one_of_each_operation
from tests.hubs import FakeHub, RefusedError
from tests.indexer.pipeline.test_faults import Choice, failure_of
from tests.life import NEW, VERBS, grown
from tests.object_storage import Storage

URL = "hf://user/name"


@pytest.fixture
def source(tiny_config: BuildConfig, hub: FakeHub, tmp_path: Path) -> Path:
    """An index of several generations, pushed to the hub."""
    grown(tmp_path / "source", tiny_config)
    push_index(tmp_path / "source", URL)
    hub.downloads.clear()
    return tmp_path / "source"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def assert_copy(target: Path, source: Path) -> None:
    """Assert that a folder is intact and contains the newest generation of another, byte for byte."""
    manifest = load_manifest(source)
    assert load_manifest(target) == manifest
    assert verify_index(target).passed
    assert not (target / "pulled").exists()


def test_a_pulled_index_has_the_bytes_and_the_answers_of_its_source(source: Path, target: Path, hub: FakeHub) -> None:
    report = pull_index(URL, target)
    manifest = load_manifest(source)
    assert (report.generation, report.documents, report.published) == (3, manifest.documents, True)
    assert report.fetched == report.files == len(manifest.files)
    assert report.bytes_fetched == sum(digest.bytes for digest in manifest.files.values())
    assert_copy(target, source)
    assert snapshot(target).items() <= snapshot(source).items()
    with SearchEngine(source) as here, SearchEngine(target) as there:
        assert there.search("whales", k=5) == here.search("whales", k=5)


@pytest.mark.parametrize("verb", VERBS)
def test_a_later_pull_downloads_only_what_is_new(verb: str, source: Path, target: Path, hub: FakeHub) -> None:
    pull_index(URL, target)
    assert pull_index(URL, target).published is False
    before = load_manifest(source).files
    with SearchEngine(target) as reader:
        answer = reader.search("whales", k=5)
        VERBS[verb](source)
        push_index(source, URL)
        hub.downloads.clear()
        report = pull_index(URL, target)
        assert reader.search("whales", k=5) == answer  # of the generation that it opened
    new = {name for name, digest in load_manifest(source).files.items() if before.get(name) != digest}
    assert (report.fetched, report.published) == (len(new), True)
    assert {name for name in hub.downloads if not name.startswith("manifests/")} == new
    assert_copy(target, source)
    VERBS[verb](target)  # it may change here, too


def test_damaged_and_missing_files_are_downloaded_again(source: Path, target: Path) -> None:
    pull_index(URL, target)
    (target / "parts/00000/windows.parquet").unlink()
    path = target / "parts/00000/embeddings.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    report = pull_index(URL, target)
    assert (report.fetched, report.published) == (2, False)
    assert_copy(target, source)


def test_a_download_with_other_bytes_is_rejected(source: Path, target: Path, hub: FakeHub) -> None:
    hub.damaged = {"parts/00000/embeddings.npy"}
    with pytest.raises(CorruptIndexError, match=r"hf://user/name: .* parts/00000/embeddings.npy differ .*nothing was"):
        pull_index(URL, target)
    with pytest.raises(NotAnIndexError, match=r"an unfinished pull, not an index yet. Fix: call pull_index again"):
        load_manifest(target)
    hub.damaged = {"manifests/00000003.json"}
    with pytest.raises(CorruptIndexError, match=r"hf://user/name/manifests/00000003.json: damaged"):
        pull_index(URL, target)
    hub.damaged = set()
    pull_index(URL, target)
    assert_copy(target, source)


def test_a_pull_that_fails_in_the_middle_shows_nothing_and_the_next_one_fetches_the_rest(
    source: Path, target: Path, hub: FakeHub
) -> None:
    def fails(method: str, path: str) -> None:
        if method == "GET" and len(hub.downloads) == 8:
            raise RefusedError(403)

    hub.fault = fails
    with pytest.raises(StoreError, match=r"hf://user/name: access is denied \(.*403"):
        pull_index(URL, target)
    assert list_generations(target) == []
    hub.fault = lambda method, path: None
    there = sum(path.is_file() for path in target.rglob("*/*") if "pulled" not in path.parts)
    assert there > 0
    assert pull_index(URL, target).fetched == len(load_manifest(source).files) - there
    assert_copy(target, source)


@pytest.mark.parametrize("choice", [one_of_each_operation, pytest.param(one_of_each, marks=pytest.mark.check)])
@pytest.mark.parametrize("place", ["before", pytest.param("nowhere", marks=pytest.mark.check)])
@pytest.mark.parametrize("stops", [True, False])
def test_a_pull_whose_writes_fail_leaves_the_index_whole_and_can_be_run_again(
    stops: bool, place: str, choice: Choice, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes of the folder, which has an earlier generation or is new, fail in turn, or stop the process with a power
    cut."""
    monkeypatch.setattr(pull, "_DOWNLOADS", 1)
    pull_index(URL, tmp_path / "before")
    VERBS["add"](source)
    push_index(source, URL)

    def run(faulty: FaultyOs, target: Path) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(files, "os", faulty)
            pull_index(URL, target)

    counter = FaultyOs()
    if place == "before":
        shutil.copytree(tmp_path / place, tmp_path / "counted")
    run(counter, tmp_path / "counted")
    shutil.rmtree(tmp_path / "counted")
    for at in choice(counter.kinds):
        target = tmp_path / f"{place}-{at}"
        if place == "before":
            shutil.copytree(tmp_path / place, target)
        faulty = FaultyOs(at, None if stops else FAILURES[at % len(FAILURES)], power_cut=stops)
        if stops:
            with pytest.raises(Dead):
                run(faulty, target)
        else:
            failure = failure_of(lambda: run(faulty, target))  # noqa: B023
            assert str(target) in failure or faulty.failed_on == "unlink"  # of a temporary file
        if list_generations(target):
            assert verify_index(target).passed
        pull_index(URL, target)
        assert_copy(target, source)
        shutil.rmtree(target)


def test_another_index_and_changes_of_its_own_are_never_overwritten(
    source: Path, target: Path, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    build_index(DOCUMENTS[:4], tmp_path / "other", tiny_config)
    (tmp_path / "other/manifests/00000001.json").read_bytes()
    changed, older = tmp_path / "changed", tmp_path / "newer"
    pull_index(URL, changed)
    pull_index(URL, older)
    add_documents(NEW[2:], older)
    delete_documents(changed, ["d1"])
    push_index(source, URL)
    add_documents(NEW[2:], source)
    for place, message in (
        (
            tmp_path / "other",
            "contains an index other than hf://user/name, or one that was changed since it was pulled",
        ),
        (older, "generation 4, newer than generation 3 of hf://user/name; nothing was changed. Fix: push it"),
    ):
        before = snapshot(place)
        with pytest.raises(ExistsError, match=message):
            pull_index(URL, place)
        assert snapshot(place) == before
    push_index(source, URL)
    before = snapshot(changed)
    with pytest.raises(ExistsError, match="changed since it was pulled; nothing was changed"):
        pull_index(URL, changed)
    assert snapshot(changed) == before


def test_folders_in_use_are_left_alone(
    source: Path, target: Path, tiny_config: BuildConfig, tmp_path: Path, storage: Storage
) -> None:
    (tmp_path / "docs.txt").write_text("whales sing\nbread rises\n")
    prepare_parts(read_corpus(tmp_path / "docs.txt"), target, tiny_config)
    with pytest.raises(ExistsError, match="a build was prepared here"):
        pull_index(URL, target)
    (target / "pending.json").unlink()
    with pytest.raises(ExistsError, match=r"an unfinished build; nothing was changed. Fix: pull into another folder"):
        pull_index(URL, target)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.jpg").touch()
    with pytest.raises(StoreError, match=r"contains files that do not belong to an index \(cat.jpg\)"):
        pull_index(URL, tmp_path / "photos")
    with pytest.raises(ConfigError, match="s3://bucket/index: is in object storage"):
        pull_index(URL, "s3://bucket/index")
    with writer_lock(source), pytest.raises(LockedError):
        pull_index(URL, source)


def test_repositories_without_a_complete_index_are_rejected(
    source: Path, target: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError, match=r"hf://user/typo: no such dataset repository .* or it is private. Fix: check"):
        pull_index("hf://user/typo", target)
    with pytest.raises(ConfigError, match="expected hf://user/name"):
        pull_index("https://huggingface.co/user/name", target)
    repository = hub.repositories["user/name"]
    whole, name = dict(repository.files), "parts/00000/moments.npz"
    repository.commit(whole | {name: b"short"})
    with pytest.raises(CorruptIndexError, match=r"hf://user/name: parts/00000/moments.npz has 5 bytes, the manifest"):
        pull_index(URL, target)
    repository.commit({file: data for file, data in whole.items() if file != name})
    with pytest.raises(CorruptIndexError, match=r"hf://user/name: parts/00000/moments.npz is missing"):
        pull_index(URL, target)
    repository.commit({"README.md": b"nothing here", "manifests/x.json": b"{}"})
    with pytest.raises(NotAnIndexError, match="hf://user/name: contains no index"):
        pull_index(URL, target)
    assert not target.exists()
    first = repository.commits[1][0]
    pull_index(f"{URL}@{first}", target)  # an earlier commit
    assert_copy(target, source)
    push_index(source, "hf://user/private", PushOptions(private=True))
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(StoreError, match="or it is private"):
        pull_index("hf://user/private", target)
