"""The files of duplicates and of pairs: contents, answers, and rejected files."""

import errno
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import BuildConfig, build_index
from indexer.arrays import RowIds, Vectors
from indexer.errors import ConfigError, CorruptIndexError, EvaluationError, IsotropeError, MismatchError, StoreError
from indexer.store import files
from search.dedup import pairs_file
from search.dedup.distinct import Distinct, find_distinct
from search.dedup.duplicates_file import SCHEMA, Duplicates, read_duplicates, write_duplicates
from search.dedup.greedy import DedupDocuments, decide
from search.dedup.pairs import Pairs, PairSource, pair_scores, tile_scores
from search.dedup.pairs_file import PairsFile, PairsFileWriter
from search.dedup.provenance import origin_of, origin_of_other, with_facts
from search.index import Index
from tests.dedup_oracles import BrutePairs
from tests.documents import DOCUMENTS
from tests.faults import FaultyOs

FACTS: dict[str, Any] = {
    "format": 1,
    "threshold": 0.9,
    "lowest": 0.8999999761581421,
    "prefer": "first",
    "method": {"name": "exact"},
    "text_duplicates": "keep",
    "only_against": False,
    "fingerprint": "f" * 64,
    "transform": "a" * 64,
    "index": {"generation": 1, "manifest": "b" * 64},
    "against": None,
    "documents": 5,
    "kept": 3,
    "dropped": 2,
    "reasons": {"similar": 1, "text": 1},
    "clusters": 2,
    "cluster_sizes": {"2": 2},
}
COLUMNS: dict[str, list[Any]] = {
    "id": ["b", "ä\u2028"],
    "kept_id": ["a", "c"],
    "score": [np.float32(0.95), np.float32(1)],
    "reason": ["similar", "text"],
    "cluster": [0, 1],
}
ORIGIN = {"fingerprint": "f" * 64, "transform": "a" * 64, "index": {"generation": 1, "manifest": "b" * 64}}


def table(**columns: Any) -> pa.Table:
    """Return the two rows of COLUMNS with replaced columns."""
    values = COLUMNS | columns
    return pa.table({name: pa.array(values[name], SCHEMA.field(name).type) for name in SCHEMA.names})


def written(path: Path, facts: dict[str, Any] = FACTS, rows: pa.Table | None = None) -> Path:
    write_duplicates(path, Duplicates(facts, rows if rows is not None else table()), force=True)
    return path


# --- duplicates


@pytest.mark.parametrize("rows", [0, 2])
def test_what_is_written_is_read(rows: int, tmp_path: Path) -> None:
    found = read_duplicates(written(tmp_path / "new" / "d.parquet", rows=table().slice(0, rows)))
    assert found.facts == FACTS
    assert found.table.equals(table().slice(0, rows))


def test_the_facts_are_plain_json_in_the_metadata(tmp_path: Path) -> None:
    metadata = pq.read_metadata(written(tmp_path / "d.parquet")).metadata
    assert json.loads(metadata[b"isotrope"]) == FACTS


def test_bytes_do_not_depend_on_chunks_or_the_order_of_facts(tmp_path: Path) -> None:
    one = pa.concat_tables([table()] * 300)
    pieces = pa.concat_tables([one.slice(start, 7) for start in range(0, len(one), 7)])
    first = written(tmp_path / "1", rows=one).read_bytes()
    assert written(tmp_path / "2", dict(reversed(FACTS.items())), pieces).read_bytes() == first


def test_pages_carry_checksums_so_a_flipped_bit_is_found(tmp_path: Path) -> None:
    path = written(tmp_path / "d.parquet", rows=pa.concat_tables([table()] * 5000))
    whole = path.read_bytes()
    column = pq.read_metadata(path).row_group(0).column(2)
    place = column.data_page_offset + column.total_compressed_size - 3
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(CorruptIndexError, match=r"d\.parquet: damaged: .* Fix: write it again: deduplicate"):
        read_duplicates(path)


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    whole = written(tmp_path / "d.parquet").read_bytes()
    for length in range(0, len(whole), 97):
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(EvaluationError, match="cut: not a Parquet file, or truncated"):
            read_duplicates(tmp_path / "cut")


@pytest.mark.parametrize(
    ("facts", "error", "message"),
    [
        (FACTS | {"format": 2}, StoreError, r"written in format 2, but .* up to format 1\. Fix: upgrade"),
        ({"format": 1}, EvaluationError, "its metadata: Object missing required field `threshold`"),
        (FACTS | {"documents": "five"}, EvaluationError, r"Expected `int`, got `str` - at `\$\.documents`"),
        (FACTS | {"kept": True}, EvaluationError, r"Expected `int`, got `bool` - at `\$\.kept`"),
        (FACTS | {"dropped": -1}, EvaluationError, r"Expected `int` >= 0 - at `\$\.dropped`"),
        (FACTS | {"threshold": 10**400}, EvaluationError, "out of range"),
        (FACTS | {"method": {"name": "guess"}}, EvaluationError, '"method" .* is "guess"; expected exact or ann'),
        (FACTS | {"text_duplicates": "shake"}, EvaluationError, '"text_duplicates" .*; expected keep or drop'),
    ],
)
def test_facts_that_cannot_be_understood_are_refused(
    facts: dict[str, Any], error: type[IsotropeError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        read_duplicates(written(tmp_path / "d.parquet", facts))


@pytest.mark.parametrize(
    "metadata",
    [None, {}, {b"isotrope": b"{"}, {b"isotrope": b"[1]"}, {b"isotrope": b"{}"}, {b"isotrope": b"[" * 10**5}],
)
def test_a_parquet_file_of_somebody_else_is_refused(metadata: Any, tmp_path: Path) -> None:
    pq.write_table(table().replace_schema_metadata(metadata), tmp_path / "d.parquet")
    with pytest.raises(EvaluationError, match=r'has no "isotrope" entry .* Fix: write one: deduplicate'):
        read_duplicates(tmp_path / "d.parquet")


@pytest.mark.parametrize(
    "strange",
    [
        table().drop_columns(["score"]),
        table().append_column("more", pa.array([1, 2])),
        table().select(["kept_id", "id", "score", "reason", "cluster"]),
        table().set_column(2, "score", pa.array([0.5, 0.5], pa.float64())),
    ],
)
def test_other_columns_are_refused(strange: pa.Table, tmp_path: Path) -> None:
    pq.write_table(strange.cast(with_facts(strange.schema, FACTS)), tmp_path / "d.parquet")
    with pytest.raises(EvaluationError, match=r"its columns are .*; expected id \(string\), kept_id \(string\), score"):
        read_duplicates(tmp_path / "d.parquet")


def test_rows_without_a_value_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptIndexError, match="id, score is null in some rows"):
        read_duplicates(written(tmp_path / "d.parquet", rows=table(id=["a", None], score=[None, 1])))


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    broken = pa.array([b"a", b"\xff"], pa.binary()).view(pa.string())
    with pytest.raises(CorruptIndexError, match=r"damaged: .*UTF8"):
        read_duplicates(written(tmp_path / "d.parquet", rows=table().set_column(0, "id", broken)))


@pytest.mark.parametrize("read", [read_duplicates, lambda path: PairsFile(path, 0.9)])
def test_a_file_that_cannot_be_opened_is_named(read: Any, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"gone: cannot be read: No such file"):
        read(tmp_path / "gone")
    with pytest.raises(EvaluationError, match=r"cannot be read: Is a directory"):
        read(tmp_path)


def test_links_are_followed_and_folders_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    written(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert read_duplicates(tmp_path / "target").facts == FACTS
    with pytest.raises(ConfigError, match=r"path .* is a folder"):
        written(tmp_path)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_anywhere_leaves_the_old_file_or_the_whole_new_one(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "d.parquet")
    new = path.read_bytes()
    old = written(path, rows=table().slice(0, 1)).read_bytes()
    for at in range(1000):
        faulty = FaultyOs(at, error)
        monkeypatch.setattr(files, "os", faulty)
        try:
            written(path)
            break
        except StoreError as caught:
            assert str(path) in str(caught)  # noqa: PT017
            assert path.read_bytes() in (old, new)  # new: only the sync of the folder failed
            assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
            path.write_bytes(old)
    assert at > 5
    assert read_duplicates(path).table.num_rows == 2


# --- pairs


def unit(draw: np.random.Generator, rows: int) -> Vectors:
    """Draw vectors of halves, with few distinct scores and many equal vectors."""
    return draw.choice(np.array([-0.5, 0.5], np.float32), (rows, 4))


def pair_facts(floor: float, method: dict[str, Any], origin: dict[str, Any], against: Any) -> dict[str, Any]:
    return {"floor": floor, "method": method, **origin, "against": against}


def saved(
    path: Path, vectors: Vectors, floor: float, draw: np.random.Generator | None = None, extra: Any = None
) -> Path:
    """Write the file of pairs of vectors; `draw` shuffles the pairs and swaps their ends."""
    folder = path.with_suffix(".tmp")
    folder.mkdir()
    writer = PairsFileWriter(folder, len(vectors))
    distinct = find_distinct(vectors)
    same = np.setdiff1d(np.arange(len(vectors)), distinct.first)
    stars = distinct.first[distinct.number_of[same]]
    apart = vectors[distinct.first]
    left, right = np.nonzero(np.triu(tile_scores(apart, apart) >= np.float32(floor), 1))
    batches = [
        (distinct.first[left], distinct.first[right], pair_scores(apart[left], apart[right]), False),
        (stars, same, pair_scores(vectors[stars], vectors[same]), True),
    ]
    for one, other, scores, identical in mixed(batches, draw) if draw else batches:
        writer.add(one, other, scores, identical)
    writer.save(path, pair_facts(floor, {"name": "exact"}, ORIGIN, None) | (extra or {}))
    return path


def mixed(batches: list[Any], draw: np.random.Generator) -> Iterable[Any]:
    pieces = []
    for left, right, scores, identical in batches:
        order = draw.permutation(len(left))
        for piece in np.array_split(order, draw.integers(1, 5)):
            ends = (left[piece], right[piece])
            pieces.append((*(ends if draw.integers(2) else ends[::-1]), scores[piece], identical))
    return [pieces[place] for place in draw.permutation(len(pieces))]


def answers(batches: Iterable[Pairs]) -> list[tuple[int, int, float]]:
    """Return the pairs in a fixed order of pairs and ends."""
    return sorted(
        (min(left, right), max(left, right), score)
        for batch in batches
        for left, right, score in zip(batch.left.tolist(), batch.right.tolist(), batch.scores.tolist(), strict=True)
    )


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit runs, stretches, row groups and batches to a few pairs."""
    monkeypatch.setattr(pairs_file, "_RUN", 5)
    monkeypatch.setattr(pairs_file, "_STRETCH", 4)
    monkeypatch.setattr(pairs_file, "_ROW_GROUP", 3)
    monkeypatch.setattr(pairs_file, "_BATCH", 2)


def both_ways(path: Path, threshold: float) -> list[PairsFile]:
    """Pairs in memory, and pairs read for each call."""
    return [PairsFile(path, threshold), PairsFile(path, threshold, memory=100)]


@given(data=st.data())
@pytest.mark.usefixtures("small_steps")
def test_stored_pairs_answer_as_the_vectors_do(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """For any vectors, thresholds from the floor up and sets of rows; the kept documents are equal too."""
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    vectors = unit(draw, data.draw(st.integers(0, 24)))
    floor = data.draw(st.sampled_from([-0.9, -0.5, 0.0, 0.5]))
    threshold = data.draw(st.sampled_from([t for t in (-0.9, -0.5, 0.0, 0.3, 0.5, 1.0) if t >= floor]))
    path = saved(tmp_path_factory.mktemp("pairs") / "p.parquet", vectors, floor, draw)
    distinct = find_distinct(vectors)
    apart = vectors[distinct.first]
    sides = draw.integers(0, 3, len(apart))
    one, other = np.flatnonzero(sides == 1), np.flatnonzero(sides == 2)
    for stored in both_ways(path, threshold):
        assert_equal(stored.distinct, distinct)
        brute = BrutePairs(apart, stored.lowest)
        if len(one) > 1:
            assert answers(stored.within(one)) == answers(brute.within(one))
        if len(one) and len(other):
            assert answers(stored.between(one, other)) == answers(brute.between(one, other))
        assert answers(stored.within(one[:0])) == answers(stored.between(one, other[:0])) == []
        documents = collection(distinct, np.nan_to_num(stored.self_scores, nan=1.0))
        decided = [decide(documents, source, False, limit) for source in (brute, stored) for limit in (2, 1000)]
        for decision in decided[1:]:
            assert decision.kept_by.tolist() == decided[0].kept_by.tolist()
            np.testing.assert_array_equal(decision.scores, decided[0].scores)


def assert_equal(found: Distinct, expected: Distinct) -> None:
    np.testing.assert_array_equal(found.first, expected.first)
    np.testing.assert_array_equal(found.number_of, expected.number_of)


def collection(distinct: Distinct, self_scores: npt.NDArray[np.float32]) -> DedupDocuments:
    """Return rows as documents, in reverse priority."""
    rows = np.arange(len(distinct.number_of))
    return DedupDocuments(rows, distinct.number_of, np.full(len(rows), -1), rows[::-1].copy(), self_scores)


@given(seed=st.integers(0, 2**32), run=st.integers(1, 40))
def test_the_bytes_do_not_depend_on_the_order_of_pairs_or_the_size_of_runs(
    seed: int, run: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pairs")
    draw = np.random.default_rng(seed)
    vectors = unit(draw, 16)
    expected = saved(folder / "plain", vectors, -0.5).read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs_file, "_RUN", run)
        assert saved(folder / "mixed", vectors, -0.5, draw).read_bytes() == expected


@pytest.mark.usefixtures("small_steps")
def test_a_row_with_many_pairs_and_rows_with_few_are_put_together_in_bounds() -> None:
    counts = np.array([0, 9, 0, 1, 1, 1, 1, 1, 0, 3, 2, 0])
    edges = [0, *pairs_file._ends(counts, 4)]
    assert counts[: edges[-1]].sum() == counts.sum()
    assert [counts[first:last].sum() for first, last in itertools.pairwise(edges)] == [9, 4, 4, 2]
    assert list(pairs_file._ends(np.zeros(3, np.int64), 4)) == list(pairs_file._ends(np.zeros(0, np.int64), 4)) == []


def test_one_text_many_times_takes_a_row_each(tmp_path: Path) -> None:
    vectors = np.repeat(np.eye(3, dtype=np.float32), [1000, 1, 500], axis=0)
    stored = PairsFile(saved(tmp_path / "p", vectors, 0.5), 0.9)
    assert (stored.facts["pairs"], stored.facts["identical"]) == (0, 1498)
    assert_equal(stored.distinct, find_distinct(vectors))
    np.testing.assert_array_equal(stored.self_scores, np.array([1, np.nan, 1], np.float32))
    rows = pq.read_table(tmp_path / "p").to_pydict()
    assert set(rows["left"]) == {0, 1001}
    assert all(rows["identical"])


def test_columns_are_row_numbers_left_before_right_sorted(tmp_path: Path) -> None:
    vectors = unit(np.random.default_rng(3), 40)
    rows = pq.read_table(saved(tmp_path / "p", vectors, -0.6, np.random.default_rng(4)))
    assert rows.schema.remove_metadata() == pairs_file.SCHEMA
    left, right, scores, _ = (rows.column(name).to_numpy() for name in rows.column_names)
    assert (left < right).all()
    assert (np.lexsort((right, left)) == np.arange(len(left))).all()
    np.testing.assert_array_equal(scores, pair_scores(vectors[left], vectors[right]))


def test_a_threshold_below_the_floor_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "p", unit(np.random.default_rng(0), 5), 0.7)
    assert PairsFile(path, 0.7).lowest == np.float32(0.7)
    with pytest.raises(ConfigError, match=r"only pairs that score 0\.7 or more, but the threshold is 0\.65"):
        PairsFile(path, 0.65)
    with pytest.raises(ConfigError, match=r"threshold is 1\.5"):
        PairsFile(path, 1.5)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"right": [1, 2, 4]}, "contains row numbers out of range"),
        ({"left": [-1, 0, 1]}, "contains row numbers out of range"),
        ({"left": [0, 0, 3]}, "contains row numbers out of range"),
        ({"left": [1, 0, 1], "right": [2, 2, 3]}, "is not sorted by left row"),
        ({"identical": [True, True, True]}, "identical rows do not share one first row"),
        ({"left": [0, 1, 1], "right": [2, 2, 3], "identical": [True] * 3}, "do not share one first row"),
    ],
)
def test_pairs_that_no_join_writes_are_refused(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    values = {"left": [0, 0, 1], "right": [1, 2, 3], "score": [0.9, 0.9, 0.9], "identical": [False] * 3} | columns
    facts = pair_facts(0.5, {"name": "exact"}, ORIGIN, None) | {"format": 1, "rows": 4, "pairs": 3, "identical": 0}
    schema = with_facts(pairs_file.SCHEMA, facts)
    pq.write_table(pa.table(values, schema=schema), tmp_path / "p")
    with pytest.raises(CorruptIndexError, match=message):
        list(PairsFile(tmp_path / "p", 0.9).within(np.arange(2)))
    pq.write_table(pa.table(values, schema=schema).slice(1), tmp_path / "p")
    with pytest.raises(CorruptIndexError, match="contains 2 pairs instead of 3"):
        PairsFile(tmp_path / "p", 0.9)


def test_a_file_of_duplicates_is_no_file_of_pairs_nor_the_other_way_round(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"`floor`.*PairFiles"):
        PairsFile(written(tmp_path / "d"), 0.9)
    with pytest.raises(EvaluationError, match=r"`threshold`.*deduplicate"):
        read_duplicates(saved(tmp_path / "p", unit(np.random.default_rng(0), 5), 0.7))


def test_a_full_temporary_folder_says_how_far_it_got_and_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs_file, "_RUN", 2)
    writer = PairsFileWriter(tmp_path, 10)
    rows: RowIds = np.arange(3)
    (tmp_path / "pairs-000001").symlink_to("/dev/full")
    writer.add(rows, rows + 1, np.ones(3, np.float32))
    with pytest.raises(StoreError, match=r"No space left on device, after 6 pairs\. .*TMPDIR.*raise floor"):
        writer.add(rows, rows + 2, np.ones(3, np.float32))


def test_a_full_disk_at_the_end_leaves_no_file_and_says_how_many_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out" / "p.parquet"
    target.parent.mkdir()
    for at in range(1000):
        faulty = FaultyOs(at, errno.ENOSPC)
        monkeypatch.setattr(files, "os", faulty)
        folder = tmp_path / str(at)
        folder.mkdir()
        writer = PairsFileWriter(folder, 4)
        writer.add(np.array([0, 1]), np.array([2, 3]), np.ones(2, np.float32))
        try:
            writer.save(target, pair_facts(0.5, {"name": "exact"}, ORIGIN, None))
            break
        except StoreError as error:
            message = str(error)
        assert "the disk is full" in message
        assert "The file needs 2 pairs; or raise floor" in message
        target.unlink(missing_ok=True)  # the last sync of the folder follows the rename
        assert list(target.parent.iterdir()) == []
    assert at > 5
    assert PairsFile(target, 0.9).facts["pairs"] == 2


def test_pairs_and_index_must_belong_together(tiny_config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "a", tiny_config)
    build_index(DOCUMENTS[:5], tmp_path / "b", tiny_config)
    build_index(DOCUMENTS, tmp_path / "c", tiny_config.with_overrides(["whitening.strength=0.5"]))
    build_index(DOCUMENTS, tmp_path / "d", tiny_config.with_overrides(["encoder.pooling=max"]))
    a, b, c, d = (Index.open(tmp_path / name) for name in "abcd")
    vectors = unit(np.random.default_rng(0), 14)

    def stored(index: Index, other: Index | None = None) -> PairsFile:
        facts = origin_of(index) | {"against": origin_of_other(other)}
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.parquet"
        return PairsFile(saved(path, vectors if other else vectors[:9], 0.7, extra=facts), 0.9)

    stored(a).check(a)
    with pytest.raises(CorruptIndexError, match="is for 8 rows instead of 9"):
        PairsFile(saved(tmp_path / "short.parquet", vectors[:8], 0.7, extra=origin_of(a)), 0.9).check(a)
    stored(a, b).check(a, b)
    (tmp_path / "b").rename(tmp_path / "moved")
    stored(a, b).check(a, Index.open(tmp_path / "moved"))
    with pytest.raises(MismatchError, match=r"another index or generation: generation 1"):
        stored(a).check(Index(a.path, msgspec.structs.replace(a.manifest, generation=2)))
    with pytest.raises(MismatchError, match=r"vectors of another transform: sha256 .{12}\.\.\.; .* has"):
        stored(a).check(c)
    with pytest.raises(MismatchError, match=r"another encoder: fingerprint .{12}\.\.\.; .* has .{12}\.\.\."):
        stored(a).check(d)
    with pytest.raises(MismatchError, match=r"made against no other index; against names .*moved, generation 1"):
        stored(a).check(a, Index.open(tmp_path / "moved"))
    with pytest.raises(MismatchError, match=r"made against generation 1 .*; against is missing\. Fix: name the same"):
        stored(a, b).check(a)


def test_stored_pairs_are_a_source_of_pairs(tmp_path: Path) -> None:
    source: PairSource = PairsFile(saved(tmp_path / "p", unit(np.random.default_rng(0), 5), 0.7), 0.9)
    assert list(source.within(np.arange(1))) == []
