"""Labelled pairs: every line is checked, precision and recall are counts, and the best threshold is the best."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from indexer import BuildConfig, build_index
from indexer.arrays import Scores, Vectors
from indexer.errors import EvaluationError
from search.dedup.chance import USUAL_THRESHOLDS
from search.dedup.labelled import LabelledPairs, LabelledReport, best_threshold, measure_labelled, read_labelled
from search.dedup.pairs import pair_scores
from search.dedup.settings import IDENTICAL, lowest_score
from search.index import Index
from tests.documents import DOCUMENTS
from tests.search.dedup.test_chance import near, sphere

LINES = ["d0\td1\t1", "d2\td3\t0", "d0\td8\t0"]
# Scores with ties, some of them next to one another, and those that no threshold tells apart at the top.
SCORES = st.sampled_from([-0.3, 0.0, 0.5, 0.8, 0.85, 0.85000014, 0.9, 0.999, 0.9999985, IDENTICAL])
LABELLED = st.lists(st.tuples(SCORES, st.booleans()), min_size=2, max_size=30).filter(
    lambda pairs: len({label for _, label in pairs}) == 2
)


@pytest.fixture
def index(tiny_config: BuildConfig, tmp_path: Path) -> Index:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    return Index.open(tmp_path / "index")


def read(index: Index, text: str | bytes, name: str = "pairs.tsv") -> LabelledPairs:
    path = index.path.parent / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_labelled(path, index)


def labelled(count: int = 400) -> tuple[LabelledPairs, Vectors]:
    """Pairs of which the duplicates score more, but not all of them."""
    vectors = sphere(count, 16)
    vectors = np.concatenate([vectors, near(vectors, np.arange(count), 0.8)])
    left, right = np.arange(count), np.arange(count) + count
    right[count // 2 :] = np.roll(right[count // 2 :], 1)  # pairs of documents that have nothing to do with each other
    duplicate = np.arange(count) < count // 2
    duplicate[::20] ^= True  # and mistakes
    return LabelledPairs("pairs.tsv", "0" * 64, left, right, duplicate), vectors


def counted(scores: Scores, duplicate: npt.NDArray[np.bool_], threshold: float) -> tuple[int, int]:
    """Pairs that reach the threshold, and duplicates among them, one by one."""
    found = right = 0
    for score, label in zip(scores.tolist(), duplicate.tolist(), strict=True):
        if np.float32(score) >= lowest_score(threshold):
            found, right = found + 1, right + label
    return found, right


def f1(found: int, right: int, duplicates: int) -> float:
    return 2 * right / (found + duplicates)


@pytest.mark.parametrize("header", ["", "id1\tid2\tlabel\n", "a\tb\tis_duplicate\n"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_table_is_read_with_and_without_a_header(index: Index, header: str, end: str) -> None:
    pairs = read(index, "\ufeff" + (header + "\n".join(LINES)).replace("\n", end))
    assert pairs.left.tolist() == [0, 2, 0]
    assert pairs.right.tolist() == [1, 3, 8]
    assert pairs.duplicate.tolist() == [True, False, False]
    assert len(pairs.sha256) == 64


@pytest.mark.parametrize("name", ["pairs.csv", "PAIRS.CSV"])
def test_a_csv_file_has_commas_and_quotes(index: Index, name: str) -> None:
    pairs = read(index, 'id1,id2,label\n"d0",d1,duplicate\nd3,"d2",different\n', name)
    assert (pairs.left.tolist(), pairs.right.tolist(), pairs.duplicate.tolist()) == ([0, 2], [1, 3], [True, False])


@pytest.mark.parametrize(
    ("yes", "no"),
    [("1", "0"), ("true", "false"), ("TRUE", "False"), ("yes", "no"), ("1.0", "0.0"), (" same ", "distinct")],
)
def test_labels_have_several_spellings(index: Index, yes: str, no: str) -> None:
    assert read(index, f"d0\td1\t{yes}\nd0\td2\t{no}").duplicate.tolist() == [True, False]


def test_a_pair_that_is_repeated_counts_once_and_is_reported(index: Index) -> None:
    pairs = read(index, "\n\n".join([*LINES, "d1\td0\t1", "d0\td1\t1"]))
    assert (len(pairs.left), pairs.repeated) == (3, 2)
    result = measure_labelled(pairs, sphere(9, 4))
    assert result.pairs == 3
    assert result.notes[-1] == "2 lines repeat another and counted once."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("d0\td1\t1\nd0\td22\t0\n", r'pairs\.tsv:2: "d22" is not the id of a document of .*did you mean "d2"'),
        ("x\ty\t1\nd0\tz\t0\n", r'pairs\.tsv:1: "x" is not .*, and 2 more of its ids are not'),
        ("d0\td1\t1\nd0,d2,0\n", r"pairs\.tsv:2: 1 column; expected id<TAB>id<TAB>label"),
        ("d0\td1\t1\textra\n", r"pairs\.tsv:1: 4 columns; expected"),
        ("d0\td1\tmaybe\n", r'pairs\.tsv:1: the label is "maybe"; expected one of 1, .* header .* third column: label'),
        ("d0\td1\t1\nd0\td2\tlabel\n", r'pairs\.tsv:2: the label is "label"'),
        ("d0\td1\t1\n\nd1\td0\t0\n", r'pairs\.tsv:3: "d1" and "d0" are different here and duplicates in line 1'),
        ("d0\td0\t1\n", r'pairs\.tsv:1: "d0" is paired with itself'),
        ("d0\td1\t1\nd1\td2\t1\n", "all 2 pairs are duplicates; precision and recall need duplicates and others"),
        ("d0\td1\t0\n", "all 1 pairs are different"),
        ("", "the file holds no pairs"),
        ("id1\tid2\tlabel\n", "the file holds no pairs"),
        (b"d0\td1\t1\nd0\t\xff\t1\n", r"pairs\.tsv:2: not UTF-8"),
    ],
)
def test_a_faulty_file_is_refused_at_its_line(index: Index, text: str | bytes, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        read(index, text)


def test_a_faulty_csv_file_is_refused_at_its_line(index: Index) -> None:
    with pytest.raises(EvaluationError, match=r"pairs\.csv:2: not valid CSV"):
        read(index, 'd0,d1,1\nd0,"d2"x,0\n', "pairs.csv")


def test_a_file_that_is_not_there_is_refused(index: Index) -> None:
    with pytest.raises(EvaluationError, match=r"none\.tsv: cannot be read: No such file"):
        read_labelled(index.path / "none.tsv", index)


def test_each_level_counts_what_reaches_it() -> None:
    pairs, vectors = labelled()
    result = measure_labelled(pairs, vectors)
    scores = pair_scores(vectors[pairs.left], vectors[pairs.right])
    assert [level.threshold for level in result.levels] == sorted({*USUAL_THRESHOLDS, result.best})
    assert (result.pairs, result.duplicates) == (400, int(pairs.duplicate.sum()))
    for level in result.levels:
        found, right = counted(scores, pairs.duplicate, level.threshold)
        assert (level.found, level.right) == (found, right)
        assert level.recall.value == right / result.duplicates
        assert level.precision.value == (right / found if found else None)
        assert level.f1.value == pytest.approx(f1(found, right, result.duplicates))


def test_intervals_are_those_of_wilson_and_hold_the_value() -> None:
    pairs, vectors = labelled()
    for level in measure_labelled(pairs, vectors).levels:
        for ratio, right, of in (
            (level.precision, level.right, level.found),
            (level.recall, level.right, int(pairs.duplicate.sum())),
        ):
            if of:
                expected = binomtest(right, of).proportion_ci(method="wilson")
                assert (ratio.low, ratio.high) == pytest.approx((expected.low, expected.high), abs=1e-6)
        low, high = level.f1.low, level.f1.high
        assert low is not None
        assert high is not None
        assert low <= (level.f1.value or 0) <= high
        assert high - low < 0.15


@given(LABELLED)
def test_no_threshold_has_a_better_f1_than_the_best(pairs: list[tuple[float, bool]]) -> None:
    scores = np.array([score for score, _ in pairs], np.float32)
    duplicate = np.array([label for _, label in pairs])
    best = best_threshold(scores, duplicate)

    def value(threshold: float) -> float:
        return f1(*counted(scores, duplicate, threshold), int(duplicate.sum()))

    others = {score for score, _ in pairs} | {n / 50 for n in range(-49, 51)}
    assert value(best) == max(value(threshold) for threshold in {best, *others})
    reached = scores[scores >= lowest_score(best)]
    higher = [score for score in others if lowest_score(score) > reached.min()]
    assert all(value(threshold) < value(best) for threshold in higher)  # of equals the highest


def test_the_best_threshold_has_no_more_digits_than_it_needs() -> None:
    duplicate = np.array([True, True, False])
    assert best_threshold(np.array([0.95, 0.8734, 0.8611], np.float32), duplicate) == 0.87
    assert best_threshold(np.array([0.95, 0.8734, 0.8731], np.float32), duplicate) == 0.8733
    assert best_threshold(np.array([0.95, 0.8734, 0.2], np.float32), duplicate) == 0.8
    assert best_threshold(np.array([IDENTICAL, IDENTICAL, 0.9], np.float32), duplicate) == 1.0


def test_identical_documents_reach_every_threshold() -> None:
    vectors = sphere(2, 8)[[0, 0, 1]]
    pairs = LabelledPairs("p", "", np.array([0, 0]), np.array([1, 2]), np.array([True, False]))
    result = measure_labelled(pairs, vectors)
    assert result.best == 1.0
    assert (result.levels[-1].found, result.levels[-1].right) == (1, 1)


def test_a_result_is_strict_json_repeats_itself_and_says_what_it_cannot() -> None:
    pairs, vectors = labelled(60)
    result: LabelledReport = measure_labelled(pairs, vectors)
    assert result == measure_labelled(pairs, vectors)
    stated = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert stated["levels"][0]["f1"].keys() == {"value", "low", "high"}
    assert "no sample of all pairs" in stated["notes"][0]
