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
    KL threshold 0.3, Adam, 16 sentences a batch, one epoch. What the paper leaves open is marked.
    """

    latent: Literal["categorical", "normal", "none"] = "categorical"  # "none": a plain auto-encoder
    dims: int = 32
    classes: int = 100  # of each dimension; of a categorical latent only
    encoder_layers: int = 1  # 1 to 3
    decoder_layers: int = 3
    hidden: int = 0  # width of the layers between; 0: that of the token vectors (open)
    temperature: float = 0.3  # of the Gumbel-softmax
    beta: float = 1.0  # weight of the KL term at the end; it grows linearly from 0
    threshold: float = 0.3  # KL below it costs nothing
    threshold_per: Literal["token", "dimension"] = "token"  # (open)
    learning_rate: float = 1e-3  # its peak (open: the printed one does not learn)
    warmup: float = 0.1  # share of the steps in which the rate rises; it then falls to 0 (open)
    batch: int = 16  # texts
    epochs: int = 1  # 0: the untrained control
    seed: int = 0

    def __post_init__(self) -> None:
        for setting in ("temperature", "beta", "threshold", "learning_rate", "warmup"):
            object.__setattr__(self, setting, float(getattr(self, setting)))  # 1 and 1.0 are one setting, and one hash
        name = "papers.latte_mix"
        for setting in ("dims", "decoder_layers", "batch"):
            require_at_least(f"{name}.{setting}", getattr(self, setting), 1)
        require_at_least(f"{name}.classes", self.classes, 2)
        for setting in ("hidden", "epochs"):
            require_at_least(f"{name}.{setting}", getattr(self, setting), 0)
        require_seed(f"{name}.seed", self.seed)
        if not 1 <= self.encoder_layers <= DEEPEST:
            raise ConfigError(f"{name}.encoder_layers is {self.encoder_layers}; expected 1 to {DEEPEST}.")
        for setting in ("temperature", "learning_rate"):
            require_above_zero(f"{name}.{setting}", getattr(self, setting))
        for setting in ("beta", "threshold"):
            require_at_least(f"{name}.{setting}", getattr(self, setting), 0)
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"{name}.warmup is {self.warmup}; expected a share of the steps, from 0 to below 1.")

    @property
    def width(self) -> int:
        """Numbers in the embedding of a text."""
        return self.dims * self.classes if self.latent == "categorical" else self.dims
