"""Cells rule out only pairs below the threshold, for any vectors, centroids and rounding."""

import itertools
import pickle
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from indexer.arrays import Vectors
from indexer.errors import MachineError, StoreError
from search.dedup.join import cells, probes
from search.dedup.join.cells import Centroids, Pilot, highest_met, reach, share_left
from search.dedup.join.exact import ExactJoin
from search.dedup.join.probes import Cells
from search.dedup.join.quantised import Basis, FloatKernel, Int8Kernel, Kernel, fit_basis, margin
from search.dedup.pairs import tile_scores
from search.dedup.settings import JoinOptions, lowest_score
from tests.dedup_oracles import BrutePairs
from tests.search.dedup.test_join import CPU, Found, as_dict, brute, corpus, unit

THRESHOLDS = [-0.5, 0.0, 0.5, 0.8, 0.95, 0.999, 1.0]


def centroids_of(points: npt.NDArray[np.floating]) -> Centroids:
    exact = torch.from_numpy(unit(points))
    return Centroids(exact, cells._apart(exact))


def sorted_rows(vectors: Vectors, centroids: Centroids, reach: float, folder: Path) -> Cells:
    return Cells.of(vectors, centroids, reach, folder / "cells", 2, lambda rows: None)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sort the rows of every join into seven cells."""
    monkeypatch.setattr(Pilot, "of", lambda vectors, threshold, most: Pilot(len(vectors), vectors.shape[1], 0.1, 1.0))
    monkeypatch.setattr(Pilot, "best", lambda pilot, pairs, kernel=None: 7 if pilot.rows else 0)


def joined(vectors: Vectors, threshold: float, folder: Path, threads: int = 2) -> Found:
    source = ExactJoin(vectors, lowest_score(threshold), folder, JoinOptions(device="cpu", threads=threads))
    found = as_dict(source.within(np.arange(len(vectors))))
    assert source.cells is not None
    assert source.cells.count == 7
    return found


def on_borders(points: Vectors, chance: np.random.Generator) -> Vectors:
    """Return vectors half-way between two centroids, and close to that."""
    one, other = (points[chance.integers(0, len(points), 60)] for _ in range(2))
    middle = one.astype(np.float64) + other + 1e-9
    beside = middle + chance.uniform(-1, 1, (60, 1)) * 0.2 * chance.standard_normal(middle.shape)
    nudged = middle + 1e-7 * chance.standard_normal(middle.shape)
    return unit(np.concatenate([middle + 1e-6, beside, nudged]))


def at_the_threshold(vectors: Vectors, threshold: float, chance: np.random.Generator) -> Vectors:
    """Return a partner of each vector at the threshold, within some steps of float32."""
    exact = vectors.astype(np.float64)
    aside = chance.standard_normal(exact.shape)
    aside -= (aside * exact).sum(1, keepdims=True) * exact
    aside /= np.linalg.norm(aside, axis=1, keepdims=True)
    cosines = np.clip(threshold + chance.integers(-4, 5, (len(exact), 1)) * 2.0**-24, -1, 1)
    return unit(cosines * exact + np.sqrt(1 - cosines**2) * aside)


# The bound


@given(
    st.integers(2, 24), st.integers(1, 9), st.sampled_from(THRESHOLDS), st.integers(0, 10_000), st.sampled_from([1, 30])
)
def test_every_pair_that_reaches_the_threshold_meets_in_a_cell(
    dim: int, count: int, threshold: float, seed: int, spread: int
) -> None:
    """Centroids may be far from all vectors, equal, or more than the vectors."""
    chance = np.random.default_rng(seed)
    points = chance.standard_normal((count, dim))
    points[count // 2 :] = points[0] + points[count // 2 :] / spread
    centroids = centroids_of(points)
    borders = on_borders(centroids.points.numpy(), chance)
    vectors = np.concatenate([borders, at_the_threshold(borders, threshold, chance)])
    scores = tile_scores(vectors, vectors)
    with tempfile.TemporaryDirectory() as folder:
        found = sorted_rows(vectors, centroids, reach(float(np.nextafter(lowest_score(threshold), -2))), Path(folder))
        left, right = np.nonzero(np.triu(scores >= lowest_score(threshold), 1))
        together = found.own[left] == found.own[right]
        assert (together | found.are_probed(left, found.own[right]) | found.are_probed(right, found.own[left])).all()


@pytest.mark.parametrize("dim", [2, 128, 384, 1024])
def test_float32_takes_less_from_a_bracket_than_the_slack(dim: int) -> None:
    chance = np.random.default_rng(dim)
    centroids = centroids_of(
        np.abs(chance.standard_normal((50, dim))) + 1
    )  # without cancellation, sums are as large as possible
    vectors = unit(np.abs(chance.standard_normal((400, dim))) + 1)
    exact = vectors.astype(np.float64) @ centroids.points.numpy().astype(np.float64).T
    rounded = centroids.products(vectors).astype(np.float64)
    off = np.abs((exact[:, :, None] - exact[:, None]) - (rounded[:, :, None] - rounded[:, None])).max()
    assert 0 < off < centroids.slack
    assert centroids.slack < 1e-3


def test_distances_of_centroids_are_never_too_small() -> None:
    points = np.random.default_rng(0).standard_normal((40, 96))
    points[20:] = points[:20] + 10.0 ** -np.arange(20)[:, None] * np.random.default_rng(1).standard_normal((20, 96))
    centroids = centroids_of(points)
    exact = centroids.points.numpy().astype(np.float64)
    apart = np.linalg.norm(exact[:, None] - exact[None], axis=2)
    assert (centroids.apart >= apart).all()
    assert (centroids.apart <= apart + 1e-6).all()
    assert (centroids.limits(0.3) >= 0.3 * apart + centroids.slack).all()


@pytest.mark.parametrize("memory", [1 << 26, 1 << 28, 1 << 30, 1 << 40])
def test_distances_and_limits_of_the_most_cells_take_half_of_the_memory(memory: int) -> None:
    most = cells.most_cells(memory)
    assert 2 * 4 * most**2 <= memory / 2
    assert most >= min(8192, (memory / 17) ** 0.5)


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_reach_is_half_the_largest_distance_of_a_pair(threshold: float) -> None:
    """Squared lengths may differ from 1 by 5e-7."""
    assert reach(threshold) >= ((1 + 5e-7) * 2 - 2 * threshold) ** 0.5 / 2
    assert reach(threshold) <= (2 - 2 * threshold) ** 0.5 / 2 + 1e-3
    assert reach(1.5) == 0


def test_a_row_probes_no_more_than_the_bound_asks_for(tmp_path: Path) -> None:
    vectors = corpus(900, 24)
    centroids = Centroids.fit(vectors, 12)
    found = sorted_rows(vectors, centroids, reach(0.95), tmp_path)
    products = vectors.astype(np.float64) @ centroids.points.numpy().astype(np.float64).T
    apart = centroids.apart.astype(np.float64)
    for row, own in enumerate(found.own.tolist()):
        assert products[row, own] >= products[row].max() - centroids.slack
        near = products[row, own] - products[row] <= reach(0.95) * apart[own] + 2 * centroids.slack
        surely = products[row, own] - products[row] <= reach(0.95) * apart[own]
        probed = found.are_probed(np.full(12, row), np.arange(12, dtype=np.int32))
        others = np.arange(12) != own
        assert (probed[others & surely]).all()
        assert not probed[~near | ~others].any()
    assert 0.5 < found.mean_probes < 11


@given(st.integers(2, 30), st.sampled_from(THRESHOLDS), st.integers(0, 10_000))
def test_no_pair_is_closer_to_a_centroid_than_what_is_met(dim: int, threshold: float, seed: int) -> None:
    chance = np.random.default_rng(seed)
    centre = unit(chance.standard_normal((1, dim)))
    ones = unit(np.concatenate([chance.standard_normal((40, dim)), centre + 0.1 * chance.standard_normal((40, dim))]))
    towards = centre.astype(np.float64) - (ones @ centre[0])[:, None] * ones + 1e-9 * chance.standard_normal(ones.shape)
    towards /= np.linalg.norm(towards, axis=1, keepdims=True)  # on the shortest path, as far as the threshold allows
    turned = unit(threshold * ones.astype(np.float64) + np.sqrt(1 - threshold**2) * towards)
    others = np.concatenate([turned, at_the_threshold(ones, threshold, chance)])
    ones = np.concatenate([ones, ones])
    exact = [rows.astype(np.float64) @ centre[0].astype(np.float64) for rows in (ones, others)]
    is_pair = (ones.astype(np.float64) * others).sum(1) >= lowest_score(threshold)
    lowest = float(np.nextafter(lowest_score(threshold), np.float32(-2)))
    assert (exact[1] <= highest_met(exact[0], lowest))[is_pair].all()


def test_no_kernel_rules_out_pairs_whose_rests_are_parallel() -> None:
    """With one direction outside the basis the bound equals the score, so rounding the rest down rules out pairs.
    The coordinates inside are exact; otherwise E would cover the loss."""
    steps = np.arange(-8, 9) / 8
    inside = np.array([pair for pair in itertools.product(steps, steps) if np.dot(pair, pair) < 1])
    rest = np.sqrt(1 - (inside**2).sum(axis=1, keepdims=True))
    vectors = np.concatenate([inside, rest], axis=1).astype(np.float32)
    exact = vectors.astype(np.float64) @ vectors.astype(np.float64).T
    basis = Basis(np.eye(3, 2, dtype=np.float32), 0.5)
    floats: list[Kernel] = [FloatKernel(basis, dtype, CPU) for dtype in (torch.float32, torch.bfloat16)]
    for kernel in [Int8Kernel.of(basis), Int8Kernel(basis, 1 / 120), *floats]:
        coded, errors = kernel.encode(vectors)
        products = kernel.products(coded, coded).to(torch.float64).numpy()
        for left, right in itertools.product(range(0, len(vectors), 12), range(len(vectors))):
            limit = kernel.limit(float(exact[left, right]), margin(errors[[left]], errors[[right]]))
            assert products[left, right] >= limit, kernel


# Storage


def test_probing_rows_are_those_that_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = corpus(700, 12)
    centroids = Centroids.fit(vectors, 9)
    expected = sorted_rows(vectors, centroids, reach(0.9), tmp_path)
    everyone = np.arange(700)
    for stored, at_once in ((128, 64), (2048, 9 * 50), (1, 1)):
        monkeypatch.setattr(probes, "_STORED", stored)
        monkeypatch.setattr(probes, "_PRODUCTS", at_once)
        found = sorted_rows(vectors, centroids, reach(0.9), tmp_path)
        again = pickle.loads(pickle.dumps(found))  # noqa: S301 - pickled here
        for cell in range(9):
            probing = found.are_probed(everyone, np.full(700, cell))
            rows, steps = found.probing(cell)
            assert np.array_equal(rows, np.flatnonzero(probing))
            assert np.array_equal(again.probing(cell), (rows, steps))
            products = probes.STEP_PRODUCTS[steps]
            exact = vectors[rows].astype(np.float64) @ centroids.points[cell].numpy().astype(np.float64)
            assert (products >= exact).all()
            assert (products <= np.maximum(exact, -0.04) + 0.04).all()
        assert np.array_equal(found.own, expected.own)
        assert found.row_starts[-1] == expected.row_starts[-1] > 700
    assert not list(tmp_path.glob("*.by-cell"))


def test_bounds_of_probing_rows_hold_where_float32_rounds_a_product_down_to_a_step(tmp_path: Path) -> None:
    """The products of these rows with the first centroid are just above or below the step 1/2."""
    chance = np.random.default_rng(0)
    first, aside, *others = np.linalg.qr(chance.standard_normal((24, 24)))[0]
    centroids = centroids_of(np.array([first, aside]))
    points = centroids.points.numpy().astype(np.float64)
    vectors = unit(points[0] / 2 + 0.8 * points[1] + chance.standard_normal((2000, 22)) @ others * 0.07)
    along = (vectors @ points[0])[:, None]
    aside_of = vectors - along * points[0]
    vectors = unit(points[0] / 2 + aside_of * np.sqrt(0.75) / np.linalg.norm(aside_of, axis=1, keepdims=True))
    exact = vectors.astype(np.float64) @ points.T
    rounded_down = (exact[:, 0] > 0.5) & (centroids.products(vectors)[:, 0] <= 0.5)
    found = sorted_rows(vectors, centroids, reach(0.5), tmp_path)
    rows, steps = found.probing(0)
    assert np.array_equal(rows, np.arange(2000))
    assert rounded_down.any()
    assert (probes.STEP_PRODUCTS[steps] >= exact[:, 0]).all()
    assert (found.closeness <= exact[:, 1]).all()


def test_files_of_cells_that_are_missing_or_do_not_fit_are_said(tmp_path: Path) -> None:
    vectors = corpus(300, 12)
    found = sorted_rows(vectors, Centroids.fit(vectors, 9), reach(0.5), tmp_path)
    sent = pickle.dumps(found)
    found.path.unlink()
    with pytest.raises(MachineError, match="cells: a worker's machine does not see this file"):
        pickle.loads(sent)  # noqa: S301 - pickled here
    with pytest.raises(StoreError, match="TMPDIR"):
        sorted_rows(vectors, Centroids.fit(vectors, 9), reach(0.5), tmp_path / "nowhere")


def test_threads_change_no_centroid_and_no_probe(tmp_path: Path) -> None:
    vectors = corpus(5000, 20)
    one, three = (Centroids.fit(vectors, 60, threads) for threads in (1, 3))
    assert torch.equal(one.points, three.points)
    few, many = (Cells.of(vectors, one, 0.1, tmp_path / str(n), n, lambda rows: None) for n in (1, 3))
    assert few.path.read_bytes() == many.path.read_bytes()


# The join


@pytest.mark.usefixtures("always")
@given(st.integers(1, 70), st.integers(1, 12), st.sampled_from(THRESHOLDS), st.integers(0, 500))
def test_few_vectors_in_cells_are_joined_as_by_brute_force(count: int, dim: int, threshold: float, seed: int) -> None:
    vectors = unit(np.random.default_rng(seed).integers(-2, 3, (count, dim)) + 0.125)  # many ties, some the same
    with tempfile.TemporaryDirectory() as folder:
        assert joined(vectors, threshold, Path(folder)) == (brute(vectors, threshold) if count > 1 else {})


@pytest.mark.usefixtures("always")
@given(st.integers(2, 40), st.sampled_from(THRESHOLDS), st.integers(0, 500))
def test_pairs_at_the_threshold_and_at_borders_are_joined_as_by_brute_force(
    dim: int, threshold: float, seed: int
) -> None:
    chance = np.random.default_rng(seed)
    borders = on_borders(unit(chance.standard_normal((7, dim))), chance)
    vectors = np.concatenate([borders, at_the_threshold(borders, threshold, chance), borders[:20]])
    with tempfile.TemporaryDirectory() as folder:
        assert joined(vectors, threshold, Path(folder)) == brute(vectors, threshold)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("tile", [(3, 5), (64, 100), (512, 2048)])
def test_a_corpus_in_cells_is_joined_as_by_brute_force(
    tile: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = corpus(700 if tile[0] > 3 else 200, 30)
    for kind in (Int8Kernel, FloatKernel):
        monkeypatch.setattr(kind, "tile", tile)
    for threshold, threads in itertools.product((0.7, 0.95), (1, 3)):
        assert joined(vectors, threshold, tmp_path, threads) == brute(vectors, threshold)


@pytest.mark.usefixtures("always")
@given(st.data())
def test_some_members_in_cells_are_joined_among_themselves_and_with_others(data: st.DataObject) -> None:
    vectors = unit(np.random.default_rng(data.draw(st.integers(0, 50))).integers(-2, 3, (60, 4)) + 0.125)
    chosen = data.draw(st.lists(st.sampled_from("lrn"), min_size=60, max_size=60))
    left, right = (np.array([n for n, side in enumerate(chosen) if side == name], np.int64) for name in "lr")
    threshold = data.draw(st.sampled_from([0.5, 0.9]))
    oracle = BrutePairs(vectors, lowest_score(threshold), batch=10_000)
    with tempfile.TemporaryDirectory() as folder:
        source = ExactJoin(vectors, lowest_score(threshold), Path(folder), JoinOptions(device="cpu"))
        assert as_dict(source.within(left)) == (as_dict(oracle.within(left)) if len(left) > 1 else {})
        both = len(left) and len(right)
        assert as_dict(source.between(left, right)) == (as_dict(oracle.between(left, right)) if both else {})


@pytest.mark.usefixtures("always")
def test_a_worker_does_the_same_tasks_in_the_same_cells(tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", corpus(600, 16))
    source = ExactJoin(np.load(tmp_path / "vectors.npy", mmap_mode="r"), lowest_score(0.8), tmp_path)
    sides = np.arange(0, 600, 2), np.arange(1, 600, 2)
    tasks = source.tasks(*sides)
    worker = pickle.loads(pickle.dumps(source))  # noqa: S301 - pickled here
    again = worker.tasks(*sides)
    assert [rows for rows, _ in again] == [rows for rows, _ in tasks]
    for (_, ours), (_, theirs) in zip(tasks, again, strict=True):
        found = [as_dict(source._scored(tiles)()) for tiles in (ours, theirs)]
        assert found[0] == found[1]


# The pilot


def test_cells_are_made_where_they_save_work_and_not_elsewhere() -> None:
    vectors = corpus(30_000, 96)
    pilot = Pilot.of(vectors, 0.95)
    assert pilot is None  # too little work
    clustered = Pilot(1_000_000, 384, 0.1, 1.0)
    kernel = FloatKernel(fit_basis(vectors[:500], 0.95), torch.float32, torch.device("cpu"))
    assert clustered.best(5e11, kernel) >= 1024
    assert clustered.best(1e8, kernel) == 0
    assert Pilot(1_000_000, 384, 0.1, 1.0, most=300).best(5e11, kernel) == 256
    assert Pilot(1_000_000, 384, 1.0, 0.0).best(5e11, kernel) == 0
    assert clustered.best(5e11, Int8Kernel.of(kernel.basis)) <= clustered.best(5e11, kernel)


def test_a_pilot_tells_vectors_in_clusters_from_those_that_point_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "_LEAST_WORK", 0.0)
    chance = np.random.default_rng(0)
    anywhere = Pilot.of(unit(chance.standard_normal((3000, 16))), 0.5)
    centres = chance.standard_normal((400, 16))
    clustered = Pilot.of(unit(centres[chance.integers(0, 400, 3000)] + 0.1 * chance.standard_normal((3000, 16))), 0.99)
    assert anywhere is not None
    assert clustered is not None
    assert clustered.left < 0.1 < 0.5 < anywhere.left <= 1
    assert clustered.share(512) <= clustered.left
    assert not anywhere.best(1e12)


def test_the_share_that_is_left_is_what_is_compared(tmp_path: Path) -> None:
    vectors = corpus(1500, 20)
    centroids = Centroids.fit(vectors, 20)
    found = sorted_rows(vectors, centroids, reach(0.95), tmp_path)
    sizes = np.bincount(found.own, minlength=20)
    compared = sum(size * (len(found.probing(cell)[0]) + size / 2) for cell, size in enumerate(sizes.tolist()))
    assert share_left(vectors, centroids, reach(0.95)) == pytest.approx(compared / (1500**2 / 2))
