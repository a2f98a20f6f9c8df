"""The auto-encoder in torch: initial weights, noise, losses, and the fitted encoder as a module.

Per token, in units of the scaled vector u:
    reconstruction = |u - decoder(z)|^2, z one relaxed sample of q(z|u)
    KL             = sum over dimensions of KL(q || prior); the prior is uniform, or standard normal
    loss           = reconstruction + weight * max(KL, threshold), a mean over the tokens
The paper does not specify the threshold's scope: by default each token's KL, optionally each dimension's KL.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from indexer.arrays import Float32Array
from indexer.papers.latte_mix.model import LatteMix, layer_shapes
from indexer.papers.latte_mix.settings import LatteMixConfig

_USES = ("weights", "order", "noise")  # of the seed; each has a separate stream


def generator(seed: int, use: str, device: str = "cpu") -> torch.Generator:
    """Return a generator for one use of the seed, independent of the other uses and of torch's global generator."""
    state = np.random.SeedSequence([seed, _USES.index(use)]).generate_state(1, np.uint64)
    return torch.Generator(device).manual_seed(int(state[0]))


def initial_weights(config: LatteMixConfig, size: int) -> dict[str, Tensor]:
    """Return parameters by the names of `layer_shapes`, uniform within +-1 / sqrt(inputs), as torch's layers are."""
    random, parameters = generator(config.seed, "weights"), {}
    shapes = layer_shapes(config, size)
    for name, shape in shapes.items():
        bound = 1 / math.sqrt(shapes[name.replace("bias", "weight")][1])
        parameters[name] = torch.empty(shape).uniform_(-bound, bound, generator=random)
    return parameters


def to_numpy(parameters: Mapping[str, Tensor]) -> dict[str, Float32Array]:
    """Return the parameters copied to numpy arrays."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in parameters.items()}


def losses(
    parameters: Mapping[str, Tensor], tokens: Tensor, config: LatteMixConfig, random: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Return reconstruction, KL, and KL with the threshold, as means over the scaled tokens (n, d)."""
    sample, kl = _LATENTS[config.latent](_layers(parameters, "encoder", tokens), config, random)
    rebuilt = _layers(parameters, "decoder", sample)
    reconstruction = (rebuilt - tokens).square().sum(dim=1).mean()
    token_kl = kl.sum(dim=1)
    if config.latent == "none":
        return reconstruction, token_kl.mean(), token_kl.mean()
    if config.threshold_per == "dimension":
        return reconstruction, token_kl.mean(), kl.clamp_min(config.threshold).sum(dim=1).mean()
    return reconstruction, token_kl.mean(), token_kl.clamp_min(config.threshold).mean()


def _layers(parameters: Mapping[str, Tensor], part: str, state: Tensor) -> Tensor:
    for layer in range(sum(name.startswith(part) for name in parameters) // 2):
        state = state.relu() if layer else state
        state = linear(state, parameters[f"{part}.{layer}.weight"], parameters[f"{part}.{layer}.bias"])
    return state


def categorical_sample(encoded: Tensor, config: LatteMixConfig, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a Gumbel-softmax sample (Jang et al.; Maddison et al., both ICLR 2017) of logits (n, dims * classes), and
    KL (n, dims)."""
    logits = encoded.view(-1, config.dims, config.classes)
    sample = (logits + _gumbel(logits, random)).mul_(1 / config.temperature).softmax(dim=-1)
    log_q = logits.log_softmax(dim=-1)
    kl = (log_q.exp() * log_q).sum(dim=-1) + math.log(config.classes)
    return sample.flatten(1), kl


def normal_sample(encoded: Tensor, config: LatteMixConfig, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a reparameterised sample (Kingma and Welling, 2014) of means and log-variances, and KL (n, dims)."""
    mean, log_variance = encoded[:, : config.dims], encoded[:, config.dims :]
    noise = torch.empty_like(mean).normal_(generator=random)
    kl = (mean.square() + log_variance.exp() - 1 - log_variance) / 2
    return mean + (log_variance / 2).exp() * noise, kl


def _code(encoded: Tensor, config: LatteMixConfig, random: torch.Generator) -> tuple[Tensor, Tensor]:
    return encoded, torch.zeros_like(encoded)


def _gumbel(like: Tensor, random: torch.Generator) -> Tensor:
    """Return -log(-log U). On a CPU torch draws U four times as fast as with `exponential_`. U = 0 gives -inf, which
    excludes the class from the sample; U = 1 does not occur."""
    return torch.empty_like(like).uniform_(generator=random).log_().neg_().log_().neg_()


_LATENTS = {"categorical": categorical_sample, "normal": normal_sample, "none": _code}


class LatteMixHead(torch.nn.Module):
    """Maps token states (..., d) to posteriors (..., width), float32, as `LatteMix.posterior` does.

    Used in a transformer's pooling. The weights are frozen buffers, in float32 even if the model is in half precision.
    """

    def __init__(self, latte: LatteMix) -> None:
        super().__init__()
        self.width = latte.width
        self._config, self._scale = latte.config, latte.scale
        for layer in range(latte.config.encoder_layers):
            last = layer == latte.config.encoder_layers - 1
            for kind in ("weight", "bias"):
                array = latte.parameters[f"encoder.{layer}.{kind}"]
                kept = array[: latte.width] if last else array  # without a normal latent's variances
                self.register_buffer(f"{kind}{layer}", torch.from_numpy(np.array(kept)))

    def forward(self, states: Tensor) -> Tensor:
        state = states.float() / self._scale
        for layer in range(self._config.encoder_layers):
            state = state.relu() if layer else state
            state = linear(state, self.get_buffer(f"weight{layer}"), self.get_buffer(f"bias{layer}"))
        if self._config.latent == "categorical":
            logits = state.reshape(*state.shape[:-1], self._config.dims, self._config.classes)
            state = logits.softmax(dim=-1).flatten(-2)
        return state
