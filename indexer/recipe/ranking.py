"""Settings of a recipe for queries, `[queries]`, `[hybrid]` and `[rerank]`, which do not affect vectors."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from indexer.errors import ConfigError
from indexer.typed_arguments import checked

Fusion = Literal["convex", "rrf"]
Scaling = Literal["minmax", "zscore"]
Terms = Literal["auto", "words", "code"]
Bm25Unit = Literal["auto", "document", "window"]
LANGUAGES = (
    "arabic", "armenian", "basque", "catalan", "czech", "danish", "dutch", "english", "esperanto", "estonian",
    "finnish", "french", "german", "greek", "hindi", "hungarian", "indonesian", "irish", "italian", "lithuanian",
    "nepali", "norwegian", "persian", "polish", "portuguese", "romanian", "russian", "serbian", "sesotho", "spanish",
    "swedish", "tamil", "turkish", "yiddish",
)  # fmt: skip
NO_LANGUAGE = "none"
RerankPrecision = Literal["float32", "bfloat16"]
MOST_DEPTH = 1000  # hits that a cross-encoder reads, each with the whole query


OF_ROWS: dict[str, Any] = {"terms": "words", "unit": "document"}
"""The settings that "auto" stands for unless most documents are files of source code."""
OF_CODE: dict[str, Any] = {"terms": "code", "unit": "window"}


@checked
@dataclass(frozen=True)
class HybridConfig:
    """Fusion of vectors and BM25; see `search.ranking.fusion` and `search.ranking.bm25`.

    A build resolves "auto" by its documents: are most of them files of source code?
    """

    fusion: Fusion = "convex"
    """A weighted sum of both scores ("convex"), or reciprocal ranks, without weight and scaling ("rrf")."""
    weight: float = 0.3
    """Weight of the vectors' score, 0 to 1; BM25 gets the rest."""
    scaling: Scaling = "minmax"
    """How the scores of a query are brought to one scale before the sum: from 0 for a chance document to 1 for the best
    ("minmax"), or by mean and standard deviation ("zscore")."""
    language: str = "english"
    """Language of stemming and stop words, one of Snowball's. "none": words are kept as they are."""
    terms: Terms = "auto"
    """Terms that BM25 counts: words, or words of source code, which include the parts of snake_case and camelCase and
    single letters. "auto": "code" for folders of source code, otherwise "words"."""
    unit: Bm25Unit = "auto"
    """Units that BM25 ranks: whole documents, or documents by their best window. "auto": "window" for folders of source
    code, otherwise "document"."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.weight <= 1.0:
            raise ConfigError(f"hybrid.weight is {self.weight}; expected 0 (BM25 alone) to 1 (vectors alone).")
        object.__setattr__(self, "weight", float(self.weight))  # 1 and 1.0 are one setting
        if self.language not in (*LANGUAGES, NO_LANGUAGE):
            raise ConfigError(
                f"hybrid.language is {json.dumps(self.language)}; expected {', '.join(LANGUAGES)}, or "
                f'"{NO_LANGUAGE}" for words as they are.'
            )

    def resolved(self, usual: Mapping[str, Any] = OF_ROWS) -> "HybridConfig":
        """Return the settings with the usual ones, `OF_ROWS` or `OF_CODE`, in the place of "auto"."""
        return replace(self, **{name: value for name, value in usual.items() if getattr(self, name) == "auto"})


@checked
@dataclass(frozen=True)
class QueriesConfig:
    """The encoder of queries, if it differs from that of the documents; see `indexer.models.query_encoder_spec`."""

    encoder: str = ""
    """Folder of a query encoder, as `isotrope distill` writes it. Empty: the index's own encoder."""
    sha256: str = ""
    """Hash of everything that affects its vectors. A refit records it, and another query encoder is then rejected."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoder", self.encoder.strip())
        _require_sha256("queries.sha256", self.sha256)


@checked
@dataclass(frozen=True)
class RerankConfig:
    """Reranking of the first hits by a cross-encoder; see `search.ranking.reranker`."""

    model: str = ""
    """Hugging Face id or folder of a cross-encoder. Empty: no reranking."""
    depth: int = 50
    """Number of first hits that it reranks, 1 to 1,000."""
    max_length: int = 0
    """Most tokens of query and text together. 0: the model's own limit."""
    precision: RerankPrecision = "bfloat16"
    """Class of results, like the encoder's."""
    sha256: str = ""
    """Hash of everything that affects its scores. A build or refit records it, and another model is then rejected."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", self.model.strip())
        if not 1 <= self.depth <= MOST_DEPTH:
            raise ConfigError(f"rerank.depth is {self.depth}; expected 1 to {MOST_DEPTH:,}.")
        if self.max_length < 0:
            raise ConfigError(f"rerank.max_length is {self.max_length}; expected 0 (the model's own limit) or more.")
        _require_sha256("rerank.sha256", self.sha256)
        if self.sha256 and not self.model:
            raise ConfigError('rerank.sha256 is set, but rerank.model is "". Fix: set the model, or leave sha256 out.')


def _require_sha256(setting: str, value: str) -> None:
    if value and not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ConfigError(f'{setting} is "{value}"; expected 64 hex digits, or "" to record it.')
