"""Latte-Mix: the posterior, the losses, what training does, the files, and the divergences of texts."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from indexer.config import LatteMixConfig
from indexer.errors import ConfigError, CorpusError, EvaluationError, IsotropeError, MachineError, ModelError
from indexer.pooling.latte_mix import FILES, LatteMix, load_latte_mix, save_latte_mix, train_latte_mix
from indexer.pooling.latte_mix.divergence import (
    hellinger_roots,
    js_similarities,
    js_similarity,
    js_similarity_lower_bound,
    js_similarity_upper_bound,
    mixture_l2,
    negative_l2,
)
from indexer.pooling.latte_mix.network import (
    LatteMixHead,
    categorical_sample,
    generator,
    initial_weights,
    losses,
    normal_sample,
)
from indexer.pooling.latte_mix.training import Group, evaluate, kl_weight, learning_rate_factor
from tests import oracles_lattemix as oracle

Rows = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
SIZE = 12
SMALL = LatteMixConfig(dims=4, classes=5, batch=8, learning_rate=0.01, decoder_layers=2)
LATENTS = ("categorical", "normal", "none")


def topics() -> Rows:
    """What tokens are about: eight directions."""
    return np.random.default_rng(7).normal(size=(8, SIZE)).astype(np.float32) * 3


def made_texts(count: int, seed: int = 0) -> Group:
    """Texts of 2 to 6 tokens, each token one of the topics and some noise."""
    random = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(random.integers(2, 7, count))])
    tokens = topics()[random.integers(0, 8, starts[-1])] + random.normal(size=(starts[-1], SIZE)) * 0.3
    return tokens.astype(np.float32), starts.astype(np.int64)


def stream_of(*groups: Group) -> Callable[[], Iterator[Group]]:
    return lambda: iter(groups)


def train(config: LatteMixConfig = SMALL, count: int = 400, **options: Any) -> LatteMix:
    return train_latte_mix(stream_of(made_texts(count)), count, config, **options)


@cache
def trained(latent: str = "categorical", epochs: int = 2) -> LatteMix:
    """One of each kind, for tests that only look at it."""
    return train(dataclasses.replace(SMALL, latent=latent, epochs=epochs))  # type: ignore[arg-type]


def held_out() -> Rows:
    return made_texts(100, seed=1)[0]


# The posterior


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_posterior_is_the_softmax_of_the_logits_without_noise_or_temperature(layers: int) -> None:
    latte = train(dataclasses.replace(SMALL, encoder_layers=layers, hidden=7, epochs=0, temperature=0.1))
    tokens = held_out()[:5]
    expected = [oracle.categorical_posterior(latte.parameters, token, latte.scale, 4) for token in tokens]
    np.testing.assert_allclose(latte.posterior(tokens), expected, atol=1e-5)


@pytest.mark.parametrize("latent", ["normal", "none"])
def test_the_posterior_of_a_control_is_its_mean_or_its_code(latent: str) -> None:
    latte, tokens = trained(latent), held_out()[:5]
    encoded = np.array([oracle.layers(latte.parameters, "encoder", token / latte.scale) for token in tokens])
    assert latte.posterior(tokens).shape == (5, 4)
    np.testing.assert_allclose(latte.posterior(tokens), encoded[:, :4], atol=1e-5)
    if latent == "normal":
        mean, deviation = latte.normal(tokens)
        np.testing.assert_allclose(mean, encoded[:, :4], atol=1e-5)
        np.testing.assert_allclose(deviation, np.exp(encoded[:, 4:] / 2), rtol=1e-5)


def test_each_dimension_of_a_posterior_sums_to_1() -> None:
    rows = trained().posterior(held_out())
    assert rows.dtype == np.float32
    assert rows.min() >= 0
    np.testing.assert_allclose(rows.reshape(-1, 4, 5).sum(axis=2), 1, atol=1e-6)


@pytest.mark.parametrize("latent", LATENTS)
@pytest.mark.parametrize("block", [1, 7, 300])
def test_a_row_does_not_depend_on_the_rows_beside_it(latent: str, block: int) -> None:
    latte, tokens = trained(latent), made_texts(160, seed=2)[0]
    parts = [latte.posterior(tokens[start : start + block]) for start in range(0, len(tokens), block)]
    assert len(tokens) > 600
    np.testing.assert_allclose(np.concatenate(parts), latte.posterior(tokens), atol=1e-6)


def test_no_tokens_have_no_posteriors() -> None:
    assert trained().posterior(np.zeros((0, SIZE), np.float32)).shape == (0, 20)


def test_a_token_that_is_not_finite_shows_in_its_row_alone() -> None:
    tokens = held_out()[:4].copy()
    tokens[2, 0] = np.inf
    assert np.isfinite(trained().posterior(tokens)).all(axis=1).tolist() == [True, True, False, True]


def test_vectors_of_another_encoder_are_refused() -> None:
    with pytest.raises(ModelError, match=r"\(3, 5\).*vectors of 12 numbers"):
        trained().posterior(np.zeros((3, 5), np.float32))


def test_only_a_normal_latent_has_a_standard_deviation() -> None:
    with pytest.raises(ConfigError, match='latent is "categorical"'):
        trained().normal(held_out())


@pytest.mark.parametrize("latent", LATENTS)
@pytest.mark.parametrize("layers", [1, 3])
def test_the_torch_module_gives_the_posteriors_of_numpy(latent: str, layers: int) -> None:
    config = dataclasses.replace(SMALL, latent=latent, encoder_layers=layers, epochs=0)  # type: ignore[arg-type]
    latte, tokens = train(config), held_out()[:60]
    module = LatteMixHead(latte)
    states = module(torch.from_numpy(tokens).reshape(3, 20, SIZE))
    assert states.shape == (3, 20, module.width)
    np.testing.assert_allclose(states.reshape(60, -1).numpy(), latte.posterior(tokens), atol=1e-5)
    assert [parameter for parameter in module.parameters() if parameter.requires_grad] == []


# The losses


def test_kl_is_zero_at_the_uniform_and_at_the_standard_normal() -> None:
    random = torch.Generator()
    assert categorical_sample(torch.zeros(3, 20), SMALL, random)[1].abs().max() < 1e-6
    assert normal_sample(torch.zeros(3, 8), SMALL, random)[1].abs().max() == 0


def test_kl_is_that_of_the_definition() -> None:
    encoded = torch.randn(6, 20, generator=torch.Generator().manual_seed(0)) * 3
    _, kl = categorical_sample(encoded, SMALL, torch.Generator())
    expected = [[oracle.kl_from_uniform(dim.tolist()) for dim in np.split(row, 4)] for row in encoded.double().numpy()]
    np.testing.assert_allclose(kl, expected, atol=1e-5)
    _, kl = normal_sample(encoded[:, :8], SMALL, torch.Generator())
    rows = encoded.double().numpy()
    expected = [[oracle.kl_from_standard_normal(row[k], row[4 + k]) for k in range(4)] for row in rows]
    np.testing.assert_allclose(kl, expected, rtol=1e-4, atol=1e-5)


def test_a_relaxed_sample_is_the_softmax_of_noisy_logits() -> None:
    logits = torch.randn(6, 20, generator=torch.Generator().manual_seed(0))
    sample, _ = categorical_sample(logits, SMALL, torch.Generator().manual_seed(3))
    uniform = torch.empty(6, 4, 5).uniform_(generator=torch.Generator().manual_seed(3)).double().numpy()
    expected = [
        [oracle.relaxed_sample(logits[row, 5 * k : 5 * k + 5].tolist(), uniform[row, k], 0.3) for k in range(4)]
        for row in range(6)
    ]
    np.testing.assert_allclose(sample.reshape(6, 4, 5), expected, atol=1e-5)


def test_a_cold_sample_chooses_each_class_as_often_as_its_probability() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5]).repeat(20_000, 4)
    cold = dataclasses.replace(SMALL, temperature=0.01)
    sample, _ = categorical_sample(logits, cold, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(sample.reshape(-1, 5).mean(dim=0), logits[0, :5].softmax(0), atol=0.01)


def test_noise_without_a_number_leaves_its_class_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A uniform number can be 0, whose Gumbel noise is -inf."""

    def drawn(self: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return self.fill_(0.5).index_fill_(-1, torch.tensor([0]), 0)

    monkeypatch.setattr(torch.Tensor, "uniform_", drawn)
    logits = torch.zeros(2, 20, requires_grad=True)
    sample, _ = categorical_sample(logits, SMALL, torch.Generator())
    sample.square().sum().backward()  # type: ignore[no-untyped-call]
    assert sample.detach().reshape(2, 4, 5)[..., 0].max() == 0
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_reconstruction_is_the_squared_error_of_a_token() -> None:
    config = dataclasses.replace(SMALL, latent="none")
    weights, tokens = initial_weights(config, SIZE), held_out()[:20]
    arrays = {name: tensor.numpy() for name, tensor in weights.items()}
    errors = []
    for token in tokens:
        rebuilt = oracle.layers(arrays, "decoder", oracle.layers(arrays, "encoder", token))
        errors.append(sum((rebuilt - token) ** 2))
    reconstruction, kl, costed = losses(weights, torch.from_numpy(tokens), config, torch.Generator())
    assert float(reconstruction) == pytest.approx(np.mean(errors), rel=1e-5)
    assert float(kl) == float(costed) == 0


def test_the_threshold_is_of_each_tokens_kl_or_of_each_dimensions() -> None:
    weights = {name: tensor * 5 for name, tensor in initial_weights(SMALL, SIZE).items()}
    tokens = torch.from_numpy(held_out()[:50])
    encoded = torch.nn.functional.linear(tokens, weights["encoder.0.weight"], weights["encoder.0.bias"])
    kl = categorical_sample(encoded, SMALL, torch.Generator())[1].numpy()
    of_token, of_dimension = float(np.median(kl.sum(axis=1))), float(np.median(kl))

    def kls(threshold: float, per: Literal["token", "dimension"] = "token") -> list[float]:
        config = dataclasses.replace(SMALL, threshold=threshold, threshold_per=per)
        return [float(loss) for loss in losses(weights, tokens, config, torch.Generator())[1:]]

    mean = kl.sum(axis=1).mean()
    assert kls(0) == pytest.approx([mean, mean])
    assert kls(of_token) == pytest.approx([mean, np.maximum(kl.sum(axis=1), of_token).mean()])
    by_dimension = np.maximum(kl, of_dimension).sum(axis=1).mean()
    assert kls(of_dimension, "dimension") == pytest.approx([mean, by_dimension])
    assert by_dimension > kls(of_dimension)[1] > mean * 0.99


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


# Training


@pytest.mark.parametrize("latent", LATENTS)
def test_training_rebuilds_tokens_it_has_not_seen_better_than_no_training(latent: str) -> None:
    latte, untrained = trained(latent), trained(latent, epochs=0)
    first, last = latte.about["losses"][0][1], latte.about["losses"][-1][1]
    assert last < 0.6 * first
    assert evaluate(latte, held_out())[0] < 0.6 * evaluate(untrained, held_out())[0]


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


def test_every_use_of_the_seed_draws_other_numbers() -> None:
    uses = ("weights", "order", "noise", "held out")
    drawn = [float(torch.rand(1, generator=generator(seed, use))) for seed in (0, 1, 2**80) for use in uses]
    assert len(set(drawn)) == len(drawn)


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


def test_losses_are_logged_about_fifty_times_and_so_are_those_of_held_out_tokens() -> None:
    latte = train(dataclasses.replace(SMALL, batch=2), 400, held_out=held_out())
    log, held = latte.about["losses"], latte.about["held_out"]
    assert [entry[0] for entry in log] == [entry[0] for entry in held] == list(range(4, 201, 4))
    assert held[-1][1:] == pytest.approx(evaluate(latte, held_out()))
    assert held[-1][1] < 0.7 * held[0][1]
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
        (stream_of(made_texts(19)), ConfigError, "19 texts; expected the 20"),
        (stream_of(made_texts(30)), ConfigError, "30 texts; expected the 20"),
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
    monkeypatch.setattr("indexer.pooling.latte_mix.training.SCALE_TOKENS", 10)  # so that the scale does not meet it
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
    there = train(dataclasses.replace(SMALL, epochs=2), device=device, held_out=held_out())
    assert evaluate(there, held_out())[0] == pytest.approx(evaluate(trained(), held_out())[0], rel=0.2)


# The files


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    latte = trained("normal")
    save_latte_mix(latte, tmp_path / "new" / "folder")
    loaded = load_latte_mix(tmp_path / "new" / "folder")
    assert (loaded.config, loaded.size, loaded.scale, loaded.about) == (latte.config, SIZE, latte.scale, latte.about)
    np.testing.assert_array_equal(loaded.posterior(held_out()), latte.posterior(held_out()))
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == sorted(FILES)


def test_the_files_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    latte = trained()
    turned = dataclasses.replace(latte, parameters=dict(reversed(list(latte.parameters.items()))))
    for name, one in {"a": latte, "b": turned}.items():
        save_latte_mix(one, tmp_path / name)
        save_latte_mix(load_latte_mix(tmp_path / name), tmp_path / name)
    for file in FILES:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def changed_facts(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        facts = json.loads((folder / FILES[1]).read_text()) | changes
        (folder / FILES[1]).write_text(json.dumps({name: value for name, value in facts.items() if value is not None}))

    return change


def changed_weights(**changes: npt.NDArray[Any]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        parameters = {**trained().parameters, **{name.replace("_", "."): array for name, array in changes.items()}}
        save_file(parameters, folder / FILES[0])
        changed_facts(sha256=hashlib.sha256((folder / FILES[0]).read_bytes()).hexdigest())(folder)

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / FILES[0]).unlink(), r"safetensors: cannot be read \(No such file"),
        (lambda folder: (folder / FILES[1]).unlink(), r"json: cannot be read \(No such file"),
        (lambda folder: (folder / FILES[1]).write_bytes(b"\xff{"), "json: not the description of a Latte-Mix"),
        (lambda folder: (folder / FILES[1]).write_text("[]"), "not the description of a Latte-Mix"),
        (changed_facts(format=2), "a Latte-Mix in format 2; expected format 1"),
        (lambda folder: (folder / FILES[0]).write_bytes(b"junk"), "its sha256 is not the one"),
        (changed_facts(config=None), r"not the description of a Latte-Mix: .* `config`"),
        (changed_facts(config={"dimms": 4}), r"not the settings of a Latte-Mix: unknown setting .*dims"),
        (changed_facts(config={"dims": 0}), "encoder.latte_mix.dims is 0"),
        (changed_facts(scale="wide"), r"Expected `float`, got `str` - at `\$\.scale`"),
        (changed_facts(config={"decoder_layers": 10**9}), "has 1,000,000,000 layers"),
        (changed_facts(about=[]), r"Expected `object`, got `array` - at `\$\.about`"),
        (lambda folder: (folder / FILES[1]).write_text("[" * 100_000), "nested deeper"),
        (changed_facts(scale=0.0), r"the scale is 0\.0"),
        (changed_facts(size=13), r"decoder.0.bias has the shape \(12,\); expected \(13,\)"),
        (changed_weights(encoder_0_bias=np.zeros(3, np.float32)), r"encoder.0.bias has the shape \(3,\); expected"),
        (changed_weights(more=np.zeros(3, np.float32)), r"more has the shape \(3,\); expected None"),
        (changed_weights(encoder_0_bias=np.zeros(20)), "something else than finite float32"),
        (changed_weights(encoder_0_bias=np.full(20, np.nan, np.float32)), "something else than finite float32"),
    ],
)
def test_files_that_are_something_else_are_refused(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    save_latte_mix(trained(), tmp_path)
    damage(tmp_path)
    with pytest.raises(ModelError, match=message):
        load_latte_mix(tmp_path)


def test_bytes_that_are_not_safetensors_are_refused_though_their_hash_is_right(tmp_path: Path) -> None:
    save_latte_mix(trained(), tmp_path)
    (tmp_path / FILES[0]).write_bytes(b"junk" * 10)
    changed_facts(sha256=hashlib.sha256(b"junk" * 10).hexdigest())(tmp_path)
    with pytest.raises(ModelError, match="not a safetensors file"):
        load_latte_mix(tmp_path)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot be written"):
        save_latte_mix(trained(), tmp_path / "file")


# Divergences


@st.composite
def text_pairs(draw: st.DrawFn) -> tuple[Doubles, Doubles, int]:
    """Two texts of `dims` distributions each, with classes of no, next to no and much probability."""
    dims, classes = draw(st.integers(1, 4)), draw(st.integers(2, 6))
    weight = st.one_of(st.just(0.0), st.just(5e-324), st.floats(1e-300, 1e-10), st.floats(1e-3, 1.0), st.just(1.0))
    texts = []
    for _ in range(2):
        rows = np.array(draw(st.lists(weight, min_size=dims * classes, max_size=dims * classes))).reshape(dims, classes)
        rows[rows.max(axis=1) < 1e-3, draw(st.integers(0, classes - 1))] = 1.0
        texts.append((rows / rows.sum(axis=1, keepdims=True)).ravel())
    if draw(st.booleans()):
        texts[1] = 0.999999 * texts[0] + 0.000001 * texts[1]
    return texts[0], texts[1], dims


@given(text_pairs())
@settings(max_examples=300)
def test_a_divergence_lies_within_the_bounds_of_the_inner_product_of_roots(pair: tuple[Doubles, Doubles, int]) -> None:
    p, q, dims = pair
    inner = float(hellinger_roots(p[None], dims)[0] @ hellinger_roots(q[None], dims)[0])
    assert inner == pytest.approx(oracle.bhattacharyya(p, q, dims), abs=1e-12)
    nats = (1 - oracle.js_similarity(p, q, dims)) * math.log(2)
    assert math.log(2) * (1 - inner) - 1e-12 <= nats <= 1 - inner + 1e-12
    found = js_similarity(p[None], q[None], dims)[0]
    assert (
        js_similarity_lower_bound(np.array([inner]))[0] - 1e-12
        <= found
        <= js_similarity_upper_bound(np.array([inner]))[0] + 1e-12
    )


def test_the_bound_on_a_similarity_is_reached_where_texts_share_a_class_fully_or_not_at_all() -> None:
    p, q = np.array([[0.75, 0.25, 0.0]]), np.array([[0.75, 0.0, 0.25]])
    inner = hellinger_roots(p, 1) @ hellinger_roots(q, 1)[0]
    assert js_similarity(p, q, 1) == pytest.approx(js_similarity_upper_bound(inner))


@given(text_pairs())
def test_js_similarity_is_that_of_the_definition_and_alike_both_ways(pair: tuple[Doubles, Doubles, int]) -> None:
    p, q, dims = pair
    found = js_similarity(p[None], q[None], dims)[0]
    assert found == pytest.approx(oracle.js_similarity(p, q, dims), abs=1e-9)
    assert found == js_similarity(q[None], p[None], dims)[0]
    assert 0 <= found <= 1
    assert js_similarity(p[None], p[None], dims)[0] == 1


def test_texts_without_a_class_in_common_have_the_similarity_0() -> None:
    p, q = np.array([[1.0, 0, 0, 0, 0.5, 0.5]]), np.array([[0, 0.5, 0.5, 1, 0, 0]])
    assert js_similarity(p, q, 2) == pytest.approx([0])
    assert hellinger_roots(p, 2) @ hellinger_roots(q, 2)[0] == 0


def test_a_table_of_similarities_is_that_of_its_pairs() -> None:
    rows = trained().posterior(made_texts(50, seed=4)[0])
    left, right = rows[:3], rows[3:153]
    table = js_similarities(left, right, 4)
    assert table.shape == (3, 150)
    for number in range(3):
        np.testing.assert_allclose(table[number], js_similarity(np.repeat(left[number : number + 1], 150, 0), right, 4))
    assert js_similarities(left[:0], right, 4).shape == (0, 150)
    assert js_similarities(left, right[:0], 4).shape == (3, 0)
    assert js_similarity(left[:0], right[:0], 4).shape == (0,)


def test_roots_are_unit_vectors() -> None:
    roots = hellinger_roots(trained().posterior(held_out()), 4)
    np.testing.assert_allclose(np.linalg.norm(roots, axis=1), 1, atol=1e-6)


def test_l2_is_the_distance_of_rows() -> None:
    random = np.random.default_rng(0)
    left, right = random.normal(size=(2, 7, 20))
    expected = [
        -math.sqrt(sum((a - b) ** 2 for a, b in zip(*rows, strict=True))) for rows in zip(left, right, strict=True)
    ]
    np.testing.assert_allclose(negative_l2(left, right), expected)


@pytest.mark.parametrize("shapes", [((2, 20), (3, 20)), ((2, 20), (2, 15)), ((2, 18), (2, 18)), ((20,), (20,))])
def test_rows_that_cannot_be_compared_are_refused(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(ConfigError, match="cannot be compared in 4 dimensions"):
        js_similarity(np.zeros(shapes[0]), np.zeros(shapes[1]), 4)


@pytest.mark.parametrize("tokens", [(1, 1), (3, 2), (2, 5)])
def test_the_distance_of_normal_mixtures_is_that_of_the_integral(tokens: tuple[int, int]) -> None:
    random = np.random.default_rng(sum(tokens))
    left, right = ((random.normal(size=(count, 3)), random.uniform(0.2, 2, (count, 3))) for count in tokens)
    assert mixture_l2(left, right) == pytest.approx(oracle.mixture_l2(left, right), abs=1e-10)
    assert mixture_l2(left, right) == pytest.approx(oracle.mixture_l2_by_quadrature(left, right), abs=1e-5)
    assert mixture_l2(left, right) == pytest.approx(mixture_l2(right, left), abs=1e-12)


def test_a_mixture_is_at_no_distance_from_itself_in_another_order() -> None:
    mean, deviation = trained("normal").normal(held_out()[:6])
    assert mixture_l2((mean, deviation), (mean[::-1], deviation[::-1])) == pytest.approx(0, abs=1e-7)


def test_a_text_without_tokens_has_no_mixture() -> None:
    some, none = (np.zeros((2, 3)), np.ones((2, 3))), (np.zeros((0, 3)), np.ones((0, 3)))
    with pytest.raises(EvaluationError, match="at least one token"):
        mixture_l2(some, none)
