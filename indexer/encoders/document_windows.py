"""The texts behind the rows of a part: the texts of its documents or, with chunking, their windows.

Windows are counted in the encoder's tokens and leave room for its prefix and special tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from indexer.corpus.document import Document, joined_text
from indexer.corpus.files.document_outline import document_outline
from indexer.corpus.files.structure import Outline
from indexer.encoders.heading_paths import heading_paths, headings_room
from indexer.encoders.load import open_tokenizer
from indexer.encoders.structure_windows import split_by_structure
from indexer.encoders.windows import Chunker, TokenOffsets, Windows
from indexer.errors import ConfigError
from indexer.models.encoder_spec import EncoderSpec
from indexer.recipe.corpus_config import FEWEST_TOKENS, ChunkConfig

_OVERLAP_SHARE = 4  # a fourth of a window by structure, at most, overlaps where a long piece is split by tokens


def open_chunker(spec: EncoderSpec, config: ChunkConfig) -> Chunker:
    """Return the chunker for a recipe with `chunk.tokens` above 0; loads no model.

    Raises ConfigError if a window by tokens would be longer than the encoder's limit, and for a tokenizer that does not
    report the characters of a token. Windows by structure shrink to the limit.
    """
    tokenizer = open_tokenizer(spec)
    longest, special = spec.identity.max_length, tokenizer.facts.head + tokenizer.facts.tail
    in_prefix = len(tokenizer.offsets([spec.identity.document_prefix])[0].starts)
    room = longest - special - in_prefix
    if config.by == "structure" and room >= FEWEST_TOKENS:
        most = min(config.tokens, room)
        tokens = min(most, room - headings_room(most)) if config.headings else most
        return Chunker(tokenizer.offsets, tokens, min(config.overlap, tokens // _OVERLAP_SHARE))
    if config.tokens > room:
        prefixed = f" and {in_prefix} belong to the document prefix" if in_prefix else ""
        raise ConfigError(
            f"chunk.tokens is {config.tokens}, but of the encoder's {longest} tokens (encoder.max_length) {special} "
            f"are special tokens{prefixed}; expected at most {room}."
        )
    return Chunker(tokenizer.offsets, config.tokens, config.overlap)


@dataclass(frozen=True)
class ChunkTexts:
    """The text of each row. Without `windows` row i is document i."""

    texts: list[str]
    windows: Windows | None = None

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class DocumentChunker:
    """Documents to rows. `columns` are joined for encoding. With chunking it opens the encoder's tokenizer, once."""

    spec: EncoderSpec
    config: ChunkConfig
    columns: tuple[str, ...]

    def __call__(self, documents: Sequence[Document]) -> ChunkTexts:
        """Return the rows of some documents, in order. Raises as `open_chunker`, and CorpusError."""
        joined = [joined_text(document, self.columns) for document in documents]
        chunker = self.chunker
        if chunker is None:
            return ChunkTexts(joined)
        if self.config.by != "structure":
            windows = chunker(joined)
            return ChunkTexts(windows.texts(joined), windows)
        outlines: list[Outline] = []

        def split(number: int, offsets: TokenOffsets) -> list[tuple[int, int]]:
            found = document_outline(documents[number], self.columns)
            outlines.append(Outline(found.headings, ()))  # breaks need much memory
            return split_by_structure(joined[number], offsets, found.breaks, chunker.tokens, chunker.overlap)

        windows = chunker(joined, split)
        return ChunkTexts(self._encoded(documents, windows, windows.texts(joined), outlines), windows)

    def texts(self, documents: Sequence[Document], windows: Windows | None) -> list[str]:
        """Return the text of each row of documents that were cut before."""
        joined = [joined_text(document, self.columns) for document in documents]
        if windows is None:
            return joined
        texts = windows.texts(joined)
        if self.config.by != "structure" or not self.config.headings:
            return texts
        return self._encoded(documents, windows, texts, [document_outline(each, self.columns) for each in documents])

    def _encoded(
        self, documents: Sequence[Document], windows: Windows, texts: list[str], outlines: Sequence[Outline]
    ) -> list[str]:
        """Return the texts of windows below the headings above them."""
        chunker = self.chunker
        if not self.config.headings or chunker is None:
            return texts
        titles = [(each.title or "").strip() if "title" in self.columns else "" for each in documents]
        paths = heading_paths(windows, titles, outlines, chunker)
        return [f"{path}\n{text}" if path else text for path, text in zip(paths, texts, strict=True)]

    @cached_property
    def chunker(self) -> Chunker | None:
        """The chunker; None without chunking. Raises as `open_chunker`."""
        return open_chunker(self.spec, self.config) if self.config.tokens else None

    def __getstate__(self) -> dict[str, Any]:
        # another process opens its own tokenizer
        return {"spec": self.spec, "config": self.config, "columns": self.columns}
