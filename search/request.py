"""What a question may ask for beside its text."""

from dataclasses import dataclass
from typing import Literal

from indexer.errors import ConfigError


@dataclass(frozen=True)
class Request:
    """How hits are chosen.

    `where` is a condition on the metadata (SQL, see `search.filters`), `group_by` a metadata column of which each value
    gives one hit at most, `min_score` the lowest score of a hit. `exact` compares with every document instead of
    searching the index. `hybrid` fuses the vectors' ranking with that of BM25: a hit's score is then the sum of
    reciprocal ranks. `similarity` "js" ranks the mixtures of an index of pooling "latte-mix" by Jensen-Shannon
    divergence (`search.divergence`); `exact` then means proved.
    """

    k: int = 10
    where: str = ""
    group_by: str = ""
    min_score: float | None = None
    exact: bool = False
    hybrid: bool = False
    similarity: Literal["cosine", "js"] = "cosine"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"k is {self.k}; expected at least 1.")
        if self.hybrid and self.min_score is not None:
            raise ConfigError(
                "a lowest score and hybrid do not go together: hybrid scores are sums of reciprocal ranks, which say "
                "nothing about how close a document is."
            )
        if self.hybrid and self.similarity != "cosine":
            raise ConfigError(f'hybrid fuses cosine and words; leave out similarity "{self.similarity}".')
