"""Where a build stands, as all its steps see it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from indexer.config import BuildConfig
from indexer.encoders import EncoderSpec
from indexer.encoders.chunker import DocumentChunker
from indexer.pipeline.stored_transform import StoredTransform
from indexer.store.manifest import Manifest


@dataclass(frozen=True)
class BuildContext:
    """A build's index, recipe, encoder and what was published before."""

    index: Path
    config: BuildConfig
    spec: EncoderSpec
    published: Manifest | None
    overwrite: bool
    taken: StoredTransform | None = None  # another index's transform, used instead of fitting one

    @property
    def fingerprint(self) -> str:
        return self.spec.fingerprint

    @cached_property
    def cutter(self) -> DocumentChunker:
        """What makes rows of documents."""
        return DocumentChunker(self.spec, self.config.chunk)

    @property
    def unfitted(self) -> str:
        """What keys are made with: the encoder's fingerprint without what is fitted to the corpus they are keys of."""
        return self.spec.unfitted
