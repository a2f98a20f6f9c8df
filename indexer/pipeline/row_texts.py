"""What the rows of a part stand for: the texts of its documents or, with chunking, the windows of those."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from indexer.chunking import Chunker, Windows
from indexer.config import ChunkConfig
from indexer.encoders import EncoderSpec
from indexer.encoders.chunker import open_chunker


@dataclass(frozen=True)
class RowTexts:
    """The text of each row. Without `windows` row i is document i."""

    texts: list[str]
    windows: Windows | None = None

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class TextCutter:
    """Joined texts of documents to rows. Opens the encoder's tokenizer when documents are chunked, once."""

    spec: EncoderSpec
    config: ChunkConfig

    def __call__(self, joined: Sequence[str]) -> RowTexts:
        """The rows of some documents, in their order. Raises what `open_chunker` raises, and CorpusError."""
        if self.chunker is None:
            return RowTexts(list(joined))
        windows = self.chunker(joined)
        return RowTexts(windows.texts(joined), windows)

    @cached_property
    def chunker(self) -> Chunker | None:
        """None when documents are not chunked. Raises ConfigError for windows that the encoder cannot take."""
        return open_chunker(self.spec, self.config) if self.config.tokens else None

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.spec, "config": self.config}  # another process opens its own
