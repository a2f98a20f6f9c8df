"""What a plan is asked for: how many documents of which length, by which recipe, on what, at which prices."""

import math
import re
from dataclasses import dataclass, field

from indexer.errors import ConfigError
from indexer.recipe.config import PART_BYTES, BuildConfig, EncoderConfig
from indexer.recipe.loading import require_above_zero, require_at_least
from search.plan.ledger import require_gpu

LEAST_MEMORY = 1 << 30  # bytes of a host that serves
CORES_A_GPU = 8  # that feed it, where no number is given
MOST = 1 << 48  # documents and vectors: what a manifest counts to
_MOST_MEAN = 10**9  # tokens and bytes of a document
_MOST_MACHINES = 10**9
_DEFAULT_GPU = "h100"
_SCALES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}


@dataclass(frozen=True)
class Hardware:
    """`gpus` of one kind encode, or `cores` where there is none; all other steps run on `cores`.

    `gpu` is their kind, h100 where none is named. `amx`: the cores multiply in bfloat16 by instructions of their own.
    `memory` are the bytes that a host has to serve with; 0: one host, however large.
    """

    gpus: int = 0
    gpu: str = ""
    cores: int = 0  # 0: 8 a GPU, or 8
    amx: bool = False
    memory: int = 0

    def __post_init__(self) -> None:
        for name, count in (("--gpus", self.gpus), ("--cores", self.cores)):
            require_at_least(name, count, 0)
            _require_at_most(name, count, _MOST_MACHINES)
        if self.gpu and not self.gpus:
            raise ConfigError(f'--gpu is "{self.gpu}", but no GPU encodes. Pass --gpus too, or leave out --gpu.')
        if self.amx and self.gpus:
            raise ConfigError(f"--amx is how cores encode, but {self.gpus:,} GPUs do. Leave out --amx or --gpus.")
        if self.memory and self.memory < LEAST_MEMORY:
            raise ConfigError(f"--memory is {self.memory:,} bytes; expected at least 1G, or 0 for no limit.")
        if self.gpus:
            object.__setattr__(self, "gpu", require_gpu(self.gpu or _DEFAULT_GPU))
        object.__setattr__(self, "cores", self.cores or CORES_A_GPU * max(1, self.gpus))


@dataclass(frozen=True)
class Prices:
    """Of a GPU and of a core by the hour, of storage and of memory by 10^9 bytes and month; 0: not given."""

    gpu: float = 0.0
    core: float = 0.0
    storage: float = 0.0
    ram: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"--{name}-price is {value}; expected an amount of money, 0 or more.")


@dataclass(frozen=True)
class PlanSettings:
    """A corpus and a recipe. `tokens` is the mean of a document, as the encoder counts them and before it cuts.

    `text_bytes` is the mean of a document's text in UTF-8; 0: as many a token as in what was measured.
    """

    documents: int
    tokens: float = 128.0
    text_bytes: float = 0.0
    config: BuildConfig = field(default_factory=BuildConfig)
    hardware: Hardware = field(default_factory=Hardware)
    prices: Prices = field(default_factory=Prices)

    def __post_init__(self) -> None:
        require_at_least("--documents", self.documents, 1)
        _require_at_most("--documents", self.documents, MOST)
        for name in ("tokens", "text_bytes"):
            if not math.isfinite(getattr(self, name)):
                raise ConfigError(f"--{name.replace('_', '-')} is {getattr(self, name)}; expected a number.")
            _require_at_most(f"--{name.replace('_', '-')}", getattr(self, name), _MOST_MEAN)
        require_above_zero("--tokens", self.tokens)
        require_at_least("--text-bytes", self.text_bytes, 0)
        if self.rows > MOST:
            raise ConfigError(
                f"{self.documents:,} documents of {self.windows:,} windows are {self.rows:,} vectors; expected at most "
                f"{MOST:,}. Plan for fewer documents, or for larger windows (--chunk)."
            )
        if self.prices.gpu and not self.hardware.gpus:
            raise ConfigError(
                f"--gpu-price is {self.prices.gpu:g}, but no GPU encodes. Pass --gpus too, or leave out --gpu-price."
            )

    @property
    def parts(self) -> int:
        """Parts of the index."""
        text = -(-round(self.documents * self.text_bytes) // PART_BYTES)
        return max(text, -(-self.documents // self.config.store.part_documents))

    def dim(self, hidden: int) -> int:
        """Dimensions of a vector, of an embedding of `hidden` numbers."""
        return min(self.config.whitening.dim or hidden, max(1, self.rows - 1))

    @property
    def windows(self) -> int:
        """Rows of a document of mean length."""
        size, overlap = self.config.chunk.tokens, self.config.chunk.overlap
        return 1 if not size else max(1, math.ceil((self.tokens - overlap) / (size - overlap)))

    @property
    def rows(self) -> int:
        """Vectors in all."""
        return self.documents * self.windows

    @property
    def whole_tokens(self) -> float:
        """Tokens of a window, or of a document where there are none."""
        chunk = self.config.chunk
        return self.tokens if not chunk.tokens else self.tokens / self.windows + chunk.overlap * (1 - 1 / self.windows)

    @property
    def row_tokens(self) -> float:
        """Tokens that are encoded for a row: `whole_tokens` up to encoder.max_length, whose default cuts no static
        table's."""
        encoder = self.config.encoder
        unlimited = encoder.kind == "static" and encoder.max_length == EncoderConfig.max_length
        return self.whole_tokens if unlimited else min(self.whole_tokens, encoder.max_length or math.inf)


def _require_at_most(name: str, value: float, most: int) -> None:
    if value > most:
        raise ConfigError(f"{name} is {value:,}; expected at most {most:,}.")


def parse_count(written: str) -> int:
    """A number such as 20M, 1e9, 2.5B or 63,905. Raises ConfigError, also for more than can be planned."""
    plain = written.strip().replace(",", "").replace("_", "")
    found = re.fullmatch(r"(\d+(?:\.\d*)?(?:[eE]\+?\d{1,2})?)([kKmMbBgGtT]?)", plain)
    if not found:
        raise ConfigError(f'--documents is "{written}"; expected a number such as 63905, 20M or 1e9.')
    count = float(found[1]) * _SCALES[found[2].upper()]
    if count > MOST:
        raise ConfigError(
            f'--documents is "{written}"; expected at most {MOST:,}, which is as far as a manifest counts.'
        )
    return round(count)
