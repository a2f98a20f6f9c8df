"""Filtered search of every index type returns k hits with exact scores, and finds what brute force finds."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from indexer import ann
from indexer.errors import CorruptIndexError
from indexer.store.files import atomic_write
from indexer.store.manifest import SegmentEntry
from indexer.store.segments import MAPPED_BYTES
from search import segments
from search.segments import Segment, search_segments

ROWS, DIM, K = 20_000, 32, 10
KINDS = [
    "Flat",
    "HNSW16",
    "IVF64,Flat",
    "IVF1,PQ16x4fs,RFlat",
    "Pad48,IVF1,PQ12x4fs,Refine(SQfp16)",
    "PQ16x4fs,RFlat",
    "PQ16x4fs,Refine(SQ8)",
    "IVF64,SQ8",
    "SQ8",
]
USUAL = ("Flat", "IVF64,Flat", "IVF1,PQ16x4fs,RFlat")  # exact, inverted lists, short codes
SOME_OR_ALL = [kind if kind in USUAL else pytest.param(kind, marks=pytest.mark.check) for kind in KINDS]
SHARES = {"10 rows": 10, "1 %": ROWS // 100, "50 %": ROWS // 2}
Vectors = npt.NDArray[np.float32]


@cache
def vectors() -> Vectors:
    """Clustered unit vectors, like those of documents."""
    draw = np.random.default_rng(7)
    centres = draw.normal(size=(200, DIM))
    raw = centres[draw.integers(0, 200, ROWS)] + 0.7 * draw.normal(size=(ROWS, DIM))
    unit: Vectors = (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32)
    return unit


@cache
def queries() -> Vectors:
    draw = np.random.default_rng(8)
    raw = vectors()[draw.integers(0, ROWS, 20)] + 0.1 * draw.normal(size=(20, DIM))
    unit: Vectors = (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32)
    return unit


def vectors_of(rows: npt.NDArray[np.int64]) -> Vectors:
    return vectors()[rows]


@cache
def segment(kind: str, first: int = 0, rows: int = ROWS) -> Segment:
    index = ann.make_index(kind, DIM)
    ann.IndexTrainer(vectors()[first : first + rows][:5000]).train(index)
    ann.add_vectors(index, vectors()[first : first + rows])
    return Segment(SegmentEntry("", first, rows, kind), index, vectors_of)


def allowed_rows(count: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(ROWS, bool)
    mask[np.random.default_rng(count).choice(ROWS, count, replace=False)] = True
    return mask


def best_of(query: Vectors, mask: npt.NDArray[np.bool_], k: int) -> tuple[list[int], npt.NDArray[np.float64]]:
    """Brute force in float64."""
    rows = np.flatnonzero(mask)
    scores = vectors()[rows].astype(np.float64) @ query.astype(np.float64)
    order = np.lexsort((rows, -scores))[:k]
    return rows[order].tolist(), scores[order]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", SOME_OR_ALL)
def test_a_filtered_search_fills_k_with_exact_scores(kind: str, share: str) -> None:
    mask = allowed_rows(SHARES[share])
    found = search_segments([segment(kind)], queries(), K, mask)
    recalls = []
    for query, (scores, rows) in zip(queries(), found, strict=True):
        assert len(rows) >= K
        assert mask[rows].all()
        assert (np.diff(scores) <= 0).all()
        np.testing.assert_allclose(scores, vectors()[rows] @ query, atol=2e-6)
        right, _ = best_of(query, mask, K)
        recalls.append(len(set(right) & set(rows[:K].tolist())) / K)
    assert np.mean(recalls) >= (1.0 if kind == "Flat" or share == "10 rows" else 0.5)


@pytest.mark.parametrize("kind", SOME_OR_ALL)
def test_exact_search_is_brute_force_whatever_the_kind(kind: str) -> None:
    mask = allowed_rows(700)
    for query, (_, rows) in zip(
        queries(), search_segments([segment(kind)], queries(), K, mask, exact=True), strict=True
    ):
        assert rows[:K].tolist() == best_of(query, mask, K)[0]


def test_segments_of_different_kinds_answer_as_one() -> None:
    half = ROWS // 2
    both = [segment("IVF1,PQ16x4fs,RFlat", 0, half), segment("Flat", half, half)]
    shared = []
    for query, (scores, rows) in zip(queries(), search_segments(both, queries(), K, None), strict=True):
        right, exact = best_of(query, np.ones(ROWS, bool), K)
        shared.append(len(set(right) & set(rows.tolist())) / K)
        assert scores[0] == pytest.approx(exact[0], abs=2e-6)
    assert np.mean(shared) > 0.9  # the compressed half misses some; scores of both halves are comparable


def test_rows_far_from_the_query_fill_k_where_an_index_cannot_filter() -> None:
    """The index finds only the three nearest, because it visits no more rows than are allowed."""
    kind, query = "PQ16x4fs", queries()[:1]
    order = np.argsort(vectors() @ query[0])
    mask = np.zeros(ROWS, bool)
    mask[order[: ROWS // 5]] = mask[order[-3:]] = True
    found = ann.search_index(segment(kind).index, query, K, mask)
    assert len(found[0][1]) == 3
    ((scores, rows),) = search_segments([segment(kind)], query, K, mask)
    right, exact = best_of(query[0], mask, K)
    assert rows.tolist() == right
    np.testing.assert_allclose(scores, exact, atol=2e-6)


def test_threads_that_score_candidates_again_change_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [search_segments([segment("IVF64,Flat")], query[None], K, None)[0] for query in queries()]
    monkeypatch.setattr(segments, "_QUERIES", 3)
    ann.set_threads(3)
    together = search_segments([segment("IVF64,Flat")], queries(), K, None)
    for (scores, rows), (expected, wanted) in zip(together, alone, strict=True):
        assert rows.tolist() == wanted.tolist()
        assert scores.tolist() == expected.tolist()


def test_a_segment_whose_file_turns_out_damaged_gives_no_answer() -> None:
    class Damaged:
        """A background check that has found a changed file."""

        def require_sound(self, wait: bool) -> None:
            raise CorruptIndexError("not the file that was published")

    found = segment("Flat")
    damaged = Segment(found.entry, found.index, vectors_of, Damaged())  # type: ignore[arg-type]
    with pytest.raises(CorruptIndexError, match="not the file"):
        search_segments([damaged], queries(), K, None)


def test_fewer_rows_than_k_come_back_all() -> None:
    mask = allowed_rows(10)
    for kind in USUAL:
        for _, rows in search_segments([segment(kind)], queries(), 50, mask):
            assert sorted(rows.tolist()) == np.flatnonzero(mask).tolist()


def test_nothing_is_found_where_nothing_is_allowed() -> None:
    for scores, rows in search_segments([segment("Flat")], queries(), K, np.zeros(ROWS, bool)):
        assert len(scores) == len(rows) == 0


@pytest.mark.parametrize("kind", ["Flat", "IVF1,PQ16x4fs,RFlat"])
def test_no_query_has_no_answer(kind: str) -> None:
    assert search_segments([segment(kind)], queries()[:0], K, None) == []


@pytest.mark.check
@pytest.mark.parametrize("kind", ["Flat", "IVF64,Flat", "IVF1,PQ16x4fs,RFlat"])
def test_an_index_larger_than_the_memory_it_is_given_is_searched(kind: str, tmp_path: Path) -> None:
    """A process with 200 MB of memory, some 60 MB of it for BLAS, opens and searches a file of 320 MB."""
    index = ann.make_index(kind, DIM)
    ann.IndexTrainer(vectors()[:5000]).train(index)
    draw = np.random.default_rng(3)
    for _ in range(25):  # 2,500,000 rows
        ann.add_vectors(index, draw.normal(size=(100_000, DIM)).astype(np.float32) / np.float32(DIM**0.5))
    path = tmp_path / "0001-00.faiss"
    with atomic_write(path) as file:
        ann.save_index(index, file)  # type: ignore[arg-type]
    assert path.stat().st_size > MAPPED_BYTES
    expected = [rows.tolist() for _, rows in ann.search_index(index, queries()[:2], 5)]
    given = json.dumps([str(path), kind, index.ntotal, msgspec.to_builtins(file.digest), queries()[:2].tolist()])
    done = subprocess.run([sys.executable, "-c", SEARCH_IN_LITTLE], input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected


# RLIMIT_DATA counts allocations, not mapped pages of files.
SEARCH_IN_LITTLE = """
import json, resource, sys
from pathlib import Path
import numpy as np
from indexer import ann
from indexer.store.files import FileDigest
from indexer.store.manifest import SegmentEntry
from search.segments import open_segment
path, kind, rows, digest, queries = json.load(sys.stdin)
ann.set_threads(1)
ann.make_index("Flat", 4)
data = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, ((data << 10) + (200 << 20),) * 2)
segment = open_segment(Path(path), SegmentEntry("", 0, rows, kind), FileDigest(**digest), len(queries[0]), None, False)
assert ann.is_mapped(segment.index)
found = ann.search_index(segment.index, np.array(queries, np.float32), 5)
segment.require_sound(wait=True)
print(json.dumps([rows.tolist() for _, rows in found]))
"""
