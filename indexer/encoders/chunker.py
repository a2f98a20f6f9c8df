"""What the rows of a part stand for: the texts of its documents or, with chunking, windows of those.

Windows are made of the encoder's own tokens, and are no larger than it takes with its prefix and special tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from indexer.encoders.chunking import Chunker, Windows
from indexer.encoders.load import open_tokenizer
from indexer.errors import ConfigError
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.tokenizer import TextTokenizer
from indexer.recipe.config import ChunkConfig


def open_chunker(spec: EncoderSpec, config: ChunkConfig) -> Chunker:
    """The chunker for a recipe with `chunk.tokens` above 0; loads no model.

    Raises ConfigError where a window would be longer than the encoder takes, and for a tokenizer that does not say
    which characters a token stands for.
    """
    tokenizer = open_tokenizer(spec)
    tokenizer.offsets([])  # a tokenizer that cannot is refused before the corpus is read
    _require_room(tokenizer, spec, config)
    return Chunker(tokenizer.offsets, config)


def _require_room(tokenizer: TextTokenizer, spec: EncoderSpec, config: ChunkConfig) -> None:
    longest, prefix = spec.identity.max_length, spec.identity.document_prefix
    special = tokenizer.facts.head + tokenizer.facts.tail
    in_prefix = len(tokenizer.offsets([prefix])[0].starts)
    room = longest - special - in_prefix
    if config.tokens > room:
        prefixed = f" and {in_prefix} of the document prefix" if in_prefix else ""
        raise ConfigError(
            f"chunk.tokens is {config.tokens}, but of the {longest} tokens that the encoder takes (encoder.max_length) "
            f"{special} are special ones{prefixed}; expected at most {room}."
        )


@dataclass(frozen=True)
class ChunkTexts:
    """The text of each row. Without `windows` row i is document i."""

    texts: list[str]
    windows: Windows | None = None

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class DocumentChunker:
    """Joined texts of documents to rows. Opens the encoder's tokenizer when documents are chunked, once."""

    spec: EncoderSpec
    config: ChunkConfig

    def __call__(self, joined: Sequence[str]) -> ChunkTexts:
        """The rows of some documents, in their order. Raises what `open_chunker` raises, and CorpusError."""
        if self.chunker is None:
            return ChunkTexts(list(joined))
        windows = self.chunker(joined)
        return ChunkTexts(windows.texts(joined), windows)

    @cached_property
    def chunker(self) -> Chunker | None:
        """None when documents are not chunked. Raises ConfigError for windows that the encoder cannot take."""
        return open_chunker(self.spec, self.config) if self.config.tokens else None

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.spec, "config": self.config}  # another process opens its own
