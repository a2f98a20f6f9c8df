"""The protocol of every encoder, independent of its backend."""

import copy
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
    """Statistics of one or several `encode` calls, filled by the encoder."""

    lengths: list[int] = field(default_factory=list)  # tokens a text, special tokens included, before truncation
    truncated: int = 0  # texts cut at max_length
    retries: int = 0  # batches halved after running out of memory
    on_batch: Callable[[int, int], None] | None = None  # called with (texts, tokens) after each batch

    def add(self, other: "EncodeStats") -> None:
        """Add the statistics of other calls."""
        self.lengths += other.lengths
        self.truncated += other.truncated
        self.retries += other.retries


class Encoder(Protocol):
    """Text to embedding. Implementations keep no state between calls, so threads may share an encoder."""

    spec: EncoderSpec

    @property
    def dim(self) -> int:
        """Embedding size d."""

    @property
    def backend(self) -> str:
        """The library, the number type and the device, such as "torch, bfloat16 on cuda:0"."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about skipped or repaired contents of its files."""

    def encode(self, texts: Sequence[str], role: Role, log: EncodeStats | None = None) -> "npt.NDArray[np.float32]":
        """Return pooled embeddings, float32 (n, d), row i for texts[i]. The role selects the prefix.

        `log` is extended: lengths in the order of `texts`.
        """

    def tokenize(self, texts: Sequence[str], role: Role) -> Tokens:
        """Return the tokens of texts, the first half of `encode`. Another thread may run `embed` at the same time."""

    def embed(self, tokens: Tokens, log: EncodeStats | None = None) -> "npt.NDArray[np.float32]":
        """Return the embeddings of tokens, bit-identical to those of `encode` for the texts."""

    def states(
        self, texts: Sequence[str], keys: Sequence[PoolingKey], role: Role = "document", log: EncodeStats | None = None
    ) -> "dict[PoolingKey, npt.NDArray[np.float32]]":
        """Return several embeddings of each text, (layers, pooling) -> float32 (n, d), by one forward pass for each d.

        Each of `keys` names layers to average, such as (1, -1), or to weigh (pooling "sbert-wk"), among those that the
        encoder was loaded for (`EncoderConfig.layers`). Raises ConfigError for others, MachineError as `encode`.
        """


def with_query_prompt(encoder: Encoder, prompt: str | None) -> Encoder:
    """Return the encoder with another prompt of queries (`EncoderSpec.with_query_prompt`); itself for None."""
    if prompt is None:
        return encoder
    other = copy.copy(encoder)  # the model is shared: an encoder keeps no state
    other.spec = encoder.spec.with_query_prompt(prompt)
    return other
