"""The exported vectors: pyarrow and DuckDB read the vectors of the index."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from indexer import BuildConfig, Document, build_index
from indexer.errors import ConfigError, CorruptIndexError
from indexer.pipeline.delete import delete_documents
from indexer.recipe.corpus_config import ChunkConfig
from indexer.recipe.run_options import RunOptions
from search.export import export_parquet, parquet
from search.index import Index
from tests.documents import DOCUMENTS

TORCH = RunOptions(backend="torch", device="cpu", threads=1)


@pytest.fixture
def index(tiny_config: BuildConfig, tmp_path: Path) -> Path:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config, TORCH)
    return tmp_path / "index"


def read(path: Path) -> pa.Table:
    return pq.read_table(path, pre_buffer=False, use_threads=False, page_checksum_verification=True)


def vectors_of(table: pa.Table) -> Any:
    column = table.column("vector").combine_chunks()
    return column.flatten().to_numpy().reshape(len(column), -1)


def test_the_vectors_are_those_of_the_index(index: Path, tmp_path: Path) -> None:
    found = export_parquet(index, tmp_path / "vectors.parquet")
    table, opened = read(found.path), Index.open(index)
    assert table.column("id").to_pylist() == [document.id for document in DOCUMENTS]
    assert table.schema.field("vector").type == pa.list_(pa.field("element", pa.float32(), False), opened.transform.dim)
    np.testing.assert_array_equal(vectors_of(table), opened.vectors(np.arange(9)))
    assert found.facts == {"documents": 9, "rows": 9, "dimensions": opened.transform.dim}
    assert found.files == {"vectors.parquet": found.path.stat().st_size}


def test_the_file_says_where_its_vectors_come_from(index: Path, tmp_path: Path) -> None:
    export_parquet(index, tmp_path / "vectors.parquet")
    opened = Index.open(index)
    origin = json.loads(read(tmp_path / "vectors.parquet").schema.metadata[b"isotrope"])
    assert origin["encoder"] == opened.manifest.fingerprint
    assert origin["transform"] == opened.manifest.files[opened.manifest.transform["file"]].sha256


def test_duckdb_finds_the_nearest_document(index: Path, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = export_parquet(index, tmp_path / "vectors.parquet").path
    opened = Index.open(index)
    scores = opened.vectors(np.arange(9)) @ opened.vectors(np.array([4]))[0]
    rows = duckdb.sql(
        f"select id, list_inner_product(vector, (select vector from '{path}' where id = 'd4')) as score from '{path}' "  # noqa: S608
        "order by score desc, id"
    ).fetchall()
    assert [name for name, _ in rows] == [f"d{row}" for row in np.argsort(-scores, kind="stable")]
    np.testing.assert_allclose([score for _, score in rows], np.sort(scores)[::-1], atol=1e-6)


def test_deleted_documents_are_absent(index: Path, tmp_path: Path) -> None:
    delete_documents(index, ["d1", "d8"])
    table = read(export_parquet(index, tmp_path / "vectors.parquet").path)
    assert table.column("id").to_pylist() == ["d0", "d2", "d3", "d4", "d5", "d6", "d7"]
    np.testing.assert_array_equal(vectors_of(table), Index.open(index).vectors(np.arange(7)))


def test_windows_have_a_row_each_with_their_span(tiny_config: BuildConfig, tmp_path: Path) -> None:
    config = replace(tiny_config, chunk=ChunkConfig(tokens=8, overlap=2))
    build_index(DOCUMENTS, tmp_path / "index", config, TORCH)
    found = export_parquet(tmp_path / "index", tmp_path / "vectors.parquet")
    table, numbering = read(found.path), Index.open(tmp_path / "index").numbering
    assert table.num_rows == numbering.rows > 9
    assert table.column("id").to_pylist() == [f"d{number}" for number in numbering.documents_of(np.arange(len(table)))]
    spans = np.stack([table.column(name).to_numpy() for name in ("start", "end")], axis=1)
    np.testing.assert_array_equal(spans, numbering.spans(np.arange(len(table))))


def test_rows_are_written_in_groups(tiny_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [Document(f"m{number}", f"The data of number {number}.") for number in range(23)]
    build_index(documents, tmp_path / "index", tiny_config, TORCH)
    monkeypatch.setattr(parquet, "BLOCK_ROWS", 5)
    path = export_parquet(tmp_path / "index", tmp_path / "vectors.parquet").path
    with pq.ParquetFile(path, pre_buffer=False) as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
    assert sizes == [5, 5, 5, 5, 3]
    assert read(path).column("id").to_pylist() == [document.id for document in documents]


def test_the_same_index_gives_the_same_bytes(index: Path, tmp_path: Path) -> None:
    written = [export_parquet(index, tmp_path / name).path.read_bytes() for name in ("one.parquet", "two.parquet")]
    assert written[0] == written[1]


def test_normalised_embeddings_are_exported_too(tiny_config: BuildConfig, tmp_path: Path) -> None:
    config = replace(tiny_config, whitening=replace(tiny_config.whitening, strength="none"))
    build_index(DOCUMENTS, tmp_path / "index", config, TORCH)
    vectors = vectors_of(read(export_parquet(tmp_path / "index", tmp_path / "vectors.parquet").path))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_a_damaged_embedding_is_not_exported(index: Path, tmp_path: Path) -> None:
    path = index / "parts/00001/embeddings.npy"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptIndexError, match="checksum"):
        export_parquet(index, tmp_path / "vectors.parquet")
    assert sorted(os.listdir(tmp_path)) == ["index"]


def test_a_folder_in_the_way_is_refused(index: Path, tmp_path: Path, tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        export_parquet(index, tmp_path)
