"""No encoder: embeddings came with the corpus, and texts cannot be encoded.

An index of kind "vectors" takes the place of its encoder by one that says so, so that whatever needs a text encoded
fails with the way out. Its identity is the name that the recipe gives the model (`encoder.model`): embeddings under
the same name, and of the same length, are taken to be of the same model.
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
    """An `Encoder` that encodes nothing: every method raises ConfigError."""

    backend = "none"
    notes: tuple[str, ...] = ()

    def __init__(self, spec: EncoderSpec) -> None:
        self.spec = spec

    @property
    def dim(self) -> int:
        """Only the stored embeddings tell."""
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
        raise ConfigError(
            f"{cannot_encode(self.spec)} Give queries encoded by the same model: query --queries FILE.npy."
        )


def cannot_encode(spec: EncoderSpec) -> str:
    """Why there is no encoder, as a sentence."""
    made = f'by "{spec.model}"' if spec.model else "elsewhere"
    return f"These embeddings were made {made} and came with the corpus, so no text can be encoded here."
