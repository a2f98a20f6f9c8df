"""Pooling: padding never counts, arithmetic is float32, layers are averaged first."""

from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.encoders.pooling import average_layers, pool, pool_arrays
from indexer.recipe.config import BasicPooling

MODES: tuple[BasicPooling, ...] = get_args(BasicPooling)


def batch(lengths: list[int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn((len(lengths), max(lengths), 5), generator=generator)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)).long()
    return states, mask


def test_each_mode_on_a_small_example() -> None:
    states = torch.tensor([[[1.0, -4.0], [3.0, -2.0], [9.0, 9.0]]])
    mask = torch.tensor([[1, 1, 0]])
    assert pool(states, mask, "cls").tolist() == [[1.0, -4.0]]
    assert pool(states, mask, "mean").tolist() == [[2.0, -3.0]]
    assert pool(states, mask, "max").tolist() == [[3.0, -2.0]]
    assert pool(states, mask, "lasttoken").tolist() == [[3.0, -2.0]]
    torch.testing.assert_close(pool(states, mask, "weightedmean"), torch.tensor([[7 / 3, -8 / 3]]))
    torch.testing.assert_close(pool(states, mask, "mean_sqrt_len_tokens"), torch.tensor([[4.0, -6.0]]) / 2**0.5)


@settings(deadline=None)  # the first call may load parts of torch
@given(st.lists(st.integers(1, 7), min_size=1, max_size=5), st.integers(0, 99), st.sampled_from(MODES))
def test_a_padded_row_equals_the_row_alone(lengths: list[int], seed: int, mode: BasicPooling) -> None:
    states, mask = batch(lengths, seed)
    together = pool(states, mask, mode)
    for row, length in enumerate(lengths):
        alone = pool(states[row : row + 1, :length], mask[row : row + 1, :length], mode)
        torch.testing.assert_close(together[row], alone[0], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(alone, pool(states[row : row + 1, :length], None, mode), atol=1e-6, rtol=1e-6)
    by_numpy = pool_arrays(states.numpy(), mask.sum(dim=1).numpy(), mode)
    torch.testing.assert_close(torch.from_numpy(by_numpy), together, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), -float("inf")])
def test_what_lies_in_padding_never_counts(mode: BasicPooling, rubbish: float) -> None:
    states, mask = batch([2, 4], seed=1)
    clean = pool(states, mask, mode)
    states[0, 2:] = rubbish
    assert torch.equal(pool(states, mask, mode), clean)


@pytest.mark.parametrize("mode", MODES)
def test_a_nan_in_a_real_token_shows(mode: BasicPooling) -> None:
    states, mask = batch([3, 3], seed=2)
    states[1, [0, -1]] = float("nan")
    pooled = pool(states, mask, mode)
    assert pooled[1].isnan().all()
    assert pooled[0].isfinite().all()


@pytest.mark.parametrize("mode", MODES)
def test_half_precision_states_are_pooled_in_float32(mode: BasicPooling) -> None:
    states, mask = batch([3, 5], seed=3)
    half = states.to(torch.bfloat16)
    assert pool(half, mask, mode).dtype == torch.float32
    assert torch.equal(pool(half, mask, mode), pool(half.float(), mask, mode))


def test_layers_are_averaged_without_weights_in_float32() -> None:
    layers = [torch.full((1, 2, 3), value, dtype=torch.bfloat16) for value in (1.0, 2.0, 6.0)]
    averaged = average_layers(layers)
    assert averaged.dtype == torch.float32
    assert averaged.eq(3.0).all()
    assert torch.equal(average_layers(layers[:1]), layers[0].float())


def test_for_max_averaging_layers_first_differs_from_averaging_rows() -> None:
    first, second = torch.tensor([[[0.0], [4.0]]]), torch.tensor([[[4.0], [0.0]]])
    mask = torch.ones(1, 2)
    assert pool(average_layers([first, second]), mask, "max").item() == 2.0
