"""Documents in Parquet: any documents are read back unchanged, and damaged ones are rejected."""

import difflib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexer.corpus.document import Document
from indexer.corpus.schema import drop_nulls, schema_from_json
from indexer.errors import CorruptIndexError
from indexer.store import documents, files, integrity, layout
from indexer.store import documents as stored
from indexer.store.document_tables import documents_of
from indexer.store.documents import DocumentReader, read_documents_at, write_documents
from indexer.store.manifest import Manifest, PartEntry
from tests.stored import open_index, write_index

Column = st.SearchStrategy[Any]


@contextmanager
def temporary_index(parts: Sequence[Sequence[Document]]) -> Iterator[tuple[Path, DocumentReader]]:
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder)
        yield index, open_index(index, write_index(index, parts))


def numbered(count: int) -> list[Document]:
    """Documents whose text contains their number; one in three has a title."""
    return [
        Document(f"d{number}", f"text {number} " * 3, None if number % 3 else f"title {number}", {"number": number})
        for number in range(count)
    ]


# --- any text and metadata

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
LEAVES: list[Column] = [
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
    st.binary(),
    st.dates(),
    st.times(),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.decimals(-(10**9), 10**9, places=2),
]


def lists_of(inner: Column) -> Column:
    return st.lists(st.none() | inner, max_size=3)


def structs_of(inner: dict[str, Column]) -> Column:
    return st.fixed_dictionaries({}, optional=inner)


# A column holds one type in all rows, and a value in some of them.
COLUMNS: st.SearchStrategy[Column] = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: inner.map(lists_of) | st.dictionaries(TEXT, inner, min_size=1, max_size=3).map(structs_of),
    max_leaves=4,
)
NAMES = TEXT.filter(lambda name: name not in ("id", "title", "text"))


@st.composite
def corpora(draw: st.DrawFn) -> list[list[Document]]:
    """One to three parts of documents that share their metadata columns."""
    columns = draw(st.dictionaries(NAMES, COLUMNS, max_size=4))
    metadata = st.fixed_dictionaries({}, optional=columns).map(drop_nulls)
    document = st.builds(Document, id=TEXT, text=TEXT, title=st.none() | TEXT, metadata=metadata)
    return draw(st.lists(st.lists(document, min_size=1, max_size=4), min_size=1, max_size=3))


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])  # many kinds of value to draw from
@given(corpora())
def test_any_document_comes_back_as_it_was(parts: list[list[Document]]) -> None:
    with temporary_index(parts) as (index, reader):
        documents = [document for part in parts for document in part]
        assert reader.fetch(range(len(documents))) == documents
        assert list(reader.all_ids()) == [document.id for document in documents]
        for number, part in enumerate(parts):
            assert list(read_documents_at(index / layout.part_name(number), range(len(part)))) == part


EVERY_TYPE: dict[str, Any] = {
    "truth": True,
    "whole": -(2**63),
    "fraction": 0.1,
    "words": "naïve \U0001f40b \n\t end",
    "bytes": b"\0\xff",
    "day": date(1, 1, 1),
    "clock": time(23, 59, 59, 999_999),
    "stamp": datetime(9999, 12, 31, 23, 59, 59, 999_999),
    "zoned": datetime(2020, 1, 2, tzinfo=UTC),
    "money": Decimal("12.50"),
    "list": [1, None, 2],
    "nulls": [None],
    "none": [],
    "struct": {"a": {"b": [{"c": "x"}, {"d": [1.5]}]}},
    "a.b": {"a.b": 1},
    "": {"": 1},
}


def test_every_type_keeps_its_type() -> None:
    with temporary_index([[Document("a", "text", metadata=EVERY_TYPE)]]) as (_, reader):
        (document,) = reader.fetch([0])
        assert document.metadata == EVERY_TYPE
        for name, value in EVERY_TYPE.items():
            assert type(document.metadata[name]) is type(value)


def test_what_is_absent_stays_absent() -> None:
    part = [Document("a", "", None, {"x": 1}), Document("b", "", "", {"y": {"z": 1}}), Document("c", "", None, {})]
    with temporary_index([part, [Document("d", "")]]) as (_, reader):
        documents = reader.fetch([0, 1, 2, 3])
        assert [document.metadata for document in documents] == [{"x": 1}, {"y": {"z": 1}}, {}, {}]
        assert [document.title for document in documents] == [None, "", None, None]


def test_whole_numbers_are_floats_where_another_part_has_fractions() -> None:
    parts = [
        [Document("a", "", metadata={"x": 1, "deep": {"y": [1, None], "n": 2}, "truth": True})],
        [Document("b", "", metadata={"x": 0.5, "deep": {"y": [0.5], "n": 3}})],
    ]
    with temporary_index(parts) as (_, reader):
        first, second = (document.metadata for document in reader.fetch([0, 1]))
        assert first == {"x": 1.0, "deep": {"y": [1.0, None], "n": 2}, "truth": True}
        assert second == {"x": 0.5, "deep": {"y": [0.5], "n": 3}}
        assert [type(value) for value in (first["x"], first["deep"]["y"][0])] == [float, float]
        assert [type(value) for value in (first["deep"]["n"], first["truth"])] == [int, bool]


# --- row groups and parts


def group_lengths(folder: Path) -> list[int]:
    with pq.ParquetFile(folder / layout.DOCUMENTS) as file:
        return [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]


@pytest.mark.parametrize(("length", "rows"), [(1, 256), (400, 118), (100_000, 32)])
def test_row_groups_hold_few_bytes(length: int, rows: int, tmp_path: Path) -> None:
    write_documents(tmp_path, [Document(f"{number:04}", "x" * length) for number in range(300)])
    assert group_lengths(tmp_path) == [rows] * (300 // rows) + [300 % rows]


def test_row_groups_of_long_texts_hold_few_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_MOST_GROUP_BYTES", 1 << 16)
    write_documents(tmp_path, [Document(f"{number:04}", "x" * 30_000) for number in range(5)])
    assert group_lengths(tmp_path) == [2, 2, 1]
    write_documents(tmp_path, [Document(f"{number:04}", "x" * 100_000) for number in range(3)])
    assert group_lengths(tmp_path) == [1, 1, 1]


@pytest.mark.parametrize("group", [1, 100, 256, 1000])
def test_rows_are_found_in_any_order_however_long_row_groups_are(
    group: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "_GROUP_ROWS", (group, group))
    parts = [numbered(600)[:520], numbered(600)[520:]]
    manifest = write_index(tmp_path, parts)
    assert group_lengths(tmp_path / layout.part_name(0))[0] == min(group, 520)
    reader, expected = open_index(tmp_path, manifest), numbered(600)
    rows = [599, 0, 255, 256, 511, 512, 519, 520, 0]
    assert reader.fetch(rows) == [expected[row] for row in rows]
    assert reader.ids(rows) == [expected[row].id for row in rows]
    assert list(reader.all_ids()) == [document.id for document in expected]
    assert list(reader.all_documents()) == expected
    assert list(read_documents_at(tmp_path / layout.part_name(0), range(520))) == expected[:520]
    assert list(read_documents_at(tmp_path / layout.part_name(0), [3, 255, 256, 519])) == [
        expected[n] for n in (3, 255, 256, 519)
    ]


@pytest.mark.parametrize("room", [0, 40_000, 1 << 30])
def test_row_groups_held_in_memory_change_no_answer(room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "HELD_BYTES", room)
    parts, expected = [numbered(600)[:520], numbered(600)[520:]], numbered(600)
    reader = open_index(tmp_path, write_index(tmp_path, parts))
    for rows in ([0, 599], [1, 300, 598], [519, 0], list(range(600))):
        assert reader.fetch(rows) == [expected[row] for row in rows]
        assert reader._held == sum(table.get_total_buffer_size() for table, _ in reader._groups.values())
        assert reader._held <= room or len(reader._groups) == 1
        table = reader.table(np.array(sorted(rows)))
        assert list(documents_of(table)) == [expected[row] for row in sorted(rows)]
        assert table.get_total_buffer_size() < 2 * table.nbytes + 1000  # without the rest of the row groups
        assert reader.ids(rows) == [expected[row].id for row in rows]
    reader.close()
    assert reader.fetch([0]) == expected[:1]


def test_equal_documents_are_equal_bytes(tmp_path: Path) -> None:
    (first, _), (second, _) = (write_documents(tmp_path, numbered(300)) for _ in range(2))
    assert first == second


def test_a_part_of_another_length_than_the_manifest_says_is_refused(tmp_path: Path) -> None:
    manifest = write_index(tmp_path, [numbered(5)])
    entry = PartEntry(layout.part_name(0), 6, 6, "", "")
    reader = DocumentReader(
        tmp_path, msgspec.structs.replace(manifest, parts=(entry,)), schema_from_json(manifest.schema)
    )
    with pytest.raises(CorruptIndexError, match=r"documents\.parquet: 5 rows, the manifest says 6"):
        reader.fetch([0])


# --- deleted documents


def test_numbers_count_what_is_live(tmp_path: Path) -> None:
    everything, parts = numbered(600), [numbered(600)[:520], numbered(600)[520:560], numbered(600)[560:]]
    manifest = write_index(tmp_path, parts)
    live = [number for number in range(600) if number % 7 and not 520 <= number < 560]
    reader, expected = open_index(tmp_path, manifest, live), [everything[number] for number in live]
    assert len(reader) == len(expected)
    assert reader.counts == [sum(number < 520 for number in live), 0, sum(number >= 560 for number in live)]
    assert reader.fetch(range(len(expected))) == expected
    assert list(reader.all_documents()) == expected
    assert list(reader.all_ids()) == reader.ids(range(len(expected))) == [document.id for document in expected]
    columns = [reader.columns(part, [("number",), ("id",)]) for part in range(3)]
    assert [value for numbers, _ in columns for value in numbers.to_pylist()] == live
    assert [value for _, ids in columns for value in ids.to_pylist()] == [document.id for document in expected]
    found = reader.find_ids([document.id for document in everything])
    assert found == {document.id: number for number, document in enumerate(expected)}


def test_nothing_is_live(tmp_path: Path) -> None:
    reader = open_index(tmp_path, write_index(tmp_path, [numbered(3)]), [])
    assert (len(reader), reader.fetch([]), list(reader.all_documents()), list(reader.all_ids())) == (0, [], [], [])
    assert (reader.find_ids(["d1"]), reader.counts) == ({}, [0])
    assert [len(column) for column in reader.columns(0, [("id",), ("number",)])] == [0, 0]


# --- ids


@pytest.mark.parametrize("at_once", [1, 5, 1 << 20])
def test_ids_are_looked_up(at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_LOOKED_UP", at_once)
    parts = [[Document(name, "") for name in names] for names in (["a", "b", "é"], ["c"], ["a", "", "d"])]
    reader = open_index(tmp_path, write_index(tmp_path, parts))
    assert reader.find_ids(["d", "nowhere", "é", "", "A"]) == {"d": 6, "é": 2, "": 5}
    assert reader.find_ids(["a"]) == {"a": 4}  # the last one
    assert open_index(tmp_path, write_index(tmp_path, parts), [0, 1]).find_ids({"a", "b", "c"}) == {"a": 0, "b": 1}
    assert reader.find_ids([]) == reader.find_ids(["\ud800"]) == {}


# --- columns


def test_an_unknown_id_is_compared_with_few_of_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared, real = list[str](), difflib.get_close_matches

    def count(word: str, possibilities: Sequence[str], n: int) -> list[str]:
        compared.extend(possibilities)
        return real(word, possibilities, n)

    monkeypatch.setattr(difflib, "get_close_matches", count)
    names = [*(f"doc-{number:05}" for number in range(2000)), "café-11"]
    parts = [[Document(name, "") for name in some] for some in (names[:900], names[900:])]
    reader = open_index(tmp_path, write_index(tmp_path, parts))
    near = {
        "doc-01234x": "doc-01234",
        "doc-0I234": "doc-01234",
        "oc-01234": "doc-01234",
        "dco-01234": "doc-01234",
        "Doc-01234": "doc-01234",
        "doc 01234": "doc-01234",
        "café-1": "café-11",
        "café-1\ud800": "café-11",
        "something else": "",
        "": "",
        "\ud800": "",
        "doc-" + "9" * 50_000: "",
    }
    for unknown, expected in near.items():
        compared.clear()
        assert (unknown, reader.closest_id(unknown)) == (unknown, expected)
        assert len(compared) <= 16
    assert open_index(tmp_path, write_index(tmp_path, parts), []).closest_id("doc-00001x") == ""


def test_a_column_has_one_type_in_all_parts(tmp_path: Path) -> None:
    parts = [
        [Document("a", "x", metadata={"n": 1, "o": {"n": 2, "deep": {"w": "x"}}, "list": [1]}), Document("b", "")],
        [Document("c", "", "T", {"n": 0.5, "o": {"n": 0.5}, "list": [0.5, None], "late": True})],
        [Document("d", "")],
    ]
    reader = open_index(tmp_path, write_index(tmp_path, parts))
    paths = [("n",), ("o", "n"), ("o", "deep", "w"), ("list",), ("late",), ("title",), ("text",), ("o",)]
    read = [reader.columns(part, paths) for part in range(3)]
    merged = [
        pa.chunked_array([chunk for part in column for chunk in part.chunks]) for column in zip(*read, strict=True)
    ]
    assert [column.to_pylist() for column in merged[:-1]] == [
        [1.0, None, 0.5, None],
        [2.0, None, 0.5, None],
        ["x", None, None, None],
        [[1.0], None, [0.5, None], None],
        [None, None, True, None],
        [None, None, "T", None],
        ["x", "", "", ""],
    ]
    assert [column.type for column in merged[:3]] == [pa.float64(), pa.float64(), pa.string()]
    assert merged[-1].to_pylist()[2] == {"n": 0.5, "deep": None}


def test_columns_whose_names_begin_alike_are_told_apart(tmp_path: Path) -> None:
    values = {"a": {"b": 1, "b.c": 2}, "a.b": 3, "a.": 4, "": 5, ".": {"": {".": 6}}}
    reader = open_index(tmp_path, write_index(tmp_path, [[Document("x", "", metadata=values)]]))
    paths = [("a", "b"), ("a", "b.c"), ("a.b",), ("a.",), ("",), (".", "", ".")]
    assert [column.to_pylist() for column in reader.columns(0, paths)] == [[1], [2], [3], [4], [5], [6]]


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(corpora())
def test_any_column_is_that_of_the_documents(parts: list[list[Document]]) -> None:
    """Also if a name is empty, has dots, or is the start of another name."""
    with temporary_index(parts) as (_, reader):
        documents = [document for part in parts for document in part]
        for name in reader.schema.names[3:]:
            read = [reader.columns(part, [(name,)])[0].to_pylist() for part in range(len(parts))]
            values = [drop_nulls({name: value}).get(name) for part in read for value in part]
            assert values == [document.metadata.get(name) for document in documents]


# --- damage


def flip(path: Path, data: bytes, position: int, bit: int = 0) -> None:
    flipped = bytearray(data)
    flipped[position] ^= 1 << bit
    path.write_bytes(flipped)


@pytest.mark.parametrize("block", [files.BLOCK, 64])
def test_a_flipped_bit_anywhere_is_noticed(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (files, integrity):
        monkeypatch.setattr(module, "BLOCK", block)
    manifest = write_index(tmp_path, [numbered(20)])
    path = tmp_path / layout.part_name(0) / layout.DOCUMENTS
    data = path.read_bytes()
    for position in [*range(0, len(data), 37), len(data) - 1]:
        flip(path, data, position, position % 8)
        with pytest.raises(CorruptIndexError, match=f"{path}: its bytes differ from the published ones"):
            read_everything(tmp_path, manifest)
    path.write_bytes(data)
    assert open_index(tmp_path, manifest).fetch(range(20)) == numbered(20)


def read_everything(index: Path, manifest: Manifest) -> None:
    """Fetch every document, then read the bytes that Parquet did not need."""
    open_index(index, manifest).fetch(range(manifest.rows))
    for name, digest in manifest.files.items():
        integrity.read_checked(index / name, digest)


def test_a_missing_or_shortened_file_is_refused_by_name(tmp_path: Path) -> None:
    manifest = write_index(tmp_path, [numbered(5)])
    path = tmp_path / layout.part_name(0) / layout.DOCUMENTS
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptIndexError, match=f"{path}: .* the manifest says"):
        open_index(tmp_path, manifest).fetch([0])
    path.unlink()
    with pytest.raises(CorruptIndexError, match=f"{path}: the manifest lists this file, but it is missing"):
        open_index(tmp_path, manifest).ids([0])


def test_pages_carry_checksums_of_their_own(tmp_path: Path) -> None:
    """Any Parquet reader detects damage, without the manifest."""
    write_documents(tmp_path, numbered(600))
    path = tmp_path / layout.DOCUMENTS
    data, metadata = path.read_bytes(), pq.read_metadata(path)
    chunks = [metadata.row_group(group).column(column) for group in range(3) for column in range(4)]
    assert len(chunks) == metadata.num_row_groups * metadata.num_columns
    for chunk in chunks:
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        flip(path, data, start + chunk.total_compressed_size - 1)  # the last byte of a page
        with pytest.raises(OSError, match="CRC checksum verification failed"):
            pq.read_table(path, page_checksum_verification=True)
        with pytest.raises(CorruptIndexError, match=r"documents\.parquet: .*CRC checksum verification failed"):
            list(read_documents_at(tmp_path, range(600)))
    path.write_bytes(data)
    assert pq.read_table(path, page_checksum_verification=True).num_rows == 600


def test_the_file_is_plain_parquet(tmp_path: Path) -> None:
    write_documents(tmp_path, numbered(3))
    table = pq.read_table(tmp_path / layout.DOCUMENTS)
    assert table.column_names == ["id", "title", "text", "number"]
    assert table.schema.field("id") == pa.field("id", pa.string(), nullable=False)
    assert table.column("title").to_pylist() == ["title 0", None, None]
