"""Open files of an engine: those of one generation, and none after it is closed."""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import BuildConfig, Document, RunOptions, ann, build_index, compact_index, delete_documents
from indexer.arrays import RowIds
from indexer.recipe.config import EncoderConfig, WhiteningConfig
from indexer.recipe.index_config import IndexConfig, StoreConfig
from indexer.store import integrity
from search import SearchEngine

ROWS = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index whose mapped segments score candidates by the embeddings of several parts."""
    monkeypatch.setattr("indexer.store.segments.MAPPED_BYTES", 0)
    monkeypatch.setattr(integrity, "OPEN_HASH_BYTES", 0)
    corpus = [Document(f"d{number}", f"text {number}", vector=row) for number, row in enumerate(ROWS)]
    config = BuildConfig(
        encoder=EncoderConfig(kind="vectors"),
        whitening=WhiteningConfig(strength=0.25, centre="common"),
        store=StoreConfig(part_documents=10),
        index=IndexConfig(type="IVF2,SQ8"),
    )
    build_index(corpus, tmp_path / "index", config, RunOptions(allow_low_recall=True))
    return tmp_path / "index"


def held(index: Path) -> set[str]:
    """Return the names of open or mapped files of an index; removed files end with "(deleted)"."""
    for thread in threading.enumerate():
        if thread.name == "hash-file":  # it has a file open until the whole file is hashed
            thread.join()
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    paths = [os.readlink(link) for link in links if os.path.lexists(link)]
    paths += [line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    return {path.removeprefix(f"{index}/") for path in paths if path.startswith(f"{index}/")}


def test_a_generation_whose_files_are_gone_is_let_go_of_when_it_is_replaced(index: Path) -> None:
    engine = SearchEngine(index)
    before = engine.search_vectors(ROWS[:5], 3)
    engine.document("d1")
    kinds = {name.partition("/")[0] + Path(name).suffix for name in held(index)}
    assert kinds == {"parts.npy", "parts.parquet", "segments.faiss"}
    delete_documents(index, ["d35"])
    compact_index(index, RunOptions(allow_low_recall=True), keep=1, grace=0)
    assert {name for name in held(index) if name.endswith("(deleted)")}
    engine.index.documents.close()  # so that the next query needs a removed file
    assert engine.document("d30").text == "text 30"
    assert engine.index.manifest.generation > 1
    after = engine.search_vectors(ROWS[:5], 3)
    assert [hit.id for hit in after[0]] == [hit.id for hit in before[0]]
    assert not {name for name in held(index) if name.endswith("(deleted)")}
    assert {Path(name).suffix for name in held(index)} == {".npy", ".parquet", ".faiss"}
    engine.close()
    assert held(index) == set()
    assert engine.search_vectors(ROWS[:5], 3) == after
    engine.close()


def test_hits_are_read_from_the_generation_that_was_ranked(index: Path) -> None:
    engine = SearchEngine(index)
    delete_documents(index, ["d35", "d1"])
    compact_index(index, RunOptions(allow_low_recall=True), keep=1, grace=0)
    engine.index.documents.close()
    assert engine.document("d30").text == "text 30"  # now the new generation answers
    expected = engine.search_vectors(ROWS[:5], 3)
    assert engine.hits(engine.rank(ROWS[:5], 3)) == expected
    engine.close()
    assert engine.hits(engine.rank(ROWS[:5], 3)) == expected


def test_a_closed_engine_searches_as_far_as_before_when_it_is_asked_again(index: Path) -> None:
    engine = SearchEngine(index, recall=0.99)
    parameters = ann.search_parameters(engine.index.segments[0].index)
    engine.close()
    assert held(index) == set()
    engine.search_vectors(ROWS[:5], 3)
    assert ann.search_parameters(engine.index.segments[0].index) == parameters
    engine.close()


def test_files_are_closed_when_the_last_call_has_ended(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, inside, leave = SearchEngine(index), threading.Event(), threading.Event()
    table = engine.index.documents.table

    def waits(numbers: RowIds) -> Any:
        inside.set()
        assert leave.wait(60)
        return table(numbers)

    monkeypatch.setattr(engine.index.documents, "table", waits)
    asked = threading.Thread(target=engine.search_vectors, args=(ROWS[:1], 3))
    asked.start()
    assert inside.wait(60)
    engine.close()
    assert "segments" in vars(engine.index)
    leave.set()
    asked.join()
    assert held(index) == set()
