"""Erasure of documents: nothing of them is left, the search for traces finds leaks, and the proof can be repeated."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from indexer import Document, add_documents, build_index, compact_index, delete_documents, refit_index
from indexer.errors import ConfigError, ExistsError, StoreError
from indexer.pipeline.erase import erase_from_index, read_erasure
from indexer.recipe.config import BuildConfig
from indexer.store import layout
from indexer.store.embeddings import open_embeddings
from indexer.store.manifest import list_generations, load_manifest
from search import SearchEngine, verify_index
from search.erasure.patterns import Searcher, normalised, patterns_of
from search.erasure.proof import erase_documents, read_proof, verify_erased
from search.erasure.traces import mark
from search.index import Index
from tests.documents import DOCUMENTS
from tests.life import NEW, assert_equals_fresh_build, grown

SALT = "ab" * 32
SECRET = b"suspension bridge hangs"  # of d1


@pytest.fixture
def index(tiny_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ISOTROPE_CACHE", str(tmp_path / "cache"))
    grown(tmp_path / "index", tiny_config)
    return tmp_path / "index"


def test_an_erased_document_is_in_no_file(index: Path, tmp_path: Path) -> None:
    vector = open_embeddings(index / load_manifest(index).parts[0].name)[1].tobytes()
    before = [path for path in index.rglob("*") if path.is_file() and vector in path.read_bytes()]
    report = erase_documents(index, ["d1"], tmp_path / "erased.json")
    files = [path for path in index.rglob("*") if path.is_file()]
    assert before
    assert not [path for path in files if vector in path.read_bytes() or SECRET in path.read_bytes().lower()]
    assert report.passed
    assert report.files == len(files) - 1  # without the lock
    assert len(list_generations(index)) == 1
    assert not read_erasure(index)
    assert verify_index(index).passed
    assert SECRET not in (tmp_path / "erased.json").read_bytes().lower()
    proof = read_proof(tmp_path / "erased.json")
    assert {one.file for one in proof.files if one.after} >= set(load_manifest(index).files)
    assert verify_erased(tmp_path / "erased.json").passed


def test_the_result_equals_a_build_of_the_remaining_documents(
    index: Path, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    erase_documents(index, ["d1"], tmp_path / "erased.json")
    left = [one for one in [*DOCUMENTS, *NEW[:2]] if one.id not in ("d0", "d1", "n1")]
    build_index(left, tmp_path / "own", tiny_config)
    assert_equals_fresh_build(index, left, tmp_path / "fresh", tiny_config)
    ours, fitted = (SearchEngine(path).index.transform for path in (index, tmp_path / "own"))
    np.testing.assert_array_equal(ours.mean, fitted.mean)  # type: ignore[attr-defined]


def test_a_document_that_was_deleted_before_is_erased_from_older_generations(index: Path, tmp_path: Path) -> None:
    report = erase_documents(index, ["d0", "n1"], tmp_path / "erased.json")
    assert report.passed
    assert report.erased == 2
    assert read_proof(tmp_path / "erased.json").traces.patterns["text"]


def test_an_older_text_of_a_document_is_erased(index: Path, tmp_path: Path) -> None:
    add_documents([Document("d3", "Something else about galaxies far away.")], index)
    erase_documents(index, ["d3"], tmp_path / "erased.json")
    (index / "parts" / "note").write_text("a star shines by FUSING, hydrogen")
    assert not verify_erased(tmp_path / "erased.json").passed


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


LEAKS: dict[str, tuple[Callable[[Path], object], str]] = {  # and the kind of trace that is reported
    "text": (
        lambda index: write(index / "segments/leak", bytes(99) + b"A Suspension  bridge hangs!" + bytes(99)),
        "text",
    ),
    "escaped": (lambda index: write(index / "leak.json", b'{"a": ["A suspension bridge h\\u0061ngs"]}'), "text"),
    "id": (lambda index: write(index.with_name("index.add.rejects.jsonl"), b'{"id": "d1"}\n'), "id"),
    "parquet": (lambda index: shutil.copy(index.with_name("documents"), index / "parts/copy.parquet"), "id, text"),
    "file": (lambda index: shutil.copy(index.with_name("moments"), index / "leak"), "(file)"),
    "vector": (lambda index: shutil.copy(index.with_name("vectors"), index / "leak"), "vector"),
    "words": (lambda index: write(index.with_name("cache") / "bm25/x/leak", b"suspension bridge hangs"), "text"),
}


def test_planted_leaks_are_found(index: Path, tmp_path: Path) -> None:
    part = index / load_manifest(index).parts[0].name
    shutil.copy(part / layout.DOCUMENTS, tmp_path / "documents")
    shutil.copy(part / layout.MOMENTS, tmp_path / "moments")
    (tmp_path / "vectors").write_bytes(b"xyz" + open_embeddings(part)[1].tobytes())
    erase_documents(index, ["d1"], tmp_path / "erased.json")
    assert verify_erased(tmp_path / "erased.json").passed
    for leak, (place, kind) in LEAKS.items():
        before = set(tmp_path.rglob("*"))
        place(index)
        (problem,) = verify_erased(tmp_path / "erased.json").problems
        assert kind in problem.partition("contains an erased document")[2], leak
        for path in sorted(set(tmp_path.rglob("*")) - before, reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    assert verify_erased(tmp_path / "erased.json").passed


def test_old_files_without_the_document_are_no_traces_when_they_appear_again(
    tiny_config: BuildConfig, tmp_path: Path
) -> None:
    """A list of deleted numbers, and the parts, segment and transform of a build without the document."""
    index, proof = tmp_path / "index", tmp_path / "erased.json"
    build_index(DOCUMENTS[:2], index, tiny_config)
    first = {name: digest.sha256 for name, digest in load_manifest(index).files.items()}
    add_documents(DOCUMENTS[2:], index)
    delete_documents(index, ["d2"])
    erase_documents(index, ["d3"], proof)
    delete_documents(index, ["d4"])  # has the number of d2
    assert verify_erased(proof).problems == []
    delete_documents(index, [document.id for document in DOCUMENTS[5:]])
    refit_index(index)
    compact_index(index, keep=1, grace=0)
    assert {digest.sha256 for digest in load_manifest(index).files.values()} & {*first.values()}
    assert verify_erased(proof).problems == []


def test_an_erasure_with_a_leak_writes_no_proof_and_is_finished_later(index: Path, tmp_path: Path) -> None:
    leak = tmp_path / "index.rejects.jsonl"
    leak.write_text('{"id": "d1", "text": 3}\n')
    with pytest.raises(StoreError, match=r"traces are left: .*rejects\.jsonl"):
        erase_documents(index, ["d1"], tmp_path / "erased.json")
    assert not (tmp_path / "erased.json").exists()
    with pytest.raises(ExistsError, match="unfinished"):
        compact_index(index)
    with pytest.raises(ExistsError, match="other documents"):
        erase_documents(index, ["d2"], tmp_path / "erased.json")
    leak.unlink()
    assert erase_documents(index, [], tmp_path / "erased.json").passed
    compact_index(index)
    assert erase_documents(index, ["d1"], tmp_path / "erased.json").passed  # again: nothing to do


def test_a_remaining_document_with_the_same_text_is_no_trace(index: Path, tmp_path: Path) -> None:
    add_documents([Document("twin", DOCUMENTS[1].text, DOCUMENTS[1].title)], index)
    assert erase_documents(index, ["d1"], tmp_path / "erased.json").passed
    assert read_proof(tmp_path / "erased.json").traces.shared > 0


def test_all_documents_can_be_erased(index: Path, tmp_path: Path) -> None:
    ids = [document.id for document in [*DOCUMENTS, *NEW[:2]]]
    assert erase_documents(index, ids, tmp_path / "erased.json").documents == 0
    assert verify_erased(tmp_path / "erased.json").passed


def test_unknown_ids_change_nothing(index: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='id "x"; nothing was erased'):
        erase_documents(index, ["d1", "x"], tmp_path / "erased.json")
    with pytest.raises(ConfigError, match="no id is given"):
        erase_documents(index, [], tmp_path / "erased.json")
    delete_documents(index, ["d1"])


def test_traces_that_could_not_be_read_again_change_nothing(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_documents([Document("long", " ".join(f"word{number}" for number in range(2000)))], index)
    manifests = [path.stat().st_size for path in (index / layout.MANIFESTS).iterdir()]
    monkeypatch.setattr("indexer.pipeline.erase.MOST_BYTES", max(manifests))
    before = load_manifest(index)
    with pytest.raises(ConfigError, match="erase fewer documents at once"):
        erase_documents(index, ["long"], tmp_path / "erased.json")
    assert load_manifest(index).generation == before.generation
    assert not read_erasure(index)


def test_an_engine_of_a_removed_generation_writes_no_words(index: Path, tmp_path: Path) -> None:
    with SearchEngine(index) as engine, SearchEngine(Index.open(index)) as fixed:
        fixed.search("a bridge", 1)
        assert "d1" in [hit.id for hit in engine.search("suspension bridge", 3)]
        erase_documents(index, ["d1"], tmp_path / "erased.json")
        assert "d1" not in [hit.id for hit in engine.search("suspension bridge", 3, hybrid=True)]  # of the next one
        with pytest.raises(StoreError, match="was removed"):
            fixed.search("suspension bridge", 3, hybrid=True)
    vocabularies = [path.read_text() for path in (tmp_path / "cache/bm25").rglob("vocab*.json")]
    assert vocabularies
    assert not any("suspens" in words for words in vocabularies)


def test_a_changed_proof_is_refused_and_another_index_is_named(
    index: Path, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    proof = tmp_path / "erased.json"
    erase_documents(index, ["d1"], proof)
    assert proof.stat().st_mode & 0o077 == 0
    build_index(DOCUMENTS[5:], tmp_path / "other", tiny_config)
    assert any("is it another index?" in note for note in verify_erased(proof, tmp_path / "other").notes)
    proof.write_text(proof.read_text().replace(read_proof(proof).salt, SALT))
    with pytest.raises(ConfigError, match="was changed after it was written"):
        verify_erased(proof)


def test_an_unfinished_erasure_is_reported_by_verify(index: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its folder does not exist"):
        erase_documents(index, ["d1"], tmp_path / "none" / "erased.json")
    assert verify_index(index).passed
    erase_from_index(index, ["d1"], mark)
    assert any("an erasure of documents is unfinished" in problem for problem in verify_index(index).problems)
    erase_documents(index, [], tmp_path / "erased.json")
    assert verify_index(index).passed


def test_a_proof_lies_outside_the_index(index: Path) -> None:
    with pytest.raises(ConfigError, match="inside the index"):
        erase_documents(index, ["d1"], index / "erased.json")


@pytest.mark.parametrize("length", [1, 5, 8, 16, 31])
def test_the_searcher_finds_what_a_naive_search_finds(length: int) -> None:
    rng = np.random.default_rng(length)
    data = rng.integers(0, 4, 3_000, np.uint8)
    wanted = [data[at : at + length].tobytes() for at in (0, 17, len(data) - length)] + [b"\5" * length]
    patterns = patterns_of(SALT, wanted)
    found = Searcher(SALT, patterns).found(data)
    macs = patterns[0].macs
    assert found == {mac for mac, one in zip(macs, sorted(set(wanted)), strict=True) if one in data.tobytes()}


def test_normalised_text() -> None:
    text = np.frombuffer("Ä  B, c\n9".encode(), np.uint8)
    assert normalised(text).tobytes() == "Ä b c 9".encode()
