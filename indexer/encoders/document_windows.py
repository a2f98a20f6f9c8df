"""The texts behind the rows of a part: the texts of its documents or, with chunking, their windows.

Windows are counted in the encoder's tokens and leave room for its prefix and special tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from indexer.encoders.load import open_tokenizer
from indexer.encoders.windows import Chunker, Windows
from indexer.errors import ConfigError
from indexer.models.encoder_spec import EncoderSpec
from indexer.recipe.corpus_config import ChunkConfig


def open_chunker(spec: EncoderSpec, config: ChunkConfig) -> Chunker:
    """Return the chunker for a recipe with `chunk.tokens` above 0; loads no model.

    Raises ConfigError if a window would be longer than the encoder's limit, and for a tokenizer that does not report
    the characters of a token.
    """
    tokenizer = open_tokenizer(spec)
    longest, special = spec.identity.max_length, tokenizer.facts.head + tokenizer.facts.tail
    in_prefix = len(tokenizer.offsets([spec.identity.document_prefix])[0].starts)
    room = longest - special - in_prefix
    if config.tokens > room:
        prefixed = f" and {in_prefix} belong to the document prefix" if in_prefix else ""
        raise ConfigError(
            f"chunk.tokens is {config.tokens}, but of the encoder's {longest} tokens (encoder.max_length) {special} "
            f"are special tokens{prefixed}; expected at most {room}."
        )
    return Chunker(tokenizer.offsets, config)


@dataclass(frozen=True)
class ChunkTexts:
    """The text of each row. Without `windows` row i is document i."""

    texts: list[str]
    windows: Windows | None = None

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class DocumentChunker:
    """Joined texts of documents to rows. With chunking it opens the encoder's tokenizer, once."""

    spec: EncoderSpec
    config: ChunkConfig

    def __call__(self, joined: Sequence[str]) -> ChunkTexts:
        """Return the rows of some documents, in order. Raises as `open_chunker`, and CorpusError."""
        if self.chunker is None:
            return ChunkTexts(list(joined))
        windows = self.chunker(joined)
        return ChunkTexts(windows.texts(joined), windows)

    @cached_property
    def chunker(self) -> Chunker | None:
        """The chunker; None without chunking. Raises as `open_chunker`."""
        return open_chunker(self.spec, self.config) if self.config.tokens else None

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.spec, "config": self.config}  # another process opens its own tokenizer
