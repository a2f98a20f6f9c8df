"""Equal vectors and equal texts get equal numbers, other ones different numbers."""

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from indexer.arrays import RowIds, Vectors
from search.dedup import distinct
from search.dedup.distinct import find_distinct, normalised_text, number_texts

# Few distinct values, so that many rows are equal; 0 and -0 are different bytes.
SMALL = arrays(np.float32, st.tuples(st.integers(0, 20), st.integers(1, 3)), elements=st.sampled_from([-1, 0, -0.0, 1]))


def numbered_slowly(values: list[bytes]) -> tuple[list[int], list[int]]:
    """Return the first position of each distinct value, and the number of each value."""
    first = [position for position, value in enumerate(values) if value not in values[:position]]
    return first, [[values[position] for position in first].index(value) for value in values]


@given(SMALL, st.integers(1, 5))
def test_rows_are_numbered_by_their_bytes_in_order_of_appearance(vectors: Vectors, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distinct, "_BLOCK_ROWS", block)
        found = find_distinct(vectors)
    assert (found.first.tolist(), found.number_of.tolist()) == numbered_slowly([row.tobytes() for row in vectors])
    assert found.first.dtype == found.number_of.dtype == np.dtype(np.int64)


@given(SMALL)
def test_distinct_rows_put_back_are_the_rows(vectors: Vectors) -> None:
    found = find_distinct(vectors)
    assert vectors[found.first][found.number_of].tobytes() == vectors.tobytes()


def test_a_memory_mapped_file_and_a_transposed_array_are_read_as_they_are(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).integers(0, 2, (5000, 4)).astype(np.float32)
    np.save(tmp_path / "vectors.npy", vectors)
    expected = find_distinct(vectors)
    for other in (np.load(tmp_path / "vectors.npy", mmap_mode="r"), np.asfortranarray(vectors)):
        np.testing.assert_array_equal(find_distinct(other).number_of, expected.number_of)
    assert len(expected.first) == 16


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a b", " a \t\n b\u00a0"),
        ("caf\u00e9", "cafe\u0301"),
        ("\ufb01ne", "fine"),
        ("\uff21\uff22", "AB"),
        ("a\u3000b", "a b"),
        ("x\u00b2", "x2"),
    ],
)
def test_forms_of_one_text_are_equal(one: str, other: str) -> None:
    assert number_texts([one, other]).tolist() == [0, 0]


@pytest.mark.parametrize(("one", "other"), [("a", "A"), ("ab", "a b"), ("a.", "a"), ("e", "\u00e9")])
def test_texts_that_differ_in_more_are_different(one: str, other: str) -> None:
    assert number_texts([one, other]).tolist() == [0, 1]


def test_blank_texts_have_no_number() -> None:
    assert number_texts(["", "a", " \n\u3000", "b", "a"]).tolist() == [-1, 0, -1, 1, 0]


def test_no_texts_have_no_numbers() -> None:
    assert number_texts([]).shape == (0,)
    assert number_texts([" "]).tolist() == [-1]


def test_texts_are_taken_one_by_one() -> None:
    assert number_texts(str(n % 3) for n in range(6)).tolist() == [0, 1, 2, 0, 1, 2]


@given(st.lists(st.text(st.sampled_from("aA \n\u00a0\u0301e\u00e9\ufb01\ud800"), max_size=3), max_size=12))
def test_numbers_are_those_of_the_normalised_texts(texts: list[str]) -> None:
    numbers: RowIds = number_texts(texts)
    forms = [" ".join(unicodedata.normalize("NFKC", text).split()) for text in texts]
    seen = list(dict.fromkeys(form for form in forms if form))
    assert numbers.tolist() == [seen.index(form) if form else -1 for form in forms]


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalised_text(normalised_text(text)) == normalised_text(text)
