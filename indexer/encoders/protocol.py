"""What every encoder offers, whatever runs it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from indexer.models.encoder_spec import EncoderSpec, Tokens
from indexer.models.identity import PoolingKey
from indexer.recipe.config import Role

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass
class EncodeStats:
    """What one or several `encode` calls saw. Filled by the encoder, read by whoever reports."""

    lengths: list[int] = field(default_factory=list)  # tokens a text, special tokens included, before truncation
    truncated: int = 0  # texts cut at max_length
    retries: int = 0  # batches halved after running out of memory
    on_batch: Callable[[int, int], None] | None = None  # called with (texts, tokens) after each batch

    def add(self, other: "EncodeStats") -> None:
        """Take in what other calls saw."""
        self.lengths += other.lengths
        self.truncated += other.truncated
        self.retries += other.retries


class Encoder(Protocol):
    """Text to embedding. Implementations keep nothing between calls but what they loaded, so threads may share one."""

    @property
    def spec(self) -> EncoderSpec: ...

    @property
    def dim(self) -> int:
        """Embedding size d."""
        ...

    @property
    def backend(self) -> str:
        """What runs it, and in what numbers, such as "torch, bfloat16 on cuda:0"."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What was passed over or repaired in its files as they were read, in words."""
        ...

    def encode(self, texts: Sequence[str], role: Role, log: EncodeStats | None = None) -> "npt.NDArray[np.float32]":
        """Pooled embeddings, float32 (n, d), row i for texts[i]. The role selects the prefix.

        `log`, when given, is extended: lengths in the order of `texts`.
        """
        ...

    def tokenize(self, texts: Sequence[str], role: Role) -> Tokens:
        """The first half of `encode`, which may run in another thread while the encoder works on other tokens."""
        ...

    def embed(self, tokens: Tokens, log: EncodeStats | None = None) -> "npt.NDArray[np.float32]":
        """The second half: the same bits as `encode` gives for the texts."""
        ...

    def states(
        self,
        texts: Sequence[str],
        keys: Sequence[PoolingKey],
        role: Role = "document",
        log: EncodeStats | None = None,
    ) -> "dict[PoolingKey, npt.NDArray[np.float32]]":
        """Several embeddings of each text from one forward pass for each size d: (layers, pooling) -> float32 (n, d).

        Each of `keys` names layers that are averaged, such as (1, -1), or weighed (pooling "sbert-wk"), and comes back
        as given. They must be among the layers the encoder was loaded with (`EncoderConfig.layers`). A backend that
        cannot give them raises ConfigError.
        """
        ...
