"""Many small additions: few parts and segments, and the index equals one build of its documents."""

import dataclasses
import os
import shutil
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import Document, add_documents, build_index, compact_index, delete_documents
from indexer.errors import StoreError
from indexer.pipeline.published_index import PublishedIndex
from indexer.recipe.config import BuildConfig
from indexer.recipe.loading import named_path
from indexer.store import parts
from indexer.store.files import FileDigest
from indexer.store.local_store import LocalStore
from indexer.store.manifest import Manifest, list_generations, load_generation, load_manifest
from search import SearchEngine, verify_index
from tests.documents import DOCUMENTS
from tests.indexer.pipeline.test_life import Counting
from tests.indexer.pipeline.test_life import counting as counting  # a fixture
from tests.indexer.pipeline.test_life import index as index  # a fixture
from tests.indexer.pipeline.test_vectors import GIVEN, random_documents
from tests.life import QUERIES, assert_equals_fresh_build
from tests.object_storage import Fault, Storage, use_cache
from tests.remote_indexes import answers, embeddings, names

ADDS = 48


def single(number: int) -> Document:
    return Document(f"x{number}", f"{number} whales of {number * 31 % 17} seas", metadata={"year": number})


def quartet(first: int) -> list[Document]:
    return [single(number) for number in range(first, first + 4)]


@pytest.fixture
def config(tiny_config: BuildConfig) -> BuildConfig:
    return tiny_config.with_overrides(["store.part_documents=64"])


def test_many_additions_leave_few_parts_and_read_few_files(
    config: BuildConfig, counting: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, opened, looked_at = tmp_path / "index", list[Path](), list[Path]()
    build_index(DOCUMENTS, index, config)
    encoded = counting.texts
    descriptor, read_record = LocalStore.descriptor, parts.read_record

    def opening(store: LocalStore, name: str, digest: FileDigest) -> int:
        opened.append(store.folder / name)
        return descriptor(store, name, digest)

    def looking_at(folder: Path) -> parts.PartRecord | None:
        looked_at.append(folder)
        return read_record(folder)

    monkeypatch.setattr(LocalStore, "descriptor", opening)
    monkeypatch.setattr(parts, "read_record", looking_at)
    for number in range(ADDS):
        opened.clear()
        looked_at.clear()
        report = add_documents([single(number)], index)
        most = 2 + log2(number + 1)
        assert (report.added, report.rows_encoded, report.rows_reused) == (1, 1, 0)
        manifest = load_manifest(index)
        assert len(manifest.parts) <= most
        assert len(manifest.segments) == len(manifest.parts)
        assert len(looked_at) <= 3 * most
        assert len(opened) <= 4 * most
        assert report.drift is None or report.drift.rows == number + 1
    assert counting.texts - encoded == ADDS
    records = PublishedIndex(index, manifest).records()
    assert manifest.quality["tokens"] == sum(record.tokens for record in records)
    assert {*manifest.quality["segments"]} == {segment.file for segment in manifest.segments[1:]}
    assert_equals_fresh_build(index, [*DOCUMENTS, *map(single, range(ADDS))], tmp_path / "fresh", config)
    assert verify_index(index).passed


def test_deleted_and_replaced_documents_stay_so_when_their_part_is_folded(
    config: BuildConfig, counting: Counting, tmp_path: Path
) -> None:
    index, held = tmp_path / "index", {document.id: document for document in DOCUMENTS}
    build_index(DOCUMENTS, index, config)
    for number in range(20):
        new = [single(number)]
        if number % 6 == 5:
            new.append(dataclasses.replace(single(number - 2), text=f"other {number}"))
        for document in new:
            held.pop(document.id, None)
            held[document.id] = document
        add_documents(new, index)
        if number % 5 == 3:
            delete_documents(index, [f"x{number - 1}", f"d{number // 5}"], ignore_missing=True)
            held = {
                name: document for name, document in held.items() if name not in (f"x{number - 1}", f"d{number // 5}")
            }
    assert len(load_manifest(index).parts) < 8
    assert_equals_fresh_build(index, list(held.values()), tmp_path / "fresh", config)
    assert compact_index(index, keep=1, grace=0).folded
    assert_equals_fresh_build(index, list(held.values()), tmp_path / "again", config)
    named = {part.name for part in load_manifest(index).parts}
    assert {f"parts/{folder.name}" for folder in (index / "parts").iterdir()} == named
    assert verify_index(index).passed


def test_earlier_generations_answer_as_they_did(config: BuildConfig, counting: Counting, tmp_path: Path) -> None:
    index, answers = tmp_path / "index", dict[int, Any]()
    build_index(DOCUMENTS, index, config)
    for number in range(9):
        add_documents([single(number)], index)
        with SearchEngine(index) as engine:
            answers[load_manifest(index).generation] = [
                [(hit.id, hit.score) for hit in hits] for hits in engine.search_many(QUERIES, 30)
            ]
    for generation in reversed(list_generations(index)[1:]):
        with SearchEngine(index) as engine:
            found = [[(hit.id, hit.score) for hit in hits] for hits in engine.search_many(QUERIES, 30)]
        assert found == answers[generation]
        (index / f"manifests/{generation:08d}.json").unlink()


def test_what_an_interrupted_addition_left_goes_and_what_an_earlier_generation_names_stays(
    config: BuildConfig, counting: Counting, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    build_index(DOCUMENTS, index, config)
    for number in range(3):
        add_documents([single(number)], index)
    shutil.copytree(index / "parts/00001", index / "parts/00007")  # complete, but in no generation
    (index / "parts/00008").mkdir()
    add_documents([single(3)], index)
    assert sorted(path.name for path in (index / "parts").iterdir()) == [f"{number:05d}" for number in range(5)]


def test_a_change_reads_no_manifest_of_an_earlier_generation(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[int]()

    def load(at: Path, number: int) -> Manifest:
        read.append(number)
        return load_generation(at, number)

    monkeypatch.setattr("indexer.pipeline.generation.load_generation", load)
    delete_documents(index, ["d1"])
    for number in range(6):
        add_documents([single(number)], index)
    assert read == []
    assert len(list_generations(index)) == 8
    for number in range(1, 5):
        os.utime(index / f"manifests/{number:08d}.json", (0, 0))
    compact_index(index)
    assert list_generations(index) == [4, 5, 6, 7, 8, 9]  # younger ones name files of those removed
    leftovers = [index / "encoder" / ("5" * 16) / "state.json", index / "segments/0001-07.faiss"]
    for path in leftovers:  # of an earlier encoder and an interrupted compaction
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}")
        os.utime(path, (0, 0))
    read.clear()
    delete_documents(index, ["d2"])
    for number in range(6, 9):
        add_documents([single(number)], index)
    assert read == []
    compact_index(index, keep=1, grace=0)
    assert not any(path.exists() for path in leftovers)
    assert verify_index(index).passed


def test_a_change_advises_to_compact_an_index_of_many_segments_or_generations(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexer.pipeline.generation.MOST_SEGMENTS", 3)
    for first in range(0, 12, 4):
        report = add_documents(quartet(first), index)
        assert report.notes == ()
    advice = f'a compaction is advised: compact_index("{index}")'
    assert add_documents(quartet(12), index).notes == (f"the index has 5 segments that every query searches; {advice}",)
    monkeypatch.setattr("indexer.pipeline.generation.MOST_GENERATIONS", 5)
    assert delete_documents(index, ["d1"]).notes == (
        f"the index has 5 segments that every query searches and 6 generations on disk; {advice}",
    )
    compact_index(index, keep=1, grace=0)
    assert add_documents(quartet(16), index).notes == ()


@pytest.mark.parametrize("kind", ["vectors", "windows"])
def test_vectors_and_windows_are_folded(kind: str, config: BuildConfig, counting: Counting, tmp_path: Path) -> None:
    if kind == "vectors":
        documents = random_documents(60, 16, 3)
        config = dataclasses.replace(GIVEN, store=dataclasses.replace(GIVEN.store, part_documents=64))
    else:
        config = config.with_overrides(["chunk.tokens=8", "chunk.overlap=2"])
        documents = [Document(f"w{number}", f"{number} whales in the seas of the south " * 3) for number in range(60)]
    index = tmp_path / "index"
    build_index(documents[:40], index, config)
    for document in documents[40:]:
        add_documents([document], index)
    delete_documents(index, [documents[45].id])
    add_documents([dataclasses.replace(documents[45], id="late")], index)
    assert len(load_manifest(index).parts) <= 2 + log2(21)
    live = [*documents[:45], *documents[46:], dataclasses.replace(documents[45], id="late")]
    build_index(live, tmp_path / "fresh", config, transform_from=index)
    with SearchEngine(index) as one, SearchEngine(tmp_path / "fresh") as other:
        assert list(one.index.documents.all_documents()) == list(other.index.documents.all_documents())
        live_rows = one.index.numbering.stored_rows
        assert live_rows is not None
        ours = one.index.stored_embeddings.rows(live_rows)
        theirs = other.index.stored_embeddings.rows(np.arange(len(live_rows)))
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert verify_index(index).passed


@pytest.mark.check
def test_object_storage_holds_what_a_disk_holds_when_another_machine_folds_and_is_interrupted(
    config: BuildConfig, counting: Counting, url: str, storage: Storage, tmp_path: Path
) -> None:
    local = tmp_path / "index"
    for place in (local, url):
        build_index(DOCUMENTS, place, config)
    for number in range(8):
        use_cache(tmp_path / f"machine-{number}")
        if number == 5:
            storage.fault = lambda request: Fault(status=400) if "/segments/" in request.path else None
            with pytest.raises(StoreError, match="object storage refuses the request"):
                add_documents([single(number)], url)
            storage.fault = lambda _: None
        for place in (local, url):
            assert add_documents([single(number)], place).added == 1
        assert embeddings(url) == embeddings(local)
    assert len(load_manifest(local).parts) <= 2 + log2(9)
    assert answers(url) == answers(local)
    compact_index(url, keep=1, grace=0)
    compact_index(local, keep=1, grace=0)
    left = [name for name in names(url) if not name.startswith("manifests/")]
    assert left == sorted(load_manifest(named_path(url, "the index")).files)
    assert answers(url) == answers(local)
    assert verify_index(url).passed
