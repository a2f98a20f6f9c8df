"""What a question may ask for beside its text."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal, get_args

from indexer.errors import ConfigError

Similarity = Literal["cosine", "js"]


@dataclass(frozen=True)
class Request:
    """How hits are chosen. Raises ConfigError for a field that is not as described here.

    `k` hits, 1 and more. `where` is a condition on the metadata (SQL, see `search.filters`), `group_by` a metadata
    column of which each value gives one hit at most; None is no condition and no groups, and blank text, which an unset
    variable leaves, is refused. `min_score` is the lowest score of a hit. `exact` compares with every document instead
    of searching the index. `hybrid` fuses the vectors' ranking with that of BM25: a hit's score is then the sum of
    reciprocal ranks. `similarity` "js" ranks the mixtures of an index of pooling "latte-mix" by Jensen-Shannon
    divergence (`search.divergence`); `exact` then means proved.
    """

    k: int = 10
    where: str | None = None
    group_by: str | None = None
    min_score: float | None = None
    exact: bool = False
    hybrid: bool = False
    similarity: Similarity = "cosine"

    def __post_init__(self) -> None:
        if not _is_number(self.k, Integral) or self.k < 1:
            raise ConfigError(f"k is {self.k!r}; expected a whole number, at least 1.")
        object.__setattr__(self, "k", int(self.k))  # numpy's numbers overflow
        require_condition("where", self.where, 'a condition such as "year > 2019"')
        require_condition("group_by", self.group_by, "the name of a metadata column")
        if self.min_score is not None and not (_is_number(self.min_score, Real) and math.isfinite(self.min_score)):
            raise ConfigError(f"min_score is {self.min_score!r}; expected a finite number.")
        for name in ("exact", "hybrid"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected True or False.")
        if self.similarity not in get_args(Similarity):
            expected = " or ".join(f'"{name}"' for name in get_args(Similarity))
            raise ConfigError(f"similarity is {self.similarity!r}; expected {expected}.")
        self._require_compatible()

    def _require_compatible(self) -> None:
        if self.hybrid and self.min_score is not None:
            raise ConfigError(
                "a lowest score and hybrid do not go together: hybrid scores are sums of reciprocal ranks, which say "
                "nothing about how close a document is."
            )
        if self.hybrid and self.similarity != "cosine":
            raise ConfigError(f'hybrid fuses cosine and words; leave out similarity "{self.similarity}".')


def require_condition(name: str, value: object, expected: str) -> None:
    """Raises ConfigError unless `value` is None or text that is not blank."""
    if value is None:
        return
    if not isinstance(value, str):
        raise ConfigError(f"{name} is {value!r}; expected {expected}.")
    if not value.strip():
        raise ConfigError(f"{name} is blank; expected {expected}. Is a variable unset? Leave {name} out to go without.")


def require_texts(texts: Iterable[str], name: str, way_out: str) -> list[str]:
    """A list of the texts of an argument `name`. Raises ConfigError for what is not text, and with the `way_out` for
    one string, whose letters would be taken for texts."""
    if isinstance(texts, str):
        raise ConfigError(f"{name} is one string; expected a list of strings. {way_out}")
    if not isinstance(texts, Iterable):
        raise ConfigError(f"{name} is of type {type(texts).__name__}; expected a list of strings.")
    found = list(texts)
    for number, text in enumerate(found, start=1):
        if not isinstance(text, str):
            raise ConfigError(f"{name}: number {number} is of type {type(text).__name__}; expected a string.")
    return found


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
