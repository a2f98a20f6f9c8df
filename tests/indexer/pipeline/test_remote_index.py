"""Indexes in object storage: builds, continuation from an empty cache, concurrent builds, changes and searches."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from indexer import (
    add_documents,
    build_index,
    compact_index,
    delete_documents,
    read_corpus,
    refit_index,
)
from indexer.errors import CorruptIndexError, LockedError, NotAnIndexError, StoreError
from indexer.recipe.config import BuildConfig
from indexer.recipe.loading import named_path
from indexer.recipe.run_options import RunOptions
from indexer.store.bucket import Bucket, open_bucket
from indexer.store.manifest import load_manifest
from indexer.store.sending import ObjectSender
from indexer.system.blob_cache import blob_cache
from search import SearchEngine, verify_index
from search.index import Index
from tests.object_storage import Fault, Storage, use_cache
from tests.playground import documents, write_rows

_DELETE = "import sys; from indexer import delete_documents; delete_documents(sys.argv[1], [sys.argv[2]])"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    write_rows(tmp_path / "docs.jsonl", documents(10))
    return tmp_path / "docs.jsonl"


def answers(url: str) -> list[str]:
    engine = SearchEngine(url)
    try:
        return [hit.id for hit in engine.search("the river in winter", k=5)]
    finally:
        engine.close()


def test_an_index_answers_as_one_on_a_disk_and_opening_it_reads_no_embeddings(
    corpus: Path, url: str, tiny_config: BuildConfig, storage: Storage, tmp_path: Path
) -> None:
    build_index(read_corpus(corpus), tmp_path / "local", tiny_config)
    report = build_index(read_corpus(corpus), url, tiny_config)
    assert (report.documents, report.parts_encoded) == (10, 3)
    use_cache(tmp_path / "elsewhere")
    storage.served.clear()
    engine = SearchEngine(url)
    assert {path.rpartition("/")[2] for path in storage.served} == {"00000001.json"}
    assert [hit.id for hit in engine.search("the river in winter", k=5)] == answers(str(tmp_path / "local"))
    assert storage.bytes_of("embeddings.npy") == storage.bytes_of("windows.parquet") == 0
    assert verify_index(url).passed
    assert build_index(read_corpus(corpus), url, tiny_config).up_to_date


@pytest.mark.check
def test_a_copy_of_an_index_is_an_index_both_ways(
    corpus: Path, url: str, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    local, back = tmp_path / "local", tmp_path / "back"
    build_index(read_corpus(corpus), local, tiny_config)
    for path in local.rglob("*"):
        if path.is_file():
            open_bucket(url).put(path.relative_to(local).as_posix(), path.read_bytes())
    assert answers(url) == answers(str(local))
    delete_documents(url, ["doc3"])
    for name in open_bucket(url).list():
        (back / name).parent.mkdir(parents=True, exist_ok=True)
        (back / name).write_bytes(open_bucket(url).read(name))
    assert verify_index(back).passed
    assert answers(str(back)) == answers(url)


def test_large_segments_are_mapped_and_embeddings_of_several_parts_fetched_together(
    corpus: Path, url: str, tiny_config: BuildConfig, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(read_corpus(corpus), url, tiny_config)
    build_index(read_corpus(corpus), tmp_path / "local", tiny_config)
    use_cache(tmp_path / "elsewhere")
    monkeypatch.setattr("indexer.store.segments.MAPPED_BYTES", 100)
    index, local = Index.open(url), Index.open(tmp_path / "local")
    assert index.segments[0].background is None  # it was fetched completely and checked
    rows = np.arange(10)
    assert np.array_equal(index.search(index.vectors(rows), 1)[3][1], [3])
    storage.requests.clear()
    assert np.array_equal(index.embeddings(rows), local.embeddings(rows))
    assert not storage.requests  # the second time fetches nothing
    digest = index.manifest.files[index.manifest.segments[0].file]
    blob = blob_cache().path(digest.sha256, digest.bytes)
    monkeypatch.setattr(blob_cache(), "limit", 0)
    blob_cache().make_room()
    assert blob.exists()  # a reader has mapped it
    index.close()
    blob_cache().make_room()
    assert not blob.exists()
    assert storage.bytes_of("embeddings.npy") == sum(
        digest.bytes for name, digest in index.manifest.files.items() if name.endswith("embeddings.npy")
    )


@pytest.mark.check
def test_its_whole_life(corpus: Path, url: str, tiny_config: BuildConfig, tmp_path: Path) -> None:
    build_index(read_corpus(corpus), url, tiny_config)
    write_rows(corpus, documents(14))
    assert add_documents(read_corpus(corpus), url).added == 4
    use_cache(tmp_path / "elsewhere")
    assert delete_documents(url, ["doc3"]).documents == 13
    refit_index(url, ["whitening.strength=0.5"])
    report = compact_index(url, grace=0)
    assert (report.documents, report.generations_removed, report.dropped) == (13, 3, 1)
    assert verify_index(url).passed
    compact_index(url, grace=0, keep=1)
    left = {name for name in open_bucket(url).list() if not name.startswith("manifests/")}
    assert left == set(load_manifest(named_path(url, "the index")).files)
    assert verify_index(url).passed


def test_an_interrupted_build_goes_on_from_an_empty_cache(
    corpus: Path, url: str, tiny_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ObjectSender, "send_all", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build_index(read_corpus(corpus), url, tiny_config)
    with pytest.raises(NotAnIndexError, match=f"^{url}: an unfinished build"):
        load_manifest(named_path(url, "the index"))
    sent = {name for name in open_bucket(url).list() if name.endswith("part.json")}
    assert sent
    use_cache(tmp_path / "elsewhere")
    report = build_index(read_corpus(corpus), url, tiny_config)
    assert (report.parts_kept, report.parts_encoded) == (len(sent), 3 - len(sent))
    assert verify_index(url).passed


@pytest.mark.check
def test_of_two_publishers_one_has_lost_and_touched_nothing(
    corpus: Path, url: str, tiny_config: BuildConfig, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(read_corpus(corpus), url, tiny_config)
    create = Bucket.create

    def other_first(self: Bucket, name: str, data: bytes) -> bool:
        command = [sys.executable, "-c", _DELETE, url, "doc4"]
        subprocess.run(command, env=os.environ | storage.environment(tmp_path / "other machine"), check=True)
        return create(self, name, data)

    before = open_bucket(url).list()
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "create", other_first)
        with pytest.raises(LockedError, match=f"^{url}: another writer published generation 2 during this run"):
            delete_documents(url, ["doc5"])
    theirs = load_manifest(named_path(url, "the index"))
    assert (theirs.generation, theirs.documents) == (2, 9)
    after = open_bucket(url).list()
    assert all(after[name] == entry for name, entry in before.items())
    assert verify_index(url).passed
    assert delete_documents(url, ["doc5"]).documents == 8
    assert verify_index(url).passed


@pytest.mark.check
def test_a_store_that_fails_in_the_middle_leaves_what_the_next_run_goes_on_from(
    corpus: Path, url: str, tiny_config: BuildConfig, storage: Storage
) -> None:
    storage.fault = lambda request: Fault(status=500) if "segments/" in request.path else None
    with pytest.raises(StoreError, match=r"segments/.* object storage did not answer"):
        build_index(read_corpus(corpus), url, tiny_config)
    storage.fault = lambda _: None
    report = build_index(read_corpus(corpus), url, tiny_config)
    assert (report.parts_kept, report.parts_encoded) == (3, 0)
    assert verify_index(url).passed


@pytest.mark.check
def test_what_the_store_lost_is_encoded_again_with_overwrite(
    corpus: Path, url: str, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    build_index(read_corpus(corpus), url, tiny_config)
    files = load_manifest(named_path(url, "the index")).files
    damaged, gone, _ = sorted(name for name in files if name.endswith("embeddings.npy"))
    data = bytearray(open_bucket(url).read(damaged))
    data[-1] ^= 1
    open_bucket(url).put(damaged, bytes(data))
    open_bucket(url).remove([gone])
    use_cache(tmp_path / "elsewhere")
    assert [problem.split(": ")[0] for problem in verify_index(url).problems] == [f"{url}/{damaged}", f"{url}/{gone}"]
    with pytest.raises(CorruptIndexError, match=f"^{url}/{gone}: the manifest lists this file, but it is missing"):
        SearchEngine(url)
    report = build_index(read_corpus(corpus), url, tiny_config, RunOptions(overwrite=True))
    assert (report.parts_kept, report.parts_encoded) == (1, 2)
    assert verify_index(url).passed


def test_a_folder_of_other_files_is_not_built_into(corpus: Path, url: str, tiny_config: BuildConfig) -> None:
    open_bucket(url).put("notes.txt", b"mine")
    with pytest.raises(StoreError, match=rf"^{url}: contains files that do not belong to an index \(notes.txt\)"):
        build_index(read_corpus(corpus), url, tiny_config)


def command(storage: Storage, cache: Path, *arguments: str) -> subprocess.Popen[bytes]:
    script = "import search.cli; search.cli.main()"
    environment = os.environ | storage.environment(cache)
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def build_arguments(corpus: Path, url: str, model: Path) -> list[str]:
    settings = {"encoder.model": model, "encoder.max_length": 32, "encoder.precision": "float32"}
    settings |= {"store.part_documents": 4}
    return ["build", str(corpus), url, "--quiet", *(f"--set={name}={value}" for name, value in settings.items())]


def complete_parts(url: str) -> set[str]:
    return {name for name in open_bucket(url).list("parts") if name.endswith("part.json")}


@pytest.mark.check
def test_builds_that_are_killed_are_continued_on_any_machine(
    url: str, storage: Storage, tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    corpus, chance = tmp_path / "docs.jsonl", random.Random(0)
    write_rows(corpus, documents(600))
    arguments = build_arguments(corpus, url, tiny_model("bert"))
    complete: set[str] = set()
    for number in range(4):
        running = command(storage, tmp_path / f"cache{number % 2}", *arguments)
        while running.poll() is None and len(complete_parts(url)) <= len(complete):
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 0.2))
        running.send_signal(signal.SIGKILL)
        running.communicate()
        assert complete < complete_parts(url)
        complete = complete_parts(url)
        assert len(complete) < 150
    last = command(storage, tmp_path / "cache last", *arguments, "--json")
    out, err = last.communicate()
    assert last.returncode == 0, err.decode()
    report = json.loads(out)
    assert report["parts_encoded"] <= 150 - len(complete)
    assert report["documents"] == 600
    use_cache(tmp_path / "reader")
    assert verify_index(url).passed
    assert len(answers(url)) == 5


@pytest.mark.check
def test_of_builds_that_race_one_wins(
    url: str, storage: Storage, tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    corpus = tmp_path / "docs.jsonl"
    write_rows(corpus, documents(80))
    arguments = build_arguments(corpus, url, tiny_model("bert"))
    racing = [command(storage, tmp_path / f"cache{number}", *arguments) for number in range(3)]
    errors = [process.communicate()[1].decode() for process in racing]
    statuses = [process.returncode for process in racing]
    assert 0 in statuses
    assert all(
        not status or "another writer published" in error for status, error in zip(statuses, errors, strict=True)
    )
    assert verify_index(url).passed
    again = command(storage, tmp_path / "cache1", *arguments)
    assert b"up to date" in again.communicate()[0]
