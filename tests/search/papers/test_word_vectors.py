"""Vectors of words: unchanged rows of a table, and the places of a word in a corpus, each read once."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.arrays import Float64Array as Array
from indexer.encoders.windows import TokenOffsets
from indexer.errors import EvaluationError
from search.papers.word_vectors import (
    ContextOptions,
    ReadingLog,
    WordFinder,
    context_vectors,
    principal_component,
    read_contexts,
    table_vectors,
)

# Vectors


class Table:
    """A table of four words, one of them in upper case."""

    words = ("the", "whale", "Oslo", "sea")
    vectors = np.arange(12, dtype=np.float32).reshape(4, 3)

    def row_of(self, word: str) -> int | None:
        return self.words.index(word) if word in self.words else None


TABLE: Any = Table()


def test_words_of_a_table_are_looked_up_as_written_then_lower_cased() -> None:
    found = table_vectors(TABLE, ["Whale", "whale", "Oslo", "oslo", "lost", "sea"])
    assert {word: found.vectors[row].tolist() for word, row in found.rows.items()} == {
        "Whale": [3, 4, 5],
        "whale": [3, 4, 5],
        "Oslo": [6, 7, 8],
        "sea": [9, 10, 11],
    }
    assert len(found.vectors) == 3


@pytest.mark.parametrize(("candidates", "rows"), [(0, 1), (1, 2), (2, 3), (4, 4), (99, 4)])
def test_the_first_rows_of_a_table_are_candidates_too(candidates: int, rows: int) -> None:
    found = table_vectors(TABLE, ["Oslo"], candidates)
    assert len(found.vectors) == rows
    assert found.vectors[found.rows["Oslo"]].tolist() == [6, 7, 8]


def power_iteration(rows: Array) -> Array:
    vector: Array = rows.sum(axis=0)
    for _ in range(1000):
        total = np.zeros(rows.shape[1])
        for row in rows:
            total += float(row @ vector) * row
        vector = total / np.linalg.norm(total)
    return vector


@pytest.mark.parametrize(("count", "seed"), [(1, 0), (2, 1), (5, 2), (40, 3)])
def test_the_first_principal_component_is_that_of_the_power_iteration(count: int, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(count, 6)) + np.array([2.0, 0, 0, 1, 0, 0])
    np.testing.assert_allclose(principal_component(rows), power_iteration(rows), atol=1e-9)


def test_the_first_principal_component_by_hand() -> None:
    """Two rows along (3, 4), of which the longer one points the other way: the mean, and so the sign, follows it."""
    np.testing.assert_allclose(principal_component(np.array([[3.0, 4], [-6, -8]])), [-0.6, -0.8])
    np.testing.assert_allclose(principal_component(np.array([[0.0, 5]])), [0, 1])


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_vectors_without_a_direction_are_refused(value: float) -> None:
    with pytest.raises(EvaluationError, match='vectors of "whale" contain NaN or infinity, or are all zero'):
        context_vectors([("whale", np.full((3, 4), value))], ["whale"])


def test_words_of_contexts_are_found_whatever_their_case() -> None:
    found = context_vectors(
        iter([("oslo", np.array([[0.0, 2]])), ("sea", np.array([[4.0, 0]]))]), ["Oslo", "oslo", "x"]
    )
    assert found.rows == {"Oslo": 0, "oslo": 0}
    assert found.vectors.tolist() == [[0, 1], [1, 0]]


# Contexts


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The WHALE, whales.", [("whale", "WHALE")]),
        ("new-york York", [("york", "york"), ("york", "York"), ("new-york", "new-york")]),
        ("a.new-yorker", []),
        ("whale_ İwhale whale\u00e9", []),
        ("İ whale", [("whale", "whale")]),
        ("", []),
    ],
)
def test_whole_words_are_found_whatever_their_case(text: str, found: list[tuple[str, str]]) -> None:
    places = WordFinder(["whale", "York", "New-York"])(text)
    assert [(word, text[start:end]) for word, start, end in places] == found


class Letters:
    """One token for every two characters of a run of letters; its vector: number of earlier texts, and its place."""

    def __init__(self, most: int = 99, from_left: bool = False, space_before: bool = False, prefix: str = "") -> None:
        self.most, self.from_left, self.before, self.prefix = most, from_left, space_before, prefix
        self.seen: list[str] = []

    def offsets(self, texts: Sequence[str]) -> list[TokenOffsets]:
        return [self._marks(text) for text in texts]

    def _marks(self, text: str) -> TokenOffsets:
        starts, words = [], []
        for number, (start, end) in enumerate(match.span() for match in re.finditer(r"\w+", text)):
            first = max(start - 1, 0) if self.before else start
            starts += [first, *range(start + 2, end, 2)]
            words += [number] * len(range(start, end, 2))
        return TokenOffsets(np.array(starts, np.int32), np.array(words, np.int32))

    def __call__(
        self, texts: Sequence[str], layers: Sequence[int]
    ) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
        for text in texts:
            count = len(self._marks(self.prefix + text).starts)
            rows = np.array([[len(self.seen), place] for place in range(count)], np.float32).reshape(-1, 2)
            rows = rows[-self.most :] if self.from_left else rows[: self.most]
            yield rows, np.array([0, len(rows)])
            self.seen.append(text)


def contexts(outputs: Any, texts: list[str], words: list[str], most: int = 100, **more: Any) -> dict[str, Any]:
    return {
        word: rows.tolist() for word, rows in read_contexts(outputs, texts, words, ContextOptions((0,), most, **more))
    }


@pytest.mark.parametrize("space_before", [False, True])
def test_a_word_has_the_mean_of_its_pieces(space_before: bool) -> None:
    texts = ["the whale sings", "nothing here at all", "a sea of whale, whale"]
    outputs = Letters(space_before=space_before)
    assert contexts(outputs, texts, ["Whale", "sea", "lost"]) == {
        "whale": [[0, 3], [1, 5], [1, 8]],  # of pieces 2 to 4; 4 to 6 and 7 to 9
        "sea": [[1, 1.5]],
    }
    assert outputs.seen == [texts[0], texts[2]]


def test_the_first_places_count_and_nothing_is_read_after_the_last_one() -> None:
    texts = ["sea", "sea whale", "sea", "sea whale", "sea", "sea whale", "sea whale"]
    log, outputs = ReadingLog(), cast("Any", Letters())
    found = dict(read_contexts(outputs, texts, ["sea", "whale"], ContextOptions((0,), 3), log))
    assert found["sea"][:, 0].tolist() == [0, 1, 2]
    assert found["whale"][:, 0].tolist() == [1, 3, 4]
    assert outputs.seen == ["sea", "sea whale", "sea", "sea whale", "sea whale"]
    assert (log.texts, log.encoded, log.places) == (6, 5, {"sea": 3, "whale": 3})


def test_reading_ends_when_every_word_is_complete() -> None:
    log, outputs = ReadingLog(), cast("Any", Letters())
    texts = ("sea" for _ in range(10_000))
    dict(read_contexts(outputs, texts, ["sea"], ContextOptions((0,), 1500), log))
    assert (log.texts, log.encoded, log.places["sea"]) == (1500, 1500, 1500)


@pytest.mark.parametrize(("from_left", "sea"), [(False, [[0, 0.5]]), (True, [])])
def test_places_behind_the_cut_are_not_seen(from_left: bool, sea: list[list[float]]) -> None:
    """Seven pieces, of which four are kept: the first or the last, so that the whale is complete at one end only."""
    log, outputs = ReadingLog(), cast("Any", Letters(most=4, from_left=from_left))
    reading = ContextOptions((0,), from_left=from_left)
    found = dict(read_contexts(outputs, ["sea a whales"], ["sea", "whales", "a"], reading, log))
    assert found.get("sea", np.empty((0, 2))).tolist() == sea
    assert ("whales" in found) == from_left
    assert log.truncated == 1


def test_a_prefix_is_no_place_for_a_word() -> None:
    outputs = Letters(prefix="sea: ")
    assert contexts(outputs, ["whale sea"], ["sea"], prefix="sea: ") == {"sea": [[0, 5.5]]}


@given(st.lists(st.lists(st.sampled_from(["sea", "whale", "song", "x"]), max_size=4), max_size=12), st.integers(1, 4))
def test_contexts_are_the_first_places_of_each_word(texts: list[list[str]], most: int) -> None:
    words = ["sea", "whale", "song"]
    found = contexts(Letters(), [" ".join(text) for text in texts], words, most)
    counts = Counter(word for text in texts for word in text if word != "x")
    assert {word: len(rows) for word, rows in found.items()} == {w: min(n, most) for w, n in counts.items()}
