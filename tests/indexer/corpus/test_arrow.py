"""Parquet and Arrow files: their types as Python values, and damaged files and rows."""

import json
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from indexer.corpus.corpus import read_corpus
from indexer.corpus.document import Document
from indexer.corpus.readers import arrow
from indexer.corpus.sources import find_sources
from indexer.errors import CorpusError
from indexer.recipe.corpus_config import CorpusConfig
from tests.indexer.corpus.corpus_files import GOOD, check, refusal, without_bad_rows, write

# --- damage


@pytest.mark.parametrize("fixed", [True, False])
def test_a_null_in_a_vector_costs_the_rows_around_it_and_not_the_whole_batch(
    fixed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow files contain batches of any number of rows, which are read in slices."""
    rows, dim, checks = 3 * arrow.BATCH_ROWS, 4, list[int]()
    values = pa.array(np.arange(rows * dim, dtype=np.float32), mask=np.arange(rows * dim) == 4 * arrow.BATCH_ROWS + 2)
    offsets = pa.array(np.arange(0, rows * dim + 1, dim), pa.int32())
    vectors = pa.FixedSizeListArray.from_arrays(values, dim) if fixed else pa.ListArray.from_arrays(offsets, values)
    table = pa.table({"id": [str(row) for row in range(rows)], "vector": vectors})
    path = tmp_path / "docs.arrow"
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)
    monkeypatch.setattr(arrow, "_check_layout", lambda batch: checks.append(batch.num_rows))
    found = list[Any](arrow.read_arrow(find_sources([path])[0][0], {}, "vector"))[1:]
    assert checks == [rows]
    bad = found.pop(arrow.BATCH_ROWS)
    assert (bad.line, bad.what) == (arrow.BATCH_ROWS + 1, 'the vector "vector" contains null at position 3')
    arrays = [row.values["vector"] for row in found]
    assert [array[0] for array in arrays] == [dim * int(row.values["id"]) for row in found]
    assert max(array.base.size for array in arrays) <= dim * arrow.BATCH_ROWS


def test_files_that_are_not_parquet_or_arrow(tmp_path: Path) -> None:
    for name in ("docs.parquet", "docs.arrow"):
        path = write(tmp_path, name, b"PAR1 certainly not" * 10)
        assert re.match(rf"{re.escape(str(path))}:1: not a readable \w+ file: ", refusal(path))
        ids, reasons, _ = without_bad_rows(path, write(tmp_path, "docs.jsonl", GOOD[0]))
        assert (ids, reasons) == (["a"], {"malformed": 1})


def test_a_parquet_file_damaged_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "docs.parquet"
    rows = pa.table({"text": [os.urandom(20).hex() for _ in range(5_000)]})
    pq.write_table(rows, path, row_group_size=1000, write_page_checksum=True, use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    ids, reasons, _ = without_bad_rows(path)
    assert reasons == {"malformed": 1}
    texts = rows.column("text").to_pylist()[: len(ids)]
    assert ids == [document.id for document in read_corpus(write(tmp_path, "same.txt", "\n".join(texts)))]


def test_only_the_row_with_bad_bytes_is_left_out_of_an_arrow_file(tmp_path: Path) -> None:
    text = pa.array([b"first", b"caf\xe9", b"last"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"id": ["a", "b", "c"], "text": text}), tmp_path / "docs.parquet")
    entry = check(
        tmp_path / "docs.parquet",
        "encoding",
        'column "text" contains bytes that are not UTF-8: unexpected end of data at byte 4',
        way_out="write the column as UTF-8",
    )
    assert json.loads(entry["raw"]) == {"id": "b", "text": None}


def test_bad_bytes_are_found_in_nested_and_dictionary_columns(tmp_path: Path) -> None:
    bad = pa.array([b"x", b"\xff", b"z"], pa.binary()).view(pa.string())
    columns = [pa.StructArray.from_arrays([bad], ["name"]), pa.ListArray.from_arrays(pa.array([0, 1, 2, 3]), bad)]
    for column in (*columns, pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), bad)):
        table = pa.table({"id": ["a", "b", "c"], "text": ["x"] * 3, "tags": column})
        with pa.ipc.new_file(tmp_path / "docs.arrow", table.schema) as writer:
            writer.write_table(table)
        ids, reasons, _ = without_bad_rows(tmp_path / "docs.arrow")
        assert (ids, reasons) == (["a", "c"], {"encoding": 1}), column.type


def ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize(("name", "pack"), [("docs.arrow", ipc), ("docs.parquet", parquet)])
def test_flipped_bits_are_rejected_and_never_followed(
    tmp_path: Path, name: str, pack: Callable[[pa.Table], bytes]
) -> None:
    names = [f"d{number}" for number in range(50)]
    nested = [{"n": 1, "tags": ["a", "b"]}] * 50
    good = pack(pa.table({"id": names, "text": names, "nested": nested, "k": pa.array(names).dictionary_encode()}))
    random = Random(0)
    for _ in range(150):
        data = bytearray(good)
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        corpus = read_corpus(write(tmp_path, name, data), on_error="skip")
        try:
            count = sum(1 for _ in corpus)
        except CorpusError:
            continue  # a changed column name
        assert count <= 50


def test_nanoseconds_that_do_not_fit_are_never_rounded(tmp_path: Path) -> None:
    stamps = pa.array([0, 1, 1000], pa.timestamp("ns"))
    pq.write_table(pa.table({"id": ["a", "b", "c"], "text": ["x"] * 3, "t": stamps}), tmp_path / "docs.parquet")
    check(
        tmp_path / "docs.parquet",
        "type",
        "would lose data: 1",
        way_out='set corpus.columns = {"t": "string"} to read it as text',
    )


def test_rows_of_parquet_are_named_by_their_number(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a", "b", "c"], "text": ["x", None, "z"]}), tmp_path / "docs.parquet")
    entry = check(tmp_path / "docs.parquet", "text", '"text" is null', document_id="b")
    assert json.loads(entry["raw"]) == {"id": "b", "text": None}


def test_types_that_cannot_be_stored(tmp_path: Path) -> None:
    for values in (pa.array([10**19], pa.uint64()), pa.array([5], pa.duration("s"))):
        pq.write_table(pa.table({"id": ["a"], "text": ["x"], "v": values}), tmp_path / "docs.parquet")
        assert 'metadata column "v" contains' in refusal(tmp_path / "docs.parquet")
        (document,) = read_corpus(tmp_path / "docs.parquet", config=CorpusConfig(columns={"v": "string"}))
        assert document.metadata["v"] in ("10000000000000000000", "0:00:05")


# --- types


def test_arrow_types_become_plain_python_values(tmp_path: Path) -> None:
    stamp = datetime(2020, 1, 2, 3, 4, 5, 678901)
    columns = {
        "id": pa.array([1, 2], pa.uint64()),
        "text": pa.array(["x", "y"], pa.string_view()),
        "kind": pa.array(["k", None]).dictionary_encode(),
        "nano": pa.array([stamp, stamp], pa.timestamp("ns")),
        "zoned": pa.array([1577934245678, None], pa.timestamp("ms", "Europe/Paris")),
        "nested": pa.array([[{"t": stamp}], None], pa.list_(pa.struct([("t", pa.timestamp("ns"))]))),
        "long": pa.array(["z", None], pa.large_string()),
    }
    pq.write_table(pa.table(columns | {"text": pa.array(["x", "y"])}), tmp_path / "a.parquet")
    with pa.ipc.new_file(tmp_path / "a.arrow", pa.table(columns).schema) as writer:
        writer.write_table(pa.table(columns))
    expected = {
        "kind": "k",
        "nano": stamp,
        "zoned": datetime(2020, 1, 2, 3, 4, 5, 678000, tzinfo=UTC),
        "nested": [{"t": stamp}],
        "long": "z",
    }
    for name in ("a.arrow", "a.parquet"):
        first, second = read_corpus(tmp_path / name)
        assert first == Document("1", "x", None, expected)
        assert second == Document("2", "y", None, {"nano": stamp})


def test_nanoseconds_can_be_kept_as_text(tmp_path: Path) -> None:
    columns = {"text": pa.array(["x"]), "t": pa.array([1577934245000000001], pa.timestamp("ns"))}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    (document,) = read_corpus(tmp_path / "a.parquet", config=CorpusConfig(columns={"t": "string"}))
    assert document.metadata == {"t": "2020-01-02 03:04:05.000000001"}


def test_rows_of_large_parquet_files_are_numbered_across_batches(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [f"t{n}" for n in range(1, 3001)]}), tmp_path / "a.parquet", row_group_size=700)
    found = [(row.line, document.text) for document, row, _ in read_corpus(tmp_path / "a.parquet").rows()]
    assert found == [(number, f"t{number}") for number in range(1, 3001)]
