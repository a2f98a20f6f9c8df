"""BERT-flow: the equations, the laws of an invertible transform, its training and its arrays."""

import dataclasses
import math
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from indexer.errors import ConfigError
from indexer.moments import Moments
from indexer.papers import flow as flow_module
from indexer.papers.flow import Flow, FlowConfig, Glow, fit_glow, parameter_shapes
from indexer.transforms import FitData, Normalisation, transform_from_bytes, transform_to_bytes
from tests.indexer.papers.oracles_flow import flow_of_row
from tests.oracles import iso_score

Rows = npt.NDArray[np.float32]
SMALL = FlowConfig(levels=2, depth=2, width=8, learning_rate=5e-3)


def anisotropic_rows(count: int, dim: int, seed: int = 0) -> Rows:
    """Rows in a narrow bent cone: a mean far from zero, a steep spectrum, dependent dimensions."""
    random = np.random.default_rng(seed)
    latent = random.normal(size=(count, dim))
    latent[:, 1] = latent[:, 0] ** 2 / 2 + 0.3 * latent[:, 1]
    mix = np.random.default_rng(99).normal(size=(dim, dim)) * np.geomspace(1, 0.2, dim)[:, None]
    rows: Rows = (latent @ mix + 3).astype(np.float32)
    return rows


def fit_all(rows: Rows, config: FlowConfig = SMALL, block: int = 1000) -> Flow | Normalisation:
    def blocks() -> Iterator[Rows]:
        return (rows[start : start + block] for start in range(0, max(len(rows), 1), block))

    return flow_module.fit(FitData(lambda: Moments.of(rows), blocks), config)


def fit(rows: Rows, config: FlowConfig = SMALL, block: int = 1000) -> Flow:
    flow = fit_all(rows, config, block)
    assert isinstance(flow, Flow)
    return flow


@cache
def trained() -> Flow:
    """A trained flow of 10 dimensions."""
    return fit(anisotropic_rows(2000, 10), dataclasses.replace(SMALL, epochs=4))


def random_flow(dim: int, levels: int, depth: int, width: int, seed: int) -> Flow:
    random = np.random.default_rng(seed)
    parameters = {
        name: random.normal(size=shape) * (0.1 if name.endswith("log_scale") else 0.5)
        for name, shape in parameter_shapes(dim, levels, depth, width).items()
    }
    return Flow(parameters, np.zeros(dim), np.zeros(dim), levels, depth)


flows = st.builds(
    random_flow, st.integers(4, 13), st.integers(1, 2), st.integers(1, 3), st.integers(1, 5), st.integers(0, 10**6)
)


@settings(max_examples=25)
@given(flows, st.integers(0, 10**6))
def test_vectors_and_log_likelihood_are_those_of_the_published_equations(flow: Flow, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(3, flow.dim))
    expected = [flow_of_row(flow.parameters, row, flow.levels, flow.depth) for row in rows]
    assume(max(np.abs(z).max() for z, _ in expected) < 1e6)  # beyond, repeated exp amplifies rounding
    np.testing.assert_allclose(flow.project(rows, "document"), [z for z, _ in expected], rtol=1e-9, atol=1e-5)
    np.testing.assert_allclose(flow.log_likelihood(rows), [nats for _, nats in expected], rtol=1e-9, atol=1e-5)


def test_a_trained_flow_is_that_of_the_published_equations() -> None:
    flow, rows = trained(), anisotropic_rows(5, 10, seed=3)
    expected = [flow_of_row(flow.parameters, row.tolist(), flow.levels, flow.depth) for row in rows]
    np.testing.assert_allclose(flow.project(rows, "document"), [z for z, _ in expected], atol=1e-5)
    np.testing.assert_allclose(flow.log_likelihood(rows), [nats for _, nats in expected], atol=1e-5)


@pytest.mark.parametrize("dim", [1, 2, 3, 7])
def test_a_trained_flow_of_few_or_odd_dimensions_is_that_of_the_published_equations(dim: int) -> None:
    rows = anisotropic_rows(200, max(dim, 2))[:, :dim]
    flow = fit(rows, dataclasses.replace(SMALL, levels=3))
    assert flow.dim == flow.input_dim == dim
    expected = [flow_of_row(flow.parameters, row.tolist(), flow.levels, flow.depth)[0] for row in rows[:5]]
    np.testing.assert_allclose(flow.project(rows[:5], "document"), expected, atol=1e-5)


@settings(max_examples=25)
@given(flows, st.integers(0, 10**6))
def test_queries_are_shifted_to_the_mean_of_documents(flow: Flow, seed: int) -> None:
    random = np.random.default_rng(seed)
    flow, rows = flow.with_query_mean(random.normal(size=flow.dim)), random.normal(size=(4, flow.dim))
    shifted = flow.project(rows - flow.query_mean + flow.mean, "document")
    np.testing.assert_allclose(flow.project(rows, "query"), shifted, rtol=1e-6, atol=1e-6)


@settings(max_examples=25)
@given(flows, st.integers(0, 10**6))
def test_log_determinant_is_that_of_the_jacobian(flow: Flow, seed: int) -> None:
    row = np.random.default_rng(seed).normal(size=flow.dim)
    steps = 1e-6 * np.eye(flow.dim)
    jacobian = (flow.project(row + steps, "document") - flow.project(row - steps, "document")) / 2e-6
    expected = np.linalg.slogdet(jacobian)[1]
    _, log_determinant = Glow(flow.parameters, flow.levels, flow.depth).forward(row[None])
    np.testing.assert_allclose(log_determinant, [expected], atol=1e-4)


def test_density_of_one_dimension_sums_to_one() -> None:
    flow = fit(anisotropic_rows(200, 2)[:, :1])
    grid = np.linspace(-60, 60, 20_001)
    assert np.exp(flow.log_likelihood(grid[:, None])).sum() * (grid[1] - grid[0]) == pytest.approx(1, abs=1e-4)


def test_training_starts_where_the_first_batch_has_zero_mean_and_unit_variance() -> None:
    rows = anisotropic_rows(32, 9)
    start, _ = fit_glow(rows, 2, dataclasses.replace(SMALL, batch=32))
    z, _ = Glow(start, 2, 2).forward(rows.astype(np.float64))
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(z.std(axis=0), 1, atol=1e-4)


def test_training_raises_the_log_likelihood_of_held_out_embeddings() -> None:
    rows, held_out = anisotropic_rows(2000, 10), anisotropic_rows(1000, 10, seed=1)
    start, _ = fit_glow(rows[:64], 2, SMALL)
    standardised = Flow(start, np.zeros(10), np.zeros(10), 2, 2).log_likelihood(held_out).mean()
    once = fit(rows).log_likelihood(held_out).mean()
    often = trained().log_likelihood(held_out).mean()
    assert standardised + 0.5 < once < often - 0.5


def test_vectors_of_held_out_embeddings_are_more_isotropic() -> None:
    held_out = anisotropic_rows(1000, 10, seed=1)
    unit = held_out / np.linalg.norm(held_out, axis=1, keepdims=True)
    vectors = trained().transform(held_out, "document")
    assert iso_score(vectors) > iso_score(unit) + 0.3
    assert np.linalg.norm(vectors.mean(axis=0)) < 0.2 < 0.7 < np.linalg.norm(unit.mean(axis=0))


def test_vectors_are_unit_length_float32_and_projections_normalised() -> None:
    flow, rows = trained(), anisotropic_rows(300, 10, seed=2)
    vectors, z = flow.transform(rows, "document"), flow.project(rows, "document")
    assert vectors.dtype == np.float32
    assert z.dtype == np.float64
    np.testing.assert_allclose(vectors, z / np.linalg.norm(z, axis=1, keepdims=True), atol=1e-6)


def test_one_row_and_many_rows_give_the_same_vector() -> None:
    rows = anisotropic_rows(5000, 10, seed=2)
    together = trained().transform(rows, "document")
    for row in (0, 17, 4095, 4096, 4999):
        alone = trained().transform(rows[row : row + 1], "document")[0]
        np.testing.assert_allclose(alone, together[row], atol=1e-7)
    assert trained().transform(rows[:0], "query").shape == (0, 10)


def test_each_role_is_centred_by_its_own_mean() -> None:
    rows = anisotropic_rows(300, 10, seed=2)
    np.testing.assert_allclose(trained().mean, anisotropic_rows(2000, 10).astype(np.float64).mean(axis=0))
    assert (trained().project(rows, "query") == trained().project(rows, "document")).all()
    moved = trained().with_query_mean(trained().mean + 0.5)
    np.testing.assert_allclose(
        moved.project(rows + np.float32(0.5), "query"), moved.project(rows, "document"), atol=1e-4
    )
    assert (moved.log_likelihood(rows) == trained().log_likelihood(rows)).all()


def test_file_round_trip_is_exact_and_deterministic() -> None:
    flow, rows = trained().with_query_mean(np.arange(10.0)), anisotropic_rows(20, 10, seed=2)
    assert flow.settings() == {"dim": 10, "note": "", "levels": 2, "depth": 2}
    data = transform_to_bytes(flow)
    again = transform_from_bytes(data, "somewhere")
    assert transform_to_bytes(again) == data
    assert (again.transform(rows, "query") == flow.transform(rows, "query")).all()
    assert (again.transform(rows, "document") == flow.transform(rows, "document")).all()


def test_arrays_of_other_settings_are_refused() -> None:
    flow = trained()
    with pytest.raises(ValueError, match="its arrays do not fit its settings"):
        Flow.from_arrays(flow.arrays(), flow.settings() | {"depth": 1})
    with pytest.raises(KeyError):
        Flow.from_arrays({"mean": flow.mean}, flow.settings())


def test_a_stored_flow_is_applied_without_torch(tmp_path: Path) -> None:
    (tmp_path / "transform").write_bytes(transform_to_bytes(trained()))
    code = (
        "import sys, pathlib, numpy, indexer.transforms as t; flow = t.transform_from_bytes(pathlib.Path(sys.argv[1])"
        ".read_bytes(), ''); print(flow.transform(numpy.ones((1, 10)), 'query').shape, 'torch' in sys.modules)"
    )
    run = [sys.executable, "-c", code, str(tmp_path / "transform")]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "(1, 10) False\n"


# torch splits sums over more than 32,768 numbers between threads.
@pytest.mark.parametrize("config", [SMALL, dataclasses.replace(SMALL, batch=40_000, epochs=3)])
def test_the_fit_depends_on_neither_threads_nor_blocks_nor_the_state_of_torch(config: FlowConfig) -> None:
    rows, threads = anisotropic_rows(max(300, config.batch), 8), torch.get_num_threads()
    one = fit(rows, config)
    state = torch.get_rng_state()
    try:
        torch.set_num_threads(2)
        with torch.inference_mode():
            other = fit(rows, config, block=77)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert (torch.get_rng_state() == state).all()
    assert save(one.arrays()) == save(other.arrays())


def test_the_seed_selects_the_fit() -> None:
    one, other = (fit(anisotropic_rows(100, 5), dataclasses.replace(SMALL, seed=seed)) for seed in (0, 1))
    assert save(one.arrays()) != save(other.arrays())


@pytest.mark.parametrize("block", ["float64", "float16"])
def test_blocks_of_any_number_type_are_taken(block: str) -> None:
    rows = anisotropic_rows(60, 4).astype(np.float16)
    flow = flow_module.fit(FitData(lambda: Moments.of(rows), lambda: iter([rows.astype(block)])), SMALL)
    assert save(flow.arrays()) == save(fit(rows.astype(np.float32)).arrays())


def test_every_step_is_told() -> None:
    rows, told = anisotropic_rows(70, 4), list[tuple[int, int]]()
    data = FitData(lambda: Moments.of(rows), lambda: iter([rows]))
    flow_module.fit(data, dataclasses.replace(SMALL, epochs=2), lambda *step: told.append(step))
    assert told == [(done, 6) for done in range(1, 7)]


def test_dimensions_that_do_not_vary_stay_finite_and_are_not_amplified() -> None:
    rows = anisotropic_rows(500, 8)
    rows[:, 2], rows[:, 5] = 0.1, 0.0
    flow = fit(rows)
    assert all(np.isfinite(array).all() for array in flow.arrays().values())
    other = rows[:50].copy()
    other[:, 2] += 0.01
    assert np.isfinite(flow.log_likelihood(other)).all()
    vectors = flow.transform(other, "query")
    assert np.isfinite(vectors).all()
    assert (vectors * flow.transform(rows[:50], "query")).sum(axis=1).min() > 0.99


def test_an_embedding_unlike_all_of_the_sample_stays_finite() -> None:
    far = np.full((1, 10), 1e6) * np.where(np.arange(10) % 2, 1, -1)
    vectors = trained().transform(far, "document")
    np.testing.assert_allclose(np.linalg.norm(vectors), 1, atol=1e-6)
    assert np.isfinite(trained().log_likelihood(far)).all()


@pytest.mark.parametrize("count", [2, 5, 31])
def test_a_corpus_smaller_than_a_batch_stays_finite_and_says_so(count: int) -> None:
    flow = fit(anisotropic_rows(count, 6), FlowConfig(levels=2))
    assert f"training took only 1 step, on {count} texts" in flow.note
    assert np.isfinite(flow.transform(anisotropic_rows(50, 6, seed=1), "query")).all()


def test_batches_of_one_text_start_from_more() -> None:
    rows = 100 * anisotropic_rows(100, 6)
    flow = fit(rows, dataclasses.replace(SMALL, batch=1, learning_rate=1e-4))
    assert flow.note == ""
    np.testing.assert_allclose(flow.project(rows, "document").std(axis=0), 1, atol=0.5)


def test_a_first_batch_of_equal_texts_scales_nothing() -> None:
    rows = np.ones((500, 4), np.float32)
    rows[17] = 2
    start, _ = fit_glow(rows, 1, SMALL)
    assert not start["0.0.actnorm.log_scale"].any()
    np.testing.assert_allclose(start["0.0.actnorm.centre"], -1)


def test_levels_that_the_embeddings_have_no_dimensions_for_are_said() -> None:
    flow = fit(anisotropic_rows(200, 6), FlowConfig(levels=3))
    assert flow.levels == 2
    assert "3 levels were requested, but the embeddings have dimensions for only 2" in flow.note


def test_training_that_makes_the_sample_less_likely_is_said() -> None:
    assert (
        "lower papers.flow.learning_rate"
        in fit(anisotropic_rows(300, 6), dataclasses.replace(SMALL, learning_rate=0.5)).note
    )


def test_training_that_ends_in_no_number_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"papers.flow.learning_rate, which is 1e\+30"):
        fit(anisotropic_rows(300, 6), dataclasses.replace(SMALL, learning_rate=1e30))


@pytest.mark.parametrize(("count", "said"), [(0, "0 documents:"), (1, "one document:"), (5, "5 documents, all alike:")])
def test_rows_without_spread_are_only_normalised(count: int, said: str) -> None:
    transform = fit_all(np.ones((count, 4), np.float32))
    assert isinstance(transform, Normalisation)
    assert transform.dim == 4
    assert f"a sample of {said} nothing to fit" in transform.note


def test_a_flow_that_changes_nothing_is_the_standard_normal() -> None:
    flow = Flow(
        {name: np.zeros(shape) for name, shape in parameter_shapes(5, 1, 2, 3).items()}, np.zeros(5), np.zeros(5), 1, 2
    )
    rows = anisotropic_rows(4, 5).astype(np.float64)
    assert (flow.project(rows, "document") == rows).all()
    expected = -0.5 * (rows**2).sum(axis=1) - 2.5 * math.log(2 * math.pi)
    np.testing.assert_allclose(flow.log_likelihood(rows), expected)
