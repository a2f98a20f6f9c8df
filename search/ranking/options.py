"""The options of a search, each declared once for checks, HTTP fields, agents' arguments and the command line.

Loads no numerical library, because clients of a server use it too.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from types import NoneType
from typing import Annotated, Any, Literal, TypedDict, cast, get_args, get_origin, get_type_hints

from indexer.errors import ConfigError, as_argument, spelled
from indexer.recipe.ranking import MOST_DEPTH
from search.filters.conditions import condition_of
from search.formatting import did_you_mean

Similarity = Literal["cosine", "js"]
Where = str | Mapping[str, Any]  # a condition in SQL, or a dict (`search.filters.conditions`)


@dataclass(frozen=True)
class Option:
    """The declaration of one search option.

    Numbers are at least `least`, above `above` and at most `most`; a server accepts at least `served_least`, and
    texts of at most `longest` characters. A prompt may be blank, and the command line reads line breaks in it. Agents
    get `agents_help` and `agents_most` if set. Errors state the `expected` value, which has a default.
    """

    help: str
    expected: str = ""
    metavar: str | None = None
    least: float | None = None
    above: float | None = None
    most: int | None = None
    longest: int = 1000
    is_prompt: bool = False
    served_least: float | None = None
    agents_help: str = ""
    agents_most: float | None = None
    is_served: bool = True  # by a server, to any client
    for_agents: bool = True
    name: str = ""  # this and the following come from the field; `kind` is its type without None
    kind: Any = None
    is_optional: bool = False
    default: Any = None

    @property
    def flag(self) -> str:
        """The option of the command line."""
        return f"-{self.name}" if len(self.name) == 1 else f"--{self.name.replace('_', '-')}"

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed texts of an option; empty if it is no choice."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    def check(self, value: object) -> None:
        """Raise ConfigError for a value that the declaration does not allow."""
        if value is None and self.is_optional:
            return
        if not self._is_allowed(value):
            raise ConfigError(f"{spelled(self.name, self.flag)} is {value!r}; expected {self._expected}.")
        if isinstance(value, str) and not value.strip() and not self.is_prompt:
            named = spelled(self.name, self.flag)
            raise ConfigError(f"{named} is blank; expected {self._expected}. Is a variable unset? Fix: leave it out.")

    def _is_allowed(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        if self.kind in (bool, str):
            return isinstance(value, self.kind)
        if isinstance(value, bool) or not isinstance(value, Integral if self.kind is int else Real):
            return False
        number: Any = value
        within = (self.least is None or number >= self.least) and (self.most is None or number <= self.most)
        return bool(within and (-math.inf if self.above is None else self.above) < number < math.inf)

    @property
    def _expected(self) -> str:
        if self.expected:
            return self.expected
        if self.choices:
            return " or ".join(f'"{choice}"' for choice in self.choices)
        if self.kind is bool:
            return "True or False"
        words = {"more than": self.above, "at least": self.least, "at most": self.most}
        bounds = " and ".join(f"{word} {bound:g}" for word, bound in words.items() if bound is not None)
        kind = "a whole number" if self.kind is int else "some text" if self.kind is str else "a number"
        return f"{kind}, {bounds}" if bounds else kind.replace("a number", "a finite number")


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search. Raises ConfigError for a field that does not match its declaration.

    Blank text, the value of an unset variable, is rejected. `hybrid` fuses the vectors' ranking with that of BM25 by
    the recipe's `[hybrid]`. `similarity` "js" ranks the mixtures of an index of pooling "latte-mix" by Jensen-Shannon
    divergence (`search.papers.divergence`); `exact` then means proved. `partial` allows answers without the segments of
    lost processes (`search.shards`), and marks them. `fold` compares stored vectors with any `similarity` and `hybrid`
    (`search.ranking.folding`). `rerank_depth` None means the recipe's. A `where` that is a dict becomes SQL.
    """

    k: Annotated[int, Option("Hits per query.", least=1, agents_most=50)] = 10
    where: Annotated[Where | None, Option(
        'Only documents that meet this SQL condition on the metadata, such as "year > 2019".',
        expected='a condition such as "year > 2019"', metavar="SQL", longest=20_000,
        agents_help="A condition in SQL on metadata columns, id, title and text, such as: year > 2019 AND lang = 'en'",
    )] = None  # fmt: skip
    group_by: Annotated[str | None, Option(
        "At most one hit for each value of this metadata column.",
        expected="the name of a metadata column", metavar="COLUMN",
    )] = None  # fmt: skip
    min_score: Annotated[float | None, Option("Only hits that score at least this.")] = None
    prompt: Annotated[str | None, Option(
        "Text before the query, or the name of one of the model's prompts, instead of the recipe's prompt; "
        '"" is none.',
        expected="a text, or the name of one of the model's prompts", metavar="NAME|TEXT", longest=10_000,
        is_prompt=True, for_agents=False,
    )] = None  # fmt: skip
    exact: Annotated[bool, Option(
        "Compare with every document instead of searching the index.",
        agents_help="Compare with every document: slower, but misses nothing.",
    )] = False  # fmt: skip
    hybrid: Annotated[bool, Option(
        "Fuse with BM25 by the recipe's [hybrid].",
        agents_help="Also rank by words (BM25), for names and rare terms.",
    )] = False  # fmt: skip
    similarity: Annotated[Similarity, Option(
        'js: rank mixtures by Jensen-Shannon divergence (pooling "latte-mix"); with exact, proved.', for_agents=False
    )] = "cosine"  # fmt: skip
    partial: Annotated[bool, Option(
        "With shards: answer without lost processes, and mark the answer.", is_served=False
    )] = False  # fmt: skip
    fold: Annotated[float | None, Option(
        "Fold hits under a better hit of at least this similarity (inner product of their vectors).",
        metavar="SIMILARITY", above=0, most=1, served_least=0.5,  # lower values would read whole corpora
        agents_help="Fold hits under a better hit of at least this similarity; 0.95 is nearly the same text.",
    )] = None  # fmt: skip
    hybrid_weight: Annotated[float | None, Option(
        "With hybrid: weight of the vectors, 0 to 1, instead of the recipe's.",
        expected="a number, 0 (BM25 alone) to 1 (vectors alone)", metavar="W", least=0, most=1,
    )] = None  # fmt: skip
    rerank_depth: Annotated[int | None, Option(
        "Number of first hits that a cross-encoder reranks, instead of the recipe's; 0 is --no-rerank.",
        expected=f"a whole number, 0 (none) to {MOST_DEPTH:,}", metavar="N", least=0, most=MOST_DEPTH,
        agents_most=200, agents_help="Number of first hits that a cross-encoder reranks, if there is one; 0: none.",
    )] = None  # fmt: skip

    def __post_init__(self) -> None:
        if isinstance(self.where, Mapping):
            object.__setattr__(self, "where", condition_of(self.where))
        for option in SEARCH_OPTIONS:
            value = getattr(self, option.name)
            if value is option.default:
                continue
            option.check(value)
            if option.kind is int and value is not None:
                object.__setattr__(self, option.name, int(value))  # numpy's numbers overflow
        self._require_compatible()

    @property
    def condition(self) -> str | None:
        """The condition of `where` in SQL."""
        return cast(str | None, self.where)

    @classmethod
    def of(cls, options: "SearchOptions | int | None", fields: Mapping[str, Any]) -> "SearchOptions":
        """Return `options`, or options for that number of hits, with `fields` replaced.

        Raises ConfigError for an unknown field, and for two numbers of hits.
        """
        known = [option.name for option in SEARCH_OPTIONS]
        if unknown := [name for name in fields if name not in known]:
            hint = did_you_mean(unknown[0], known, f"it has {', '.join(known)}.")
            raise ConfigError(f'a search has no option "{unknown[0]}"; {hint}')
        if isinstance(options, SearchOptions):
            return dataclasses.replace(options, **fields) if fields else options
        if options is not None and "k" in fields:
            raise ConfigError(f"k is given twice: {options!r} and k={fields['k']!r}; expected one number of hits.")
        return cls(**fields) if options is None else cls(options, **fields)

    def require_no_text(self) -> None:
        """Raise ConfigError for options that need the text of a query, not a document's id."""
        if self.hybrid:
            raise ConfigError("hybrid search needs the text of a query, not a document's id.")
        if self.prompt is not None:
            raise ConfigError("a prompt is put before the text of a query, not a document's id. Fix: leave it out.")
        if self.rerank_depth:
            raise ConfigError("reranking needs the text of a query, not a document's id. Fix: leave out the depth.")

    def _require_compatible(self) -> None:
        if self.hybrid and self.min_score is not None:
            raise ConfigError(
                f"{as_argument('min_score')} cannot be combined with {as_argument('hybrid')}: hybrid scores are "
                "relative to each query."
            )
        if self.hybrid_weight is not None and not self.hybrid:
            weight, hybrid = as_argument("hybrid_weight"), as_argument("hybrid", True)
            raise ConfigError(f"{weight} weighs vectors against BM25; expected {hybrid} as well.")
        if self.hybrid and self.similarity != "cosine":
            raise ConfigError(f'hybrid cannot be combined with similarity "{self.similarity}".')


def _search_options() -> Iterator[Option]:
    hints = get_type_hints(SearchOptions, include_extras=True)
    for field in dataclasses.fields(SearchOptions):
        kind, option = get_args(hints[field.name])
        is_optional = NoneType in get_args(kind)
        kind = get_args(kind)[0] if is_optional else kind  # of `where` text, which a dict becomes
        yield dataclasses.replace(option, name=field.name, kind=kind, is_optional=is_optional, default=field.default)


SEARCH_OPTIONS = tuple(_search_options())


class SearchFields(TypedDict, total=False):
    """The options of `SearchOptions` as keyword arguments: `search("whales", k=5, where={"year": 2019})`."""

    k: int
    where: Where | None
    group_by: str | None
    min_score: float | None
    prompt: str | None
    exact: bool
    hybrid: bool
    similarity: Similarity
    partial: bool
    fold: float | None
    hybrid_weight: float | None
    rerank_depth: int | None


def require_texts(texts: Iterable[str], name: str, fix: str) -> list[str]:
    """Return the texts of an argument `name` as a list.

    Raises ConfigError for items that are not strings, and with `fix` for one string, which iterates over its letters.
    """
    if isinstance(texts, str):
        raise ConfigError(f"{name} is one string; expected a list of strings. {fix}")
    if not isinstance(texts, Iterable):
        raise ConfigError(f"{name} is of type {type(texts).__name__}; expected a list of strings.")
    items = list(texts)
    for number, text in enumerate(items, start=1):
        if not isinstance(text, str):
            raise ConfigError(f"{name}: number {number} is of type {type(text).__name__}; expected a string.")
    return items


def require_queries(queries: Sequence[str]) -> list[str]:
    """Return the queries as a list. Raises ConfigError for items that are not strings, or blank."""
    texts = require_texts(queries, "queries", "Fix: for a single query, call search.")
    for number, query in enumerate(texts, start=1):
        if not query.strip():
            raise ConfigError(f"query {number} is blank; expected some text.")
    return texts
