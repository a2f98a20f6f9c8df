"""The chunker of an encoder: windows of its own tokens, no larger than it takes with its prefix and special tokens."""

from pathlib import Path

from indexer.chunking import Chunker
from indexer.config import ChunkConfig
from indexer.encoders.kept_tokenizer import open_tokenizer
from indexer.encoders.protocol import EncoderSpec
from indexer.encoders.tokens import TextTokenizer
from indexer.errors import ConfigError


def open_chunker(spec: EncoderSpec, config: ChunkConfig) -> Chunker:
    """The chunker for a recipe with `chunk.tokens` above 0; loads no model.

    Raises ConfigError where a window would be longer than the encoder takes, and for a tokenizer that does not say
    which characters a token stands for.
    """
    tokenizer = _tokenizer(spec)
    tokenizer.marks([])  # a tokenizer that cannot is refused before the corpus is read
    _require_room(tokenizer, spec, config)
    return Chunker(tokenizer.marks, config)


def _tokenizer(spec: EncoderSpec) -> TextTokenizer:
    if spec.identity["kind"] != "static":
        return open_tokenizer(spec)
    from indexer.encoders.static import static_tokenizer
    from indexer.encoders.tables import load_table

    return static_tokenizer(spec, load_table(Path(spec.folder)))


def _require_room(tokenizer: TextTokenizer, spec: EncoderSpec, config: ChunkConfig) -> None:
    longest, prefix = spec.identity["max_length"], spec.identity["document_prefix"]
    special = tokenizer.facts.head + tokenizer.facts.tail
    in_prefix = len(tokenizer.marks([prefix])[0].starts)
    room = longest - special - in_prefix
    if config.tokens > room:
        prefixed = f" and {in_prefix} of the document prefix" if in_prefix else ""
        raise ConfigError(
            f"chunk.tokens is {config.tokens}, but of the {longest} tokens that the encoder takes (encoder.max_length) "
            f"{special} are special ones{prefixed}; expected at most {room}."
        )
