"""Corpora in object storage: files, folders and globs by URL, read like local ones."""

import glob
import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer import read_corpus
from indexer.corpus.readers.remote import RemoteFile, names_matching, open_object
from indexer.errors import ConfigError, CorpusError, StoreError
from indexer.store.bucket import open_bucket
from tests.object_storage import Fault, Storage, first
from tests.playground import documents, write_rows


@pytest.fixture
def bucket(storage: Storage, tmp_path: Path) -> str:
    """A bucket with a corpus in several files, and other files."""
    bucket = storage.bucket()
    write_rows(tmp_path / "rows.jsonl", documents(20))
    pq.write_table(pa.Table.from_pylist(documents(300)[20:]), tmp_path / "rows.parquet", row_group_size=50)
    store = open_bucket(bucket)
    store.put("in/a.jsonl.gz", gzip.compress((tmp_path / "rows.jsonl").read_bytes()))
    store.put("in/deep/er/b.parquet", (tmp_path / "rows.parquet").read_bytes())
    for name in (
        "in/readme.md",
        "in/_SUCCESS",
        "in/.hidden/c.jsonl",
        "in/index/manifests/00000001.json",
        "in/index/lock",
        "in/index/parts/0.jsonl",
    ):
        store.put(name, b"{}")
    return bucket


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("in/a.jsonl.gz", 20),
        ("in/deep/er/b.parquet", 280),
        ("in", 300),
        ("in/*.gz", 20),
        ("in/**/*.parquet", 280),
        ("in/*/*/b.[a-z]*", 280),
        ("**/b.parquet", 280),
        ("in/**", 300),
        ("i[!x]/?.jsonl.*", 20),
    ],
)
def test_a_url_names_a_file_a_folder_or_a_glob(bucket: str, source: str, count: int) -> None:
    ids = [document.id for document in read_corpus(f"{bucket}/{source}")]
    assert len(ids) == count
    assert ids[0] == ("doc1" if count != 280 else "doc21")


NAMES = [
    f"{folder}{name}"
    for folder in ("", "a/", "a/b/", "b/c/d/", ".h/", "a/.h/", "a/_u/")
    for name in ("x.jsonl", ".x.jsonl", "_x", "ax", "[a]", "-", "x\ny")
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with files of these names."""
    root = tmp_path_factory.mktemp("tree")
    for name in NAMES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


PIECES = ["*", "?", "**", "[!a]", "[!/]", "[a-]", "[.]", "[[]a]", "[a/b]", ".", "/", "a", "x", "_", ".h", "jsonl", "["]
PARTS = [
    "**",
    "*",
    ".*",
    "?*",
    "[!b]",
    "?",
    "a",
    "a*",
    "[.]h",
    ".h",
    "_*",
    "b",
    "*.jsonl",
    "[!.]*l",
    "x[!/]y",
    "**x",
    "?x",
]
PATTERNS = st.one_of(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=7).map("".join),
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=5).map("/".join),
)


@given(PATTERNS)
@settings(max_examples=1000)
def test_a_pattern_means_what_it_means_on_a_disk(tree: Path, pattern: str) -> None:
    parts = pattern.split("/")
    if {"", ".", ".."}.intersection(parts):
        return  # again a folder on a disk, nothing in a URL
    found = glob.glob(pattern, root_dir=tree, recursive=True)
    files = {name for name in found if (tree / name).is_file() and not name.endswith("/")}
    assert set(names_matching(pattern, NAMES)) == files


def test_no_wildcard_crosses_a_folder_or_finds_what_is_hidden() -> None:
    names = ["a.jsonl", ".tmp.jsonl", "a/b.jsonl", "a/.b.jsonl", "_a.jsonl"]
    assert names_matching("*.jsonl", names) == ["a.jsonl", "_a.jsonl"]
    assert names_matching("a?b.jsonl", names) == names_matching("a[!x]b.jsonl", names) == []
    assert names_matching("**/.*.jsonl", names) == [".tmp.jsonl", "a/.b.jsonl"]


def test_what_is_passed_over_in_a_folder_is_said(bucket: str) -> None:
    corpus = read_corpus(f"{bucket}/in")
    assert [file.label for file in corpus.files] == ["a.jsonl.gz", "deep/er/b.parquet"]
    assert corpus.report.ignored_files == [f"{bucket}/in/readme.md"]


def test_a_file_and_a_path_make_one_corpus(bucket: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "more.jsonl", [{"id": "more", "text": "One more."}])
    local = (tmp_path / "more.jsonl").as_uri()
    assert sum(1 for _ in read_corpus(f"{bucket}/in/a.jsonl.gz", local)) == 21


def test_of_a_large_file_only_what_is_read_is_fetched(storage: Storage, bucket: str) -> None:
    open_bucket(bucket).put("large", bytes(30 << 20))
    with open_object(f"{bucket}/large") as file:
        file.seek(20 << 20)
        assert file.read(10) == bytes(10)
        file.seek(-4, 2)
        assert file.read() == bytes(4)
    assert storage.bytes_of("/large") < 1 << 20


def test_a_connection_that_is_cut_loses_nothing(storage: Storage, bucket: str) -> None:
    storage.fault = first(3, Fault(cut=True), "GET", "a.jsonl.gz")
    assert sum(1 for _ in read_corpus(f"{bucket}/in/a.jsonl.gz")) == 20


def test_a_file_that_is_written_anew_meanwhile_is_refused(bucket: str) -> None:
    file = RemoteFile(f"{bucket}/in/a.jsonl.gz")
    open_bucket(bucket).put("in/a.jsonl.gz", b"other")
    with pytest.raises(CorpusError, match=r"a.jsonl.gz: changed while it was read"):
        file.read(10)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("in/a.jsonl.g", r'no such file or folder; did you mean "s3://test-\w+/in/a.jsonl.gz"\?'),
        ("in/*.xml", "this pattern matches no file"),
        ("in/readme.md", r"s3://test-\w+/in/readme.md: unknown file type"),
        ("in/index", "is an index, not a corpus"),
    ],
)
def test_what_is_no_corpus_is_named(bucket: str, source: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        read_corpus(f"{bucket}/{source}")


def test_urls_that_name_no_bucket(bucket: str) -> None:
    with pytest.raises(StoreError, match="there is no such bucket"):
        read_corpus("s3://no-such-bucket/docs.jsonl")
    with pytest.raises(ConfigError, match='"gs://" has no bucket'):
        read_corpus("gs://")
