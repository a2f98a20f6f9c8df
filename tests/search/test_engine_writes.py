"""Programs that both write and ask: `SearchEngine.from_texts`, `add`, `update` and `delete`."""

import dataclasses
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from indexer import BuildConfig, Document, build_index
from indexer.errors import ConfigError, CorpusError, ExistsError, UnknownDocumentError
from indexer.recipe.corpus_config import ChunkConfig
from search import SearchEngine

ROWS: list[dict[str, Any]] = [
    {"id": name, "title": None, "text": f"{name} swims in the sea", "year": 2000 + place}
    for place, name in enumerate(("whale", "dolphin", "shark", "tuna", "cod", "herring"))
]


@pytest.fixture
def engine(tiny_config: BuildConfig, tmp_path: Path) -> SearchEngine:
    return SearchEngine.from_texts(ROWS, tmp_path / "index", tiny_config)


def ids(engine: SearchEngine, **fields: Any) -> set[str]:
    return {hit.id for hit in engine.search("sea", k=100, exact=True, **fields)}


def test_texts_are_found_in_a_temporary_index(tiny_config: BuildConfig) -> None:
    engine = SearchEngine.from_texts(["A cat sleeps.", "Dogs bark at night."], config=tiny_config)
    folder, later = engine.index.path, engine.newest()
    assert [hit.text for hit in engine.search("A cat sleeps.", k=1)] == ["A cat sleeps."]
    assert engine.built is not None
    assert engine.built.documents == len(engine) == 2
    del engine
    gc.collect()
    assert folder.is_dir()  # `later` uses it
    assert len(later.search("cat")) == 2
    del later
    gc.collect()
    assert not folder.exists()


def test_the_index_is_the_one_that_build_index_writes(tiny_config: BuildConfig, tmp_path: Path) -> None:
    built = build_index(pd.DataFrame(ROWS), tmp_path / "built", tiny_config)
    engine = SearchEngine.from_texts(ROWS, tmp_path / "index", tiny_config)
    with SearchEngine(built.index) as other:
        assert engine.search("sea") == other.search("sea")
        assert engine.index.manifest.fingerprint == other.index.manifest.fingerprint
    assert SearchEngine.from_texts(ROWS, tmp_path / "index", tiny_config).built.up_to_date  # type: ignore[union-attr]
    with pytest.raises(ExistsError, match="other documents"):
        SearchEngine.from_texts(ROWS[:2], tmp_path / "index", tiny_config)


def test_columns_and_vectors_are_named_by_arguments() -> None:
    frame = pd.DataFrame({"sku": [7, 8, 9], "review": ["good", "bad", "fine"], "stars": [5, 1, 4]})
    vectors = np.eye(3, dtype=np.float32)
    engine = SearchEngine.from_texts(frame, id_column="sku", text_column="review", vectors=vectors, model="mine")
    ((hit,),) = engine.search_vectors(vectors[1], k=1)
    assert (hit.id, hit.text, hit.metadata) == ("8", "bad", {"stars": 1})
    assert engine.index.config.encoder.model == "mine"
    assert [hit.id for hit in engine.search_vectors(vectors[1], where={"stars": {">": 1}})[0]] == ["7", "9"]
    engine.add([{"sku": 10, "review": "new", "stars": 2}], vectors=[[1.0, 1.0, 0.0]])
    assert len(engine) == 4


def test_a_table_of_token_vectors_is_named_as_any_model(tmp_path: Path) -> None:
    (tmp_path / "table.txt").write_text("red 0 0 1\nfish 1 1 1\nblue 2 2 1\nbird 3 0 1\n")
    engine = SearchEngine.from_texts(["a red fish", "a blue bird"] * 3, model=tmp_path / "table.txt")
    assert engine.index.config.encoder.kind == "static"


def test_documents_are_found_and_counted_by_a_condition(engine: SearchEngine) -> None:
    assert [document.id for document in engine.find()] == [row["id"] for row in ROWS]
    assert engine.find({"year": {">": 2003}}) == engine.documents(["cod", "herring"])
    assert engine.find("year > 2000", limit=2) == engine.documents(["dolphin", "shark"])
    assert (engine.count(), engine.count("year > 2003"), engine.count({"year": 1})) == (6, 2, 0)
    engine.delete(["whale", "cod"])
    engine.add([{"id": "whale", "title": None, "text": "again", "year": 1}])
    assert [document.id for document in engine.find("year < 2002")] == ["dolphin", "whale"]
    with pytest.raises(ConfigError, match='no column "yaer"'):
        engine.count("yaer > 2000")
    engine.delete([document.id for document in engine.find()])
    assert (engine.find(), engine.find("year > 2000"), engine.count("year > 2000")) == ([], [], 0)


def test_documents_have_their_stored_embeddings_if_asked(engine: SearchEngine, tiny_config: BuildConfig) -> None:
    names = ["tuna", "whale", "shark"]
    expected = engine.encoder.encode([f"{name} swims in the sea" for name in names], "document")
    found: Any = [document.vector for document in engine.documents(names, vectors=True)]
    assert np.allclose(found, expected, atol=1e-6)
    assert all(document.vector is None for document in engine.documents(names))
    vectors = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    given = SearchEngine.from_texts(ROWS, vectors=vectors)
    given.delete(["whale"])
    last = given.find("year >= 2003", vectors=True)
    found = [document.vector for document in last]
    assert np.array_equal(found, vectors[3:])
    assert given.add(last).unchanged == 3
    windows = dataclasses.replace(tiny_config, chunk=ChunkConfig(tokens=8, overlap=0))
    with pytest.raises(ConfigError, match="documents have windows"):
        SearchEngine.from_texts(["one two three four " * 9], config=windows).find(vectors=True)


@pytest.mark.parametrize(
    ("texts", "fields", "error", "message"),
    [
        ("a text", {}, ConfigError, r'texts is one string; expected a list of texts, such as \["a text"\]'),
        ("a.csv", {}, ConfigError, r'expected texts, or the path of a corpus\. Fix: pass Path\("a\.csv"\)\.'),
        ("/", {}, ConfigError, r'Fix: pass Path\("/"\)'),
        (["a"], {"modle": "x"}, ConfigError, 'unknown argument of a build "modle"; did you mean "model"'),
        (["a"], {"model": 3}, ConfigError, "model is of type int; expected a hub id"),
        (["a"], {"config": "minlm"}, ConfigError, "no recipe .*minlm"),
        (["a"], {"config": BuildConfig(), "vectors": [[1.0]]}, ConfigError, 'encoder.kind of the recipe is "transf'),
        (3, {}, ConfigError, "the corpus is of type int"),
        ([3], {"vectors": [[1.0]]}, CorpusError, "document 1 is of type int"),
    ],
)
def test_wrong_arguments_are_refused(texts: Any, fields: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SearchEngine.from_texts(texts, **fields)


def test_an_engine_sees_its_own_writes(engine: SearchEngine) -> None:
    report = engine.add([{"id": "eel", "text": "an eel swims in the sea"}, ROWS[0] | {"text": "whales sing"}])
    assert (report.added, report.replaced) == (1, 1)
    assert ids(engine) == {row["id"] for row in ROWS} | {"eel"}
    assert engine.document("whale").text == "whales sing"
    engine.delete(["eel", "cod"])
    assert ids(engine) == {row["id"] for row in ROWS} - {"cod"}
    assert [document.id for document in engine.documents(["tuna", "eel", "whale", "tuna"])] == ["tuna", "whale", "tuna"]
    with pytest.raises(ConfigError, match='no document with id "eel"'):
        engine.delete(["eel"])
    assert engine.delete(["eel"], ignore_missing=True).missing == ("eel",)


def test_an_update_changes_the_named_columns_only(engine: SearchEngine) -> None:
    report = engine.update(
        [{"id": "whale", "year": 1851, "title": "Moby"}, {"id": "cod", "year": None, "kind": "fish"}]
    )
    assert (report.added, report.replaced, report.rows_encoded) == (0, 2, 1)  # only the title is new text
    assert engine.document("whale") == Document("whale", ROWS[0]["text"], "Moby", {"year": 1851})
    assert engine.document("cod") == Document("cod", ROWS[4]["text"], None, {"kind": "fish"})
    assert ids(engine, where={"year": {"<": 1900}}) == {"whale"}
    assert ids(engine, where={"kind": "fish"}) == {"cod"}


def test_an_update_keeps_what_another_program_has_changed(engine: SearchEngine) -> None:
    other = SearchEngine(engine.index.path)
    other.update([{"id": "whale", "year": 1851}])
    engine.update([{"id": "whale", "kind": "mammal"}])
    assert engine.document("whale").metadata == {"year": 1851, "kind": "mammal"}


def test_an_update_keeps_given_vectors() -> None:
    vectors = np.eye(4, dtype=np.float32)
    engine = SearchEngine.from_texts([{"id": str(number), "n": number} for number in range(4)], vectors=vectors)
    engine.update([{"id": "2", "n": 20}, {"id": "3", "vector": [1.0, 1.0, 1.0, 0.0]}])
    assert [hit.metadata for hit in engine.search_vectors(vectors[2], k=1)[0]] == [{"n": 20}]
    (best,) = engine.search_vectors(np.array([1.0, 1.0, 1.0, 0.0]), k=1)[0]
    assert best.id == "3"
    assert best.score == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ([{"id": "whale"}, {"id": "eel", "year": 3}], UnknownDocumentError, '"eel"; nothing was changed. Fix: add new'),
        ([{"year": 3}], ConfigError, 'change 1 has no id; expected the column "id"'),
        (["whale"], ConfigError, "change 1 is of type str; expected a dict"),
        ({"id": "whale"}, ConfigError, "changes is of type dict; expected a list of dicts"),
        (3, ConfigError, "changes is 3; expected a list of dicts"),
    ],
)
def test_wrong_changes_are_refused(engine: SearchEngine, changes: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        engine.update(changes)
    assert engine.index.manifest.generation == 1


def test_searches_run_while_other_threads_write(engine: SearchEngine) -> None:
    failures: list[BaseException] = []
    done = threading.Event()

    def ask() -> None:
        try:
            while not done.is_set():
                assert len(engine.search("sea", k=3)) == 3
        except BaseException as error:  # noqa: BLE001 - reported by the test
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    with ThreadPoolExecutor(3) as writers:  # which wait for each other
        rows = ([{"id": f"new {number}", "text": f"the new fish {number}"}] for number in range(5))
        assert sum(report.added for report in writers.map(engine.add, rows)) == 5
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(engine) == len(ROWS) + 5
