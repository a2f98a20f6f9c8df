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

    latent: Literal["categorical", "normal", "none"] = "categorical"  # "none": a plain auto-encoder
    dims: int = 32
    classes: int = 100  # of each dimension; for a categorical latent only
    encoder_layers: int = 1  # 1 to 3
    decoder_layers: int = 3
    hidden: int = 0  # width of hidden layers; 0: the size of the token vectors (open)
    temperature: float = 0.3  # of the Gumbel-softmax
    beta: float = 1.0  # final weight of the KL term, which grows linearly from 0
    threshold: float = 0.3  # no cost for a KL below it
    threshold_per: Literal["token", "dimension"] = "token"  # (open)
    learning_rate: float = 1e-3  # peak value (open: training fails with the published value)
    warmup: float = 0.1  # share of steps with a rising rate, which then falls to 0 (open)
    batch: int = 16  # texts
    epochs: int = 1  # 0: the untrained control
    seed: int = 0

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
