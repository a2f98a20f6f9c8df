"""Settings of how an index is searched, kept in its recipe: `[hybrid]`, `[rerank]`. Vectors do not depend on them."""

import json
import re
from dataclasses import dataclass
from typing import Literal

from indexer.errors import ConfigError

Fusion = Literal["convex", "rrf"]
Scaling = Literal["minmax", "zscore"]
Terms = Literal["words", "code"]
Bm25Unit = Literal["document", "window"]
LANGUAGES = (
    "arabic", "armenian", "basque", "catalan", "czech", "danish", "dutch", "english", "esperanto", "estonian",
    "finnish", "french", "german", "greek", "hindi", "hungarian", "indonesian", "irish", "italian", "lithuanian",
    "nepali", "norwegian", "persian", "polish", "portuguese", "romanian", "russian", "serbian", "sesotho", "spanish",
    "swedish", "tamil", "turkish", "yiddish",
)  # fmt: skip
NO_LANGUAGE = "none"
RerankPrecision = Literal["float32", "bfloat16"]
MOST_DEPTH = 1000  # hits that a cross-encoder reads again, each with the whole question


@dataclass(frozen=True)
class HybridConfig:
    """Vectors and BM25 together; see `search.ranking.fusion` and `search.ranking.bm25`.

    `language` is Snowball's, or "none": words are then neither stemmed nor left out.
    """

    fusion: Fusion = "convex"  # or "rrf", reciprocal ranks, which have no weight and no scaling
    weight: float = 0.3  # of the vectors' score; BM25 has the rest
    scaling: Scaling = "minmax"
    language: str = "english"
    terms: Terms = "words"  # "code": the parts of snake_case and camelCase too, and one-letter words
    unit: Bm25Unit = "document"  # what BM25 counts in: a whole document, or a window, the best of which counts

    def __post_init__(self) -> None:
        if not 0.0 <= self.weight <= 1.0:
            raise ConfigError(
                f"hybrid.weight is {self.weight}; expected 0 (BM25 alone) to 1 (vectors alone), such as 0.3."
            )
        object.__setattr__(self, "weight", float(self.weight))  # 1 and 1.0 are one setting
        if self.language not in (*LANGUAGES, NO_LANGUAGE):
            raise ConfigError(
                f"hybrid.language is {json.dumps(self.language)}; expected {', '.join(LANGUAGES)}, or "
                f'"{NO_LANGUAGE}" for words as they are.'
            )


@dataclass(frozen=True)
class RerankConfig:
    """The first hits of a question, put in order by a cross-encoder; see `search.ranking.reranker`.

    `sha256` is that of all that decides its scores. It is recorded when the recipe is built or refitted, and a model
    that is another one then is refused.
    """

    model: str = ""  # hub id or folder; empty: hits stay in the order they were found in
    depth: int = 50  # hits that it reads
    max_length: int = 0  # tokens of a question and a text together; 0: the model's own limit
    precision: RerankPrecision = "bfloat16"  # a class of results, as that of the encoder
    sha256: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", self.model.strip())
        if not 1 <= self.depth <= MOST_DEPTH:
            raise ConfigError(f"rerank.depth is {self.depth}; expected 1 to {MOST_DEPTH:,}.")
        if self.max_length < 0:
            raise ConfigError(f"rerank.max_length is {self.max_length}; expected 0 (the model's own limit) or more.")
        if self.sha256 and not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise ConfigError(
                f'rerank.sha256 is "{self.sha256}"; expected 64 hexadecimal digits, or "" to have it recorded.'
            )
        if self.sha256 and not self.model:
            raise ConfigError(
                'rerank.sha256 is that of a model, but rerank.model is ""; name the model, or leave it out.'
            )
