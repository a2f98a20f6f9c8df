"""The auto-encoder: noise and losses against an oracle, and the encoder as a module of torch."""

import dataclasses
from typing import Literal

import numpy as np
import pytest
import torch

from indexer.papers.latte_mix.network import (
    LatteMixHead,
    categorical_sample,
    generator,
    initial_weights,
    losses,
    normal_sample,
)
from tests.indexer.papers import oracles_lattemix as oracle
from tests.indexer.papers.latte_mix.small_mixtures import LATENTS, SIZE, SMALL, held_out, train


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


def test_every_use_of_the_seed_draws_other_numbers() -> None:
    uses = ("weights", "order", "noise")
    drawn = [float(torch.rand(1, generator=generator(seed, use))) for seed in (0, 1, 2**80) for use in uses]
    assert len(set(drawn)) == len(drawn)
