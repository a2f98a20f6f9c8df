"""The join finds every pair that reaches the threshold with its exact score, on any kernel and schedule."""

import dataclasses
import itertools
import tempfile
import threading
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from indexer.arrays import Vectors
from indexer.errors import ConfigError, MachineError, StoreError
from search.dedup.join import approximate, quantised, tiles
from search.dedup.join import exact as exact_module
from search.dedup.join.approximate import ApproximateJoin
from search.dedup.join.exact import ExactJoin
from search.dedup.join.quantised import Basis, FloatKernel, Int8Kernel, Kernel, fit_basis, margin
from search.dedup.join.tiles import write_quantised
from search.dedup.pairs import Pairs, pair_scores, tile_scores
from search.dedup.settings import IDENTICAL, DedupSettings, JoinOptions, lowest_score
from search.dedup.vectors import check_vectors, write_vectors
from tests.dedup_oracles import BrutePairs

CPU = torch.device("cpu")
Found = dict[tuple[int, int], float]


def unit(rows: npt.NDArray[np.floating]) -> Vectors:
    exact = rows.astype(np.float64)
    vectors: Vectors = (exact / np.linalg.norm(exact, axis=1, keepdims=True)).astype(np.float32)
    return vectors


def corpus(count: int, dim: int, seed: int = 0, spread: float = 0.25) -> Vectors:
    """Return distinct vectors around a few topics, with uneven directions and near-duplicates of many degrees."""
    chance = np.random.default_rng(seed)
    strength = np.linspace(2, 0.2, dim)
    topics = chance.standard_normal((max(1, count // 40), dim)) * strength
    rows = topics[chance.integers(0, len(topics), count)] + chance.standard_normal((count, dim)) * strength
    copies = chance.integers(0, count, count // 3)
    noise = chance.uniform(0, spread, (len(copies), 1)) * chance.standard_normal((len(copies), dim)) * strength
    rows[: len(copies)] = rows[copies] + noise
    return unit(rows)


def kernels(vectors: Vectors, threshold: float) -> dict[str, Kernel]:
    """Return each kernel with a small, a whole and a medium basis."""
    dim = vectors.shape[1]
    directions = np.linalg.qr(np.random.default_rng(1).standard_normal((dim, dim)))[0].astype(np.float32)
    bases = {"fitted": fit_basis(vectors, threshold), "half": Basis(directions[:, : max(1, dim // 2)], 0.5)}
    found: dict[str, Kernel] = {}
    for name, basis in bases.items():
        found[f"int8 {name}"] = Int8Kernel.of(basis)
        found[f"float32 {name}"] = FloatKernel(basis, torch.float32, CPU)
        found[f"bfloat16 {name}"] = FloatKernel(basis, torch.bfloat16, CPU)
    return found


def as_dict(batches: Iterator[Pairs]) -> Found:
    """Return pairs and their scores; fail if a pair comes twice."""
    found: Found = {}
    for batch in batches:
        for left, right, score in zip(batch.left.tolist(), batch.right.tolist(), batch.scores.tolist(), strict=True):
            key = (min(left, right), max(left, right))
            assert key not in found
            assert left != right
            found[key] = score
    return found


def joined(vectors: Vectors, threshold: float, folder: Path, kernel: Kernel | None = None, threads: int = 2) -> Found:
    options = JoinOptions(device="cpu", threads=threads)
    with pytest.MonkeyPatch.context() as patch:
        if kernel is not None:
            patch.setattr(exact_module, "choose_kernel", lambda *_: kernel)
        source = ExactJoin(vectors, lowest_score(threshold), folder, options)
    return as_dict(source.within(np.arange(len(vectors))))


def brute(vectors: Vectors, threshold: float) -> Found:
    everything = np.arange(len(vectors))
    return as_dict(BrutePairs(vectors, lowest_score(threshold), batch=100_000).within(everything))


# The score


@given(st.integers(1, 40), st.integers(0, 10_000))
def test_a_score_is_the_exact_dot_product_rounded_once_to_float64_and_once_to_float32(dim: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    left, right = unit(chance.standard_normal((3, dim))), unit(chance.standard_normal((3, dim)))
    for one, other, score in zip(left, right, pair_scores(left, right), strict=True):
        exact = sum(
            (Fraction(float(a)) * Fraction(float(b)) for a, b in zip(one, other, strict=True)), start=Fraction(0)
        )
        assert score == np.float32(float(exact))


def test_a_score_on_the_edge_between_two_float32_numbers_does_not_depend_on_how_it_is_summed() -> None:
    # 1 - 2**-25 is half-way between 1 - 2**-24 and 1; sums in another order may end on either side.
    chance = np.random.default_rng(0)
    products = [1 - 2.0**-25, 2.0**-60, -(2.0**-61), *([2.0**-55, -(2.0**-55)] * 20)]
    left = np.array([[np.float32(1)] * len(products)], np.float32)
    right = np.array([products], np.float32)
    right[0, 0] = 1
    left = np.concatenate([left, [[-(2.0**-25)]]], axis=1).astype(np.float32)
    right = np.concatenate([right, [[1.0]]], axis=1).astype(np.float32)
    found = {pair_scores(left, right)[0]}
    for _ in range(50):
        order = chance.permutation(left.shape[1])
        found.add(pair_scores(left[:, order], right[:, order])[0])
        found.add(tile_scores(left[:, order], right[:, order])[0, 0])
    assert found == {np.float32(1)}  # just above the half-way point


def test_scores_of_pairs_and_of_tiles_are_the_same_bits() -> None:
    vectors = corpus(90, 33)
    tile = tile_scores(vectors, vectors)
    for shift in range(90):
        assert np.array_equal(pair_scores(vectors, np.roll(vectors, -shift, 0)), np.diagonal(np.roll(tile, -shift, 1)))


# The bound


def test_a_bound_holds_all_that_rounding_can_take() -> None:
    """(x + e)(y + f) is at most |e| + |f| + |e||f| from xy; a sum of n products, n + 2 roundings of each side."""
    errors = np.array([[0.1, 0.3], [0.2, 0.05]], np.float32)
    assert margin(*errors) == pytest.approx(0.3 + 0.2 + 0.3 * 0.2 + 1e-6, rel=1e-6)
    assert margin(errors[0], errors[1][:0]) == pytest.approx(0.3 + 1e-6, rel=1e-6)
    basis = fit_basis(corpus(50, 6), 0.9)
    for dtype, own in ((torch.float32, 0.0), (torch.bfloat16, 2.0**-8)):
        kernel = FloatKernel(basis, dtype, torch.device("cpu"))
        rounding = 2 * (kernel.width + 2) * 2.0**-24 + own
        assert 0.8 - 1.06 * rounding - 2.0**-21 < kernel.limit(0.9, 0.1) < 0.8 - rounding


@pytest.mark.parametrize("dim", [1, 2, 7, 33, 200])
def test_no_kernel_rules_out_what_a_pair_really_scores(dim: int) -> None:
    for seed in range(4):
        vectors = corpus(120, dim, seed)
        exact = vectors.astype(np.float64) @ vectors.astype(np.float64).T
        for name, kernel in kernels(vectors, 0.9).items():
            coded, errors = kernel.encode(vectors)
            products = kernel.products(coded, coded).to(torch.float64).numpy()
            for left, right in itertools.product(range(0, 120, 11), range(120)):
                limit = kernel.limit(float(exact[left, right]), margin(errors[[left]], errors[[right]]))
                assert products[left, right] >= limit, name


def test_a_bound_is_close_enough_to_be_of_use() -> None:
    vectors = corpus(2000, 96)
    for kernel in kernels(vectors, 0.9).values():
        if kernel.basis.whole:
            coded, errors = kernel.encode(vectors)
            assert margin(errors, errors) < 0.05
            products = kernel.products(coded, coded).to(torch.float64).numpy()
            passed = np.count_nonzero(products >= kernel.limit(0.9, margin(errors, errors)))
            assert passed < 2 * np.count_nonzero(tile_scores(vectors, vectors) >= 0.9)


def test_e_bounds_what_quantising_leaves_out() -> None:
    vectors = corpus(300, 64)
    basis = fit_basis(vectors, 0.99)
    inside = vectors.astype(np.float64) @ basis.directions.astype(np.float64)
    coded, errors = (kernel := Int8Kernel.of(basis)).encode(vectors)
    lost = np.linalg.norm(inside - kernel.scale * coded.numpy()[:, : basis.size].astype(np.float64), axis=1)
    assert (lost <= errors).all()
    assert np.median(lost) > 0.2 * np.median(errors)


def test_the_rest_of_a_vector_is_never_taken_for_shorter_than_it_is() -> None:
    vectors = corpus(300, 48)
    basis = Basis(np.linalg.qr(np.random.default_rng(3).standard_normal((48, 16)))[0].astype(np.float32), 0.3)
    _, rest = basis.split(vectors)
    exact = vectors.astype(np.float64)
    inside = exact @ basis.directions.astype(np.float64)
    assert (rest >= np.sqrt(np.maximum(0, (exact**2).sum(1) - (inside**2).sum(1)))).all()


def test_a_coordinate_beyond_the_scale_is_cut_and_the_bound_knows() -> None:
    vectors = np.eye(64, dtype=np.float32)
    kernel = Int8Kernel(Basis(np.eye(64, dtype=np.float32), 1.0), 0.001)
    coded, errors = kernel.encode(vectors)
    assert coded.max() == 127
    assert (errors >= 1 - 0.128).all()


@pytest.mark.parametrize(("dim", "size"), [(8, 2), (384, 192), (1024, 512), (2048, 160), (2048, 1536)])
def test_the_rest_of_a_vector_always_fits_into_its_bytes(dim: int, size: int) -> None:
    for share in np.linspace(0.001, 1, 997):
        kernel = Int8Kernel.of(Basis(np.zeros((dim, size), np.float32), float(share)))
        places = kernel.width - size
        assert np.ceil(kernel.basis.longest_rest / (kernel.scale * places**0.5)) <= 127


def test_a_vector_outside_all_directions_is_found() -> None:
    directions = np.linalg.qr(np.random.default_rng(0).standard_normal((2048, 160)))[0]
    outside = np.random.default_rng(1).standard_normal((40, 2048))
    vectors = unit(outside - outside @ directions @ directions.T)
    for share in (0.3, 0.4010, 0.4011, 0.7):
        kernel = Int8Kernel.of(Basis(directions.astype(np.float32), share))
        coded, errors = kernel.encode(vectors)
        assert (coded.numpy()[:, 160:] >= 0).all()
        assert (kernel.products(coded, coded).diagonal() >= kernel.limit(1.0, margin(errors, errors))).all()


def test_int8_products_that_are_not_exact_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def saturating(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Multiply as processors without VNNI do: left as unsigned, sums of two products in 16 bits."""
        pairs = (left.to(torch.int32) + 128)[:, None, :] * right.to(torch.int32)[None]
        sums = pairs.reshape(*pairs.shape[:2], -1, 2).sum(-1).clamp(-(2**15), 2**15 - 1)
        return sums.sum(-1) - 128 * right.to(torch.int32).sum(-1)

    monkeypatch.setattr(quantised, "_int8_products", saturating)
    assert not quantised.int8_is_exact()
    kernel = quantised.choose_kernel(partial(fit_basis, corpus(50, 8), 0.9, 1.0), JoinOptions(device="cpu"))
    assert kernel.dtype == torch.float32


def test_the_kernel_that_wins_the_race_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """int8 wins with instructions for it, float32 without; the first of equals."""
    basis = fit_basis(corpus(50, 8), 0.9)
    int8, floats = quantised.Int8Kernel.of(basis), quantised.FloatKernel(basis, torch.float32, torch.device("cpu"))
    for slower, winner in ((floats, int8), (int8, floats), (None, int8)):
        now = [0.0]

        def products(kernel: Any, left: torch.Tensor, right: torch.Tensor) -> None:
            now[0] += 2.0 if kernel is slower else 1.0  # noqa: B023 - called in this round

        for kind in (quantised.Int8Kernel, quantised.FloatKernel):
            monkeypatch.setattr(kind, "products", products)
        assert quantised.faster(int8, floats, clock=lambda: now[0]) is winner  # noqa: B023
    monkeypatch.setattr(quantised, "int8_is_exact", lambda: True)
    monkeypatch.setattr(quantised, "faster", lambda *kernels: kernels[-1])
    assert quantised.choose_kernel(lambda _: basis, JoinOptions(device="cpu")).dtype == torch.float32


def test_pairs_are_not_looked_for_on_mps() -> None:
    with pytest.raises(ConfigError, match="device is mps, but near-duplicates need cpu or cuda"):
        JoinOptions(device="mps")


def test_a_torch_without_int8_products_joins_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        raise AttributeError("_int_mm")

    monkeypatch.setattr(quantised, "_int8_products", missing)
    assert not quantised.int8_is_exact()


# The join


@given(st.integers(0, 70), st.integers(1, 12), st.sampled_from([-0.5, 0.0, 0.6, 0.9, 0.99, 1.0]), st.integers(0, 500))
def test_every_pair_is_found_by_every_kernel(count: int, dim: int, threshold: float, seed: int) -> None:
    vectors = unit(np.random.default_rng(seed).integers(-2, 3, (count, dim)) + 0.125)  # many ties, some the same
    expected = brute(vectors, threshold) if count > 1 else {}
    for kernel in [None, *kernels(vectors, threshold).values()]:
        with tempfile.TemporaryDirectory() as folder:
            assert joined(vectors, threshold, Path(folder), kernel) == expected


@pytest.mark.parametrize("dim", [3, 64, 130])
@pytest.mark.parametrize("threshold", [0.7, 0.9, 0.97])
def test_a_corpus_is_joined_as_by_brute_force(tmp_path: Path, dim: int, threshold: float) -> None:
    vectors = corpus(700, dim)
    expected = brute(vectors, threshold)
    assert len(expected) > 20
    for kernel in [None, *kernels(vectors, threshold).values()]:
        assert joined(vectors, threshold, tmp_path, kernel) == expected


def test_a_pair_that_scores_the_threshold_exactly_is_found_and_one_a_step_below_is_not(tmp_path: Path) -> None:
    vectors = corpus(400, 40)
    for (left, right), score in list(brute(vectors, 0.8).items())[::7]:
        assert joined(vectors, score, tmp_path)[left, right] == score
        assert (left, right) not in joined(vectors, float(np.nextafter(np.float32(score), np.float32(2))), tmp_path)


def test_tiles_and_threads_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = corpus(300, 24)
    expected = joined(vectors, 0.85, tmp_path)
    for tile, threads in itertools.product([(1, 7), (64, 64), (300, 3), (33, 1000)], [1, 3]):
        monkeypatch.setattr(Int8Kernel, "tile", tile)
        kernel = Int8Kernel.of(fit_basis(vectors, 0.85))
        assert joined(vectors, 0.85, tmp_path, kernel, threads) == expected


def test_a_dense_tile_gives_the_same_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = unit(np.ones((300, 16)) + np.random.default_rng(0).standard_normal((300, 16)) * 0.05)
    found = joined(vectors, 0.9, tmp_path)
    assert len(found) == 300 * 299 // 2
    monkeypatch.setattr(exact_module, "_DENSE", 2.0)
    assert joined(vectors, 0.9, tmp_path) == found == brute(vectors, 0.9)


@given(st.data())
def test_some_members_are_joined_among_themselves_and_with_others(data: st.DataObject) -> None:
    vectors = unit(np.random.default_rng(data.draw(st.integers(0, 50))).integers(-2, 3, (40, 4)) + 0.125)
    chosen = data.draw(st.lists(st.sampled_from("lrn"), min_size=40, max_size=40))
    left, right = (np.array([n for n, side in enumerate(chosen) if side == name], np.int64) for name in "lr")
    oracle = BrutePairs(vectors, lowest_score(0.9), batch=10_000)
    for kind in (ExactJoin, ApproximateJoin):
        with tempfile.TemporaryDirectory() as folder:
            source = kind(vectors, lowest_score(0.9), Path(folder), JoinOptions(device="cpu"))
            assert as_dict(source.within(left)) == (as_dict(oracle.within(left)) if len(left) > 1 else {})
            both = len(left) and len(right)
            assert as_dict(source.between(left, right)) == (as_dict(oracle.between(left, right)) if both else {})


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_vectors(tmp_path: Path, count: int) -> None:
    vectors = unit(np.ones((count, 5)) + np.eye(5)[:count] * 1e-3)
    for kind in (ExactJoin, ApproximateJoin):
        source = kind(vectors, lowest_score(0.9), tmp_path, JoinOptions(device="cpu"))
        assert len(as_dict(source.within(np.arange(count)))) == (count == 2)


def test_a_caller_that_has_seen_enough_stops_the_join(tmp_path: Path) -> None:
    vectors = unit(np.ones((3000, 8)) + np.random.default_rng(0).standard_normal((3000, 8)) * 0.01)
    source = ExactJoin(vectors, lowest_score(0.5), tmp_path, JoinOptions(device="cpu", threads=2))
    for batch in source.within(np.arange(3000)):
        assert len(batch)
        break
    assert len(as_dict(source.within(np.arange(50)))) == 1225


def test_dense_groups_wait_in_a_bounded_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = unit(np.ones((4000, 8)) + np.random.default_rng(0).standard_normal((4000, 8)) * 0.001)
    source = ExactJoin(vectors, lowest_score(0.5), tmp_path, JoinOptions(device="cpu", threads=3))
    made, scored = list[int](), source._exact

    def counted(tile: tiles.Tile) -> Pairs:
        made.append(1)
        return scored(tile)

    monkeypatch.setattr(source, "_exact", counted)
    batches = source.within(np.arange(4000))
    assert len(next(batches)) <= source.kernel.tile[0] * source.kernel.tile[1]
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("join ")]
    for thread in threads:
        thread.join(0.5)  # they work ahead up to a limit
    assert len(made) <= 1 + 2 * 3 + 3
    assert sum(map(len, batches)) > 7_000_000
    assert len(made) > 10


def test_what_goes_wrong_in_a_thread_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = corpus(2000, 8)
    source = ExactJoin(vectors, lowest_score(0.9), tmp_path, JoinOptions(device="cpu", threads=2))

    def fail(*_: Any) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(exact_module, "pair_scores", fail)
    monkeypatch.setattr(exact_module, "tile_scores", fail)
    with pytest.raises(MemoryError, match="no more"):
        list(source.within(np.arange(2000)))


def test_identical_up_to_rounding_is_the_highest_threshold() -> None:
    assert lowest_score(1.0) == lowest_score(IDENTICAL) == np.float32(IDENTICAL)
    vectors = corpus(500, 100)
    assert (pair_scores(vectors, vectors) >= lowest_score(1.0)).all()


@pytest.mark.parametrize("threshold", [-1.0, 1.1, float("nan"), float("inf"), -2.0])
def test_a_threshold_that_means_nothing_is_refused(threshold: float) -> None:
    with pytest.raises(ConfigError, match=r"above -1 and at most 1"):
        DedupSettings(threshold)


# The device


def test_cuda_takes_bfloat16_and_large_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised, "choose_device", lambda asked: torch.device("cuda"))
    kernel = quantised.choose_kernel(partial(fit_basis, corpus(50, 8), 0.9, 1.0), JoinOptions())
    assert (kernel.dtype, kernel.device.type) == (torch.bfloat16, "cuda")
    assert kernel.tile[0] * kernel.tile[1] > 10**7


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MachineError, match="cuda"):
        quantised.choose_kernel(partial(fit_basis, corpus(50, 8), 0.9, 1.0), JoinOptions(device="cuda:7"))


@pytest.mark.parametrize(("free", "moved"), [(10_000, True), (100, False)])
def test_quantised_vectors_move_to_a_gpu_that_has_room_for_them(
    monkeypatch: pytest.MonkeyPatch, free: int, moved: bool
) -> None:
    class Quantised:
        nbytes = 1000

        def to(self, device: Any) -> str:
            return f"on {device}"

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 10**6))
    found = tiles.near(Quantised(), torch.device("cuda"))  # type: ignore[arg-type]
    assert (found == "on cuda") is moved


def test_sums_stay_in_float32_whatever_the_process_has_set() -> None:
    torch.set_float32_matmul_precision("medium")
    try:
        with quantised.float32_accumulation():
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


# The approximate join


def test_the_approximate_join_says_how_much_it_finds(tmp_path: Path) -> None:
    vectors = corpus(6000, 48, spread=0.4)
    exact = joined(vectors, 0.9, tmp_path)
    source = ApproximateJoin(vectors, lowest_score(0.9), tmp_path, JoinOptions(device="cpu"))
    found = as_dict(source.within(np.arange(6000)))
    assert found.items() <= exact.items()
    assert source.figures["cells"] > 100
    assert source.figures["found_pairs"] >= 0.999 * source.figures["sampled_pairs"] > 100
    assert len(found) >= 0.99 * len(exact)


def test_the_recall_that_is_measured_is_the_recall_of_the_sampled_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = corpus(5000, 16, spread=1.0)
    everything = np.arange(5000)
    monkeypatch.setattr(approximate, "_SAMPLED", 5000)
    monkeypatch.setattr(approximate, "_LEAST_LEVEL", 0)
    monkeypatch.setattr(approximate, "RECALL", 0.2)
    source = ApproximateJoin(vectors, lowest_score(0.8), tmp_path, JoinOptions(device="cpu"))
    found, exact = as_dict(source.within(everything)), joined(vectors, 0.8, tmp_path)
    # Half of the pairs choose the number of probed cells, the other half measure recall.
    known, recalled = (sum(min(pair) % 2 for pair in pairs) for pairs in (exact, found))
    assert source.figures["sampled_rows"] == 5000
    assert source.figures["sampled_pairs"] == known
    assert source.figures["found_pairs"] == recalled < known


def test_a_pair_of_two_sides_is_found_once_from_whichever_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = corpus(5000, 16, spread=1.0)
    monkeypatch.setattr(approximate, "RECALL", 0.5)
    source = ApproximateJoin(vectors, lowest_score(0.8), tmp_path, JoinOptions(device="cpu"))
    left, right = np.arange(0, 5000, 2), np.arange(1, 5000, 2)
    among = as_dict(source.within(np.arange(5000)))
    parts = [as_dict(found) for found in (source.within(left), source.within(right), source.between(left, right))]
    assert parts[0] | parts[1] | parts[2] == among
    assert sum(map(len, parts)) == len(among)


# Vectors on disk


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 0.0, 1.001])
def test_a_vector_that_is_not_of_unit_length_is_refused(wrong: float) -> None:
    vectors = np.eye(4, dtype=np.float32)
    vectors[2, 2] = wrong
    with pytest.raises(ConfigError, match="the vector of row 12 "):
        check_vectors(vectors, 10)


def test_vectors_come_back_from_disk_as_they_were(tmp_path: Path) -> None:
    vectors = corpus(100, 9)
    stored = write_vectors([(0, vectors[:60]), (60, vectors[60:])], 100, 9, tmp_path / "vectors.npy")
    assert np.array_equal(stored, vectors)
    assert write_vectors([], 0, 9, tmp_path / "none.npy").shape == (0, 9)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_said() -> None:
    full = Path("/dev/full")
    with pytest.raises(StoreError, match="TMPDIR"):
        write_vectors([(0, corpus(2000, 9))], 2000, 9, full)
    with pytest.raises(StoreError, match="TMPDIR"):
        write_quantised(iter([torch.zeros(100_000, 8)]), full)


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        JoinOptions().threads = 3  # type: ignore[misc]
