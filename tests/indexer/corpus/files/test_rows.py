"""Files as documents of a corpus: id, title, text, metadata, and the list of rejected files."""

import hashlib
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from indexer import Document, build_index, read_corpus
from indexer.corpus.corpus import Corpus
from indexer.corpus.files import rows
from indexer.corpus.files.extraction import extract_files
from indexer.corpus.schema import infer_schema
from indexer.errors import ConfigError, CorpusError
from indexer.recipe.config import BuildConfig
from indexer.recipe.corpus_config import ChunkConfig, CorpusConfig
from indexer.store.bucket import open_bucket
from tests.indexer.corpus.corpus_files import write
from tests.object_storage import Storage

FILES = CorpusConfig(documents="files")


def files_of(*sources: object, **options: Any) -> Corpus:
    return read_corpus(*map(str, sources), config=FILES, **options)


def test_a_file_is_a_document_with_its_path_as_id(tmp_path: Path) -> None:
    place = write(tmp_path, "docs/api/Guide.MD", "# Start\n\nText\n\n## More\n")
    os.utime(place, ns=(0, 1_700_000_000_123_456_789))
    write(tmp_path, "main.py", "x = 1\n")
    guide, code = files_of(tmp_path)
    assert guide == Document(
        "docs/api/Guide.MD",
        "# Start\n\nText\n\n## More\n",
        guide.title,
        {
            "path": "docs/api/Guide.MD",
            "folder": "docs/api",
            "suffix": ".md",
            "modified": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
            "bytes": 23,
            "sections": ["Start", "More"],
            "sha256": hashlib.sha256(b"# Start\n\nText\n\n## More\n").hexdigest(),
        },
    )
    assert (code.title, code.metadata["folder"], code.metadata["language"]) == ("main.py", ".", "python")
    assert infer_schema([guide.metadata, code.metadata]).field("modified").type == pa.timestamp("us", tz="UTC")


def test_files_that_fail_are_rejected_and_the_others_stay(tmp_path: Path) -> None:
    for name, content in (
        ("a.md", b"text"),
        ("b.txt", b"one\0two"),
        ("c.md", b" \n"),
        ("d.md", b"a\0b"),
        ("e.md", b"x"),
    ):
        write(tmp_path, f"in/{name}", content)
    corpus = files_of(tmp_path / "in", rejects=tmp_path / "rejects.jsonl")
    (tmp_path / "in/e.md").unlink()
    assert [document.id for document in corpus] == ["a.md"]
    assert corpus.report.files == 5
    assert corpus.report.rejected.total() == 4
    assert (corpus.report.rejected["blank"], corpus.report.rejected["unreadable"]) == (1, 1)
    listed = (tmp_path / "rejects.jsonl").read_text().splitlines()
    assert [line.split('", "line": 0')[0].rpartition("/")[2] for line in listed] == ["b.txt", "c.md", "d.md", "e.md"]
    with pytest.raises(CorpusError, match=r"in/b\.txt: .*\. Fix: .*, or pass on_error=\"skip\" to skip such files"):
        list(files_of(tmp_path / "in", on_error="fail"))


def test_names_that_become_the_same_id_are_one_document(tmp_path: Path) -> None:
    (tmp_path / "\\xff.md").write_text("one")
    (tmp_path / os.fsdecode(b"\xff.md")).write_text("two")
    corpus = files_of(tmp_path)
    assert len(list(corpus)) == 1
    assert corpus.report.rejected == {"duplicate-id": 1}


def test_a_file_that_changes_while_it_is_read_has_the_digest_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write(tmp_path, "a.md", "old")

    def before(files: Any) -> Any:
        for file in files:
            place.write_text("new")
            yield file

    monkeypatch.setattr(rows, "extract_files", lambda files, **options: extract_files(before(files), **options))
    (document,) = files_of(tmp_path)
    assert document.text == "new"
    assert document.metadata["sha256"] == hashlib.sha256(b"old").hexdigest()  # a sync reads the file again


def test_a_corpus_can_be_limited_to_some_files(tmp_path: Path) -> None:
    for name in ("a.md", "b.md", "c.md"):
        write(tmp_path, name, name)
    corpus = files_of(tmp_path)
    assert [document.id for document in corpus.limited_to(corpus.files[1:])] == ["b.md", "c.md"]
    assert len(list(corpus)) == 3


def test_documents_come_again_and_may_be_left_before_the_end(tmp_path: Path) -> None:
    for number in range(30):
        write(tmp_path, f"{number:02}.md", f"text {number}")
    corpus = files_of(tmp_path)
    assert next(iter(corpus)).id == "00.md"
    assert [document.id for document in corpus] == [document.id for document, _, _ in corpus.rows()]


def test_objects_have_their_etag_instead_of_a_hash(storage: Storage) -> None:
    bucket = storage.bucket()
    open_bucket(bucket).put("in/a.md", b"# Title\n")
    corpus = files_of(f"{bucket}/in")
    (document,) = corpus
    assert (document.id, document.metadata["bytes"]) == ("a.md", 8)
    assert document.metadata["etag"] == corpus.files[0].etag != ""
    assert "sha256" not in document.metadata
    assert document.metadata["modified"].tzinfo is not None


@pytest.mark.parametrize("role", ["id", "title", "text", "vector"])
def test_files_have_no_columns_to_choose(role: str) -> None:
    with pytest.raises(ConfigError, match=rf'corpus.{role}_column is "x", but corpus.documents is "files"'):
        BuildConfig().with_columns({"documents": "files", f"{role}_column": "x"})


def test_a_format_is_for_tables(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="format is for tables"):
        files_of(tmp_path, format="csv")


def test_windows_follow_the_structure_of_files_unless_the_recipe_decides() -> None:
    assert BuildConfig().with_columns({"documents": "files"}).chunk.by == "structure"
    assert BuildConfig().with_overrides(["corpus.documents=files"]).chunk.by == "structure"
    decided = BuildConfig.from_dict({"chunk": {"by": "tokens"}})
    assert decided.with_columns({"documents": "files"}).chunk.by == "tokens"
    assert decided.with_overrides(["corpus.documents=files"]).chunk.by == "tokens"
    stored = BuildConfig.from_dict(BuildConfig().to_dict())  # as in an index
    assert stored.with_overrides(["corpus.documents=files"]).chunk.by == "tokens"


def test_a_build_takes_a_folder_by_an_argument(tmp_path: Path, tiny_config: BuildConfig) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path, f"in/{name}.md", f"about {name}")
    config = replace(tiny_config, chunk=ChunkConfig(tokens=16, overlap=0))
    report = build_index(tmp_path / "in", tmp_path / "index", config, documents="files")
    assert report.documents == 3
