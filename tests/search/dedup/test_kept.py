"""`--kept`: rows of the corpus are copied, or documents are read back unchanged."""

import bz2
import csv
import errno
import gzip
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from indexer import BuildConfig, Document, build_index, read_corpus
from indexer.corpus.corpus import Corpus
from indexer.errors import ConfigError, CorpusError, StoreError
from indexer.recipe.corpus_config import CorpusConfig
from search.dedup import corpus_writing as writing
from search.dedup.kept_documents import check_kept, write_kept
from search.index import Index
from tests.documents import DOCUMENTS
from tests.faults import FaultyOs

KEPT = [0, 2, 3, 6, 8]
Write = Callable[..., Path]


@pytest.fixture
def config(tiny_config: BuildConfig) -> BuildConfig:
    return tiny_config


def opened(corpus: Iterable[Document], config: BuildConfig, index: Path) -> Index:
    """Build or open an index of the corpus."""
    columns = corpus.config if isinstance(corpus, Corpus) else config.corpus
    build_index(corpus, index, replace(config, corpus=columns))
    return Index.open(index)


def kept(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def record(document: Document) -> dict[str, Any]:
    return {"_id": document.id, "title": document.title, "contents": document.text, **document.metadata}


def json_line(document: Document) -> str:
    """Write in an unusual layout, so that only a copy is equal."""
    return json.dumps(record(document), separators=(" ,  ", " : ")) + "\r\n"


def csv_record(document: Document) -> str:
    return ",".join(f'"{str(value).replace("s", chr(10))}"' for value in record(document).values()) + "\r\n"


def tsv_line(document: Document) -> str:
    return "\t".join(f'"{value}' for value in record(document).values()) + "\n"


HEADERS = {"csv": '"_id",title,contents,"year"\r\n', "tsv": "_id\ttitle\tcontents\tyear\r\n"}
LINES: dict[str, Callable[[Document], str]] = {
    "jsonl": json_line,
    "csv": csv_record,
    "tsv": tsv_line,
    "txt": lambda document: f" {document.text}\u2028\t\r\n",
}
UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".zst": lambda data: bytes(pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()),
}


def written(kind: str, documents: Sequence[Document]) -> str:
    return HEADERS.get(kind, "") + "".join(map(LINES[kind], documents))


# --- with the corpus: copied


@pytest.mark.parametrize("packing", UNPACK)
@pytest.mark.parametrize("kind", LINES)
def test_surviving_lines_stay_as_they_were_to_the_byte(
    config: BuildConfig, tmp_path: Path, kind: str, packing: str
) -> None:
    source = tmp_path / f"corpus.{kind}.gz"
    source.write_bytes(gzip.compress(written(kind, DOCUMENTS).encode()))
    corpus = read_corpus(source)
    target = tmp_path / "new folder" / f"kept.{kind}{packing}"
    digest = write_kept(target, opened(corpus, config, tmp_path / "index"), kept(*KEPT), corpus)
    data = target.read_bytes()
    assert UNPACK[packing](data).decode() == written(kind, [DOCUMENTS[number] for number in KEPT])
    assert digest.bytes == len(data)


@pytest.mark.parametrize("kind", LINES)
def test_lines_of_several_files_stand_under_one_header(config: BuildConfig, tmp_path: Path, kind: str) -> None:
    for name, part in (("a", DOCUMENTS[:4]), ("b", []), ("c", DOCUMENTS[4:])):
        text = "\ufeff" + written(kind, part).removesuffix("\n").removesuffix("\r")
        (tmp_path / f"{name}.{kind}").write_text(text, encoding="utf-8", newline="")
    corpus = read_corpus(f"{tmp_path}/*.{kind}")
    target = tmp_path / "out" / f"kept.{kind}"
    write_kept(target, opened(corpus, config, tmp_path / "index"), kept(*KEPT), corpus)
    expected = written(kind, [DOCUMENTS[number] for number in KEPT])
    assert target.read_bytes().decode().replace("\r\n", "\n") == expected.replace("\r\n", "\n")


def test_rejected_rows_and_blank_lines_are_no_survivors(config: BuildConfig, tmp_path: Path) -> None:
    lines = ['{"id": "a", "text": "whale"}', "", "no JSON", '{"id": "b", "text": "bee"}', '{"id": "a", "text": "map"}',
             '{"id": "c", "text": ""}', " ", '{"id": "d", "text":   "glass"}']  # fmt: skip
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    rejects = tmp_path / "rejects.jsonl"
    corpus = read_corpus(tmp_path / "corpus.jsonl", on_error="skip", rejects=rejects)
    index = opened(corpus, config, tmp_path / "index")
    report, listed = corpus.report, rejects.read_bytes()
    rejects.unlink()
    write_kept(tmp_path / "kept.jsonl", index, kept(0, 2), corpus)
    assert (tmp_path / "kept.jsonl").read_text().splitlines() == [lines[0], lines[7]]
    assert listed.count(b"\n") == 3
    assert corpus.report is report, "a second look leaves the report and the list of the first alone"
    assert not rejects.exists()


def test_long_records_survive_whole(config: BuildConfig, tmp_path: Path) -> None:
    texts = ["whale\n" * 5_000, "bee, " * 5_000, "a\r\nb" * 5_000]
    with open(tmp_path / "corpus.csv", "w", newline="") as file:
        csv.writer(file).writerows([["id", "text"], *([str(n), text] for n, text in enumerate(texts))])
    corpus = read_corpus(tmp_path / "corpus.csv")
    write_kept(tmp_path / "kept.csv", opened(corpus, config, tmp_path / "index"), kept(0, 1, 2), corpus)
    assert (tmp_path / "kept.csv").read_bytes() == (tmp_path / "corpus.csv").read_bytes()


ZOO = pa.table(
    {
        "id": pa.array([str(n) for n in range(6)], pa.large_string()),
        "text": pa.array(["whale", "bee", "map", "glass", "river", "clock"]).dictionary_encode(),
        "when": pa.array([datetime(2020, 1, n + 1, tzinfo=UTC) for n in range(6)], pa.timestamp("ms", "Europe/Berlin")),
        "day": pa.array([date(2020, 1, 1)] * 6, pa.date32()),
        "price": pa.array([Decimal("1.50")] * 6, pa.decimal128(9, 2)),
        "blob": pa.array([b"\0\xff"] * 6),
        "small": pa.array([1, None, 3, 4, 5, 6], pa.int8()),
        "vector": pa.array([[0.5, n] for n in range(6)], pa.list_(pa.float32(), 2)),
        "nested": pa.array([{"a": [{"b": n}], "c": None} for n in range(6)]),
        "view": pa.array(["a longer text than fits"] * 6, pa.string_view()),
        "none": pa.nulls(6),
    },
).replace_schema_metadata({"made by": "hand"})


def arrow_file(table: pa.Table, path: Path, stream: bool = False, rows: int = 4) -> None:
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)


def parquet_file(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, row_group_size=4)


def table_of(file: Any, arrow: bool, stream: bool) -> pa.Table:
    if not arrow:
        return pq.read_table(file)
    return (pa.ipc.open_stream if stream else pa.ipc.open_file)(file).read_all()


@pytest.mark.parametrize(("name", "packing"), [("kept.parquet", ""), ("kept.arrow", ""), ("kept.pq.zst", ".zst")])
@pytest.mark.parametrize("stream", [False, True])
def test_surviving_rows_keep_every_column_and_type(
    config: BuildConfig, tmp_path: Path, name: str, packing: str, stream: bool
) -> None:
    source = tmp_path / ("corpus.arrow" if "arrow" in name else "corpus.parquet")
    arrow_file(ZOO, source, stream) if "arrow" in name else parquet_file(ZOO, source)
    corpus = read_corpus(source, config=CorpusConfig(drop=("vector", "small")))
    target = tmp_path / name
    write_kept(target, opened(corpus, config, tmp_path / "index"), kept(1, 3, 5), corpus)
    unpacked = pa.BufferReader(UNPACK[packing](target.read_bytes()))
    found, whole = (
        table_of(file, "arrow" in name, stream) for file in (unpacked, pa.BufferReader(source.read_bytes()))
    )
    assert found.schema.equals(whole.schema, check_metadata=True)
    assert found.to_pylist() == [whole.to_pylist()[number] for number in (1, 3, 5)]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_tables_of_several_files_become_one_whatever_their_dictionaries(
    config: BuildConfig, tmp_path: Path, kind: str
) -> None:
    texts = ZOO.column("text").cast(pa.string())
    for name, start, rows in (("a", 0, 2), ("b", 2, 3), ("c", 5, 1)):
        part = ZOO.slice(start, rows).set_column(1, "text", texts.slice(start, rows).dictionary_encode())
        (parquet_file if kind == "parquet" else arrow_file)(part, tmp_path / f"{name}.{kind}")
    corpus = read_corpus(f"{tmp_path}/*.{kind}")
    target = tmp_path / "out" / f"kept.{kind}"
    write_kept(target, opened(corpus, config, tmp_path / "index"), kept(0, 3, 4, 5), corpus)
    found = pq.read_table(target) if kind == "parquet" else pa.ipc.open_stream(target).read_all()
    assert found.schema.equals(ZOO.schema) or kind == "parquet"  # which renames the items of lists
    assert found.to_pylist() == [ZOO.to_pylist()[number] for number in (0, 3, 4, 5)]
    assert list(read_corpus(target)) == [document for n, document in enumerate(corpus) if n in (0, 3, 4, 5)]


# --- with the corpus in another format: converted


def renamed(documents: Iterable[Document], *columns: str) -> list[dict[str, Any]]:
    return [dict(zip(columns, record(document).values(), strict=True)) for document in documents]


@pytest.mark.parametrize("name", ["kept.csv", "kept.jsonl.bz2", "kept.tsv", "kept.parquet", "kept.arrow"])
def test_another_format_keeps_the_names_of_the_columns(config: BuildConfig, tmp_path: Path, name: str) -> None:
    source = tmp_path / ("corpus.csv" if "jsonl" in name else "corpus.jsonl")
    rows = renamed(DOCUMENTS, "docid", "head", "contents", "year")
    if source.suffix == ".csv":
        with open(source, "w", newline="") as file:
            csv.writer(file).writerows([rows[0].keys(), *(row.values() for row in rows)])
    else:
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = CorpusConfig(title_column="head", columns={"year": "int"})
    corpus = read_corpus(source, config=settings)
    write_kept(tmp_path / name, opened(corpus, config, tmp_path / "index"), kept(*KEPT), corpus)
    assert list(read_corpus(tmp_path / name, config=settings)) == [DOCUMENTS[number] for number in KEPT]
    if name == "kept.csv":
        assert (tmp_path / name).read_text().splitlines()[0] == "docid,head,contents,year"


def test_files_with_different_columns_are_converted(config: BuildConfig, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("_id,text,colour\na,whale,blue\nb,bee,\n")
    (tmp_path / "b.csv").write_text("id,contents,size\nc,map,3\n")
    corpus = read_corpus(f"{tmp_path}/*.csv")
    target = tmp_path / "out" / "kept.csv"
    write_kept(target, opened(corpus, config, tmp_path / "index"), kept(0, 2), corpus)
    assert target.read_text().splitlines() == ["_id,title,text,colour,size", "a,,whale,blue,", "c,,map,,3"]
    assert list(read_corpus(target)) == [document for document in corpus if document.id != "b"]


def test_files_of_different_formats_or_types_are_converted(config: BuildConfig, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"], "text": ["whale"], "n": pa.array([1], pa.int64())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": ["b"], "text": ["bee"], "n": pa.array([0.5])}), tmp_path / "b.parquet")
    (tmp_path / "c.jsonl").write_text('{"id": "c", "title": "T", "text": "map"}\n')
    for sources in ("*.parquet", "*"):
        corpus = read_corpus(f"{tmp_path}/{sources}")
        target = tmp_path / "out" / f"kept{len(sources)}.parquet"
        write_kept(target, opened(corpus, config, tmp_path / f"index{len(sources)}"), kept(0, 1), corpus)
        assert list(read_corpus(target)) == list(islice(corpus, 2))


def test_column_names_that_would_change_their_meaning_give_way_to_the_usual_ones(
    config: BuildConfig, tmp_path: Path
) -> None:
    """In the first file "docid" is the id and "document_text" the text; in the second both are metadata."""
    (tmp_path / "a.jsonl").write_text('{"docid": "a", "document_text": "whale"}\n')
    (tmp_path / "b.jsonl").write_text('{"id": "b", "docid": "x", "contents": "bee", "document_text": "y"}\n')
    corpus = read_corpus(f"{tmp_path}/*.jsonl")
    target = tmp_path / "out" / "kept.csv"
    write_kept(target, opened(corpus, config, tmp_path / "index"), kept(0, 1), corpus)
    assert target.read_text().splitlines()[0] == "id,title,text,docid,document_text"
    assert list(read_corpus(target)) == list(corpus)


def test_made_ids_are_written_when_converting(config: BuildConfig, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("whale\nbee\nmap\n")
    corpus = read_corpus(tmp_path / "lines.txt")
    write_kept(tmp_path / "kept.jsonl", opened(corpus, config, tmp_path / "index"), kept(0, 2), corpus)
    whale, _, chart = corpus
    assert list(read_corpus(tmp_path / "kept.jsonl")) == [whale, chart]


def test_a_column_can_be_the_text_that_is_called_title(config: BuildConfig, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,title\n1,Whales\n2,Bees\n")
    corpus = read_corpus(tmp_path / "a.csv", config=CorpusConfig(text_column="title"))
    write_kept(tmp_path / "kept.jsonl", opened(corpus, config, tmp_path / "index"), kept(1), corpus)
    assert (tmp_path / "kept.jsonl").read_text() == '{"id": "2", "title": "Bees"}\n'


# --- with the index only: read back unchanged


@pytest.mark.parametrize(
    "name", ["kept.jsonl.gz", "kept.csv.zst", "kept.tsv.bz2", "kept.parquet", "kept.arrow", "kept.ipc.gz"]
)
def test_survivors_of_an_index_build_the_same_index_again(config: BuildConfig, tmp_path: Path, name: str) -> None:
    recipe = replace(config, corpus=CorpusConfig(columns={"year": "int"}))
    index = opened(DOCUMENTS, recipe, tmp_path / "index")
    write_kept(tmp_path / name, index, kept(*KEPT))
    again = opened(read_corpus(tmp_path / name, config=recipe.corpus), recipe, tmp_path / "again")
    assert list(again.documents.all_documents()) == [DOCUMENTS[number] for number in KEPT]
    assert again.manifest.schema == index.manifest.schema


@pytest.mark.parametrize(
    "name", ["kept.jsonl.gz", "kept.jsonl.zst", "kept.csv", "kept.tsv", "kept.parquet", "kept.arrow"]
)
def test_nothing_left_is_a_corpus_without_documents(config: BuildConfig, tmp_path: Path, name: str) -> None:
    write_kept(tmp_path / name, opened(DOCUMENTS, config, tmp_path / "index"), kept())
    assert list(read_corpus(tmp_path / name)) == []


def test_equal_runs_give_equal_bytes(config: BuildConfig, tmp_path: Path) -> None:
    index = opened(DOCUMENTS, config, tmp_path / "index")
    for name in ("kept.jsonl.gz", "kept.parquet", "kept.arrow.zst"):
        digests = {write_kept(tmp_path / str(run) / name, index, kept(*KEPT)) for run in range(2)}
        assert len(digests) == 1


# --- errors, which leave no files


def test_files_that_cannot_be_meant_are_refused(config: BuildConfig, tmp_path: Path) -> None:
    source = tmp_path / "corpus.jsonl"
    source.write_text("".join(map(json_line, DOCUMENTS)))
    (tmp_path / "link.jsonl").symlink_to(source)
    (tmp_path / "hard.jsonl").hardlink_to(source)
    corpus = read_corpus(source)
    index = opened(corpus, config, tmp_path / "index")
    cases: list[tuple[Path, Corpus | None, str]] = [
        (source, corpus, "is an input of this run"),
        (tmp_path / "index" / ".." / "corpus.jsonl", corpus, "is an input of this run"),
        (tmp_path / "link.jsonl", corpus, "is an input of this run"),
        (tmp_path / "hard.jsonl", corpus, "is an input of this run"),
        (tmp_path / "index" / "kept.jsonl", None, "is inside the index"),
        (tmp_path / "index" / "parts" / "kept.jsonl", corpus, "is inside the index"),
        (tmp_path / "kept.xml", corpus, r"unknown type of file; expected one of \.jsonl"),
        (tmp_path / "kept", None, "unknown type of file"),
        (tmp_path / "kept.txt", corpus, "plain text cannot store ids"),
        (tmp_path / "kept.txt.gz", None, "plain text cannot store ids"),
        (tmp_path, None, "is a folder"),
        (tmp_path / "kept.jsonl", read_corpus("-", format="jsonl"), "stdin does not allow"),
    ]
    before = sorted(tmp_path.rglob("*"))
    for path, read, message in cases:
        with pytest.raises(ConfigError, match=f"^kept .*{message}"):
            check_kept(path, index, read, force=True)
        with pytest.raises(ConfigError, match=message):
            write_kept(path, index, kept(0), read, force=True)
    assert sorted(tmp_path.rglob("*")) == before
    assert source.read_bytes().decode() == "".join(map(json_line, DOCUMENTS))


def test_what_a_format_cannot_hold_shows_before_anything_is_computed(config: BuildConfig, tmp_path: Path) -> None:
    index = opened([Document("a", "whale", metadata={"x": b"1"}), *DOCUMENTS], config, tmp_path / "index")
    with pytest.raises(ConfigError, match='"x" contains values of type binary, which JSON Lines cannot store'):
        check_kept(tmp_path / "kept.jsonl", index)
    check_kept(tmp_path / "kept.parquet", index)


@pytest.mark.parametrize("change", ["shorter", "longer", "another order"])
def test_a_corpus_that_has_changed_is_refused(config: BuildConfig, tmp_path: Path, change: str) -> None:
    lines = list(map(json_line, DOCUMENTS))
    changed = {"shorter": lines[:-1], "longer": [*lines, json_line(Document("z", "new"))], "another order": lines[::-1]}
    (tmp_path / "corpus.jsonl").write_text("".join(lines))
    corpus = read_corpus(tmp_path / "corpus.jsonl")
    index = opened(corpus, config, tmp_path / "index")
    (tmp_path / "corpus.jsonl").write_text("".join(changed[change]))
    with pytest.raises(CorpusError, match=r"the corpus changed meanwhile\. Fix: run the command again"):
        write_kept(tmp_path / "kept.jsonl", index, kept(0), corpus)
    assert not list(tmp_path.glob("kept*"))


@pytest.mark.parametrize("name", ["kept.jsonl", "kept.csv"])
def test_a_corpus_that_has_been_emptied_is_refused(config: BuildConfig, tmp_path: Path, name: str) -> None:
    (tmp_path / "corpus.jsonl").write_text("".join(map(json_line, DOCUMENTS)))
    corpus = read_corpus(tmp_path / "corpus.jsonl")
    index = opened(corpus, config, tmp_path / "index")
    (tmp_path / "corpus.jsonl").write_text("")
    with pytest.raises(CorpusError, match="the corpus changed meanwhile"):
        write_kept(tmp_path / name, index, kept(0), corpus)
    assert not list(tmp_path.glob("kept*"))


@pytest.mark.parametrize("name", ["kept.jsonl", "kept.csv.gz", "kept.parquet", "kept.arrow.zst"])
def test_a_full_disk_leaves_what_was_there_or_the_whole(
    config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(writing, "_HELD_BYTES", 100)
    index = opened(DOCUMENTS, config, tmp_path / "index")
    target = tmp_path / "out" / name
    write_kept(target, index, kept(*KEPT))
    whole, failed = target.read_bytes(), []
    for at in range(100):
        target.write_bytes(b"older")
        with monkeypatch.context() as patched:
            patched.setattr("indexer.store.files.os", faulty := FaultyOs(at, errno.ENOSPC))
            failed.append(message := refused(lambda: write_kept(target, index, kept(*KEPT), force=True)))
        if message is None:
            break
        assert "the disk is full" in message
        assert target.read_bytes() in (b"older", whole), faulty.failed_on
        assert os.listdir(tmp_path / "out") == [name]
    assert failed[-1] is None
    assert len(failed) > 5
    assert target.read_bytes() == whole


def refused(act: Callable[[], object]) -> str | None:
    try:
        act()
    except StoreError as error:
        return str(error)
    return None


def test_an_interrupt_leaves_nothing(config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = opened(DOCUMENTS, config, tmp_path / "index")

    def interrupt(*_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("search.dedup.corpus_writing.TableWriter._empty", interrupt)
    for name in ("kept.parquet", "kept.arrow"):
        with pytest.raises(KeyboardInterrupt):
            write_kept(tmp_path / name, index, kept(*KEPT))
    assert not list(tmp_path.glob("kept*"))


def test_a_real_corpus_without_its_second_half_is_its_first_lines(
    shared: Path, config: BuildConfig, tmp_path: Path
) -> None:
    lines = (shared / "data/cacm/corpus.jsonl").read_bytes().splitlines(keepends=True)[:200]
    (tmp_path / "corpus.jsonl").write_bytes(b"".join(lines))
    corpus = read_corpus(tmp_path / "corpus.jsonl")
    index = opened(corpus, config.with_overrides(["store.part_documents=64"]), tmp_path / "index")
    assert index.manifest.documents == 200
    write_kept(tmp_path / "kept.jsonl", index, np.arange(100), corpus)
    assert (tmp_path / "kept.jsonl").read_bytes() == b"".join(lines[:100])
    write_kept(tmp_path / "kept.csv", index, np.arange(0, 200, 2))
    assert [d.id for d in read_corpus(tmp_path / "kept.csv")] == [d.id for d in corpus][::2]
