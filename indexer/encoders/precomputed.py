"""The encoder of an index whose embeddings came with the corpus: it cannot encode texts.

An index of kind "vectors" has this encoder, so that every attempt to encode a text fails with a fix. Its identity is
the model's name in the recipe (`encoder.model`): embeddings with the same name and length count as from one model.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from indexer.encoders.protocol import EncodeStats
from indexer.errors import ConfigError
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.identity import PoolingKey
from indexer.recipe.config import Role

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from indexer.models.encoder_spec import Tokens


class PrecomputedEncoder:
    """An `Encoder` whose methods all raise ConfigError."""

    backend = "none"
    notes: tuple[str, ...] = ()

    def __init__(self, spec: EncoderSpec) -> None:
        self.spec = spec

    @property
    def dim(self) -> int:
        self._refuse()

    def encode(self, texts: Sequence[str], role: Role, log: EncodeStats | None = None) -> "npt.NDArray[np.float32]":
        self._refuse()

    def tokenize(self, texts: Sequence[str], role: Role) -> "Tokens":
        self._refuse()

    def embed(self, tokens: "Tokens", log: EncodeStats | None = None) -> "npt.NDArray[np.float32]":
        self._refuse()

    def states(
        self,
        texts: Sequence[str],
        keys: Sequence[PoolingKey],
        role: Role = "document",
        log: EncodeStats | None = None,
    ) -> "dict[PoolingKey, npt.NDArray[np.float32]]":
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigError(f"{cannot_encode(self.spec)} Fix: pass encoded queries: query --queries FILE.npy.")


def cannot_encode(spec: EncoderSpec) -> str:
    """Return the reason why there is no encoder, as a sentence."""
    source = f'by "{spec.model}"' if spec.model else "elsewhere"
    return f"These embeddings were computed {source} and came with the corpus, so no text can be encoded here."
