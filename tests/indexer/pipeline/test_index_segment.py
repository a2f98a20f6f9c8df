"""Segments: the requested or chosen kind of index, measured with queries that are not rows of it."""

import dataclasses
import errno
import hashlib
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import ann
from indexer.ann import flat_file
from indexer.ann.choosing import selection
from indexer.corpus.query_file import query_file_sha256
from indexer.errors import ConfigError, QualityError
from indexer.hashing import hash_id
from indexer.pipeline.rows import RowView
from indexer.pipeline.steps import auto_index
from indexer.pipeline.steps.auto_index import IndexRequest
from indexer.pipeline.steps.index_segment import COUNTS, Segment, fill_segment, judge_segment
from indexer.pipeline.steps.recall_queries import QUERIES, perturbed, recall_queries, split_train_queries
from indexer.progress import NoProgress
from indexer.recipe.config import BuildConfig
from indexer.recipe.index_config import IndexConfig
from indexer.recipe.run_options import RunOptions
from indexer.store import parts
from indexer.store.embeddings import open_embeddings
from indexer.store.quality import SegmentFigures
from indexer.transforms import Normalisation, Whitening
from indexer.typed_json import convert_json
from tests.indexer.ann.test_selection import unit

DIM, ROWS, PART = 16, 2500, 1000
Fill = Callable[..., Segment]


def source_of(folder: Path, vectors: npt.NDArray[np.floating], live: npt.NDArray[np.bool_] | None = None) -> RowView:
    """Vectors as stored embeddings in parts, with a transform that only normalises."""
    folders, counts = [], []
    for first in range(0, len(vectors), PART):
        folders.append(folder / f"{first:05d}")
        folders[-1].mkdir(parents=True)
        parts.write_embeddings(folders[-1], vectors[first : first + PART])
        counts.append(len(vectors[first : first + PART]))
    hashes = np.array([hash_id(str(row)) for row in range(len(vectors))], np.uint64)
    return RowView(folders, counts, counts, hashes, live)


@pytest.fixture(scope="module")
def vectors() -> npt.NDArray[np.float32]:
    return unit(ROWS, DIM)


@pytest.fixture(scope="module")
def source(vectors: npt.NDArray[np.float32], tmp_path_factory: pytest.TempPathFactory) -> RowView:
    return source_of(tmp_path_factory.mktemp("parts"), vectors)


def no_encoder(texts: list[str]) -> npt.NDArray[np.floating]:
    raise AssertionError("no text needs encoding")


def request_of(rows: RowView, config: IndexConfig, options: RunOptions | None = None, **more: Any) -> IndexRequest:
    transform = Normalisation(open_embeddings(rows.folders[0]).shape[1], "")
    settings: dict[str, Any] = {"encode": no_encoder, "path": Path("none")} | more
    return IndexRequest(rows, transform, options or RunOptions(), NoProgress(), config=config, **settings)


@pytest.fixture
def fill(source: RowView, tmp_path: Path) -> Fill:
    """Fill a segment with some settings of [index]."""

    def filled(
        options: RunOptions | None = None, of: RowView = source, encode: Any = no_encoder, **config: Any
    ) -> Segment:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.faiss"
        small = config.pop("small", False)
        return fill_segment(request_of(of, IndexConfig(**config), options, encode=encode, path=path), small)

    return filled


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare kinds of index for a small corpus too."""
    monkeypatch.setattr(selection, "SMALL_BYTES", 0)


def index_in(filled: Segment) -> Any:
    with open(filled.path, "rb") as file:
        return ann.load_index(file, str(filled.path))


# --- exact ones


@pytest.mark.parametrize(
    ("config", "why"),
    [({}, "few milliseconds"), ({"type": "flat"}, "requested"), ({"type": "HNSW8", "small": True}, "few rows")],
)
def test_exact_indexes_say_why_they_are(
    config: dict[str, Any], why: str, fill: Fill, vectors: npt.NDArray[Any]
) -> None:
    filled = fill(**config)
    about = filled.figures["index"]
    assert (filled.factory, filled.recall, filled.search_parameters, filled.rows) == ("Flat", None, {}, ROWS)
    assert (about["factory"], about["recall_at_10"], about["bytes_per_vector"]) == ("Flat", 1.0, 4.0 * DIM)
    assert why in about["why"]
    np.testing.assert_allclose(ann.reconstruct(index_in(filled), np.arange(ROWS)), vectors, atol=1e-7)


def test_an_exact_index_larger_than_the_budget_is_refused(fill: Fill) -> None:
    with pytest.raises(ConfigError, match=r"index\.memory is 100K, but an exact index needs"):
        fill(type="flat", memory="100K")


# --- approximate ones


@pytest.mark.parametrize("factory", ["IVF16,Flat", "HNSW8", "IVF1,PQ4x4fs,RFlat", "PCA15,Flat", "SQ8"])
def test_a_factory_string_is_tuned_on_all_rows(factory: str, fill: Fill, vectors: npt.NDArray[Any]) -> None:
    filled = fill(type=factory, recall=0.8)
    about, curve = filled.figures["index"], convert_json(filled.figures, SegmentFigures).recall_curve
    assert filled.recall is not None
    assert filled.recall >= 0.8
    assert (filled.factory, filled.rows, about["recall_at_10"]) == (factory, ROWS, filled.recall)
    assert about["bytes_per_vector"] == filled.digest.bytes / ROWS
    assert 300 <= about["queries"] <= QUERIES
    assert "documents of the corpus, moved" in about["query_origin"]
    assert filled.search_parameters == ann.parameters_for(curve, 0.8)
    queries, index = unit(100, DIM, 5), index_in(filled)
    ann.set_search_parameters(index, filled.search_parameters)
    best = ann.GroundTruthBuilder(queries)
    best.update(0, vectors)
    assert (
        ann.GroundTruth.of(best).recall(ann.search_index(index, queries, 10)) > 0.7
    )  # with queries that did not tune it


def test_what_is_chosen_takes_least_work_of_those_that_reach_the_recall(fill: Fill, measured: None) -> None:
    """Any number of threads gives the same choice and the same bytes."""
    filled, by_three = (fill(RunOptions(threads=threads), recall=0.9) for threads in (1, 3))
    assert (filled.digest.sha256, filled.figures) == (by_three.digest.sha256, by_three.figures)
    about = filled.figures["index"]
    good = [one for one in about["candidates"] if one["fits"] and one["recall"] >= 0.9]
    measured_kinds = {one["factory"] for one in about["candidates"]}
    left_out = {"Flat", *ann.candidate_factories(ROWS, DIM, False)} - measured_kinds
    assert {"Flat", "Pad16,IVF1,PQ4x4fs,Refine(SQ8)"} <= measured_kinds
    for factory in left_out:  # its minimum cost exceeds the best
        assert ann.cost_lower_bound(factory, ann.IndexRequirements(ROWS, DIM, 0.9)) >= min(one["cost"] for one in good)
    good_filled = [one for one in about["filled"] if one["recall"] >= 0.9]
    assert about["factory"] == filled.factory == min(good_filled, key=lambda one: one["cost"])["factory"]
    assert about["recall_at_10"] >= 0.9
    assert f"least work per query of the {len(good)} among {len(about['candidates'])} kinds" in about["why"]


@pytest.mark.check
def test_a_budget_nothing_fits_into_is_refused(fill: Fill, measured: None) -> None:
    with pytest.raises(ConfigError, match=r"is 1K, but the smallest kind considered \(\S+\) needs \d+\.\dK for"):
        fill(memory="1K")
    with pytest.raises(ConfigError, match=r"index\.memory is 100K, but HNSW8 needs \d{3}\.?\d?K for"):
        fill(type="HNSW8", memory="100K")


def test_a_missed_recall_is_an_error_and_writes_nothing(fill: Fill, tmp_path: Path, measured: None) -> None:
    with pytest.raises(QualityError, match=r"recall_at_10 is 0\..*below index\.recall 0\.99.*allow_low_recall=True"):
        fill(recall=0.99, type="PCA2,Flat")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.check
def test_a_recall_missed_within_a_budget_is_noted_and_kept_if_allowed(
    fill: Fill, source: RowView, measured: None
) -> None:
    options = RunOptions(allow_low_recall=True)
    budget = 75 * 1024
    chosen = fill(options, recall=0.99, memory="75K")
    assert chosen.digest.bytes <= budget
    for one in chosen.figures["index"]["candidates"]:
        assert one["fits"] == (one["bytes_per_vector"] * ROWS <= budget)
    for filled in (chosen, fill(options, recall=0.99, type="PCA2,Flat")):
        assert filled.recall is not None
        assert filled.recall < 0.99
        assert "below index.recall 0.99" in filled.notes[0]
        recipe = BuildConfig(index=IndexConfig(recall=0.99))
        figures = judge_segment(filled, request_of(source, recipe.index, options), [], recipe)
        assert figures["recall_at_10"] == {"value": filled.recall, "limit": 0.99, "passed": False}
        with pytest.raises(QualityError, match="recall_at_10 is"):
            judge_segment(filled, request_of(source, recipe.index), [], recipe)


def test_one_filled_index_is_in_memory(fill: Fill, measured: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_index.Finalists, "_promises_less", lambda self, one: True)  # all kinds are filled
    seen: list[weakref.ref[Any]] = []
    alive: list[int] = []
    take = auto_index.Finalists.take

    def watched(self: auto_index.Finalists, filled: auto_index.FilledIndex) -> None:
        take(self, filled)
        alive.append(sum(one() is not None for one in seen))  # besides the current one
        seen.append(weakref.ref(filled.index))
        assert all(one.trained is None or not one.trained.ntotal for one in [*self._near, *self._others])

    monkeypatch.setattr(auto_index.Finalists, "take", watched)
    filled = fill(recall=0.5)
    assert len(filled.figures["index"]["filled"]) == len(alive) > 1
    assert max(alive) == 0


def test_without_room_for_it_on_the_disk_a_filled_index_stays_in_memory(
    fill: Fill, measured: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, failed = ann.save_index, list[OSError]()

    def full_at_first(index: Any, file: Any) -> None:
        if not failed:
            failed.append(OSError(errno.ENOSPC, "No space left on device"))
            raise failed[0]
        save(index, file)

    monkeypatch.setattr(auto_index.Finalists, "_promises_less", lambda self, one: True)
    expected = fill(recall=0.5)
    monkeypatch.setattr(ann, "save_index", full_at_first)
    assert fill(recall=0.5).digest == expected.digest
    assert failed


def test_a_kind_that_only_did_well_on_the_sample_makes_way_for_the_next(
    fill: Fill, measured: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flattered(factory: str, wanted: ann.IndexRequirements, *given: Any) -> ann.Candidate:
        bad = dataclasses.replace(consider("PCA2,Flat", wanted, *given), recall=1.0, cost=1)
        return bad if "RaBitQ" in factory else dataclasses.replace(consider(factory, wanted, *given), recall=0.0)

    consider = ann.measure_candidate
    monkeypatch.setattr(ann, "measure_candidate", flattered)
    filled = fill(recall=0.99)
    assert filled.factory == "Flat"
    assert "PCA2,Flat reached 0." in filled.figures["index"]["why"]


# --- deleted rows


def test_deleted_rows_are_in_the_segment_and_measured_with_by_nobody(
    vectors: npt.NDArray[np.float32],
    tmp_path_factory: pytest.TempPathFactory,
    fill: Fill,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live = np.arange(ROWS) % 4 > 0
    some = source_of(tmp_path_factory.mktemp("some"), vectors, live)
    for rows in split_train_queries(some):
        assert live[rows].all()
    seen: list[ann.GroundTruth] = []
    curve = ann.recall_curve

    def watched(index: Any, truth: ann.GroundTruth, allowed: Any, *given: Any, **named: Any) -> Any:
        seen.append(truth)
        return curve(index, truth, allowed, *given, **named)

    monkeypatch.setattr(ann, "recall_curve", watched)
    filled = fill(of=some, type="IVF16,Flat", recall=0.9)
    assert filled.rows == ROWS
    assert live[np.concatenate([*seen[0].right, *seen[0].excluded])].all()


@pytest.mark.parametrize("more", [-1, 1])
def test_a_segment_with_another_number_of_rows_than_the_parts_is_refused(
    more: int, fill: Fill, source: RowView
) -> None:
    filled, record = fill(), dict.fromkeys(("not_finite", "zero", *COUNTS), 0)
    records: list[Any] = [SimpleNamespace(rows=ROWS, documents=ROWS, **record)]
    assert judge_segment(filled, request_of(source, IndexConfig()), records, BuildConfig())["missing_rows"]["passed"]
    other = dataclasses.replace(filled, rows=ROWS + more)
    with pytest.raises(QualityError, match="missing_rows is 1, expected at most 0"):
        judge_segment(other, request_of(source, IndexConfig()), records, BuildConfig())


def test_an_exact_segment_that_lost_a_vector_is_refused_and_one_in_another_order_is_not(
    fill: Fill, source: RowView, vectors: npt.NDArray[np.float32]
) -> None:
    filled, zeros = fill(), dict.fromkeys(("not_finite", "zero", *COUNTS), 0)
    records: list[Any] = [SimpleNamespace(rows=ROWS, documents=ROWS, **zeros)]
    request, header = request_of(source, IndexConfig()), len(flat_file.header(DIM, ROWS))
    one, other = source.sampling_order[:2]

    def stored(row: int) -> npt.NDArray[np.float32]:
        return np.memmap(filled.path, np.float32, "r+", header + 4 * DIM * int(row), (DIM,))

    stored(one)[:], stored(other)[:] = vectors[other], vectors[one]
    assert judge_segment(filled, request, records, BuildConfig())["self_hit"]["value"] == 1
    stored(one)[:] = -vectors[one]
    with pytest.raises(QualityError, match=r"self_hit is 0\.999, expected at least 1"):
        judge_segment(filled, request, records, BuildConfig())


# --- queries


@given(st.integers(1, 3 * QUERIES), st.data())
def test_rows_to_train_on_and_to_ask_for_are_drawn_by_hash_and_apart(rows: int, data: st.DataObject) -> None:
    hashes = np.array([hash_id(str(row)) for row in range(rows)], np.uint64)
    live = None if data.draw(st.booleans()) else np.random.default_rng(rows).random(rows) < 0.7
    drawn = RowView([Path("part")], [rows], [rows], hashes, live)
    training, held_out = split_train_queries(drawn)
    count = rows if live is None else int(live.sum())
    assert len(held_out) == min(count, max(1, min(QUERIES, count // 4)))
    assert len(np.unique(np.concatenate([training, held_out]))) == count
    assert set(training.tolist()).isdisjoint(held_out.tolist()) or count == 1
    if count > 1:
        assert hashes[training].max() < hashes[held_out].min()


def test_documents_are_moved_half_the_way_that_lies_to_the_closest_other(vectors: npt.NDArray[Any]) -> None:
    documents, others = (
        vectors[:200],
        np.concatenate([vectors[200:], vectors[:50]]),
    )  # with some copies among the others
    queries = perturbed(documents, others)
    scores = documents @ others.T
    scores[scores >= 1 - ann.SCORE_TOLERANCE] = -1
    between = np.arccos(np.median(scores.max(axis=1)))
    assert queries.similarity == pytest.approx(np.cos(between / 2), abs=1e-6)
    own = np.einsum("nk,nk->n", queries.vectors, documents)
    assert queries.similarity is not None
    np.testing.assert_allclose(own, queries.similarity, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(queries.vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(queries.vectors, perturbed(documents, others).vectors)
    noise = queries.vectors - queries.similarity * documents
    spread, noise_spread = np.var(others, axis=0), np.var(noise, axis=0)
    assert np.corrcoef(spread, noise_spread)[0, 1] > 0.9  # noise has the covariance of the corpus


def test_a_single_other_document_moves_none() -> None:
    one = unit(1, 4)
    np.testing.assert_allclose(perturbed(one, one).vectors, one, atol=1e-6)


def test_all_rows_of_a_query_s_document_count_for_neither_side(source: RowView) -> None:
    hashes = np.repeat(source.id_hashes[: ROWS // 5], 5)  # documents of five windows
    windows = dataclasses.replace(source, id_hashes=hashes, live=np.arange(ROWS) % 5 > 0)
    for row, beside in zip([0, 7, 2499], windows.rows_of_same_document(np.array([0, 7, 2499])), strict=True):
        first = row // 5 * 5
        assert beside.tolist() == list(range(first + 1, first + 5))


def test_the_user_s_own_queries_are_encoded_and_measured_with(fill: Fill, tmp_path: Path) -> None:
    file = tmp_path / "queries.txt"
    file.write_text("one\n\ntwo\nthree\n")
    asked: list[str] = []

    def encode(texts: list[str]) -> npt.NDArray[np.float32]:
        asked.extend(texts)
        return unit(len(texts), DIM, 9)

    filled = fill(encode=encode, type="IVF16,Flat", recall=0.5, queries=str(file))
    about = filled.figures["index"]
    assert asked == ["one", "two", "three"]
    assert (about["queries"], about["query_origin"]) == (3, "index.queries")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert about["queries_sha256"] == digest == query_file_sha256(str(file), "index.queries")
    assert fill(queries=str(file)).figures["index"]["queries_sha256"] == digest  # recorded for an exact index too
    with pytest.raises(ConfigError, match=r"index\.queries: .*cannot be read"):
        fill(encode=encode, type="IVF16,Flat", queries=str(tmp_path / "none.txt"))


def test_queries_of_the_user_are_transformed_as_queries_and_leave_no_row_out(source: RowView, tmp_path: Path) -> None:
    file, embeddings = tmp_path / "queries.npy", unit(5, DIM, 3) * 4
    np.save(file, embeddings)
    chance = np.random.default_rng(0)
    mean, query_mean = chance.normal(size=(2, DIM))
    whitening = Whitening(mean, query_mean, chance.normal(size=(DIM, 7)), np.ones(DIM))
    found = recall_queries(source, whitening, IndexConfig(queries=str(file)), np.arange(3), unit(9, 7), no_encoder)
    expected = (embeddings - query_mean) @ whitening.projection
    np.testing.assert_allclose(found.vectors, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-6)
    assert (found.own, found.origins) == (None, None)


def test_queries_drawn_from_documents_leave_out_all_windows_of_their_document(source: RowView) -> None:
    hashes = np.repeat(source.id_hashes[: ROWS // 5], 5)  # documents of five windows
    windows, held_out = dataclasses.replace(source, id_hashes=hashes), np.array([0, 7, 2499])
    transform = Normalisation(DIM)
    found = recall_queries(windows, transform, IndexConfig(), held_out, unit(50, DIM, 3), no_encoder)
    assert found.own is not None
    assert [own.tolist() for own in found.own] == [list(range(row // 5 * 5, row // 5 * 5 + 5)) for row in held_out]


@pytest.mark.parametrize("rows", [1, 2, 3, 15])
def test_few_rows_are_enough(rows: int, tmp_path_factory: pytest.TempPathFactory, fill: Fill) -> None:
    few = source_of(tmp_path_factory.mktemp("few"), unit(rows, 8))
    filled = fill(of=few, type="HNSW4")
    assert (filled.rows, filled.recall) == (rows, 1.0)
