"""Settings of how an index is searched, kept in its recipe: `[hybrid]`. Vectors do not depend on them."""

import json
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
