"""`sync_index` of a folder of files: only new and changed files are read, and an unreadable one keeps its document."""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from indexer import (
    BuildConfig,
    ChunkConfig,
    Corpus,
    CorpusConfig,
    Document,
    SyncReport,
    build_index,
    plan_sync,
    read_corpus,
    sync_index,
)
from indexer.corpus.sources import SourceFile
from indexer.errors import ConfigError
from indexer.pipeline import sync
from indexer.store.bucket import open_bucket
from tests.indexer.pipeline.test_life import Counting
from tests.indexer.pipeline.test_life import counting as counting  # a fixture
from tests.indexer.pipeline.test_sync import counts, documents_in
from tests.object_storage import Storage

BROKEN = "broken"
FILES = CorpusConfig(documents="files")
CHUNK = ChunkConfig(tokens=16, overlap=4, by="tokens")  # fits the tiny encoder


class Folder(Corpus):
    """Text files as documents. A file with the text "broken" is rejected, as an extraction does it."""

    def __init__(self, folder: Path, files: Sequence[SourceFile] | None = None) -> None:
        paths = sorted(folder.iterdir()) if files is None else []
        found = [SourceFile(path, str(path), path.name, "file") for path in paths]
        super().__init__(list(files or found), [], FILES, "skip", None)
        self.folder, self.read = folder, list[str]()

    def limited_to(self, files: Sequence[SourceFile]) -> "Folder":
        limited = Folder(self.folder, files)
        limited.read = self.read
        return limited

    def documents(self, known: pa.Schema | None = None) -> Iterator[Document]:
        for file in self.files:
            assert file.path is not None
            digest, text = sync._digest(file), file.path.read_text()
            self.read.append(file.label)
            if text == BROKEN:
                self.report.rejected["broken"] += 1
            else:
                self.report.documents += 1
                yield Document(file.label, text, metadata={"sha256": digest, "modified": file.path.stat().st_mtime_ns})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sync, "_digest", lambda file: hashlib.sha256(file.path.read_bytes()).hexdigest())
    folder = tmp_path / "notes"
    folder.mkdir()
    for name in ("a", "b", "c", "d"):
        (folder / name).write_text(f"a note on {name}")
    return folder


@pytest.fixture
def index(tiny_config: BuildConfig, counting: Counting, folder: Path, tmp_path: Path) -> Path:
    build_index(Folder(folder), tmp_path / "index", replace(tiny_config, corpus=FILES, chunk=CHUNK))
    return tmp_path / "index"


def synced(folder: Path, index: Path, reads: list[str]) -> SyncReport:
    """Sync, and compare the files that were read."""
    corpus = Folder(folder)
    report = sync_index(corpus, index)
    assert corpus.read == reads
    assert corpus.report.documents + corpus.report.rejected["broken"] == len(list(folder.iterdir()))
    return report


def test_only_new_and_changed_files_are_read(folder: Path, index: Path, counting: Counting) -> None:
    assert synced(folder, index, []).generation == 1
    encoded, old = counting.texts, documents_in(index)
    (folder / "a").write_text("changed")
    (folder / "b").write_text("a note on b")  # written again: `modified` changes, its bytes do not
    (folder / "c").rename(folder / "e")
    plan = plan_sync(Folder(folder), index)
    assert (plan.added, plan.replaced, plan.deleted, plan.unchanged) == (("e",), ("a",), ("c",), 2)
    report = synced(folder, index, ["a", "e"])
    assert (counts(report), report.kept, report.generation) == ((1, 1, 1, 2), (), 2)
    assert (counting.texts - encoded, report.rows_encoded, report.rows_reused) == (1, 1, 1)
    assert {name: each.text for name, each in documents_in(index).items()} == {
        path.name: path.read_text() for path in folder.iterdir()
    }
    assert documents_in(index)["b"] == old["b"]


def test_a_file_that_cannot_be_read_keeps_its_document_and_is_named(folder: Path, index: Path) -> None:
    before = documents_in(index)
    (folder / "a").write_text(BROKEN)
    (folder / "new").write_text(BROKEN)
    for _ in range(2):
        report = synced(folder, index, ["a", "new"])
        assert (counts(report), report.kept, report.generation) == ((0, 0, 0, 3), ("a",), 1)
    (folder / "d").unlink()
    report = synced(folder, index, ["a", "new"])
    assert (counts(report), report.kept) == ((0, 0, 1, 2), ("a",))
    assert documents_in(index)["a"] == before["a"]
    (folder / "a").write_text("whole again")
    assert counts(synced(folder, index, ["a", "new"])) == (0, 1, 0, 2)


def test_a_file_that_changes_while_it_is_read_is_read_again_by_the_next_run(
    folder: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a").write_text("first")
    digest, versions = sync._digest, itertools.count(2)

    def changing(file: SourceFile) -> str:
        found = digest(file)
        if file.label == "a" and file.path:
            file.path.write_text(f"version {next(versions)}")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(sync, "_digest", changing)
        synced(folder, index, ["a"])
    assert documents_in(index)["a"].text == "version 3"  # with the digest of version 2
    assert counts(synced(folder, index, ["a"])) == (0, 1, 0, 3)
    assert synced(folder, index, []).generation == 3


def test_an_empty_folder_is_refused(folder: Path, index: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(ConfigError, match=r"more than half of its documents \(4 of 4\) are not in the source"):
        sync_index(Folder(folder), index)


def test_only_objects_with_another_etag_are_downloaded(
    tiny_config: BuildConfig, storage: Storage, tmp_path: Path
) -> None:
    bucket = storage.bucket()
    store = open_bucket(bucket)
    for name in ("a.md", "b.md", "c.md"):
        store.put(f"notes/{name}", f"# {name}\n\nA note.\n".encode())
    recipe = replace(tiny_config, corpus=FILES, chunk=CHUNK)

    def synced() -> SyncReport:
        storage.served.clear()
        return sync_index(read_corpus(f"{bucket}/notes", config=FILES), tmp_path / "index", recipe)

    assert synced().added == 3
    store.put("notes/b.md", b"# b\n\nAnother note.\n")
    store.remove(["notes/c.md"])
    assert counts(synced()) == (0, 1, 1, 1)
    assert {path.rpartition("/")[2] for path in storage.served if path.endswith(".md")} == {"b.md"}
