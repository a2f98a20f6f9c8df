"""The encoder of an index whose embeddings came with the corpus: it cannot encode texts.

An index of kind "vectors" has this encoder, so that every attempt to encode a text fails with a fix. Its identity is
the model's name in the recipe (`encoder.model`): embeddings with the same name and length count as from one model.
"""

from typing import NoReturn

from indexer.errors import ConfigError, spelled
from indexer.models.encoder_spec import EncoderSpec


class PrecomputedEncoder:
    """An `Encoder` whose methods all raise ConfigError."""

    backend = "none"
    notes: tuple[str, ...] = ()

    def __init__(self, spec: EncoderSpec) -> None:
        self.spec = spec

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        queries = spelled("SearchEngine.search_vectors(embeddings)", "query --queries FILE.npy")
        raise ConfigError(f"{cannot_encode(self.spec)} Fix: pass encoded queries: {queries}.")

    encode = tokenize = embed = states = _refuse
    dim = property(_refuse)


def cannot_encode(spec: EncoderSpec) -> str:
    """Return the reason why there is no encoder, as a sentence."""
    source = f'by "{spec.model}"' if spec.model else "elsewhere"
    return f"These embeddings were computed {source} and came with the corpus, so no text can be encoded here."
