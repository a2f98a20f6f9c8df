"""A resolved encoder with its files, and the token ids of texts."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from indexer.errors import ConfigError
from indexer.models.identity import EncoderIdentity
from indexer.models.model_files import ModelFiles, find_model_files
from indexer.recipe.config import KindTraits

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class EncoderSpec:
    """A resolved encoder: its identity and the location of its files.

    `identity` determines the embedding of a text, up to rounding; `fingerprint` is its hash. `model` (the name in the
    recipe), `folder` (the location of the files) and `state` are informative: the same files elsewhere are the same
    encoder. `local` is true for a folder named by the user, false for a hub id. `found` are the model's files if they
    are already listed.
    """

    model: str
    folder: str
    identity: EncoderIdentity
    fingerprint: str
    local: bool = False
    state: str | None = None  # folder of the fitted state
    fitted: str = ""  # folder with a fitted state that is not yet part of the identity
    found: ModelFiles | None = field(default=None, compare=False, repr=False)

    @property
    def traits(self) -> KindTraits:
        """The traits of this kind of encoder."""
        return self.identity.traits

    @cached_property
    def files(self) -> ModelFiles:
        """The files of a model with layers. Raises ModelError as `find_model_files`."""
        return self.found or find_model_files(Path(self.folder))

    @cached_property
    def base_fingerprint(self) -> str:
        """The fingerprint without the fitted state."""
        return replace(self.identity, state=None).fingerprint

    def fitted_folder(self, pooling: str) -> Path:
        """Return the folder of the state fitted for a pooling. Raises ConfigError if there is none."""
        if self.state is None or self.identity.pooling != pooling:
            raise ConfigError(
                f'pooling "{pooling}" must be fitted to a corpus before it encodes. Fix: isotrope train {pooling} '
                "CORPUS -o FOLDER, and encoder.fitted = FOLDER; or name an index that was built with it."
            )
        return Path(self.state)


@dataclass(frozen=True)
class Tokens:
    """Token ids of some texts, cut at the maximum length, concatenated in one array."""

    ids: "npt.NDArray[np.int32]"  # (total,)
    types: "npt.NDArray[np.int32] | None"  # token_type_ids (total,); None: all 0, or the tokenizer has none
    starts: "npt.NDArray[np.int64]"  # (n + 1,): text i is ids[starts[i]:starts[i + 1]]
    lengths: "npt.NDArray[np.int32]"  # (n,): before the cut, special tokens included

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def cut_lengths(self) -> "npt.NDArray[np.int64]":
        """Tokens of each text after the cut, (n,)."""
        import numpy as np

        return np.diff(self.starts)

    def part(self, start: int, stop: int) -> "Tokens":
        """Return texts `start` to `stop` as views."""
        first, last = self.starts[start], self.starts[stop]
        types = self.types[first:last] if self.types is not None else None
        starts = self.starts[start : stop + 1] - first
        return Tokens(self.ids[first:last], types, starts, self.lengths[start:stop])

    def ranges(self, most: int) -> Iterator[range]:
        """Yield consecutive ranges of texts with at most `most` tokens together; a longer text is a separate range."""
        start = 0
        while start < len(self):
            stop = int(self.starts.searchsorted(self.starts[start] + most, side="right")) - 1
            yield range(start, max(stop, start + 1))
            start = max(stop, start + 1)
