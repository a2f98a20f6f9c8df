"""The files of a folder that are documents, the others counted by reason, and ids by path."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from indexer.corpus.files.folder import file_digest, find_documents
from indexer.corpus.row import BadRow
from indexer.errors import ConfigError, CorpusError
from indexer.hashing import hash_id
from indexer.store.bucket import open_bucket
from tests.indexer.corpus.corpus_files import write
from tests.object_storage import Storage


def ids(*sources: object) -> list[str]:
    return [file.label for file in find_documents(list(map(str, sources)))[0]]


def test_every_entry_is_a_document_or_counted_once_by_its_reason(tmp_path: Path) -> None:
    names = ["README", "README.Debian", "a/B.py", "a/b/c.Txt", "a/z.md", "a.md", "b.PDF"]
    for name in reversed(names):
        write(tmp_path, name, "text")
    for name in (".git/x/y.md", ".env", "a/.hidden.md", "photo.jpg", "rows.csv", "old.rejects.jsonl", "build/x.md"):
        write(tmp_path, name, "text")
    write(tmp_path, ".gitignore", "build\n")
    write(tmp_path, "a/empty.py", "")
    write(tmp_path, "tool", b"\x7fELF\0\0")
    write(tmp_path, "README.gz", b"\x1f\x8b\0\0")
    (tmp_path / "link.md").symlink_to("a.md")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "index/manifests").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe.md")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        files, left_out = find_documents([tmp_path])
    assert [file.label for file in files] == names
    assert {file.format for file in files} == {"file"}
    assert left_out.reasons == {
        "hidden": 4,
        "ignored by .gitignore": 1,
        "linked": 2,
        "pipes, sockets or devices": 2,
        "indexes": 1,
        "of unknown type": 3,
        "binary": 2,
        "empty": 1,
    }
    assert left_out.unknown == [f"{tmp_path}/{name}" for name in ("old.rejects.jsonl", "photo.jpg", "rows.csv")]


def test_the_order_is_that_of_path_parts(tmp_path: Path) -> None:
    for name in ("a-b/x.md", "a/x.md", "a.md", "a/b/c.md"):
        write(tmp_path, name, "x")
    assert ids(tmp_path) == ["a/b/c.md", "a/x.md", "a-b/x.md", "a.md"]


def test_a_file_that_is_named_is_read_although_it_is_hidden_ignored_or_a_link(tmp_path: Path) -> None:
    write(tmp_path, ".gitignore", "*.md\n")
    write(tmp_path, ".notes.md", "x")
    (tmp_path / "link.md").symlink_to(".notes.md")
    assert ids(tmp_path / ".notes.md", tmp_path / "link.md") == [".notes.md", "link.md"]


@pytest.mark.parametrize(("name", "content", "reason"), [
    ("photo.jpg", "x", "of unknown type"), ("a.md", "", "empty"), ("tool", "\0", "binary"),
])  # fmt: skip
def test_a_named_file_that_can_be_no_document_is_an_error(tmp_path: Path, name: str, content: str, reason: str) -> None:
    with pytest.raises(CorpusError, match=rf"{name}: cannot be a document: it is {reason}; expected a file such as"):
        ids(write(tmp_path, name, content))


def test_the_error_for_a_named_table_says_how_to_read_it(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"Fix: .* index of a table without CorpusConfig\(documents=\"files\"\)\."):
        ids(write(tmp_path, "rows.csv", "x"))


def test_a_glob_decides_about_hidden_files_and_ignore_files_about_its_matches(tmp_path: Path) -> None:
    for name in ("a.md", "b.txt", ".github/c.md", "build/d.md", "sub/e.md", "sub/f.jpg"):
        write(tmp_path, name, "x")
    write(tmp_path, ".gitignore", "build\n")
    (tmp_path / "linked").symlink_to("sub")
    assert ids(f"{tmp_path}/**/*.md") == ["a.md", "sub/e.md"]
    assert ids(f"{tmp_path}/.github/*") == ["c.md"]
    _, left_out = find_documents([f"{tmp_path}/**/*"])
    assert left_out.reasons == {"ignored by .gitignore": 1, "linked": 2, "of unknown type": 1}


def test_with_several_sources_the_folders_name_comes_first(tmp_path: Path) -> None:
    for name in ("one/docs/a.md", "two/notes/a.md", "b.md"):
        write(tmp_path, name, "x")
    one, two = tmp_path / "one/docs", tmp_path / "two/notes"
    assert ids(one) == ["a.md"]
    assert ids(one, f"{two}/*.md", tmp_path / "b.md") == ["docs/a.md", "notes/a.md", "b.md"]
    write(tmp_path, "two/docs/a.md", "x")
    with pytest.raises(
        CorpusError, match=r'one/docs and .*two/docs each contain a file with the id "docs/a.md". Fix: pass'
    ):
        ids(one, tmp_path / "two/docs")


def test_names_that_are_no_utf8_have_ids_with_escapes(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.md")).write_text("x")
    (tmp_path / os.fsdecode(b"\xff")).mkdir()
    (tmp_path / os.fsdecode(b"\xff") / "é.md").write_text("x")
    files, _ = find_documents([tmp_path])
    assert [file.label for file in files] == ["caf\\xe9.md", "\\xff/é.md"]
    assert [hash_id(file.label) for file in files]  # can be stored
    assert all(file_digest(file) for file in files)


def test_a_source_without_documents_says_what_was_left_out(tmp_path: Path) -> None:
    write(tmp_path, ".a.md", "x")
    write(tmp_path, "a.csv", "x")
    with pytest.raises(CorpusError, match=r"no files that can be documents; left out: 1 hidden, 1 of unknown type"):
        ids(tmp_path)
    with pytest.raises(CorpusError, match="no such file or folder"):
        ids(tmp_path / "missing")
    with pytest.raises(ConfigError, match="no source"):
        ids()
    with pytest.raises(ConfigError, match="stdin"):
        ids("-")
    (tmp_path / "manifests").mkdir()
    with pytest.raises(CorpusError, match="is an index"):
        ids(tmp_path)


def test_a_folder_that_cannot_be_listed_is_an_error_and_one_that_vanishes_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a.md", "x")
    write(tmp_path, "gone/b.md", "x")
    original, failure = os.scandir, OSError(2, "No such file or directory")  # FileNotFoundError

    def scandir(path: Any) -> Any:  # tests may run as root, which can list everything
        if Path(path).name == "gone":
            raise failure
        return original(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert ids(tmp_path) == ["a.md"]
    failure = OSError(13, "Permission denied")  # its documents must not look deleted
    with pytest.raises(CorpusError, match=r"gone: cannot be listed: Permission denied. Fix: .* name it in .isotropei"):
        ids(tmp_path)


def test_a_digest_is_the_sha256_of_the_bytes(tmp_path: Path) -> None:
    ((file,), _) = find_documents([write(tmp_path, "a.md", "abc")])
    assert file_digest(file) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    (tmp_path / "a.md").unlink()
    with pytest.raises(BadRow, match="cannot be read: No such file"):
        file_digest(file)


def test_objects_are_found_by_the_same_rules_and_know_their_etag(storage: Storage) -> None:
    bucket = storage.bucket()
    store = open_bucket(bucket)
    for name in ("in/a.md", "in/sub/b.PY", "in/sub", "in/.x/c.md", "in/build/d.md", "in/e.jpg", "in/_f.md"):
        store.put(name, name.encode())
    store.put("in/.gitignore", b"build/\n")
    store.put("in/index/manifests/00000001.json", b"{}")
    store.put("in/empty.md", b"")
    files, left_out = find_documents([f"{bucket}/in"])
    assert [file.label for file in files] == ["_f.md", "a.md", "sub", "sub/b.PY"]
    assert left_out.reasons == {"hidden": 2, "ignored by .gitignore": 1, "of unknown type": 1, "indexes": 1, "empty": 1}
    before = {file.label: file_digest(file) for file in files}
    assert len(set(before.values())) == 4
    store.put("in/a.md", b"new")
    changed = {file.label for file in find_documents([f"{bucket}/in"])[0] if file_digest(file) != before[file.label]}
    assert changed == {"a.md"}
    assert ids(f"{bucket}/in/**/*.md", f"{bucket}/in/sub/b.PY") == ["in/_f.md", "in/a.md", "b.PY"]
