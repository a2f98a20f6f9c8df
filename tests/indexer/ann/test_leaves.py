"""The stored bytes of rows in indexes of every kind."""

import numpy as np
import pytest

from indexer import ann


@pytest.mark.parametrize(
    "kind", ["Flat", "SQ8", "HNSW4,SQ8", "IVF3,SQ8", "IVF3,PQ8x4", "Pad32,SQfp16", "PQ8x4fs,Refine(Flat)"]
)
def test_stored_codes_are_those_of_an_index_of_the_same_rows_only(kind: str) -> None:
    vectors, rows = np.random.default_rng(0).standard_normal((300, 16)).astype(np.float32), np.array([0, 17, 299])
    index = ann.make_index(kind, 16)
    index.train(vectors)
    ann.add_vectors(index, vectors)
    found = [{code.tobytes() for code in codes} for codes in ann.stored_codes(index, rows)]
    index.reset()
    ann.add_vectors(index, vectors[rows])
    assert found == [{code.tobytes() for code in codes} for codes in ann.stored_codes(index, np.arange(3))]
    assert len(found) == 1
    assert len(found[0]) == 3
