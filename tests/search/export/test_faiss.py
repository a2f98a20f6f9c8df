"""The exported FAISS file: plain FAISS with raw query embeddings returns the engine's answers."""

import errno
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import BuildConfig, Document, ann, build_index
from indexer.ann.factory import with_query_transform
from indexer.corpus.document import joined_text
from indexer.errors import ConfigError, CorruptIndexError, StoreError
from indexer.moments import Moments
from indexer.pipeline.add import add_documents
from indexer.pipeline.delete import delete_documents
from indexer.recipe.config import EncoderConfig, WhiteningConfig
from indexer.recipe.corpus_config import ChunkConfig
from indexer.recipe.index_config import IndexConfig
from indexer.recipe.run_options import RunOptions
from indexer.transforms import Whitening, fit_whitening
from search import SearchEngine
from search.export import export_faiss, export_sentence_transformers
from search.index import Index
from tests.documents import DOCUMENTS
from tests.faults import FaultyOs

TORCH = RunOptions(backend="torch", device="cpu", threads=1)
QUERIES = ["whales that sing", "what makes bread rise", "sand", "the old clock on the wall"]
Rows = npt.NDArray[np.floating]


def many(count: int) -> list[Document]:
    """An index of more than nine documents, all different."""
    things = ("clock", "river", "violin", "harbour", "comet", "orchard", "engine", "desert")
    return [
        Document(f"m{number:04d}", f"The {things[number % 8]} number {number} of {things[number // 8 % 8]} town.")
        for number in range(count)
    ]


def answers(path: Path, engine: SearchEngine, k: int) -> list[list[tuple[str, float]]]:
    """Return (id, score) by plain FAISS for the raw embeddings of the queries."""
    index = faiss.read_index(str(path))
    table = pq.read_table(f"{path}.ids.parquet", pre_buffer=False, use_threads=False)
    assert table.column("row").to_pylist() == list(range(index.ntotal))
    ids = table.column("id").to_pylist()
    scores, rows = index.search(engine.encoder.encode(QUERIES, "query"), k)
    return [
        [(ids[row], float(score)) for row, score in zip(found, best, strict=True)]
        for found, best in zip(rows.tolist(), scores.tolist(), strict=True)
    ]


def assert_same_hits(path: Path, index: Path, k: int) -> None:
    """Compare with the engine's ids in order (except ties) and scores."""
    engine = SearchEngine(index, options=TORCH)
    for found, hits in zip(answers(path, engine, k), engine.search_many(QUERIES, k), strict=True):
        wanted = {hit.id: hit.score for hit in hits}
        np.testing.assert_allclose([score for _, score in found], [hit.score for hit in hits], atol=2e-6)
        assert all(abs(wanted.get(identity, hits[-1].score) - score) < 2e-6 for identity, score in found)


@pytest.fixture
def config(tiny_config: BuildConfig) -> BuildConfig:
    whitening = WhiteningConfig(strength=0.5, shrinkage=0.2)
    return replace(tiny_config, encoder=replace(tiny_config.encoder, query_prompt="find: "), whitening=whitening)


def exported(folder: Path, index: Path) -> tuple[Path, dict[str, Any]]:
    path = folder / "out.faiss"
    return path, export_faiss(index, path).to_dict()


@pytest.mark.parametrize(
    "whitening",
    [
        WhiteningConfig(strength=0.5, shrinkage=0.2),
        WhiteningConfig(centre="common", dim=3),
        WhiteningConfig(centre="none", strength=1),
        WhiteningConfig(strength="none"),
    ],
)
def test_plain_faiss_finds_what_the_engine_finds(
    whitening: WhiteningConfig, config: BuildConfig, tmp_path: Path
) -> None:
    build_index(DOCUMENTS, tmp_path / "index", replace(config, whitening=whitening), TORCH)
    path, facts = exported(tmp_path, tmp_path / "index")
    assert (facts["factory"], facts["index"], facts["rows"]) == ("Flat", "as stored", 9)
    assert facts["files"] == {name: (tmp_path / name).stat().st_size for name in ("out.faiss", "out.faiss.ids.parquet")}
    assert 'put "find: " before each query' in facts["notes"]
    assert_same_hits(path, tmp_path / "index", 9)


def test_deleted_rows_are_absent(config: BuildConfig, tmp_path: Path) -> None:
    index = tmp_path / "index"
    build_index(DOCUMENTS, index, config, TORCH)
    delete_documents(index, ["d0", "d4", "d8"])
    path, facts = exported(tmp_path, index)
    assert (facts["rows"], facts["index"]) == (6, "rebuilt from the live rows")
    assert faiss.read_index(str(path)).ntotal == 6
    assert_same_hits(path, index, 6)


def test_windows_are_rows_with_their_spans(config: BuildConfig, tmp_path: Path) -> None:
    index = tmp_path / "index"
    build_index(DOCUMENTS, index, replace(config, chunk=ChunkConfig(tokens=8, overlap=2)), TORCH)
    delete_documents(index, ["d0"])
    path, facts = exported(tmp_path, index)
    rows = pq.read_table(f"{path}.ids.parquet", pre_buffer=False, use_threads=False).to_pylist()
    assert (facts["documents"], facts["rows"]) == (8, len(rows))
    texts = {document.id: joined_text(document, config.corpus.text) for document in DOCUMENTS[1:]}
    assert {row["id"] for row in rows} == set(texts)
    engine = SearchEngine(index, options=TORCH)
    windows = [texts[row["id"]][row["start"] : row["end"]] for row in rows]
    portable = faiss.read_index(str(path))
    scores, found = portable.search(engine.encoder.encode(QUERIES, "query"), len(rows))
    wanted = engine.embed(QUERIES, "query") @ engine.embed(windows, "document").T
    np.testing.assert_allclose(scores, np.take_along_axis(wanted, found, axis=1), atol=1e-5)


def test_given_embeddings_are_exported_like_any_other(tmp_path: Path) -> None:
    rows: Rows = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    documents = [Document(f"v{number}", "", vector=row) for number, row in enumerate(rows)]
    config = BuildConfig(encoder=EncoderConfig(kind="vectors"), whitening=WhiteningConfig(strength=0.5))
    build_index(documents, tmp_path / "index", config)
    path, facts = exported(tmp_path, tmp_path / "index")
    assert (facts["embedding_dimensions"], facts["query_prefix"]) == (6, "")
    scores, found = faiss.read_index(str(path)).search(rows[:5], 1)
    transform = Index.open(tmp_path / "index").transform
    wanted = transform.transform(rows[:5], "query") @ transform.transform(rows, "document").T
    np.testing.assert_allclose(scores[:, 0], wanted.max(axis=1), atol=1e-5)
    assert found[:, 0].tolist() == wanted.argmax(axis=1).tolist()
    with pytest.raises(ConfigError, match="no model to export"):
        export_sentence_transformers(tmp_path / "index", tmp_path / "folder")


def test_several_segments_become_one(config: BuildConfig, tmp_path: Path) -> None:
    index = tmp_path / "index"
    build_index(DOCUMENTS, index, config, TORCH)
    add_documents([*many(5), replace(DOCUMENTS[2], text="Bread without yeast stays flat.")], index, TORCH)
    path, facts = exported(tmp_path, index)
    assert facts["rows"] == 14
    assert_same_hits(path, index, 14)


@pytest.mark.parametrize(
    "factory",
    [
        "IVF1,PQ8x4fs,RFlat",
        *(
            pytest.param(factory, marks=pytest.mark.check)
            for factory in (
                "HNSW8",
                "IVF4,Flat",
                "PCA12,PQ4x4,RFlat",
                "Pad48,IVF1,PQ12x4fs,Refine(SQ8)",
                "Pad48,IVF4,PQ24x4fsr,Refine(SQfp16)",
            )
        ),
    ],
)
def test_the_type_is_kept_with_its_search_parameters(factory: str, config: BuildConfig, tmp_path: Path) -> None:
    """FAISS alone probes more lists than the engine, which probes as many as each query needs."""
    index = tmp_path / "index"
    whitening = replace(config.whitening, dim=16)
    config = replace(config, whitening=whitening, index=IndexConfig(type=factory, recall=0.3))
    build_index(many(160), index, config, TORCH)
    stored, facts = exported(tmp_path, index)
    assert (facts["factory"], facts["index"]) == (factory, "as stored")
    found = faiss.read_index(str(stored))
    assert found.ntotal == 160
    kinds, parameters = layer_names(found), dict(Index.open(index).manifest.segments[0].search_parameters)
    if "IVF4" in factory:
        parameters["nprobe"] = min(math.ceil(1.75 * parameters["nprobe"]), 4)
    assert ann.search_parameters(found) == parameters == facts["search_parameters"]
    hits = answers(stored, SearchEngine(index, options=TORCH), 5)
    assert [len(set(best)) for best in hits] == [5] * len(QUERIES)

    delete_documents(index, ["m0007"])
    again, facts = exported(tmp_path / "live", index)
    assert (facts["factory"], facts["index"]) == (factory, "rebuilt from the live rows")
    found = faiss.read_index(str(again))
    assert (layer_names(found), found.ntotal) == (kinds, 159)
    assert ann.search_parameters(found) == parameters


def layer_names(index: Any) -> list[str]:
    names = []
    index = faiss.downcast_index(index)
    while index is not None:
        names.append(type(index).__name__)
        inside = getattr(index, "index", None) or getattr(index, "base_index", None)
        index = faiss.downcast_index(inside) if inside is not None and hasattr(inside, "ntotal") else None
    return names


def test_too_few_rows_to_train_give_a_flat_index(config: BuildConfig, tmp_path: Path) -> None:
    index = tmp_path / "index"
    build_index(many(40), index, replace(config, index=IndexConfig(type="IVF16,Flat", recall=0.3)), TORCH)
    delete_documents(index, [f"m{number:04d}" for number in range(30)])
    path, facts = exported(tmp_path, index)
    assert (facts["factory"], facts["rows"]) == ("Flat", 10)
    assert "too few to train IVF16,Flat" in facts["index"]
    assert_same_hits(path, index, 10)


def test_the_same_index_gives_the_same_bytes_with_any_number_of_threads(config: BuildConfig, tmp_path: Path) -> None:
    index, threads = tmp_path / "index", faiss.omp_get_max_threads()
    build_index(many(120), index, replace(config, index=IndexConfig(type="HNSW8", recall=0.3)), TORCH)
    delete_documents(index, ["m0003"])
    written = []
    try:
        for count in (1, 2):
            faiss.omp_set_num_threads(count)
            path, facts = exported(tmp_path / str(count), index)
            written.append([(path.parent / name).read_bytes() for name in facts["files"]])
    finally:
        faiss.omp_set_num_threads(threads)
    assert written[0] == written[1]


@pytest.mark.check
def test_a_failure_of_any_write_leaves_what_was_there(
    config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, out = tmp_path / "index", tmp_path / "out"
    out.mkdir()
    (out / "out.faiss").write_text("before")
    build_index(DOCUMENTS, index, config, TORCH)
    counter = FaultyOs()
    monkeypatch.setattr("indexer.store.files.os", counter)
    export_faiss(index, tmp_path / "whole.faiss")
    for at in range(counter.count - 2):  # the last two sync a name that stands already
        monkeypatch.setattr("indexer.store.files.os", FaultyOs(at, errno.EIO))
        with pytest.raises(StoreError):
            exported(out, index)
        assert (out / "out.faiss").read_text() == "before"
        assert set(os.listdir(out)) <= {"out.faiss", "out.faiss.ids.parquet"}


def test_a_damaged_segment_is_not_exported(config: BuildConfig, tmp_path: Path) -> None:
    index = tmp_path / "index"
    build_index(DOCUMENTS, index, config, TORCH)
    segment = next((index / "segments").iterdir())
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    with pytest.raises(CorruptIndexError):
        exported(tmp_path, index)
    assert sorted(os.listdir(tmp_path)) == ["index"]


def test_a_mapped_segment_is_hashed_to_its_end_before_the_file_is_there(
    config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    build_index(DOCUMENTS, index, config, TORCH)
    monkeypatch.setattr("search.index.hashed_on_open", lambda *_: False)
    monkeypatch.setattr("indexer.store.segments.MAPPED_BYTES", 0)
    path, _ = exported(tmp_path, index)
    assert_same_hits(path, index, 9)

    def found_other(*_: Any, **__: Any) -> None:
        raise CorruptIndexError("another file than was published")

    monkeypatch.setattr("indexer.store.integrity.BackgroundCheck.require_sound", found_other)
    with pytest.raises(CorruptIndexError, match="another file"):
        exported(tmp_path / "damaged", index)
    assert os.listdir(tmp_path / "damaged") == []


@pytest.mark.parametrize("taken", ["out.faiss", "out.faiss.ids.parquet"])
def test_a_folder_in_the_way_is_refused_first(taken: str, tmp_path: Path) -> None:
    (tmp_path / taken).mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        export_faiss(tmp_path / "no-index", tmp_path / "out.faiss")


@given(seed=st.integers(0, 1000), size=st.integers(2, 12), scale=st.sampled_from([0.1, 1.0, 10.0]))
def test_the_layers_are_the_query_side_of_the_transform(seed: int, size: int, scale: float) -> None:
    chance = np.random.default_rng(seed)
    rows: Rows = (scale * chance.normal(size=(60, size)) + chance.normal(size=size)).astype(np.float32)
    whitening = fit_whitening(Moments.of(rows), WhiteningConfig(strength=1))
    assert isinstance(whitening, Whitening)
    transform = whitening.with_query_mean(rows[:7].mean(axis=0, dtype=np.float64))
    documents = transform.transform(rows, "document")
    index = ann.make_index("Flat", transform.dim)
    ann.add_vectors(index, documents)
    portable = with_query_transform(index, transform.affine_layers("query"))
    scores, found = portable.search(rows[:5], len(rows))
    wanted = transform.transform(rows[:5], "query") @ documents.T
    (matrix, bias), *_ = transform.affine_layers("query")
    made, summed = rows[:5] @ matrix + bias, np.abs(rows[:5]) @ np.abs(matrix) + np.abs(bias)
    rounding = 2.0**-24 * (size + 2) * np.linalg.norm(summed, axis=1) / np.linalg.norm(made, axis=1)  # of float32
    wrong = np.abs(scores - np.take_along_axis(wanted, found, axis=1))
    assert (wrong <= 1e-6 + rounding[:, None]).all()
    assert (np.sort(found, axis=1) == np.arange(len(rows))).all()
