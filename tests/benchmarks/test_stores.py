"""`benchmarks.stores`: each store finds what exact search finds, with and without a filter."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.ann_peers import recall
from benchmarks.store_peers import STORES
from benchmarks.stores import nearest, padded
from search.filters import filters

NEEDS = {"Chroma": "chromadb", "LanceDB": "lancedb", "txtai": "txtai", "FAISS": "faiss", "Isotrope": "search"}


@pytest.mark.parametrize("name", STORES)
def test_a_store_finds_the_nearest_documents_of_all_and_of_a_part(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "SECONDS", 60.0)  # a busy machine may need more than one
    pytest.importorskip(NEEDS[name], reason=f"{name} is a peer, not a dependency")
    chance = np.random.default_rng(0)
    vectors = chance.standard_normal((320, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    documents, queries, parts = vectors[:300], vectors[300:], np.arange(300) // 7 % 10
    store = STORES[name](tmp_path, [f"text {row}" for row in range(300)], parts.tolist(), documents)
    for of in (None, parts):
        found = [store.search(query, None if of is None else n % 10) for n, query in enumerate(queries)]
        assert recall(np.array(padded(found)), nearest(documents, queries, of)) == 1


def test_documents_that_were_not_found_are_misses() -> None:
    assert padded([[3, 1]]) == [[3, 1, *[-1] * 8]]
