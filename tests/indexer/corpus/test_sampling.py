"""The documents of a sample: the same for any order of the corpus, and forever."""

from pathlib import Path

import numpy as np

from indexer.hashing import bottom_k, hash_id
from indexer.pipeline.rows import RowView

IDS = [f"d{number}" for number in range(12)]
LIVE_ORDER = [3, 11, 8, 0, 5, 9, 2, 4, 7, 1]
ORDER = [10, 3, 6, 11, 8, 0, 5, 9, 2, 4, 7, 1]  # of drawing


def hashes(ids: list[str]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array([hash_id(identity) for identity in ids], np.uint64)


def test_the_hash_of_an_id_never_changes() -> None:
    assert hash_id("d0") == 9949625517707223393  # the first 8 bytes of its blake2b-64, big-endian
    assert hash_id("crème brûlée") == 16152851311371226719
    assert hash_id("015326357a78060400d5e207d435bc4f") == 13303799866184000512


def test_the_order_in_which_documents_are_drawn_never_changes() -> None:
    for size in range(1, len(IDS) + 1):
        assert bottom_k(hashes(IDS), size).tolist() == sorted(ORDER[:size])
        backwards = bottom_k(hashes(IDS[::-1]), size)
        assert sorted(11 - backwards) == sorted(ORDER[:size])
    assert bottom_k(hashes(IDS), "all").tolist() == list(range(12))
    # of equal hashes the first is drawn
    assert bottom_k(np.array([7, 5, 5, 5], np.uint64), 2).tolist() == [1, 2]
    assert bottom_k(np.arange(1000, dtype=np.uint64)[::-1] // 500, 600).tolist() == [*range(100), *range(500, 1000)]


def test_only_live_documents_are_drawn_and_counted_from_the_start_of_their_part() -> None:
    live = np.ones(12, bool)
    live[[10, 6]] = False
    sample = RowView([Path("a"), Path("b")], [5, 7], [5, 7], hashes(IDS), live).sample(4)
    assert [part.tolist() for part in sample.chosen or ()] == [[0, 3], [3, 6]]  # documents 3, 11, 8 and 0
    assert (len(sample), sample.sampling_order.tolist()) == (4, LIVE_ORDER)
