"""Settings of a plan: the corpus, the recipe, the hardware and the prices."""

import math
import re
from dataclasses import dataclass, field

from indexer.errors import ConfigError
from indexer.recipe.config import BuildConfig
from indexer.recipe.index_config import PART_BYTES
from indexer.recipe.loading import did_you_mean, require_above_zero, require_at_least
from search.plan.ledger import constants

LEAST_MEMORY = 1 << 30  # bytes of a host that serves
CORES_A_GPU = 8  # default
MOST = 1 << 48  # documents and vectors of a manifest
_MOST_MEAN = 10**9  # tokens and bytes of a document
_MOST_MACHINES = 10**9
_DEFAULT_GPU = "h100"
_SCALES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
PRICE_OF_TOKENS = "--price-per-million-tokens"


@dataclass(frozen=True)
class Hardware:
    """`gpus` encode, or `cores` if there are none; all other steps run on `cores`."""

    gpus: int = 0
    gpu: str = ""  # kind of the GPUs; "": h100
    cores: int = 0  # 0: 8 a GPU, or 8
    amx: bool = False  # the cores multiply bfloat16 with AMX
    memory: int = 0  # bytes of a host that serves; 0: one host without a limit

    def __post_init__(self) -> None:
        for name, count in (("--gpus", self.gpus), ("--cores", self.cores)):
            require_at_least(name, count, 0)
            _require_at_most(name, count, _MOST_MACHINES)
        if self.gpu and not self.gpus:
            raise ConfigError(f'--gpu is "{self.gpu}", but no GPU encodes. Fix: pass --gpus too, or leave out --gpu.')
        if self.amx and self.gpus:
            raise ConfigError(
                f"--amx is for encoding on cores, but {self.gpus:,} GPUs encode. Fix: leave out --amx or --gpus."
            )
        if self.memory and self.memory < LEAST_MEMORY:
            raise ConfigError(f"--memory is {self.memory:,} bytes; expected at least 1G, or 0 for no limit.")
        if self.gpus:
            gpu, known = (self.gpu or _DEFAULT_GPU).lower(), known_gpus()
            if gpu not in known:
                raise ConfigError(f"--gpu: {did_you_mean('GPU', self.gpu, known)}")
            object.__setattr__(self, "gpu", gpu)
        object.__setattr__(self, "cores", self.cores or CORES_A_GPU * max(1, self.gpus))


@dataclass(frozen=True)
class Prices:
    """Prices of a GPU hour, a core hour, of 10^9 bytes of storage and memory a month, and of 10^6 tokens that a server
    embeds; 0: not given."""

    gpu: float = 0.0
    core: float = 0.0
    storage: float = 0.0
    ram: float = 0.0
    tokens: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not math.isfinite(value) or value < 0:
                option = PRICE_OF_TOKENS if name == "tokens" else f"--{name}-price"
                raise ConfigError(f"{option} is {value}; expected an amount of money, 0 or more.")


@dataclass(frozen=True)
class PlanSettings:
    """A corpus, a recipe, hardware and prices."""

    documents: int
    tokens: float = 128.0  # mean of a document, before the encoder truncates it
    text_bytes: float = 0.0  # mean of a document's text in UTF-8; 0: from the tokens, as measured
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
                f"{MOST:,}. Fix: plan for fewer documents, or for larger windows (--chunk)."
            )
        if self.prices.gpu and not self.hardware.gpus:
            raise ConfigError(
                f"--gpu-price is {self.prices.gpu:g}, but no GPU encodes. Fix: pass --gpus too, or leave out "
                "--gpu-price."
            )
        if self.prices.tokens and not self.config.encoder.traits.is_remote:
            raise ConfigError(
                f'{PRICE_OF_TOKENS} is {self.prices.tokens:g}, but encoder.kind is "{self.config.encoder.kind}"; '
                'expected encoder.kind = "server".'
            )

    @property
    def parts(self) -> int:
        """Parts of the index."""
        text = -(-round(self.documents * self.text_bytes) // PART_BYTES)
        return max(text, -(-self.documents // self.config.store.part_documents))

    def dim(self, size: int) -> int:
        """Return the dimensions of a vector, given the `size` of an embedding."""
        return min(self.config.whitening.dim or size, max(1, self.rows - 1))

    @property
    def windows(self) -> int:
        """Windows of a document of mean length."""
        size, overlap = self.config.chunk.tokens, self.config.chunk.overlap
        return 1 if not size else max(1, math.ceil((self.tokens - overlap) / (size - overlap)))

    @property
    def rows(self) -> int:
        """Vectors of all documents."""
        return self.documents * self.windows

    @property
    def whole_tokens(self) -> float:
        """Tokens of a window, or of a document without windows."""
        chunk = self.config.chunk
        return self.tokens if not chunk.tokens else self.tokens / self.windows + chunk.overlap * (1 - 1 / self.windows)

    def row_tokens(self, limit: int) -> float:
        """Return the encoded tokens of a row: `whole_tokens` up to encoder.max_length or the model's `limit`."""
        return min(self.whole_tokens, self.config.encoder.max_length or limit or math.inf)


def known_gpus() -> list[str]:
    """Return the GPUs whose peak is known."""
    return [name.removesuffix(".peak") for name in constants() if name.endswith(".peak")]


def _require_at_most(name: str, value: float, most: int) -> None:
    if value > most:
        raise ConfigError(f"{name} is {value:,}; expected at most {most:,}.")


def parse_count(written: str) -> int:
    """Parse a number such as 20M, 1e9, 2.5B or 63,905. Raises ConfigError, also for more than a manifest can count."""
    plain = written.strip().replace(",", "").replace("_", "")
    match = re.fullmatch(r"(\d+(?:\.\d*)?(?:[eE]\+?\d{1,2})?)([kKmMbBgGtT]?)", plain)
    if not match:
        raise ConfigError(f'--documents is "{written}"; expected a number such as 63905, 20M or 1e9.')
    count = float(match[1]) * _SCALES[match[2].upper()]
    if count > MOST:
        raise ConfigError(f'--documents is "{written}"; expected at most {MOST:,}, the limit of a manifest.')
    return round(count)
