"""Small mixtures, trained on random tokens."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from indexer.papers.latte_mix.model import LatteMix
from indexer.papers.latte_mix.network import losses
from indexer.papers.latte_mix.settings import LatteMixConfig
from indexer.papers.latte_mix.training import Group, train_latte_mix

Rows = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
SIZE = 12
SMALL = LatteMixConfig(dims=4, classes=5, batch=8, learning_rate=0.01, decoder_layers=2)
LATENTS = ("categorical", "normal", "none")


def topics() -> Rows:
    """Return the topics of tokens: eight directions."""
    return np.random.default_rng(7).normal(size=(8, SIZE)).astype(np.float32) * 3


def made_texts(count: int, seed: int = 0) -> Group:
    """Return texts of 2 to 6 tokens; each token is a topic plus noise."""
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
    """Mixtures of each kind, for tests that only read them."""
    return train(dataclasses.replace(SMALL, latent=latent, epochs=epochs))  # type: ignore[arg-type]


def held_out() -> Rows:
    return made_texts(100, seed=1)[0]


def reconstruction(latte: LatteMix) -> float:
    """Return the error of held-out tokens, one sample per token, in the units of training."""
    parameters = {name: torch.from_numpy(np.array(array)) for name, array in latte.parameters.items()}
    scaled = torch.from_numpy(held_out() / np.float32(latte.scale))
    return float(losses(parameters, scaled, latte.config, torch.Generator().manual_seed(0))[0])
