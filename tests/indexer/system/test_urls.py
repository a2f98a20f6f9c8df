"""URLs, paths and neither: no mistyped URL silently becomes a path."""

import errno
import hashlib
import os
from pathlib import Path

import pytest

from indexer.corpus.corpus import read_corpus
from indexer.errors import ConfigError, StoreError
from indexer.recipe.loading import named_path
from indexer.system.urls import is_loopback, local_path, mirrored, remote_folder, url_of


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ISOTROPE_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://bucket/index", "s3://bucket/index"),
        ("S3://Bucket/Index/", "s3://Bucket/Index"),
        ("s3:/bucket//index", "s3://bucket/index"),  # as Path makes it
        ("Gs://b/i", "gs://b/i"),
        ("AZ://b/i", "az://b/i"),
        ("s3://b/..i/.x", "s3://b/..i/.x"),
        ("FILE:///data/docs.jsonl", ""),
        ("C:/data", ""),  # a drive of Windows
        ("docs.jsonl", ""),
        ("/data/https://x", ""),
        ("a:b", ""),
        ("notes:2020.jsonl", ""),
    ],
)
def test_a_url_is_known_whatever_the_case_of_its_scheme(text: str, url: str) -> None:
    assert url_of(text) == url_of(Path(text)) == url


def test_a_url_of_a_file_is_its_path() -> None:
    assert local_path("FILE:///data/my%20docs.jsonl") == Path("/data/my docs.jsonl")


@pytest.mark.parametrize("text", ["gcs://b/i", "hdfs://x/y", "s3a://b/i", "abfs+x://b"])
def test_other_schemes_are_refused_with_those_there_are(text: str) -> None:
    for path in (text, Path(text)):
        for asks in (url_of, read_corpus, lambda path: named_path(path, "the index")):
            with pytest.raises(
                ConfigError, match=r"expected s3://, gs://, az:// or file:///, or a path\. Fix: correct"
            ):
                asks(path)
    assert os.listdir() == []


@pytest.mark.parametrize("text", ["hf://user/name", "hf:/user/name", "HF://user/name/"])
def test_an_index_on_a_hub_is_to_be_pulled(text: str) -> None:
    with pytest.raises(ConfigError, match=r'Fix: pull_index\("hf://user/name", folder\), and use the folder\.'):
        named_path(text, "the index")


@pytest.mark.parametrize("text", ["https://host/x.jsonl", "http:/host/x", "HTTPS://host/x"])
def test_what_is_on_the_web_is_to_be_downloaded(text: str) -> None:
    with pytest.raises(ConfigError, match=r"Fix: download the file first"):
        read_corpus(text)


def test_a_folder_with_such_a_name_is_a_folder() -> None:
    path = Path("notes:/docs.jsonl")
    path.parent.mkdir()
    path.write_text('{"id": "a", "text": "one"}')
    assert [document.id for document in read_corpus(path)] == ["a"]
    assert named_path("notes:/index", "the index") == Path("notes:/index")


@pytest.mark.parametrize("text", ["s3://bucket/.", "s3://bucket/a/..", "s3://bucket/../a", "gs://b/./a", "s3://.."])
def test_dots_are_no_names_in_a_url(text: str) -> None:
    with pytest.raises(ConfigError, match=r'contains "\.\.?", which has no meaning'):
        named_path(text, "the index")


def test_an_index_by_url_has_a_folder_of_its_own() -> None:
    folder = named_path("S3://bucket/index", "the index")
    assert mirrored(folder) == (folder, "s3://bucket/index", "")


@pytest.mark.parametrize("damage", [b"", b"s3://buck", b"\xff\xfe", b"s3://other/index"])
def test_the_url_of_a_mirror_folder_is_written_again_where_it_was_damaged(damage: bytes) -> None:
    url = "s3://bucket/index"
    marker = remote_folder() / hashlib.sha256(url.encode()).hexdigest()[:20] / "url"
    marker.parent.mkdir(parents=True)
    marker.write_bytes(damage)
    with pytest.raises(StoreError, match=r"the cache of an index in object storage.*missing or damaged\. Fix: use"):
        mirrored(marker.with_name("index"))  # never a local folder
    folder = named_path(url, "the index")
    assert mirrored(folder / "manifests") == (folder, url, "manifests")
    assert marker.read_text() == url
    assert sorted(path.name for path in marker.parent.iterdir()) == ["index", "url"]


def test_a_url_that_cannot_be_written_leaves_the_one_before_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match=r"s3://bucket/index: the cache .* cannot be written \(No space left"):
            named_path("s3://bucket/index", "the index")
    (place,) = remote_folder().iterdir()
    assert [path.name for path in place.iterdir()] == ["index"]


def test_this_machine_is_known_by_its_whole_name() -> None:
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.9.9.9", "::1"]))
    others = [
        "",
        "evil.localhost",
        "notlocalhost",
        "localhost.evil",
        "evil127.0.0.1",
        "127.0.0.1.evil",
        "10.0.0.1",
        "::",
    ]
    assert not any(map(is_loopback, others))
