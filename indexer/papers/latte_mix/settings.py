"""The section [papers.latte_mix] of a recipe."""

from dataclasses import dataclass
from typing import Literal

from indexer.errors import ConfigError
from indexer.recipe.loading import require_above_zero, require_at_least, require_seed

DEEPEST = 3  # layers of an encoder


@dataclass(frozen=True)
class LatteMixConfig:
    """A variational auto-encoder of token vectors; see the package.

    Published: 32 x 100 categories, temperature 0.3, an encoder of one layer, a decoder of three, beta annealed from 0,
    KL threshold 0.3, Adam, 16 sentences a batch, one epoch. "(open)" marks settings that the paper does not specify.
    """

    latent: Literal["categorical", "normal", "none"] = "categorical"
    """Distribution of the latent variables. "none": a plain auto-encoder."""
    dims: int = 32
    """Latent dimensions."""
    classes: int = 100
    """Classes of each dimension, 2 or more; for a categorical latent only."""
    encoder_layers: int = 1
    """Layers of the encoder, 1 to 3."""
    decoder_layers: int = 3
    """Layers of the decoder, 1 or more."""
    hidden: int = 0
    """Width of hidden layers. 0: the size of the token vectors (open)."""
    temperature: float = 0.3
    """Temperature of the Gumbel-softmax, above 0."""
    beta: float = 1.0
    """Final weight of the KL term, which grows linearly from 0."""
    threshold: float = 0.3
    """KL divergence below which there is no cost."""
    threshold_per: Literal["token", "dimension"] = "token"
    """The unit that the threshold applies to (open)."""
    learning_rate: float = 1e-3
    """Peak of the learning rate, above 0 (open: training fails with the published value)."""
    warmup: float = 0.1
    """Share of the steps in which the learning rate rises, before it falls to 0; from 0 to below 1 (open)."""
    batch: int = 16
    """Texts in a batch."""
    epochs: int = 1
    """Passes over the corpus. 0: the untrained control."""
    seed: int = 0
    """Seed of the random numbers."""

    def __post_init__(self) -> None:
        for setting in ("temperature", "beta", "threshold", "learning_rate", "warmup"):
            object.__setattr__(self, setting, float(getattr(self, setting)))  # 1 and 1.0 are one setting, and one hash
        name = "papers.latte_mix"
        least = dict.fromkeys(("dims", "decoder_layers", "batch"), 1) | {"classes": 2}
        least |= dict.fromkeys(("hidden", "epochs", "beta", "threshold"), 0)
        for setting, minimum in least.items():
            require_at_least(f"{name}.{setting}", getattr(self, setting), minimum)
        require_seed(f"{name}.seed", self.seed)
        if not 1 <= self.encoder_layers <= DEEPEST:
            raise ConfigError(f"{name}.encoder_layers is {self.encoder_layers}; expected 1 to {DEEPEST}.")
        for setting in ("temperature", "learning_rate"):
            require_above_zero(f"{name}.{setting}", getattr(self, setting))
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"{name}.warmup is {self.warmup}; expected a share of the steps, from 0 to below 1.")

    @property
    def width(self) -> int:
        """Size of the embedding of a text."""
        return self.dims * self.classes if self.latent == "categorical" else self.dims
