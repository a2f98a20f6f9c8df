"""Indexes of few documents or none, through their whole life: too few rows for a fit, and first and last documents."""

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import (
    BuildConfig,
    Document,
    add_documents,
    build_index,
    compact_index,
    delete_documents,
    read_corpus,
    refit_index,
)
from indexer.errors import ConfigError, CorpusError, StoreError
from indexer.recipe.config import EncoderConfig, WhiteningConfig
from indexer.store import manifest
from indexer.store.manifest import EMPTY, load_manifest
from indexer.transforms import whitening
from search import SearchEngine, verify_index
from tests.directories import snapshot
from tests.documents import DOCUMENTS
from tests.faults import Dead, FaultyOs, every, one_of_each_operation
from tests.indexer.pipeline.test_faults import Choice
from tests.indexer.pipeline.test_life_faults import assert_whole, run_with, undisturbed
from tests.life import assert_equals_fresh_build

LIMIT = whitening.ROWS_PER_DIRECTION  # before the tests set another
DIM = 6
SOFT = WhiteningConfig(strength=0.25, centre="common")
AS_GIVEN = BuildConfig(encoder=EncoderConfig(kind="vectors"))
WHITENED = dataclasses.replace(AS_GIVEN, whitening=SOFT)


@pytest.fixture(autouse=True)
def _real_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whitening, "ROWS_PER_DIRECTION", LIMIT)


def vectors(count: int, dim: int = DIM, seed: int = 0, first: int = 0) -> list[Document]:
    """Documents with random vectors and without text."""
    rows = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return [Document(f"d{number}", "", vector=row) for number, row in enumerate(rows, first)]


def ask(index: Path, dim: int = DIM) -> list[tuple[str, float]]:
    with SearchEngine(index) as engine:
        query = np.arange(1.0, dim + 1)[None]
        return [(hit.id, hit.score) for hit in engine.search_vectors(query, 100)[0]]


def assert_sound(index: Path, documents: Sequence[Document]) -> None:
    assert not verify_index(index).problems
    found = load_manifest(index)
    assert (found.documents, EMPTY in found.features) == (len(documents), not documents)
    with SearchEngine(index) as engine:
        assert sorted(engine.index.ids.find([each.id for each in documents])) == sorted(each.id for each in documents)


# --- too few rows for a fit


@pytest.mark.parametrize("count", [1, 2, 3, LIMIT * DIM - 1])
def test_too_few_vectors_stay_as_they_are_and_a_refit_is_named(count: int, tmp_path: Path) -> None:
    documents = vectors(count)
    report = build_index(documents, tmp_path / "index", WHITENED)
    build_index(documents, tmp_path / "plain", AS_GIVEN)
    assert f"a fit needs {LIMIT * DIM} rows, and the sample has {count}. Search works without it" in report.notes[0]
    assert "refit_index(index)" in report.notes[0]
    assert ask(tmp_path / "index") == ask(tmp_path / "plain")
    assert load_manifest(tmp_path / "index").config["whitening"]["strength"] == 0.25
    assert report.dim == DIM


def test_enough_vectors_are_whitened(tmp_path: Path) -> None:
    report = build_index(vectors(LIMIT * DIM), tmp_path / "index", WHITENED)
    assert not any("no whitening" in note for note in report.notes)
    assert load_manifest(tmp_path / "index").transform["kind"] == "whitening"


def test_fewer_directions_need_fewer_rows(tmp_path: Path) -> None:
    narrow = dataclasses.replace(WHITENED, whitening=dataclasses.replace(SOFT, dim=2))
    assert build_index(vectors(2 * LIMIT), tmp_path / "index", narrow).dim == 2
    assert build_index(vectors(2 * LIMIT - 1), tmp_path / "few", narrow).dim == DIM
    wide = dataclasses.replace(WHITENED, whitening=dataclasses.replace(SOFT, dim=DIM + 1))
    with pytest.raises(ConfigError, match=r"whitening\.dim is 7, but embeddings have 6"):
        build_index(vectors(1), tmp_path / "wide", wide)


def test_a_sample_that_is_too_small_is_named_in_the_refit(tmp_path: Path) -> None:
    small = dataclasses.replace(WHITENED, whitening=dataclasses.replace(SOFT, sample=5))
    (note, *_) = build_index(vectors(50), tmp_path / "index", small).notes
    assert note.endswith(f'refit_index(index, ["whitening.sample={LIMIT * DIM}"])')
    refit_index(tmp_path / "index", [f"whitening.sample={LIMIT * DIM}"])
    assert load_manifest(tmp_path / "index").transform["kind"] == "whitening"


def test_an_addition_that_brings_enough_rows_says_so_and_changes_no_vector(tmp_path: Path) -> None:
    index, documents = tmp_path / "index", vectors(LIMIT * DIM)
    build_index(documents[:3], index, WHITENED)
    before = dict(ask(index))
    assert add_documents(documents[3:-1], index).notes == ()
    (note,) = add_documents(documents[-1:], index).notes
    assert "enough rows" in note
    assert "refit_index(index)" in note
    after = dict(ask(index))
    assert {name: after[name] for name in before} == before
    assert not any("no whitening" in note for note in refit_index(index).notes)
    assert_equals_whitened(index, documents, tmp_path / "fresh")
    assert add_documents(vectors(1, first=100), index).notes == ()


def assert_equals_whitened(index: Path, documents: Sequence[Document], fresh: Path) -> None:
    build_index(documents, fresh, WHITENED)
    assert ask(index) == ask(fresh)


# --- from the first document to the last


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("config", [AS_GIVEN, WHITENED], ids=["as given", "whitened"])
def test_the_life_of_an_index_of_few_vectors(count: int, config: BuildConfig, tmp_path: Path) -> None:
    index, documents = tmp_path / "index", vectors(count)
    build_index(documents, index, config)
    assert build_index(documents, index, config).up_to_date
    assert len(ask(index)) == count
    changed = Document("d0", "", vector=np.arange(1, DIM + 1, dtype=np.float32))
    for change in (refit_index, compact_index):
        change(index)
        assert_sound(index, documents)
    add_documents([changed, *vectors(2, seed=1, first=10)], index)
    kept = [*documents[1:], changed, *vectors(2, seed=1, first=10)]
    assert_sound(index, kept)
    build_index(kept, tmp_path / "fresh", config)
    assert ask(index) == ask(tmp_path / "fresh")
    assert ask(index)[0][0] == "d0"
    assert_emptied_and_filled_again(index, kept, config)


def assert_emptied_and_filled_again(index: Path, documents: Sequence[Document], config: BuildConfig) -> None:
    delete_documents(index, [document.id for document in documents])
    for step in (lambda: None, lambda: refit_index(index), lambda: compact_index(index, keep=1, grace=0)):
        step()
        assert_sound(index, [])
        assert ask(index) == []
    assert not load_manifest(index).parts
    assert not compact_index(index).folded
    other = vectors(4, dim=4)  # another dimension
    assert add_documents(other, index).added == 4
    assert_sound(index, other)
    assert len(ask(index, 4)) == 4
    build_index(other, index.with_name("other"), config)
    assert ask(index, 4) == ask(index.with_name("other"), 4)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_the_life_of_an_index_of_few_texts(count: int, tiny_config: BuildConfig, tmp_path: Path) -> None:
    index = tmp_path / "index"
    build_index(DOCUMENTS[:count], index, tiny_config)
    with SearchEngine(index) as engine:
        assert len(engine.search("whales in the sea", 10)) == count
        assert len(engine.search("whales in the sea", 10, where="year > 1990", group_by="year")) == max(0, count - 1)
        assert len(engine.embed(["whales"])[0]) == 32
    add_documents(DOCUMENTS, index)
    assert_equals_fresh_build(index, DOCUMENTS, tmp_path / "fresh", tiny_config)
    report = delete_documents(index, [document.id for document in DOCUMENTS])
    assert (report.deleted, report.documents, report.rows) == (9, 0, 0)
    with SearchEngine(index) as engine:
        assert engine.search("whales in the sea", where="year > 1990", group_by="year", fold=0.9) == []
    added = add_documents(DOCUMENTS[:2], index)
    assert (added.added, added.rows_encoded) == (2, 0)
    assert_equals_fresh_build(index, DOCUMENTS[:2], tmp_path / "again", tiny_config)


def test_the_first_vectors_decide_the_dimensions(tmp_path: Path) -> None:
    assert build_index([], tmp_path / "index", WHITENED).dim == 0
    assert ask(tmp_path / "index", 3) == ask(tmp_path / "index", 4) == []
    add_documents(vectors(1, dim=3), tmp_path / "index")
    assert len(ask(tmp_path / "index", 3)) == 1
    with pytest.raises(CorpusError, match="its vector has 4 numbers"):
        add_documents(vectors(1, dim=4, first=1), tmp_path / "index")


def test_an_empty_index_is_whitened_by_its_first_documents_if_they_are_enough(tmp_path: Path) -> None:
    build_index([], tmp_path / "index", WHITENED)
    add_documents(vectors(LIMIT * DIM), tmp_path / "index")
    assert_equals_whitened(tmp_path / "index", vectors(LIMIT * DIM), tmp_path / "fresh")


def test_a_transform_of_another_index_stays_in_an_empty_one(tmp_path: Path) -> None:
    build_index(vectors(40), tmp_path / "source", WHITENED)
    build_index([], tmp_path / "index", AS_GIVEN, transform_from=tmp_path / "source")
    add_documents(vectors(2, seed=1), tmp_path / "index")
    build_index(vectors(2, seed=1), tmp_path / "fresh", AS_GIVEN, transform_from=tmp_path / "source")
    assert ask(tmp_path / "index") == ask(tmp_path / "fresh")
    build_index([], tmp_path / "other", AS_GIVEN, transform_from=tmp_path / "source")
    with pytest.raises(CorpusError, match="those of the index whose transform is reused have 6"):
        add_documents(vectors(1, dim=4), tmp_path / "other")


def test_sources_without_documents_are_refused_with_a_way_out(tiny_config: BuildConfig, tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text("")
    corpus = read_corpus(tmp_path / "docs.jsonl")
    with pytest.raises(CorpusError, match=r"no documents.*check the source\. In Python, build_index\(\[\], INDEX\)"):
        build_index(corpus, tmp_path / "index", tiny_config)
    build_index([], tmp_path / "index", tiny_config)
    assert add_documents([], tmp_path / "index").generation == 1
    with pytest.raises(CorpusError, match="no documents"):
        add_documents(corpus, tmp_path / "index")


def test_a_version_that_knows_no_empty_index_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_index([], tmp_path / "index", AS_GIVEN)
    monkeypatch.setattr(manifest, "KNOWN_FEATURES", manifest.KNOWN_FEATURES - {EMPTY})
    with pytest.raises(StoreError, match=r"needs empty, unknown to this version\. Fix: upgrade isotrope"):
        load_manifest(tmp_path / "index")


# --- interruptions


def first_addition(index: Path) -> object:
    return add_documents(vectors(1), index)


def last_deletion(index: Path) -> object:
    return delete_documents(index, ["d0"], ignore_missing=True)


@pytest.mark.parametrize("choice", [one_of_each_operation, pytest.param(every, marks=pytest.mark.check)])
@pytest.mark.parametrize(("documents", "change"), [(0, first_addition), (1, last_deletion)])
def test_a_first_addition_and_a_last_deletion_can_stop_anywhere(
    documents: int, change: Callable[[Path], Any], choice: Choice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(vectors(documents), tmp_path / "before", WHITENED)
    reference, kinds = undisturbed(tmp_path / "before", change, monkeypatch)
    for at in choice(kinds):
        index = tmp_path / f"index-{at}"
        shutil.copytree(tmp_path / "before", index)
        with pytest.raises(Dead):
            run_with(FaultyOs(at, None, power_cut=at % 2 == 1), change, index, monkeypatch)
        assert_whole(index)
        change(index)
        assert snapshot(index) == reference


@pytest.mark.parametrize("choice", [one_of_each_operation, pytest.param(every, marks=pytest.mark.check)])
@pytest.mark.parametrize("documents", [0, 1])
def test_a_build_of_one_document_or_none_can_stop_anywhere(
    documents: int, choice: Choice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(index: Path) -> object:
        return build_index(vectors(documents), index, WHITENED)

    counter = FaultyOs()
    run_with(counter, build, tmp_path / "reference", monkeypatch)
    for at in choice(counter.kinds):
        index = tmp_path / f"index-{at}"
        with pytest.raises(Dead):
            run_with(FaultyOs(at, None, power_cut=at % 2 == 1), build, index, monkeypatch)
        build(index)
        assert snapshot(index) == snapshot(tmp_path / "reference")
