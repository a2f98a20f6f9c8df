"""An index of several segments answers like an index of one segment, through its whole life."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from indexer import BuildConfig, Document, RunOptions, build_index
from indexer.errors import ConfigError, QualityError
from indexer.pipeline.add import add_documents
from indexer.pipeline.compact import compact_index
from indexer.pipeline.delete import delete_documents
from indexer.pipeline.refit import refit_index
from indexer.recipe.index_config import IndexConfig, StoreConfig
from indexer.store.manifest import load_manifest
from search import SearchEngine, verify_index
from tests.directories import snapshot
from tests.indexer.pipeline.test_vectors import GIVEN, hits, random_documents

COUNT, DIM = 2000, 16


def recipe(segment_rows: int, **index: object) -> BuildConfig:
    return dataclasses.replace(
        GIVEN,
        index=IndexConfig(segment_rows=segment_rows, **index),  # type: ignore[arg-type]
        store=StoreConfig(part_documents=100),
    )


def documents(count: int = COUNT, seed: int = 0) -> list[Document]:
    """Documents with copies, so that there are ties within and between segments."""
    made = random_documents(count, DIM, seed)
    return [
        dataclasses.replace(one, vector=made[number % 3].vector) if number % 50 == 7 else one
        for number, one in enumerate(made)
    ]


def questions(count: int = 8) -> np.ndarray:
    made = [one.vector for one in (*documents()[:3], *random_documents(count - 3, DIM, 5))]
    return np.stack(made)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    index = tmp_path_factory.mktemp("whole") / "index"
    build_index(documents(), index, recipe(0))
    return index


def rows_of(index: Path) -> list[tuple[int, int]]:
    return [(entry.first_row, entry.rows) for entry in load_manifest(index).segments]


def test_the_recipe_cuts_and_exact_segments_answer_as_one(whole: Path, tmp_path: Path) -> None:
    build_index(documents(), tmp_path / "cut", recipe(700))
    manifest = load_manifest(tmp_path / "cut")
    assert rows_of(tmp_path / "cut") == [(0, 700), (700, 700), (1400, 600)]
    assert [entry.file for entry in manifest.segments] == [f"segments/0001-0{number}.faiss" for number in range(3)]
    with SearchEngine(whole) as one, SearchEngine(tmp_path / "cut") as other:
        for k in (1, 10, 900, COUNT + 1):
            expected = [hits(found) for found in one.search_vectors(questions(), k)]
            assert [hits(found) for found in other.search_vectors(questions(), k)] == expected
    assert verify_index(tmp_path / "cut").passed
    assert build_index(documents(), tmp_path / "cut", recipe(700)).up_to_date


def test_approximate_segments_are_each_measured_and_rescored(whole: Path, tmp_path: Path) -> None:
    report = build_index(documents(), tmp_path / "cut", recipe(700, type="IVF16,SQ8", recall=0.9))
    manifest = load_manifest(tmp_path / "cut")
    files = [entry.file for entry in manifest.segments]
    assert [entry.factory for entry in manifest.segments] == ["IVF16,SQ8"] * 3
    assert list(manifest.measured.segments) == files[1:]
    measured = [manifest.measured.of_segment(file, file == files[0]) for file in files]
    assert all(one.recall_curve and one.index is not None and one.index.recall_at_10 >= 0.9 for one in measured)
    lowest = min(one.index.recall_at_10 for one in measured if one.index)
    assert report.quality["recall_at_10"] == {"value": lowest, "limit": 0.9, "passed": True}
    with SearchEngine(whole) as one, SearchEngine(tmp_path / "cut") as other:
        scores = {hit.id: hit.score for hit in one.search_vectors(questions(), COUNT)[3]}
        assert all(scores[hit.id] == hit.score for hit in other.search_vectors(questions(), 10)[3])
        exact = [hits(found) for found in one.search_vectors(questions(), 10)]
        assert [hits(found) for found in other.search_vectors(questions(), 10, exact=True)] == exact


def test_it_grows_is_refitted_and_compacted_to_what_a_build_makes(tmp_path: Path) -> None:
    index, new = tmp_path / "index", [dataclasses.replace(one, id=f"n{one.id}") for one in documents(250, 9)]
    build_index(documents(), index, recipe(700))
    add_documents(new, index)
    assert rows_of(index)[3:] == [(2000, 250)]
    delete_documents(index, [f"d{number}" for number in range(0, COUNT, 2)])
    assert compact_index(index, keep=1, grace=0).folded
    assert rows_of(index) == [(0, 700), (700, 550)]
    assert not compact_index(index, keep=1, grace=0).folded
    live = [*documents()[1::2], *new]
    build_index(live, tmp_path / "fresh", recipe(700), transform_from=index)
    with SearchEngine(index) as one, SearchEngine(tmp_path / "fresh") as other:
        assert [hits(found) for found in one.search_vectors(questions(), 9)] == [
            hits(found) for found in other.search_vectors(questions(), 9)
        ]
    refit_index(index, ["index.segment_rows=0"])
    assert rows_of(index) == [(0, 1250)]
    refit_index(index, ["index.segment_rows=300"])
    assert len(rows_of(index)) == 5


def test_a_bad_segment_leaves_none(tmp_path: Path) -> None:
    with pytest.raises(QualityError, match="recall"):
        build_index(documents(), tmp_path / "index", recipe(700, type="PCA2,SQ4", recall=0.99))
    assert list((tmp_path / "index" / "segments").iterdir()) == []


def test_a_budget_is_shared_out(tmp_path: Path) -> None:
    build_index(documents(), tmp_path / "index", recipe(700, type="SQ8", memory="40K", recall=0.5))
    assert sum(path.stat().st_size for path in (tmp_path / "index" / "segments").iterdir()) < 40 << 10
    with pytest.raises(ConfigError, match=r"index.memory is 20K \(35\.0% of it for these rows\), but SQ8 needs"):
        build_index(documents(), tmp_path / "other", recipe(700, type="SQ8", memory="20K", recall=0.5))


@pytest.mark.check
def test_workers_change_no_byte_of_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from indexer.pipeline.steps import parallel_segments as shards

    monkeypatch.setattr(shards, "SHARD_ROWS", 300)
    config = recipe(1000, type="IVF8,SQ8", recall=0.5)
    build_index(documents(), tmp_path / "one", config)
    build_index(documents(), tmp_path / "two", config, RunOptions(workers=2, executor="processes"))
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")


def test_less_than_no_rows_is_no_size_of_a_segment() -> None:
    with pytest.raises(ConfigError, match=r"index\.segment_rows is -1"):
        IndexConfig(segment_rows=-1)
