"""Search options as fields of pydantic models, from their declarations in `search.ranking.options`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, create_model, model_validator

from search.ranking.options import SEARCH_OPTIONS, Option, SearchOptions
from search.server.settings import ServerLimits


class Question(BaseModel):
    """Base of models of a search: text (`query`) or the id of a document (`like`), and search options."""

    query: Any = None
    like: Any = None

    @model_validator(mode="after")
    def _one_question(self) -> "Question":
        if (self.query is None) == (self.like is None):
            raise ValueError('expected either "query" or "like"')
        if self.like is not None and getattr(self, "hybrid", False):
            raise ValueError('"hybrid" needs the words of a query, and "like" has none')
        return self

    @property
    def options(self) -> SearchOptions:
        """The search options. Raises ConfigError for contradictory options."""
        return SearchOptions(**{name: getattr(self, name) for name in self.model_fields_set - {"query", "like"}})


Model = TypeVar("Model", bound=Question)


@dataclass(frozen=True)
class Protocol:
    """Types of a protocol's fields: `text` of at most some length, numbers, and an absent value."""

    text: Callable[[int], Any]
    number: Any
    absent: Any = None
    for_agents: bool = False


def with_search_options(protocol: Protocol) -> Callable[[type[Model]], type[Model]]:
    """Return a class decorator that adds a protocol's search options."""

    def add(model: type[Model]) -> type[Model]:
        fields: Any = dict(_fields(protocol))
        return create_model(
            model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **fields
        )

    return add


def _fields(protocol: Protocol) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for option in SEARCH_OPTIONS:
        if option.is_served and (option.for_agents or not protocol.for_agents):
            description = option.agents_help if protocol.for_agents and option.agents_help else option.help
            yield option.name, (_type(option, protocol), Field(option.default, description=description))


def _type(option: Option, protocol: Protocol) -> Any:
    """Return the type of a field with its bounds, without bounds of `ServerLimits`, which the routes check."""
    kind = option.kind
    if kind is str:
        kind = protocol.text(option.longest)
    elif kind in (int, float):
        low = {"ge": option.least, "gt": option.above} if option.served_least is None else {"ge": option.served_least}
        most = option.agents_most if protocol.for_agents else None
        high = option.most if most is None and option.name not in ServerLimits.__dataclass_fields__ else most
        bounds: dict[str, Any] = low | {"le": high}
        kind = Annotated[protocol.number if kind is float else int, Field(**bounds)]
    return kind | protocol.absent if option.is_optional else kind
