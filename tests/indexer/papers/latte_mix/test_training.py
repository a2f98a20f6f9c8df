"""Training: learning, counts, reproducibility by seed, and rejected input."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from indexer.errors import ConfigError, CorpusError, IsotropeError, MachineError, ModelError
from indexer.papers.latte_mix.divergence import js_similarities
from indexer.papers.latte_mix.network import initial_weights
from indexer.papers.latte_mix.training import Group, kl_weight, learning_rate_factor, train_latte_mix
from tests.indexer.papers.latte_mix.small_mixtures import (
    LATENTS,
    SIZE,
    SMALL,
    Rows,
    held_out,
    made_texts,
    reconstruction,
    stream_of,
    topics,
    train,
    trained,
)


def test_the_kl_term_grows_linearly_from_nothing() -> None:
    config = dataclasses.replace(SMALL, beta=2.0)
    assert [kl_weight(step, 5, config) for step in range(5)] == [0, 0.5, 1, 1.5, 2]
    assert kl_weight(0, 1, config) == 0


def test_the_learning_rate_rises_and_falls_linearly() -> None:
    config = dataclasses.replace(SMALL, warmup=0.3)
    assert [learning_rate_factor(step, 10, config) for step in range(10)] == pytest.approx(
        [1 / 4, 2 / 4, 3 / 4, 1, 6 / 7, 5 / 7, 4 / 7, 3 / 7, 2 / 7, 1 / 7]
    )
    assert learning_rate_factor(0, 10, dataclasses.replace(SMALL, warmup=0)) == 1


@pytest.mark.parametrize("latent", LATENTS)
def test_training_rebuilds_tokens_it_has_not_seen_better_than_no_training(latent: str) -> None:
    latte, untrained = trained(latent), trained(latent, epochs=0)
    first, last = latte.about["losses"][0][1], latte.about["losses"][-1][1]
    assert last < 0.6 * first
    assert reconstruction(latte) < 0.6 * reconstruction(untrained)


def test_training_tells_the_topics_of_tokens_apart() -> None:
    random = np.random.default_rng(3)
    about = random.integers(0, 8, 60)
    rows = trained().posterior((topics()[about] + random.normal(size=(60, SIZE)) * 0.3).astype(np.float32))
    similar = js_similarities(rows, rows, 4)
    same = about[:, None] == about[None]
    assert similar[same].mean() > similar[~same].mean() + 0.3


def test_the_same_seed_gives_the_same_bits_and_leaves_the_global_generators_alone() -> None:
    torch.manual_seed(11)
    np.random.seed(11)
    state, other_state = torch.get_rng_state(), np.random.get_state(legacy=False)["state"]["key"]
    one = train(count=60)
    assert torch.equal(state, torch.get_rng_state())
    assert np.array_equal(other_state, np.random.get_state(legacy=False)["state"]["key"])
    torch.manual_seed(12)
    two, other = train(count=60), train(dataclasses.replace(SMALL, seed=1), count=60)
    assert one.about == two.about
    for name, array in one.parameters.items():
        assert np.array_equal(array, two.parameters[name])
        assert not np.array_equal(array, other.parameters[name])


def test_without_epochs_the_weights_stay_as_they_were_drawn_and_the_scale_is_measured() -> None:
    group = made_texts(400)
    latte = trained(epochs=0)
    weights = initial_weights(latte.config, SIZE)
    assert latte.about == {"texts": 0, "tokens": 0, "empty": 0, "steps": 0, "losses": []}
    assert latte.scale == pytest.approx(float(np.std(group[0], dtype=np.float64)))
    assert all(np.array_equal(array, weights[name].numpy()) for name, array in latte.parameters.items())


def test_vectors_twice_as_long_give_the_same_posteriors() -> None:
    rows, starts = made_texts(60)
    doubled = train_latte_mix(stream_of((rows * 2, starts)), 60, SMALL)
    np.testing.assert_array_equal(doubled.posterior(rows * 2), train(count=60).posterior(rows))


def test_a_kl_below_the_threshold_costs_nothing() -> None:
    free, without = dataclasses.replace(SMALL, threshold=1e6), dataclasses.replace(SMALL, beta=0)
    np.testing.assert_allclose(train(free, 60).posterior(held_out()), train(without, 60).posterior(held_out()))


def test_a_heavy_kl_term_draws_the_posterior_to_the_prior() -> None:
    def kl(**changes: Any) -> float:
        return float(train(dataclasses.replace(SMALL, **changes), 200).about["losses"][-1][2])

    assert kl(beta=30.0, threshold=0) < 0.5 * kl(beta=0.0)


def test_batches_reach_over_the_ends_of_groups() -> None:
    groups = [made_texts(count, seed) for seed, count in enumerate([5, 1, 13])]
    steps: list[tuple[int, int]] = []
    config = dataclasses.replace(SMALL, epochs=2)
    latte = train_latte_mix(stream_of(*groups), 19, config, on_step=lambda *at: steps.append(at))
    assert steps == [(step, 6) for step in range(1, 7)]
    assert latte.about["tokens"] == 2 * sum(len(rows) for rows, _ in groups)
    assert (latte.about["texts"], latte.about["steps"], latte.about["empty"]) == (19, 6, 0)


def test_the_stream_is_read_once_an_epoch() -> None:
    read = []

    def stream() -> Iterator[Group]:
        read.append(1)
        yield made_texts(20)

    train_latte_mix(stream, 20, dataclasses.replace(SMALL, epochs=3))
    assert len(read) == 3


def test_texts_without_tokens_are_counted_and_take_no_part() -> None:
    rows, starts = made_texts(30)
    with_empty = np.sort(np.concatenate([starts, starts[[0, 3, -1]], np.repeat(starts[5], 20)]))
    latte = train_latte_mix(stream_of((rows, with_empty)), 53, SMALL)
    assert (latte.about["empty"], latte.about["texts"], latte.about["steps"]) == (23, 53, 7)
    assert latte.about["losses"][-1][0] == 7
    assert all(np.isfinite(array).all() for array in latte.parameters.values())


def test_losses_are_logged_about_fifty_times() -> None:
    latte = train(dataclasses.replace(SMALL, batch=2), 400)
    log = latte.about["losses"]
    assert [entry[0] for entry in log] == list(range(4, 201, 4))
    assert log[-1][1] < 0.7 * log[0][1]
    assert json.loads(json.dumps(latte.about)) == latte.about


def test_vectors_in_half_precision_are_taken() -> None:
    rows, starts = made_texts(20)
    half = train_latte_mix(stream_of((rows.astype(np.float16), starts)), 20, SMALL)
    np.testing.assert_allclose(half.posterior(rows), train(count=20).posterior(rows), atol=0.05)


def broken(rows: Rows) -> Group:
    return rows, np.arange(len(rows) + 1)


@pytest.mark.parametrize(
    ("stream", "error", "message"),
    [
        (stream_of(made_texts(19)), ConfigError, "19 texts; expected 20"),
        (stream_of(made_texts(30)), ConfigError, "30 texts; expected 20"),
        (stream_of(), CorpusError, "no tokens"),
        (stream_of((np.zeros((0, SIZE), np.float32), np.zeros(21, np.int64))), CorpusError, "no tokens"),
        (stream_of(broken(np.ones((20, SIZE), np.float32))), ModelError, r"standard deviation of 0\.0"),
        (stream_of(broken(np.full((20, SIZE), np.nan, np.float32))), ModelError, "standard deviation of nan"),
    ],
)
def test_texts_that_cannot_be_trained_on_are_refused(
    stream: Callable[[], Iterator[Group]], error: type[IsotropeError], message: str
) -> None:
    with pytest.raises(error, match=message):
        train_latte_mix(stream, 20, SMALL)


def test_a_loss_that_is_no_number_stops_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indexer.papers.latte_mix.training.SCALE_TOKENS", 10)  # so that the scale does not depend on it
    rows, starts = made_texts(60)
    rows[-1, 0] = np.nan
    with pytest.raises(ModelError, match=r"at step \d of 8 the loss is nan"):
        train_latte_mix(stream_of((rows, starts)), 60, SMALL)


def test_a_device_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MachineError, match="no CUDA device"):
        train(device="cuda")


def test_training_on_a_named_device_learns_as_well() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu:0"
    there = train(dataclasses.replace(SMALL, epochs=2), device=device)
    assert reconstruction(there) == pytest.approx(reconstruction(trained()), rel=0.2)
