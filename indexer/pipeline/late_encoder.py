"""The encoder of a published index for changes that mostly need none."""

from functools import cached_property
from pathlib import Path

from indexer.config import BuildConfig, RunOptions
from indexer.encoders import Encoder
from indexer.encoders.load import open_encoder
from indexer.encoders.spec import spec_of_index
from indexer.pipeline.change import Change


class LateEncoder:
    """The encoder of an index, found and loaded when the first text needs it; `model` is its folder if it has moved."""

    def __init__(self, opened: Change, config: BuildConfig, options: RunOptions, model: str | Path | None) -> None:
        self.config, self._opened, self._options, self._model = config, opened, options, model

    def get(self) -> Encoder:
        """The encoder. Raises ModelError and MismatchError."""
        return self._loaded

    @cached_property
    def _loaded(self) -> Encoder:
        return open_encoder(spec_of_index(self._opened.index, self._opened.published, self._model), self._options)
