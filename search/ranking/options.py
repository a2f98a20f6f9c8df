"""What a question may ask for. It loads no numerical library: a client of a server asks by it too."""

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, get_args

from indexer.errors import ConfigError
from indexer.ranking_config import MOST_DEPTH

Similarity = Literal["cosine", "js"]
WEIGHT, DEPTH = "hybrid_weight (--hybrid-weight)", "rerank_depth (--rerank-depth)"  # in messages, whoever asks


@dataclass(frozen=True)
class SearchOptions:
    """How hits are chosen. Raises ConfigError for a field that is not as described here.

    `k` hits, 1 and more. `where` is a condition on the metadata (SQL, see `search.filters`), `group_by` a metadata
    column of which each value gives one hit at most; None is no condition and no groups, and blank text, which an unset
    variable leaves, is refused. `min_score` is the lowest score of a hit. `exact` compares with every document instead
    of searching the index. `hybrid` fuses the vectors' ranking with that of BM25 as the recipe's `[hybrid]` says;
    `hybrid_weight`, 0 to 1, is that of the vectors' score in place of the recipe's. `similarity` "js" ranks the
    mixtures of an index of pooling "latte-mix" by Jensen-Shannon divergence (`search.papers.divergence`); `exact` then
    means proved. `partial` takes answers without the segments whose processes are lost, marked as such, where segments
    are held by others (`search.shards`). `fold` folds near-duplicates under the better hit (`search.ranking.folding`):
    those whose stored vectors have an inner product of at least so much, above 0 and at most 1, whatever `similarity`
    and `hybrid` rank by.
    `rerank_depth` is how many of the first hits a cross-encoder puts in order (`search.ranking.reranker`): None, as
    many as the recipe says; 0, none.
    """

    k: int = 10
    where: str | None = None
    group_by: str | None = None
    min_score: float | None = None
    exact: bool = False
    hybrid: bool = False
    similarity: Similarity = "cosine"
    partial: bool = False
    fold: float | None = None
    hybrid_weight: float | None = None
    rerank_depth: int | None = None

    def __post_init__(self) -> None:
        if not _is_number(self.k, Integral) or self.k < 1:
            raise ConfigError(f"k is {self.k!r}; expected a whole number, at least 1.")
        object.__setattr__(self, "k", int(self.k))  # numpy's numbers overflow
        require_condition("where", self.where, 'a condition such as "year > 2019"')
        require_condition("group_by", self.group_by, "the name of a metadata column")
        if self.min_score is not None and not (_is_number(self.min_score, Real) and math.isfinite(self.min_score)):
            raise ConfigError(f"min_score is {self.min_score!r}; expected a finite number.")
        if self.fold is not None and not (_is_number(self.fold, Real) and 0 < self.fold <= 1):
            raise ConfigError(f"fold is {self.fold!r}; expected a number, more than 0 and at most 1.")
        weight = self.hybrid_weight
        if weight is not None and not (_is_number(weight, Real) and 0 <= weight <= 1):
            raise ConfigError(f"{WEIGHT} is {weight!r}; expected a number, 0 (BM25 alone) to 1 (vectors alone).")
        depth = self.rerank_depth
        if depth is not None and not (_is_number(depth, Integral) and 0 <= depth <= MOST_DEPTH):
            raise ConfigError(f"{DEPTH} is {depth!r}; expected a whole number, 0 (none) to {MOST_DEPTH:,}.")
        for name in ("exact", "hybrid", "partial"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected True or False.")
        if self.similarity not in get_args(Similarity):
            expected = " or ".join(f'"{name}"' for name in get_args(Similarity))
            raise ConfigError(f"similarity is {self.similarity!r}; expected {expected}.")
        self._require_compatible()

    @classmethod
    def of(cls, options: "SearchOptions | int | None", fields: Mapping[str, Any]) -> "SearchOptions":
        """`options`, or as many hits, with these `fields` in place of theirs.

        Raises ConfigError for an unknown field, and for a number of hits that is given twice.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        if unknown := [name for name in fields if name not in known]:
            close = difflib.get_close_matches(unknown[0], known, n=1)
            hint = f'did you mean "{close[0]}"?' if close else f"it has {', '.join(known)}."
            raise ConfigError(f'a search has no option "{unknown[0]}"; {hint}')
        if isinstance(options, SearchOptions):
            return dataclasses.replace(options, **fields)
        if options is not None and "k" in fields:
            raise ConfigError(f"k is given twice: {options!r} and k={fields['k']!r}; expected one number of hits.")
        return cls(**fields) if options is None else cls(options, **fields)

    def _require_compatible(self) -> None:
        if self.hybrid and self.min_score is not None:
            raise ConfigError(
                "a lowest score and hybrid do not go together: hybrid scores are scaled for each query, which says "
                "nothing about how close a document is."
            )
        if self.hybrid_weight is not None and not self.hybrid:
            raise ConfigError(f"{WEIGHT} weighs vectors against BM25; expected hybrid (--hybrid) as well.")
        if self.hybrid and self.similarity != "cosine":
            raise ConfigError(f'hybrid fuses cosine and words; leave out similarity "{self.similarity}".')


def require_condition(name: str, value: object, expected: str) -> None:
    """Raises ConfigError unless `value` is None or text that is not blank."""
    if value is None:
        return
    if not isinstance(value, str):
        raise ConfigError(f"{name} is {value!r}; expected {expected}.")
    if not value.strip():
        option = f"--{name.replace('_', '-')}"
        raise ConfigError(f"{option} is blank; expected {expected}. Is a variable unset? Leave it out to go without.")


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


def require_queries(queries: Sequence[str]) -> list[str]:
    """Raises ConfigError for what is no list of texts, and for a blank one."""
    texts = require_texts(queries, "queries", "For a single question call search.")
    for number, query in enumerate(texts, start=1):
        if not query.strip():
            raise ConfigError(f"query {number} is blank; expected some text.")
    return texts


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
