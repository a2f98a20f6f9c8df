"""Recall is measured again after changes, equals what brute force finds, and search parameters follow it."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import BuildConfig, Document, build_index
from indexer.ann import SCORE_TOLERANCE, GroundTruth
from indexer.pipeline.add import add_documents
from indexer.pipeline.compact import compact_index
from indexer.pipeline.delete import delete_documents
from indexer.pipeline.refit import refit_index
from indexer.pipeline.steps import index_segment, kept_recall
from indexer.pipeline.sync import sync_index
from indexer.recipe.index_config import IndexConfig, StoreConfig
from indexer.store.manifest import load_manifest
from indexer.store.quality import MeasuredPoint, Quality, RecallEntry
from search import Index, verify_index
from search.describe import describe_index, facts_in_words
from tests.indexer.pipeline.test_vectors import GIVEN, random_documents

COUNT, DIM = 1200, 16


def recipe(recall: float = 0.8, **index: Any) -> BuildConfig:
    settings = IndexConfig(**{"type": "IVF16,SQ8", "recall": recall, **index})
    return dataclasses.replace(GIVEN, index=settings, store=StoreConfig(part_documents=200))


def documents(first: int, count: int, seed: int = 0) -> list[Document]:
    made = random_documents(count, DIM, seed)
    return [dataclasses.replace(one, id=f"d{first + number}") for number, one in enumerate(made)]


@pytest.fixture
def truths(monkeypatch: pytest.MonkeyPatch) -> list[GroundTruth]:
    """The right rows of each measurement, as they are measured."""
    seen: list[GroundTruth] = []

    class Watched(kept_recall.WholeIndex):
        def __init__(self, generation: Any, truth: GroundTruth, live: Any) -> None:
            seen.append(truth)
            super().__init__(generation, truth, live)

    monkeypatch.setattr(kept_recall, "WholeIndex", Watched)
    return seen


def history(index: Path) -> tuple[RecallEntry, ...]:
    return load_manifest(index).measured.recall_history


def brute_force(index: Path, truth: GroundTruth) -> float:
    """The recall@10 of a search of the whole published index, by comparing every query with every live row."""
    opened = Index.open(index)
    stored = opened.numbering.stored_rows
    vectors = opened.vectors(np.arange(opened.manifest.rows)).astype(np.float64)
    shares = []
    for query, excluded in zip(truth.queries, truth.excluded, strict=True):
        scores = vectors @ query.astype(np.float64)
        left_out = np.isin(np.arange(len(scores)) if stored is None else stored, excluded)
        scores[left_out] = -np.inf
        last = np.sort(scores)[-10]
        ((_, found),) = opened.search(query[None], 10 + len(excluded))
        kept = [row for row in found.tolist() if not left_out[row]][:10]
        shares.append(np.count_nonzero(scores[kept] >= last - SCORE_TOLERANCE) / 10)
    return float(np.mean(shares))


def test_recall_after_an_addition_is_what_brute_force_finds(
    tmp_path: Path, truths: list[GroundTruth], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an approximate segment, a second one that is added, and an exact one."""
    monkeypatch.setattr(index_segment, "SMALL_ROWS", 250)
    index = tmp_path / "index"
    build_index(documents(0, COUNT), index, recipe())
    assert history(index) == ()
    add_documents(documents(COUNT, 400, seed=1), index)
    add_documents(documents(COUNT + 400, 150, seed=2), index)
    assert [entry.factory for entry in load_manifest(index).segments] == ["IVF16,SQ8", "IVF16,SQ8", "Flat"]
    entries = history(index)
    assert [(entry.generation, entry.rows, entry.promised) for entry in entries] == [(2, 1600, 0.8), (3, 1750, 0.8)]
    last = entries[-1]
    assert last.recall_at_10 >= 0.8
    assert last.recall_at_10 == pytest.approx(brute_force(index, truths[-1]), abs=1e-9)
    assert last.queries == len(truths[-1]) > 300
    manifest = load_manifest(index)
    assert last.search_parameters == {entry.file: entry.search_parameters for entry in manifest.segments[:2]}
    assert verify_index(index).passed


def test_deletions_are_measured_on_the_documents_that_stay(tmp_path: Path, truths: list[GroundTruth]) -> None:
    index = tmp_path / "index"
    build_index(documents(0, COUNT), index, recipe())
    delete_documents(index, [f"d{number}" for number in range(20)])
    assert history(index) == ()  # too few
    delete_documents(index, [f"d{number}" for number in range(20, 150)])
    (entry,) = history(index)
    assert (entry.generation, entry.documents, entry.stored_rows) == (3, COUNT - 150, COUNT)
    gone = set(range(150))
    assert all(gone.isdisjoint(rows.tolist()) for rows in truths[-1].right)
    assert entry.recall_at_10 >= 0.8
    assert brute_force(index, truths[-1]) >= entry.recall_at_10 - 1e-9  # a search may score few allowed rows exactly


def test_few_changes_and_exact_indexes_are_not_measured(tmp_path: Path, truths: list[GroundTruth]) -> None:
    index, exact = tmp_path / "index", tmp_path / "exact"
    build_index(documents(0, COUNT), index, recipe())
    for number in range(3):  # 60 are less than 5 % of 1,260 rows
        add_documents(documents(COUNT + 20 * number, 20, seed=number + 1), index)
        assert history(index) == ()
    add_documents(documents(COUNT + 60, 20, seed=9), index)
    assert [entry.rows for entry in history(index)] == [COUNT + 80]
    add_documents(documents(COUNT + 80, 20, seed=10), index)  # counted from the last measurement
    assert len(history(index)) == 1
    build_index(documents(0, COUNT), exact, recipe(type="flat"))
    add_documents(documents(COUNT, 400, seed=1), exact)
    assert history(exact) == ()
    assert len(truths) == 1


def test_a_sync_is_measured_like_an_addition(tmp_path: Path) -> None:
    index = tmp_path / "index"
    build_index(documents(0, COUNT), index, recipe())
    sync_index([*documents(0, COUNT)[200:], *documents(COUNT, 100, seed=1)], index, force=True)
    (entry,) = history(index)
    assert (entry.rows, entry.stored_rows) == (COUNT - 100, COUNT + 100)


def test_parameters_that_lost_recall_are_widened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build measured too much: its curve names parameters that reach less than it says."""
    index = tmp_path / "index"
    build_index(documents(0, COUNT), index, recipe(0.95))
    before = load_manifest(index).segments[0].search_parameters
    quality = Quality.of
    points = (MeasuredPoint({"nprobe": 1}, 0.96),)
    monkeypatch.setattr(Quality, "of", lambda plain: replaced(quality(plain), recall_curve=points), raising=True)
    report = add_documents(documents(COUNT, 100, seed=1), index)
    (entry,) = history(index)
    assert before["nprobe"] > 1
    assert entry.recall_at_10 >= 0.95
    assert load_manifest(index).segments[0].search_parameters["nprobe"] in (2, 4, 8, 16)  # doubled from 1
    assert report.quality["recall_history"][0]["recall_at_10"] == entry.recall_at_10


def replaced(struct: Any, **fields: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(struct, **fields)


def test_an_unreachable_recall_is_said_and_names_refit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / "index"
    build_index(documents(0, COUNT), index, recipe(0.8))
    monkeypatch.setattr(kept_recall.WholeIndex, "recall", lambda whole, settings: 0.7)
    report = add_documents(documents(COUNT, 100, seed=1), index)
    (note,) = [note for note in report.notes if "recall" in note]
    assert "is 0.7000, below index.recall 0.8" in note
    assert 'refit_index(index, ["index.type=auto"])' in note
    report = add_documents(documents(COUNT + 100, 10, seed=2), index)
    assert not [note for note in report.notes if "recall" in note]  # not measured again
    monkeypatch.undo()
    deleted = delete_documents(index, [f"d{number}" for number in range(100)])
    assert history(index)[-1].recall_at_10 >= 0.8
    assert not [note for note in deleted.notes if "recall" in note]


def test_refit_and_compact_continue_the_history(tmp_path: Path) -> None:
    index = tmp_path / "index"
    build_index(documents(0, COUNT), index, recipe())
    add_documents(documents(COUNT, 100, seed=1), index)
    first = history(index)
    for change in (compact_index, refit_index):
        change(index)
        manifest = load_manifest(index)
        quality = manifest.measured
        assert quality.index is not None
        assert quality.recall_history[: len(first)] == first
        last = quality.recall_history[-1]
        assert len(quality.recall_history) == len(first) + 1
        assert (last.generation, last.recall_at_10) == (manifest.generation, quality.index.recall_at_10)
        assert last.recall_before is None
        first = quality.recall_history


def test_the_history_has_the_last_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_recall, "MOST_ENTRIES", 2)
    index = tmp_path / "index"
    build_index(documents(0, 400), index, recipe())
    for number in range(3):
        add_documents(documents(400 + 100 * number, 100, seed=number + 1), index)
    assert [entry.generation for entry in history(index)] == [3, 4]


def test_queries_of_the_recipe_measure_and_a_missing_file_is_said(tmp_path: Path) -> None:
    queries = tmp_path / "queries.npy"
    np.save(queries, np.stack([one.vector for one in random_documents(50, DIM, 7)]))  # type: ignore[misc]
    index = tmp_path / "index"
    build_index(documents(0, COUNT), index, recipe(queries=str(queries)))
    add_documents(documents(COUNT, 100, seed=1), index)
    queries.unlink()
    delete_documents(index, [f"d{number}" for number in range(150)])
    given, missing = history(index)
    assert (given.query_origin, given.queries) == ("index.queries", 50)
    assert missing.query_origin.startswith("documents of the corpus, moved")
    assert missing.query_origin.endswith("; index.queries is missing")


def test_readers_use_the_last_measurement(tmp_path: Path) -> None:
    index = tmp_path / "index"
    build_index(documents(0, COUNT), index, recipe())
    built = load_manifest(index).measured
    assert built.index is not None
    assert built.last_recall == built.index.recall_at_10
    add_documents(documents(COUNT, 100, seed=1), index)
    opened, entry = Index.open(index), history(index)[-1]
    assert opened.manifest.measured.last_recall == entry.recall_at_10
    shown = dict(facts_in_words(describe_index(opened)))["recall now"]
    assert shown.startswith(f"recall@10 {entry.recall_at_10:.4f} of 1,300 vectors in generation 2; ")


def test_a_higher_recall_is_never_searched_with_less_than_the_stored_parameters(tmp_path: Path) -> None:
    """The stored parameters are wider than those that the build measured, as after a change."""
    index = tmp_path / "index"
    build_index(documents(0, COUNT), index, recipe(0.8))
    opened = Index.open(index)
    curve, promised = opened.manifest.measured.recall_curve, opened.manifest.segments[0].search_parameters["nprobe"]
    (first,) = opened.segments
    first.entry.search_parameters["nprobe"] = promised + 1
    reached = []
    for recall in (curve[0].recall, 0.8, curve[-1].recall):
        opened.reach_recall(recall)
        reached.append(first.index.nprobe)
    assert reached == [1, promised + 1, max(promised + 1, curve[-1].search_parameters["nprobe"])]
    assert curve[0].recall < 0.8


class Levels:
    """A whole index whose recall is a table of the parameter of its only segment."""

    def __init__(self, recalls: Mapping[int, float], widest: int) -> None:
        self._recalls, self._widest, self.tried = recalls, widest, list[int]()

    def recall(self, settings: Mapping[str, Mapping[str, int]]) -> float:
        self.tried.append(settings["s"]["nprobe"])
        return self._recalls[self.tried[-1]]

    def wider(self, settings: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
        return {"s": {"nprobe": min(2 * settings["s"]["nprobe"], self._widest)}}


@pytest.mark.parametrize(
    ("recalls", "expected"),
    [
        ({1: 0.5, 2: 0.99, 4: 1.0, 8: 1.0}, 4),  # never less than the build chose, which is 4
        ({1: 0.5, 2: 0.7, 4: 0.85, 8: 0.95}, 8),  # the curve
        ({1: 0.5, 2: 0.6, 4: 0.7, 8: 0.8, 16: 0.91, 32: 1.0}, 16),  # beyond the curve
        ({1: 0.5, 2: 0.6, 4: 0.7, 8: 0.8, 16: 0.85, 32: 0.85}, 16),  # unreachable: the highest, with the least work
    ],
)
def test_the_cheapest_parameters_that_reach_the_promise_are_chosen(recalls: dict[int, float], expected: int) -> None:
    whole: Any = Levels(recalls, 32)
    built: Sequence[tuple[int, float]] = [(1, 0.6), (2, 0.8), (4, 0.9), (8, 0.97)]
    points = [MeasuredPoint({"nprobe": nprobe}, recall) for nprobe, recall in built]
    before = kept_recall.ReachedRecall(recalls[4], {"s": {"nprobe": 4}})
    chosen = kept_recall.choose(whole, {"s": points}, 0.9, before)
    assert chosen == (recalls[expected], {"s": {"nprobe": expected}})
    assert len(whole.tried) == len(set(whole.tried))
    assert set(whole.tried) <= {nprobe for nprobe in recalls if 4 < nprobe <= max(8, 2 * expected)}
