"""SBERT-WK: a batch equals the equations for each token, and texts are independent."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from indexer.errors import ConfigError
from indexer.papers.sbert_wk import layer_weights, sbert_wk
from tests.indexer.papers import oracles_sbert_wk as oracle

Array = npt.NDArray[np.float64]


def layers_of(lengths: Sequence[int], layers: int, dim: int, seed: int = 0) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Layers that add a new component of varying size to the previous layer, as in a transformer."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths), dim)
    state, states = torch.randn(shape, generator=generator) + 0.5, []
    for _ in range(layers):
        states.append(state)
        size = 0.1 + torch.rand((*shape[:2], 1), generator=generator)
        state = state + size * torch.randn(shape, generator=generator)
    return states, (torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)).long()


def texts_of(states: Sequence[torch.Tensor], mask: torch.Tensor) -> list[Array]:
    """Return the oracle's input: (layers, tokens, d) of each text."""
    lengths = mask.sum(dim=1).tolist()
    return [
        torch.stack([state[row, :length] for state in states]).double().numpy() for row, length in enumerate(lengths)
    ]


def expected(states: Sequence[torch.Tensor], mask: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(oracle.sbert_wk(texts_of(states, mask))).float()


def one_token(*vectors: Sequence[float]) -> list[torch.Tensor]:
    return [torch.tensor([[list(vector)]]) for vector in vectors]


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=4), st.integers(2, 8), st.integers(5, 24), st.integers(0, 10**6)
)
def test_rows_are_those_of_the_equations(lengths: list[int], layers: int, dim: int, seed: int) -> None:
    """With as many dimensions as layers in a window: with fewer, the novelty of the last layer is only rounding."""
    states, mask = layers_of(lengths, layers, dim, seed)
    torch.testing.assert_close(sbert_wk(states, mask), expected(states, mask), atol=1e-5, rtol=1e-5)


@given(st.integers(2, 7), st.integers(5, 40), st.integers(0, 10**6))
def test_layers_that_share_nothing_follow_the_equations_too(layers: int, dim: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    states = [torch.randn((2, 4, dim), generator=generator) for _ in range(layers)]
    torch.testing.assert_close(sbert_wk(states, None), expected(states, torch.ones(2, 4).long()), atol=1e-5, rtol=1e-5)


def test_rows_are_those_of_the_equations_for_states_of_a_transformer(tiny_model: Callable[[str], Path]) -> None:
    states, mask = transformer_states(tiny_model("bert-cased"))
    assert len(states) == 4
    torch.testing.assert_close(sbert_wk(states, mask), expected(states, mask), atol=1e-5, rtol=1e-5)


def transformer_states(folder: Path) -> tuple[list[torch.Tensor], torch.Tensor]:
    import transformers

    texts = ["the whale", "data for the library in the deep sea", "a", "sing a song of the sea and sing"]
    batch: Any = transformers.AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    model: Any = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False)
    with torch.inference_mode():
        states = model(**batch, output_hidden_states=True).hidden_states
    return list(states), batch["attention_mask"]


def test_the_shape_of_minilm_is_as_exact_as_any_other() -> None:
    states, mask = layers_of([5, 9], layers=7, dim=384)
    torch.testing.assert_close(sbert_wk(states, mask), expected(states, mask), atol=1e-5, rtol=1e-5)


def test_a_token_by_hand() -> None:
    """Layers (2, 0) and (1, 1): both have one neighbour at 45 degrees, so equal alignment and novelty."""
    assert sbert_wk(one_token([2.0, 0.0], [1.0, 1.0]), None)[0].tolist() == pytest.approx([1.5, 0.5])


def test_layer_weights_by_hand() -> None:
    """Cosines: first and second 1, first and third 0, second and third 0.

    All three are in one window (K = 3). Novelty: the first and second are in the span of the others, the third has 1.
    Alignment: the mean cosine is 1/2 for the first and second, which their context explains whole: 1 / (6 * 1/2) = 1/3.
    The third has nothing in common with its context: beta counts as 1e-6, 1 / (6e-6).
    """
    cosines = torch.tensor([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]]).double()
    third = 1 / 6e-6
    alignment = [1 / 3 / (2 / 3 + third), 1 / 3 / (2 / 3 + third), third / (2 / 3 + third)]
    assert layer_weights(cosines).tolist() == pytest.approx(
        [alignment[0] / 2, alignment[1] / 2, (alignment[2] + 1) / 2]
    )


def test_tokens_weigh_by_the_variance_of_their_neighbouring_cosines() -> None:
    """The cosines of the first token are 1 and 0, those of the second 0 and 0; the third, the last, does not count."""
    first, second = [(1.0, 0.0), (1.0, 0.0), (0.0, 1.0)], [(5.0, 0.0), (0.0, 5.0), (5.0, 0.0)]
    states = [torch.tensor([[one, other, (9.0, 9.0)]]) for one, other in zip(first, second, strict=True)]
    assert sbert_wk(states, None)[0].tolist() == sbert_wk(one_token(*first), None)[0].tolist()


@given(st.integers(3, 7), st.integers(0, 10**6))
def test_measures_do_not_depend_on_the_signs_of_a_qr(layers: int, seed: int) -> None:
    """LAPACK's R has a negative diagonal, the R of Gram-Schmidt a positive one; the result is independent of signs."""
    random = np.random.default_rng(seed)
    token = random.normal(size=(layers, 32)).cumsum(axis=0)
    signs = random.choice([-1.0, 1.0], size=5)
    for layer in range(layers):
        ours = oracle.measures(token, layer, oracle.triangle)
        assert ours == pytest.approx(oracle.measures(token, layer, lambda columns: np.linalg.qr(columns)[1]))
        assert ours == pytest.approx(
            oracle.measures(token, layer, lambda c: signs[: c.shape[1], None] * oracle.triangle(c))
        )


def test_at_the_borders_the_window_is_what_exists() -> None:
    """The second layer's window contains the first layer: changing only the first layer changes its weight."""
    token = np.random.default_rng(1).normal(size=(6, 32)).cumsum(axis=0)
    changed = np.concatenate([token[:1] + 1.0, token[1:]])
    assert oracle.measures(token, 1, oracle.triangle) != oracle.measures(changed, 1, oracle.triangle)
    states = [torch.from_numpy(layer)[None, None].float() for layer in token]
    torch.testing.assert_close(sbert_wk(states, None), expected(states, torch.ones(1, 1).long()), atol=1e-5, rtol=1e-5)


@given(st.lists(st.integers(1, 7), min_size=1, max_size=5), st.integers(2, 6), st.integers(0, 10**6))
def test_a_padded_row_among_others_equals_the_row_alone(lengths: list[int], layers: int, seed: int) -> None:
    states, mask = layers_of(lengths, layers, 12, seed)
    together = sbert_wk(states, mask)
    for row, length in enumerate(lengths):
        alone = sbert_wk([state[row : row + 1, :length] for state in states], None)
        torch.testing.assert_close(together[row], alone[0], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), -float("inf")])
def test_what_lies_in_padding_or_in_the_last_token_never_counts(rubbish: float) -> None:
    states, mask = layers_of([2, 4, 1], layers=5, dim=8)
    clean = sbert_wk(states, mask)
    for state in states[1:4]:
        state[0, 1:], state[1, 3], state[2, 1:] = rubbish, rubbish, rubbish
    assert torch.equal(sbert_wk(states, mask), clean)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_in_a_token_that_counts_shows(value: float) -> None:
    states, mask = layers_of([3, 3], layers=5, dim=8)
    states[2][1, 0] = value
    pooled = sbert_wk(states, mask)
    assert pooled[1].isnan().all()
    assert pooled[0].isfinite().all()


@given(st.floats(1e-6, 1e6), st.integers(0, 10**6))
def test_scaling_all_states_scales_the_row(factor: float, seed: int) -> None:
    states, mask = layers_of([4, 2], layers=5, dim=10, seed=seed)
    scaled = sbert_wk([factor * state for state in states], mask) / factor
    torch.testing.assert_close(scaled, sbert_wk(states, mask), atol=1e-5, rtol=1e-4)


@given(st.integers(0, 10**6))
def test_turning_all_states_turns_the_row(seed: int) -> None:
    states, mask = layers_of([4, 2], layers=5, dim=10, seed=seed)
    turn = torch.from_numpy(np.linalg.qr(np.random.default_rng(seed).normal(size=(10, 10)))[0]).float()
    torch.testing.assert_close(
        sbert_wk([state @ turn for state in states], mask), sbert_wk(states, mask) @ turn, atol=1e-4, rtol=1e-4
    )


def test_layers_all_alike_give_the_mean_of_the_tokens_but_the_last() -> None:
    (state, *_), mask = layers_of([4, 3], layers=2, dim=8)
    pooled = sbert_wk([state] * 6, mask)
    torch.testing.assert_close(pooled, torch.stack([state[0, :3].mean(dim=0), state[1, :2].mean(dim=0)]))


def test_two_layers_have_no_variance_and_all_tokens_weigh_the_same() -> None:
    states, _ = layers_of([5], layers=2, dim=8)
    tokens = [sbert_wk([state[:, n : n + 1] for state in states], None) for n in range(4)]
    torch.testing.assert_close(sbert_wk(states, None)[0], torch.cat(tokens).mean(dim=0))


def test_a_layer_that_repeats_its_neighbour_adds_nothing_to_the_context() -> None:
    states, mask = layers_of([3], layers=6, dim=8)
    states[3] = 2 * states[2]
    pooled = sbert_wk(states, mask)
    assert pooled.isfinite().all()
    torch.testing.assert_close(pooled, expected(states, mask), atol=1e-5, rtol=1e-5)


def test_a_zero_layer_gets_no_weight() -> None:
    states, _ = layers_of([1], layers=4, dim=8)
    states[1] = torch.zeros_like(states[1])
    units = torch.cat([state[0] / state[0].norm().clamp(min=1e-9) for state in states]).double()
    weights = layer_weights(units @ units.T)
    assert weights[1] == 0
    assert weights.sum().item() == pytest.approx(1)
    torch.testing.assert_close(sbert_wk(states, None), expected(states, torch.ones(1, 1).long()), atol=1e-5, rtol=1e-5)


def test_states_of_zeros_give_a_row_of_zeros() -> None:
    assert sbert_wk([torch.zeros(2, 3, 4)] * 5, torch.tensor([[1, 1, 1], [1, 0, 0]])).eq(0).all()


def test_opposite_layers_stay_finite() -> None:
    """Every cosine of neighbours is -1: the equations divide by a sum of negative weights."""
    states = one_token([1.0, 2.0], [-1.0, -2.0], [1.0, 2.0], [-1.0, -2.0])
    assert sbert_wk(states, None).isfinite().all()


def test_a_text_of_one_token_is_that_token() -> None:
    states, mask = layers_of([1, 3], layers=5, dim=8)
    pooled = sbert_wk(states, mask)
    vector = oracle.token_vector(texts_of(states, mask)[0][:, 0])
    torch.testing.assert_close(pooled[0], torch.from_numpy(vector).float(), atol=1e-5, rtol=1e-5)


def test_half_precision_states_give_float32() -> None:
    states, mask = layers_of([3, 5], layers=4, dim=8)
    half = [state.to(torch.bfloat16) for state in states]
    pooled = sbert_wk(half, mask)
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooled, sbert_wk([state.float() for state in half], mask))


def test_fewer_than_two_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match="1 was given; expected at least 2"):
        sbert_wk([torch.ones(1, 2, 3)], None)
