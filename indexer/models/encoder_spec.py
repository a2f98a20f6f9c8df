"""A resolved encoder with its files, and the token ids of texts."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from indexer.errors import ConfigError, as_argument, spelled
from indexer.models.identity import EncoderIdentity
from indexer.models.model_files import ModelFiles, find_model_files
from indexer.models.output_modules import OutputLayer
from indexer.models.sentence_transformers_folder import read_folder_settings
from indexer.recipe.config import KindTraits

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class EncoderSpec:
    """A resolved encoder: its identity and the location of its files.

    `identity` determines the embedding of a text, up to rounding; `fingerprint` is its hash. `model` (the name in the
    recipe), `folder` (the location of the files) and `state` are informative: the same files elsewhere are the same
    encoder. `local` is true for a folder named by the user, false for a hub id. `prompts` are the model's, by name.
    `notes` are sentences on how the recipe and the settings in the model's folder differ. `found` are the model's files
    if they are already listed.
    """

    model: str
    folder: str
    identity: EncoderIdentity
    fingerprint: str
    local: bool = False
    state: str | None = None  # folder of the fitted state
    fitted: str = ""  # folder with a fitted state that is not yet part of the identity
    prompts: Mapping[str, str] = field(default_factory=dict, compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
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
    def output_layers(self) -> tuple[OutputLayer, ...]:
        """The layers between the pooling and the embedding. Raises ModelError as `OutputModule.load`."""
        if not self.identity.modules:
            return ()
        return tuple(module.load() for module in read_folder_settings(self.files.folder).modules)

    def with_query_prompt(self, prompt: str) -> "EncoderSpec":
        """Return the encoder with another prompt of queries: its name, or a text. Raises ConfigError."""
        text = prompt_text(prompt, self.prompts, as_argument("prompt"), any_word=False)
        return replace(self, identity=replace(self.identity, query_prefix=text))

    def require_dimensions(self, size: int) -> None:
        """Raise ConfigError if encoder.truncate_dim exceeds the `size` of the model's embeddings."""
        if (self.identity.truncate_dim or 0) > size:
            raise ConfigError(
                f"encoder.truncate_dim is {self.identity.truncate_dim}, but embeddings of {self.model} have {size} "
                f"dimensions; expected at most {size}, or 0 for all."
            )

    @cached_property
    def base_fingerprint(self) -> str:
        """The fingerprint without the fitted state."""
        return replace(self.identity, state=None).fingerprint

    def fitted_folder(self, pooling: str) -> Path:
        """Return the folder of the state fitted for a pooling. Raises ConfigError if there is none."""
        if self.state is None or self.identity.pooling != pooling:
            raise ConfigError(
                f'pooling "{pooling}" must be fitted to a corpus before it encodes. Fix: '
                + spelled("train_encoder(corpus, FOLDER, config)", f"isotrope train {pooling} CORPUS -o FOLDER")
                + ", and encoder.fitted = FOLDER; or name an index that was built with it."
            )
        return Path(self.state)


def prompt_text(prompt: str, prompts: Mapping[str, str], setting: str, any_word: bool) -> str:
    """Return the text of a prompt, given its name among the model's `prompts`, or the text itself.

    Raises ConfigError for a single word, such as "qeury", that no prompt of the model has as its name. With `any_word`
    it is a text where the model has no prompts.
    """
    if prompt in prompts:
        return prompts[prompt]
    if re.fullmatch(r"[\w-]+", prompt) and (any(prompts.values()) or not any_word):
        names = f"one of {', '.join(prompts)}, or " if prompts else ""
        raise ConfigError(
            f'{setting} is "{prompt}", but the model has no prompt of this name; expected {names}a text that ends '
            "with a space or a colon."
        )
    return prompt


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
