"""Codes chosen for the scores that they keep, with slow and obvious oracles."""

from itertools import product

import faiss
import numpy as np
import pytest

from indexer import ann
from indexer.ann.faiss_index import innermost
from indexer.ann.leaves import vectors_for_leaves
from indexer.ann.score_aware import choose_codes, score_aware
from indexer.arrays import Float32Array, Float64Array, Vectors

DIM, WEIGHT = 16, 4


def unit(count: int, dim: int, seed: int = 0) -> Vectors:
    vectors = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    unit: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def loss(vectors: Vectors, errors: Float32Array) -> Float64Array:
    """The squared error of unit vectors, with the part along the vector weighed."""
    along = np.einsum("nd,nd->n", vectors, errors, dtype=np.float64)
    squared = np.einsum("nd,nd->n", errors, errors, dtype=np.float64)
    result: Float64Array = squared + (WEIGHT - 1) * along**2
    return result


def decoded(codes: np.ndarray, words: Float32Array) -> Float32Array:
    chosen: Float32Array = words[np.arange(len(words)), codes].reshape(len(codes), -1)
    return chosen


def test_the_loss_is_at_most_that_of_the_nearest_codewords_and_close_to_the_least() -> None:
    words: Float32Array = np.random.default_rng(1).standard_normal((3, 6, 2), np.float32) / np.float32(3)
    vectors, residuals = unit(60, 6), 0.8 * unit(60, 6)
    nearest = np.stack(
        [((residuals[:, 2 * m : 2 * m + 2, None] - words[m].T) ** 2).sum(axis=1).argmin(axis=1) for m in range(3)],
        axis=1,
    )
    ours = loss(vectors, residuals - decoded(choose_codes(vectors, residuals, words), words))
    assert (ours <= loss(vectors, residuals - decoded(nearest, words)) + 1e-6).all()
    every = [
        loss(vectors, residuals - decoded(np.tile(codes, (60, 1)), words)) for codes in product(range(6), repeat=3)
    ]
    least = np.min(every, axis=0)
    assert np.mean(ours <= least + 1e-6) > 0.8


@pytest.mark.parametrize("size", [1, 7, 33])
def test_a_row_gets_the_same_codes_in_any_block(size: int) -> None:
    words: Float32Array = np.random.default_rng(1).standard_normal((8, 16, 2), np.float32) / np.float32(4)
    vectors, residuals = unit(33, DIM), unit(33, DIM, 1)
    blocks = [slice(start, start + size) for start in range(0, 33, size)]
    pieces = [choose_codes(vectors[block], residuals[block], words) for block in blocks]
    np.testing.assert_array_equal(np.concatenate(pieces), choose_codes(vectors, residuals, words))


def test_faiss_encodes_the_decoded_codes_as_the_same_codes() -> None:
    vectors = unit(4000, DIM)
    vectors += unit(8, DIM, 2)[np.arange(4000) % 8]  # in eight clusters, most of them far from the borders
    index = ann.IndexTrainer(vectors).trained("Pad16,IVF8,PQ8x4fsr,Refine(SQfp16)")
    shaped = vectors_for_leaves(index, vectors)[-1]
    given, lists = score_aware(index, shaped), innermost(index)
    np.testing.assert_array_equal(given, score_aware(index, shaped, threads=3))
    plain = faiss.IndexIVFPQ(lists.quantizer, DIM, 8, 8, 4, faiss.METRIC_INNER_PRODUCT)
    plain.pq, plain.is_trained, plain.by_residual = lists.pq, True, True
    again = plain.sa_decode(plain.sa_encode(given))
    assert np.mean(np.abs(again - given).max(axis=1) < 1e-6) > 0.95  # the others are closer to another centroid


def test_candidates_contain_more_of_the_best_rows() -> None:
    vectors, queries = unit(6000, 64), unit(200, 64, 1)
    best = np.argsort(-(queries @ vectors.T), axis=1)[:, :10]
    found = {}
    for factory in ("IVF2,PQ32x4fsr,Refine(SQfp16)", "IVF2,PQ32x4fsr"):  # the latter is encoded by FAISS alone
        index = ann.IndexTrainer(vectors).trained(factory)
        ann.add_vectors(index, vectors)
        lists = innermost(index)
        lists.nprobe = 2
        _, rows = lists.search(queries, 20)
        found[factory] = np.mean([len({*a} & {*b}) / 10 for a, b in zip(rows.tolist(), best.tolist(), strict=True)])
    aware, plain = found.values()
    assert aware > plain + 0.01


@pytest.mark.parametrize(
    "factory", ["Flat", "IVF4,PQ4x4fsr,Refine(SQfp16)", "IVF4,PQ8x4fs,Refine(SQ8)", "IVF4,PQ8x4fsr"]
)
def test_other_kinds_receive_the_vectors(factory: str) -> None:
    vectors = unit(600, DIM)
    assert score_aware(ann.IndexTrainer(vectors).trained(factory), vectors) is vectors
