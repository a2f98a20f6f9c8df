"""Settings of the methods that are trained: Latte-Mix (`[encoder.latte_mix]`) and BERT-flow (`[whitening.flow]`)."""

from dataclasses import dataclass
from typing import Literal

from indexer.errors import ConfigError

_DEEPEST = 3
_SEED_BITS = 32


@dataclass(frozen=True)
class LatteMixConfig:
    """A variational auto-encoder of token vectors; see `indexer.lattemix`.

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
        name = "encoder.latte_mix"
        for setting in ("dims", "decoder_layers", "batch"):
            _at_least(f"{name}.{setting}", getattr(self, setting), 1)
        _at_least(f"{name}.classes", self.classes, 2)
        for setting in ("hidden", "epochs"):
            _at_least(f"{name}.{setting}", getattr(self, setting), 0)
        _seed(f"{name}.seed", self.seed)
        if not 1 <= self.encoder_layers <= _DEEPEST:
            raise ConfigError(f"{name}.encoder_layers is {self.encoder_layers}; expected 1 to {_DEEPEST}.")
        for setting in ("temperature", "learning_rate"):
            _above_zero(f"{name}.{setting}", getattr(self, setting))
        for setting in ("beta", "threshold"):
            _at_least(f"{name}.{setting}", getattr(self, setting), 0)
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"{name}.warmup is {self.warmup}; expected a share of the steps, from 0 to below 1.")

    @property
    def width(self) -> int:
        """Numbers in the embedding of a text."""
        return self.dims * self.classes if self.latent == "categorical" else self.dims


@dataclass(frozen=True)
class FlowConfig:
    """A Glow of sentence embeddings; see `indexer.transforms.flow`.

    Published: depth, levels, width and learning rate are those of BERT-flow's own code (config_l3_d3_w32).
    """

    levels: int = 3
    depth: int = 3  # steps in a level
    width: int = 32  # of the coupling network
    learning_rate: float = 1e-3
    batch: int = 32
    epochs: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "learning_rate", float(self.learning_rate))
        for setting in ("levels", "depth", "width", "batch", "epochs"):
            _at_least(f"whitening.flow.{setting}", getattr(self, setting), 1)
        _seed("whitening.flow.seed", self.seed)
        _above_zero("whitening.flow.learning_rate", self.learning_rate)


def _at_least(name: str, value: float, least: int) -> None:
    if not value >= least:
        raise ConfigError(f"{name} is {value}; expected at least {least}.")


def _seed(name: str, value: int) -> None:
    if not 0 <= value < 1 << _SEED_BITS:
        raise ConfigError(f"{name} is {value}; expected 0 to {(1 << _SEED_BITS) - 1}.")


def _above_zero(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ConfigError(f"{name} is {value}; expected a number above 0.")
