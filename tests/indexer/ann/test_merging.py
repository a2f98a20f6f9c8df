"""An index merged from shards equals, byte for byte, an index filled at once."""

import io
from functools import cache
from itertools import pairwise
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import ann
from indexer.ann.index_training import IndexTrainer
from indexer.ann.leaves import leaves_of
from indexer.errors import ConfigError
from tests.indexer.ann.test_faiss_index import Vectors, unit_vectors

ROWS, DIM, BLOCK = 2000, 30, 250
CHOSEN = [kind for kind in ann.candidate_factories(100_000, DIM, limited=True) if "HNSW" not in kind]
OTHERS = [
    "PQ15x4fs",
    "PQ15x4fs,Refine(SQ8)",
    "Pad32,PQ16x4fs,RFlat",
    "IVF16,PQ15x4fsr,RFlat",
    "OPQ8_16,IVF16,PQ8x4fs,RFlat",
    "RaBitQfs",
    "RaBitQfs4,Refine(SQ8)",
    "IVF16,RaBitQ4",
    "IVF16,PQ15x4",
    "IVF16_HNSW8,Flat",
    "PCA16,Flat",
]
SPLITS = {1: [8], 2: [3, 5], 3: [1, 0, 7], 7: [1, 1, 2, 1, 1, 1, 1]}  # blocks a shard; one of them is empty


@cache
def vectors() -> Vectors:
    return unit_vectors(ROWS, DIM)


@cache
def trained_bytes(factory: str) -> bytes:
    return as_bytes(IndexTrainer(vectors()).trained(factory.replace("IVF256", "IVF64")))


def trained(factory: str) -> Any:
    return ann.load_index(io.BytesIO(trained_bytes(factory)), "trained")


def as_bytes(index: Any) -> bytes:
    file = io.BytesIO()
    ann.save_index(index, file)
    return file.getvalue()


def merged(factory: str, shards: list[list[Vectors]]) -> Any:
    index, builder = trained(factory), ann.IndexShard(trained(factory))
    merger = ann.IndexMerger(index, sum(len(block) for shard in shards for block in shard))
    for shard in shards:
        for block in shard:
            builder.add(block)
        file = io.BytesIO()
        sizes = builder.save(file)
        file.seek(0)
        merger.take(file, sizes, "a shard")
    merger.finish()
    return index


def filled(factory: str, blocks: list[Vectors]) -> Any:
    index = trained(factory)
    for block in blocks:
        ann.add_vectors(index, block)
    return index


@pytest.mark.parametrize("factory", [*CHOSEN, *OTHERS])
def test_shards_make_the_index_that_is_filled_at_once(factory: str) -> None:
    blocks = [vectors()[start : start + BLOCK] for start in range(0, ROWS, BLOCK)]
    expected = as_bytes(filled(factory, blocks))
    for counts in SPLITS.values():
        ends = np.cumsum([0, *counts]).tolist()
        assert as_bytes(merged(factory, [blocks[start:end] for start, end in pairwise(ends)])) == expected


@pytest.mark.parametrize(
    "factory", ["Flat", "SQfp16", "HNSW8_SQ8", "IVF16,PQ15x4fsr,RFlat", "Pad32,PQ16x4fs,Refine(SQ8)"]
)
def test_codes_with_reserved_memory_are_not_copied_as_they_grow(factory: str) -> None:
    index, blocks = trained(factory), [vectors()[start : start + BLOCK] for start in range(0, ROWS, BLOCK)]
    ann.reserve_rows(index, ROWS)
    places = set()
    for block in blocks:
        ann.add_vectors(index, block)
        places.add(int(codes_of(index).data()))
    assert len(places) == 1
    assert as_bytes(index) == as_bytes(filled(factory, blocks))


def codes_of(index: Any) -> Any:
    """The codes of the first array with one for each row."""
    leaf = leaves_of(index)[0]
    store: Any = faiss.downcast_index(leaf.storage) if hasattr(leaf, "storage") else leaf
    return store.codes


@given(cuts=st.lists(st.integers(0, ROWS), max_size=6))
def test_shards_of_any_size_make_it(cuts: list[int]) -> None:
    """Including shards of one row and of none."""
    factory, ends = "Pad32,IVF1,PQ8x4fs,Refine(SQ8)", [0, *sorted([*cuts, 1, 2, 2]), ROWS]
    blocks = [vectors()[start:end] for start, end in pairwise(ends)]
    assert as_bytes(merged(factory, [[block] for block in blocks])) == as_bytes(filled(factory, blocks))


def test_a_merged_index_answers() -> None:
    index = merged("IVF16,PQ15x4fs,Refine(SQ8)", [[vectors()[:1500]], [vectors()[1500:]]])
    ann.set_search_parameters(index, {"nprobe": 16, "k_factor": 8})
    assert index.ntotal == ROWS
    found = ann.search_index(index, vectors()[::100], 1)
    assert [rows.tolist() for _, rows in found] == [[row] for row in range(0, ROWS, 100)]


@pytest.mark.parametrize("factory", ["HNSW16", "HNSW16_SQ8", "IVF16_HNSW8,RQ5x4fs", "IVF16,FlatDedup"])
def test_what_cannot_be_merged_says_so(factory: str) -> None:
    assert not ann.is_mergeable(ann.make_index(factory, DIM))
    assert ann.is_mergeable(ann.make_index("SQ8", DIM))


def test_vectors_that_are_not_finite_are_no_part_of_a_shard() -> None:
    with pytest.raises(ConfigError, match="not finite"):
        ann.IndexShard(trained("SQ8")).add(np.full((1, DIM), np.nan, np.float32))


def test_the_best_of_shards_are_the_best_of_all() -> None:
    """Including ties, the queries' own rows and copies of their origins."""
    rows = np.concatenate([vectors(), vectors()[:700]])
    queries, own = vectors()[5:25], [np.array([row]) for row in range(5, 25)]
    whole, shards = builder(queries, own), [builder(queries, own) for _ in range(4)]
    for start in range(0, len(rows), BLOCK):
        whole.update(start, rows[start : start + BLOCK])
        shards[start // 700].update(start, rows[start : start + BLOCK])
    first, *others = shards
    for other in others:
        first.absorb(other)
    for one, another in zip(whole.best, first.best, strict=True):
        np.testing.assert_array_equal(one[0], another[0])
        np.testing.assert_array_equal(one[1], another[1])
    for here, there in zip(whole.excluded, first.excluded, strict=True):
        np.testing.assert_array_equal(here, there)


def builder(queries: Vectors, own: list[Any]) -> ann.GroundTruthBuilder:
    return ann.GroundTruthBuilder(queries, excluded=own, origins=queries)
