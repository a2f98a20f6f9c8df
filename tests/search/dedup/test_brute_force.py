"""The law of the proof: exactly one choice of kept documents is correct, for any vectors, windows and texts."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.arrays import RowIds, Scores, Vectors
from indexer.progress import NoProgress
from search.dedup import brute_force
from search.dedup.brute_force import DecidedWindows, float32_error, named_scores
from search.dedup.findings import Findings, StatedDuplicates
from search.dedup.greedy import Decision, DedupDocuments
from search.dedup.pairs import tile_scores
from search.dedup.settings import DedupSettings, JoinOptions
from search.dedup.verify import DuplicatesCheck
from tests.dedup_oracles import decide_slowly

Draw = np.random.Generator


def documents(draw: Draw, settings: DedupSettings, windowed: bool) -> tuple[DecidedWindows, DedupDocuments, Vectors]:
    """Draw a few documents with one window, or none to three, on a grid with ties and scores at the threshold."""
    count = int(draw.integers(1, 12))
    others = int(draw.integers(0, count)) if settings.only_against or draw.integers(2) else 0
    each = draw.integers(1, 4, count) if windowed else np.ones(count, np.int64)
    document_of = np.repeat(np.arange(count), each)
    vectors = draw.choice(np.array([-0.5, 0.5], np.float32), (len(document_of), 4))
    rank = np.concatenate([np.arange(others), others + draw.permutation(count - others)])
    _, text_of = np.unique(draw.integers(-1, 6, count), return_inverse=True)
    apart, vector_of = np.unique(vectors, axis=0, return_inverse=True)
    windows = int(np.count_nonzero(document_of < others))
    decided = DecidedWindows(
        vectors[windows:], vectors[:windows], document_of, rank, np.full(count, -1), settings.lowest,
        settings.only_against,
    )  # fmt: skip
    scores = np.einsum("nd,nd->n", apart, apart)
    collection = DedupDocuments(document_of, vector_of.reshape(-1), text_of - draw.integers(2), rank, scores, others)
    return decided, collection, apart


def judged(decided: DecidedWindows, collection: DedupDocuments, kept_by: RowIds, settings: DedupSettings) -> Findings:
    """Return the violations of a decision whose scores and reasons are stated correctly."""
    decided = DecidedWindows(**vars(decided) | {"kept_by": kept_by})
    dropped = np.flatnonzero(kept_by >= 0)
    texts, found = collection.text_of, Findings()
    same = (texts[dropped] >= 0) & (texts[dropped] == texts[kept_by[dropped]])
    foreign = kept_by[dropped] < collection.others
    reasons = np.where(foreign, np.where(same, "against-text", "against"), np.where(same, "text", "similar"))
    ids = pa.chunked_array([[f"d{number}" for number in range(len(kept_by))]])
    scores: Scores = named_scores(decided)[dropped]
    stated = StatedDuplicates(
        ids, collection.others, dropped, kept_by[dropped], scores, reasons.astype(object), dropped * 0
    )
    DuplicatesCheck(stated, decided, texts, settings, found).run(JoinOptions(threads=1), NoProgress())
    found.lines()
    return found


def settings_of(data: st.DataObject) -> DedupSettings:
    threshold = data.draw(st.sampled_from([-0.5, 0.0, 0.5, 1.0]))
    texts: Any = data.draw(st.sampled_from(["keep", "drop"]))
    return DedupSettings(threshold, text_duplicates=texts, only_against=data.draw(st.booleans()))


def drawn(data: st.DataObject) -> tuple[Draw, DedupSettings, DecidedWindows, DedupDocuments, Decision]:
    settings, draw = settings_of(data), np.random.default_rng(data.draw(st.integers(0, 2**32)))
    decided, collection, apart = documents(draw, settings, data.draw(st.booleans()))
    drop_texts = settings.text_duplicates == "drop"
    right = decide_slowly(collection, apart, settings.lowest, drop_texts, not settings.only_against)
    return draw, settings, decided, collection, right


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brute_force, "_BLOCK", 4)
    monkeypatch.setattr(brute_force, "_CELLS", 6)
    monkeypatch.setattr(brute_force, "_GATHERED", 3)


@given(data=st.data())
@pytest.mark.usefixtures("small_blocks")
def test_what_the_rule_decides_is_always_proved(data: st.DataObject) -> None:
    _, settings, decided, collection, right = drawn(data)
    found = judged(decided, collection, right.kept_by, settings)
    assert found.lines() == []


@given(data=st.data())
@pytest.mark.usefixtures("small_blocks")
def test_no_other_choice_is_ever_proved(data: st.DataObject) -> None:
    """Any other set of kept documents, or any other representative, is a violation."""
    draw, settings, decided, collection, right = drawn(data)
    for _ in range(4):
        changed = another_choice(right.kept_by.copy(), collection.others, draw)
        if changed is not None and (changed != right.kept_by).any():
            assert judged(decided, collection, changed, settings)


def another_choice(kept_by: RowIds, others: int, draw: Draw) -> RowIds | None:
    """Change the decision on a few documents, and draw new representatives where the old ones are dropped."""
    for document in draw.integers(others, len(kept_by), draw.integers(1, 3)).tolist():
        kept_by[document] = -1 if draw.integers(2) else 0  # 0: replaced below
    kept = np.flatnonzero(kept_by < 0)
    if not len(kept):
        return None
    lost = (kept_by >= 0) & ~np.isin(kept_by, kept)
    if draw.integers(2):
        lost |= (kept_by >= 0) & (draw.integers(0, 4, len(kept_by)) == 0)
    kept_by[lost] = draw.choice(kept, np.count_nonzero(lost))
    return kept_by


def planted(*rows: list[float]) -> Vectors:
    return np.array(rows, np.float32)


def test_of_two_kept_documents_that_score_the_same_the_first_in_priority_stands() -> None:
    """a and b score 0 with each other; c scores sqrt(1/2) with both, equal to the last bit."""
    half = float(np.sqrt(0.5))
    own, none = planted([1, 0], [0, 1], [half, half]), np.zeros((0, 2), np.float32)
    settings = DedupSettings(0.7)
    for rank, first in (([0, 1, 2], 0), ([1, 0, 2], 1)):
        decided = DecidedWindows(own, none, np.arange(3), np.array(rank), np.full(3, -1), settings.lowest)
        collection = DedupDocuments(np.arange(3), np.arange(3), np.full(3, -1), np.array(rank), np.ones(3, np.float32))
        assert not judged(decided, collection, np.array([-1, -1, first]), settings)
        assert judged(decided, collection, np.array([-1, -1, 1 - first]), settings).counts == {"representative": 1}


def test_a_score_of_the_threshold_exactly_is_enough_and_one_bit_less_is_not() -> None:
    draw = np.random.default_rng(5)
    pair = draw.normal(size=(2, 48))
    own: Vectors = (pair / np.linalg.norm(pair, axis=1, keepdims=True)).astype(np.float32)
    score = float(tile_scores(own[:1], own[1:])[0, 0])
    none = own[:0]
    collection = DedupDocuments(np.arange(2), np.arange(2), np.full(2, -1), np.arange(2), np.ones(2, np.float32))
    for threshold, dropped in ((score, True), (float(np.nextafter(np.float32(score), np.float32(2))), False)):
        settings = DedupSettings(threshold)
        decided = DecidedWindows(own, none, np.arange(2), np.arange(2), np.full(2, -1), settings.lowest)
        one_kept, both_kept = np.array([-1, 0]), np.array([-1, -1])
        assert bool(judged(decided, collection, one_kept, settings)) != dropped
        assert bool(judged(decided, collection, both_kept, settings)) == dropped


def test_a_dropped_document_whose_best_comes_later_needs_one_that_comes_before() -> None:
    """In a chain a ~ b ~ c, b is dropped for a but closest to c, which is correct."""
    angles = np.array([0.0, 0.5, 0.9])
    own: Vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    collection = DedupDocuments(np.arange(3), np.arange(3), np.full(3, -1), np.arange(3), np.ones(3, np.float32))

    def counts(threshold: float, *kept_by: int) -> dict[str, int]:
        settings = DedupSettings(threshold)
        decided = DecidedWindows(own, own[:0], np.arange(3), np.arange(3), np.full(3, -1), settings.lowest)
        return judged(decided, collection, np.array(kept_by), settings).counts

    assert counts(0.8, -1, 2, -1) == {}
    assert counts(0.8, -1, 0, -1) == {"representative": 1}
    assert counts(0.9, -1, 2, -1) == {"dropped wrongly": 1}
    assert counts(0.9, -1, -1, 1) == {}


def test_whoever_scores_the_threshold_stands_before_whoever_has_the_same_text() -> None:
    """b has the text of a, with which it scores 0; c comes last and scores the threshold with b exactly."""
    own = planted([1, 0, 0, 0], [0, 1, 0, 0], [-0.5, 0.5, 0.5, 0.5])
    settings = DedupSettings(0.5, text_duplicates="drop")
    decided = DecidedWindows(own, own[:0], np.arange(3), np.arange(3), np.full(3, -1), settings.lowest)
    collection = DedupDocuments(np.arange(3), np.arange(3), np.array([0, 0, -1]), np.arange(3), np.ones(3, np.float32))
    assert not judged(decided, collection, np.array([-1, 2, -1]), settings)
    assert judged(decided, collection, np.array([-1, 0, -1]), settings).counts == {"representative": 1}


def test_of_several_with_nothing_but_the_same_text_the_first_stands() -> None:
    """Two documents of the other index have the text of the dropped document; all score 0 with each other."""
    vectors = planted([1, 0, 0], [0, 1, 0], [0, 0, 1])
    settings = DedupSettings(0.5, text_duplicates="drop")
    decided = DecidedWindows(vectors[2:], vectors[:2], np.arange(3), np.arange(3), np.full(3, -1), settings.lowest)
    collection = DedupDocuments(
        np.arange(3), np.arange(3), np.zeros(3, np.int64), np.arange(3), np.ones(3, np.float32), 2
    )
    assert not judged(decided, collection, np.array([-1, -1, 0]), settings)
    assert judged(decided, collection, np.array([-1, -1, 1]), settings).counts == {"representative": 1}
    assert judged(decided, collection, np.array([-1, -1, -1]), settings).counts == {"kept texts": 1}


@given(seed=st.integers(0, 2**32), dim=st.sampled_from([1, 2, 16, 381, 1024]))
def test_float32_products_are_within_the_bound(seed: int, dim: int) -> None:
    draw = np.random.default_rng(seed)
    rows: npt.NDArray[np.float64] = draw.normal(size=(20, dim)) ** draw.integers(1, 6)
    vectors: Vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    gap = np.abs((vectors @ vectors.T).astype(np.float64) - tile_scores(vectors, vectors))
    assert gap.max() <= float32_error(dim)
