"""What is said before a threshold is chosen: counts equal brute force, examples lie next to the threshold."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from indexer import BuildConfig, Document, build_index
from indexer.arrays import RowIds, Vectors
from indexer.config import EncoderConfig, StoreConfig
from indexer.errors import ConfigError
from search.dedup.chance import USUAL_THRESHOLDS
from search.dedup.distinct import find_distinct
from search.dedup.pair_counts import count_pairs
from search.dedup.pairs import Pairs, PairSource
from search.dedup.settings import lowest_score
from search.dedup.suggest import EXAMPLES, ExampleDocument, Suggestion, ThresholdCandidate, suggest, suggest_thresholds
from search.dedup.suggest import _nearest as nearest_examples
from search.index import Index
from tests.dedup_oracles import BrutePairs
from tests.search.dedup.test_chance import near, sphere
from tests.search.dedup.test_pair_counts import all_pairs, surveyed

DOCUMENTS = 400
FLOOR = 0.79


@dataclass(frozen=True)
class Shuffled:
    """A PairSource that hands out another's pairs in another order and cut elsewhere."""

    source: PairSource
    seed: int

    def within(self, members: RowIds) -> Iterator[Pairs]:
        batches = list(self.source.within(members))
        joined = [np.concatenate([getattr(batch, name) for batch in batches]) for name in ("left", "right", "scores")]
        generator = np.random.default_rng(self.seed)
        order = generator.permutation(len(joined[0]))
        for part in np.array_split(order, self.seed + 1):
            left, right, scores = (column[part] for column in joined)
            yield Pairs(right, left, scores)

    def between(self, left: RowIds, right: RowIds) -> Iterator[Pairs]:
        raise AssertionError("never asked")


@pytest.fixture(scope="module")
def index(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Index:
    """An index whose texts are looked up; the vectors of the tests are made up."""
    config = BuildConfig(
        encoder=EncoderConfig(model=str(tiny_model("bert")), max_length=8), store=StoreConfig(part_documents=256)
    )
    documents = [Document(f"d{n}", f"text\n of {n} " + 200 * "a", title=f"Title {n}") for n in range(DOCUMENTS)]
    path = tmp_path_factory.mktemp("suggest") / "index"
    build_index(documents, path, config)
    return Index.open(path)


def corpus() -> Vectors:
    """300 unrelated vectors, and something near to a third of them."""
    vectors = sphere(300, 24)
    return np.concatenate([vectors, near(vectors, np.arange(0, 300, 3), 0.35)])


def suggested(
    index: Index, vectors: Vectors, floor: float = FLOOR, shuffle: int | None = None, pairs_held: int = 1000
) -> Suggestion:
    distinct = find_distinct(vectors)
    source: PairSource = BrutePairs(vectors[distinct.first], lowest_score(floor))
    source = source if shuffle is None else Shuffled(source, shuffle)
    return suggest(index, vectors, count_pairs(vectors, distinct, source, floor, pairs_held), floor)


def test_candidates_are_the_usual_thresholds_and_those_the_data_suggest(index: Index) -> None:
    found = suggested(index, corpus())
    assert found.background is not None
    thresholds = [candidate.threshold for candidate in found.candidates]
    assert thresholds == sorted(set(thresholds))
    assert {threshold for threshold in USUAL_THRESHOLDS if threshold >= FLOOR} <= set(thresholds)
    one = found.background.lowest()
    assert one in thresholds or one < FLOOR
    mostly_real = [candidate for candidate in found.candidates if (candidate.by_chance or 1) <= 0.01]
    steps = [n / 1000 for n in range(790, 1000)]
    survey = surveyed(corpus(), FLOOR)
    first = next(step for step in steps if found.background.expected(step) <= 0.01 * survey.pairs(step))
    assert mostly_real[0].threshold == first


def test_each_candidate_has_what_chance_would_give_and_what_is_there(index: Index) -> None:
    vectors = corpus()
    found = suggested(index, vectors)
    assert found.background is not None
    assert found.documents == DOCUMENTS
    for candidate in found.candidates:
        chance = candidate.chance
        assert candidate.pairs == sum(score >= lowest_score(candidate.threshold) for *_, score in all_pairs(vectors))
        assert chance is not None
        assert chance.expected == found.background.expected(candidate.threshold)
        assert (chance.low or 0) < chance.expected < (chance.high or 0)
        assert candidate.by_chance == (min(1, chance.expected / candidate.pairs) if candidate.pairs else None)
    assert found.candidates[0].dropped == 100
    assert found.candidates[0].dropped_exactly


def test_examples_can_be_read_and_lie_next_to_their_candidate(index: Index) -> None:
    found = suggested(index, corpus())
    read = [side for candidate in found.candidates for side in sides(candidate)]
    assert len(read) >= 12
    for side in read:
        assert side.text.startswith(f"Title {side.id[1:]} text of {side.id[1:]} aaa")
        assert len(side.text) == 160
        assert side.text.endswith("…")
    edges = [-1.0, *(candidate.threshold for candidate in found.candidates), 2.0]
    for before, candidate, after in zip(edges, found.candidates, edges[2:], strict=False):
        assert len(candidate.above) <= EXAMPLES
        assert len(candidate.below) <= EXAMPLES
        scores = [example.score for example in candidate.above]
        assert scores == sorted(scores)
        assert all(candidate.threshold <= score + 1e-6 and score < after for score in scores)
        scores = [example.score for example in candidate.below]
        assert scores == sorted(scores, reverse=True)
        assert all(before <= score + 1e-6 and score < candidate.threshold for score in scores)


def sides(candidate: ThresholdCandidate) -> list[ExampleDocument]:
    return [side for example in (*candidate.above, *candidate.below) for side in (example.first, example.second)]


def test_examples_show_different_documents_if_there_are() -> None:
    hub = [(0, 1, 0.90), (0, 2, 0.91), (1, 2, 0.92)]
    assert nearest_examples([*hub, (3, 4, 0.93), (5, 6, 0.94), (7, 8, 0.95)]) == [hub[0], (3, 4, 0.93), (5, 6, 0.94)]
    assert nearest_examples([*hub, (3, 4, 0.93)]) == [hub[0], (3, 4, 0.93), hub[1]]
    assert nearest_examples(hub[:2]) == hub[:2]


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_the_order_of_pairs_changes_nothing(index: Index, seed: int) -> None:
    vectors = np.concatenate([corpus()[:350], corpus()[:50]])
    assert suggested(index, vectors, shuffle=seed) == suggested(index, vectors)


def test_with_more_pairs_than_are_held_only_the_number_dropped_is_a_bound(index: Index) -> None:
    vectors = near(sphere(4, 24).repeat(100, axis=0), np.arange(400), 0.25)  # so that some duplicates are dropped
    exact, bound = suggested(index, vectors, pairs_held=10**6), suggested(index, vectors, pairs_held=10)
    for one, other in zip(exact.candidates, bound.candidates, strict=True):
        assert one.dropped_exactly
        assert not other.dropped_exactly
        assert one.dropped <= other.dropped
        assert (one.pairs, one.above, one.below) == (other.pairs, other.above, other.below)
    assert exact.candidates[3].dropped < bound.candidates[3].dropped


def test_the_result_is_strict_json_and_names_what_was_drawn(index: Index) -> None:
    stated = json.loads(json.dumps(suggested(index, corpus()).to_dict(), allow_nan=False))
    assert stated["background"]["seed"] == 0
    assert stated["background"]["pairs"] == stated["background"]["drawn"] * (stated["background"]["drawn"] - 1) // 2
    assert stated["background"]["tail"].keys() == {"start", "ceiling", "exponent", "pairs"}
    shown = next(candidate for candidate in stated["candidates"] if candidate["above"])
    assert shown["chance"].keys() == {"expected", "low", "high"}
    assert shown["above"][0]["first"].keys() == {"id", "text"}


def test_in_words_it_is_an_estimate_and_no_p_value(index: Index) -> None:
    found = suggested(index, corpus())
    assert found.background is not None
    one = found.background.lowest()
    words = " ".join(found.sentences)
    assert words.startswith(f"At {one:g} expect fewer than one unrelated pair in this corpus: an estimate, which takes")
    assert "chance explains" in words
    assert "random pairs" in words
    assert "p-value" not in words
    assert "significan" not in words
    assert "too high" not in words


def test_without_near_duplicates_it_says_so(index: Index) -> None:
    found = suggested(index, sphere(400, 14))
    assert "at no threshold above it less than 1%: there are few near-duplicates, if any" in " ".join(found.sentences)


def test_an_estimate_that_related_documents_spoil_is_said_to_be_too_high(index: Index) -> None:
    vectors = near(sphere(200, 32).repeat(2, axis=0), np.arange(400), 0.6)  # those of a pair score 0.74
    assert "too high for use: many documents are related in ways that score less than 0.79" in " ".join(
        suggested(index, vectors).sentences
    )


@pytest.mark.parametrize("count", [0, 1, 2, 30])
def test_few_documents_have_counts_but_no_background(index: Index, count: int) -> None:
    found = suggested(index, sphere(count, 24))
    assert found.background is None
    assert found.sentences[0].startswith(f"Too few documents for a background: {count} that score below 0.79")
    assert [candidate.chance for candidate in found.candidates] == [None] * len(found.candidates)
    assert found.candidates[0].pairs == 0
    json.dumps(found.to_dict(), allow_nan=False)


def test_copies_of_one_document_have_counts_but_no_background(index: Index) -> None:
    found = suggested(index, sphere(1, 24).repeat(DOCUMENTS, axis=0))
    assert found.sentences[0].startswith("Too few documents for a background: 1 that score below")
    for candidate in found.candidates:
        assert candidate.pairs == DOCUMENTS * (DOCUMENTS - 1) // 2
        assert (candidate.dropped, candidate.dropped_exactly) == (DOCUMENTS - 1, True)
    assert [example.second.id for example in found.candidates[-1].above] == ["d1"]


def test_an_index_is_asked_with_labelled_pairs_and_a_floor(index: Index, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("d0\td1\t1\nd2\td3\t0\n")
    found = suggest_thresholds(index.path, tmp_path / "pairs.tsv", floor=0.9)
    assert (found.documents, found.floor) == (DOCUMENTS, 0.9)
    assert found.candidates[0].threshold == 0.9
    assert found.labelled is not None
    assert (found.labelled.pairs, found.labelled.duplicates) == (2, 1)
    assert found.to_dict()["labelled"]["pairs"] == 2
    assert suggest_thresholds(index.path).labelled is None


def test_a_floor_that_is_no_threshold_is_refused(index: Index) -> None:
    with pytest.raises(ConfigError, match=r"floor is -2"):
        suggest_thresholds(index.path, floor=-2)
    vectors = sphere(3, 4)
    counts = count_pairs(vectors, find_distinct(vectors), BrutePairs(vectors, 0.9), 0.9)
    with pytest.raises(ConfigError, match=r"floor is 1\.5"):
        suggest(index, vectors, counts, 1.5)
