"""Requests and answers of /v1: the models behind /openapi.json."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import GroupedMetadata, MaxLen
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema, model_validator

from search import hits
from search.formatting import did_you_mean
from search.hits import Truncated
from search.server.generations import Stamp
from search.server.http.failures import RequestError
from search.server.search_fields import Protocol, Question, with_search_options
from search.server.service import SearchReply

_SHOWN = 60  # characters of an input in a message


def _whole(text: str) -> str:
    """Return a text. Raise ValueError if it cannot be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("contains half a surrogate pair, which is not valid text") from None
    return text


def not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("is blank; expected text")
    return _whole(text)


def _queries(given: Any) -> str | list[str] | None:
    """Check the queries before pydantic, which would report every wrong element of a long list."""
    if given is None or isinstance(given, str):
        return None if given is None else not_blank(given)
    if not isinstance(given, list) or not given:
        raise ValueError("expected a text, or a list of at least one text")
    for number, text in enumerate(given, start=1):
        if not isinstance(text, str):
            raise ValueError(f"element {number} is not text; expected a list of texts")
        try:
            not_blank(text)
        except ValueError as error:
            raise ValueError(f"text {number} {error}") from None
    return given


_NOT_BLANK: dict[str, Any] = {"type": "string", "pattern": r"\S"}  # the schema of `not_blank`
Queries = Annotated[
    str | list[str] | None,
    PlainValidator(_queries),
    WithJsonSchema({"anyOf": [_NOT_BLANK, {"type": "array", "items": _NOT_BLANK, "minItems": 1}, {"type": "null"}]}),
]


@dataclass(frozen=True)
class Filled(GroupedMetadata):
    """Metadata of a text that is not blank, of at most `most` characters."""

    most: int

    def __iter__(self) -> Iterator[object]:
        yield MaxLen(self.most)
        yield AfterValidator(not_blank)
        yield WithJsonSchema(_NOT_BLANK | {"maxLength": self.most})


def text_of(most: int) -> Any:
    """Return the type of a text that is not blank, of at most `most` characters."""
    return Annotated[str, Filled(most)]


Text = Annotated[str, AfterValidator(not_blank), WithJsonSchema(_NOT_BLANK)]
Condition = Annotated[str, Filled(20_000)]
Name = Annotated[str, Filled(1000)]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class Request(BaseModel):
    """A body. The first unknown field is refused by name, and text is not converted to numbers."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, given: Any) -> Any:
        """Raise for the first unknown field; pydantic would report all of them."""
        if isinstance(given, dict):
            for name in given:
                if name not in cls.model_fields:
                    try:
                        _whole(name)
                    except ValueError as error:  # pydantic cannot report the name
                        raise RequestError(400, f"{name[:_SHOWN]!a}: the name of this field {error}.") from None
                    hint = did_you_mean(name[:_SHOWN], cls.model_fields, f"expected {', '.join(cls.model_fields)}")
                    raise ValueError(f"{name[:_SHOWN]}: unknown field; {hint}")
        return given


@with_search_options(Protocol(text_of, Finite))
class SearchRequest(Request, Question):
    """One or several queries, or a stored document (`like`)."""

    query: Queries = Field(None, description="A text, or a list of texts; omit it with `like`.")
    like: Name | None = Field(None, description="The id of a stored document; returns its neighbours.")

    @property
    def queries(self) -> list[str]:
        """The texts of the queries."""
        if self.query is None:
            return []
        return [self.query] if isinstance(self.query, str) else self.query


class FacetsRequest(Request):
    """The documents to count, and the columns."""

    where: Condition | None = Field(
        None, description='A condition in SQL, such as "year > 2019"; null for all documents.'
    )
    columns: list[Name] = Field([], max_length=1000, description="Names of columns from /v1/info; empty for all.")


@dataclass(frozen=True, kw_only=True)
class Hit(hits.Hit):
    """A hit and its rank in the answer, from 1."""

    rank: int
    """Rank in the answer, from 1."""


class Result(BaseModel):
    """The hits of one query, best first."""

    query: str
    """The query."""
    hits: list[Hit]
    """Its hits, best first."""
    truncated: Truncated | None = None
    """Set if the query was longer than the encoder's limit."""
    unknown: bool | None = None
    """True if the encoder knows no token of the query."""


class SearchResponse(BaseModel):
    """The answers to the queries, in order."""

    results: list[Result]
    """An answer for each query."""
    index: Stamp
    """The `generation` that answered, and the `fingerprint` of its encoder."""


class FacetsResponse(BaseModel):
    """The columns with their values and counts, minimum and maximum."""

    columns: list[dict[str, Any]]
    """For each column `name`, `sql`, `kind`, `elements`, `documents`, `distinct`, `values`, `least` and `most`, as in
    ColumnFacet in Python; `values` are objects with `value` and `count`."""
    index: Stamp
    """The `generation` that answered, and the `fingerprint` of its encoder."""


class DocumentResponse(BaseModel):
    """A document as it was indexed."""

    id: str
    """Its id."""
    title: str | None
    """Its title."""
    text: str
    """Its text."""
    metadata: dict[str, Any]
    """Values of the metadata columns."""
    link: str | None = None
    """Address from the template of --link."""
    index: Stamp
    """The `generation` that answered, and the `fingerprint` of its encoder."""


class InfoResponse(BaseModel):
    """The index, how it was built and its measured quality."""

    model_config = ConfigDict(extra="allow")
    name: str
    """Name of the index for clients."""
    generation: int
    """Number of the served generation."""
    fingerprint: str
    """Fingerprint of the encoder."""
    created: str
    """Time of publication, ISO 8601 in UTC."""
    documents: int
    """Live documents."""
    rows: int
    """Live vectors."""
    deleted: int
    """Deleted documents that are still stored."""
    model: str | None
    """Name of the model."""
    encoder: dict[str, Any]
    """Identity of the encoder: pooling, layers, prompts, dimensions."""
    transform: dict[str, Any]
    """Kind, dimensions and origin of the transform."""
    index_type: str | None
    """FAISS factory string of the index."""
    recall_at_10: float | None
    """Recall of the index against exact search, as last measured, if it was."""
    recipe: dict[str, Any]
    """The whole recipe."""
    metadata: dict[str, Any]
    """Types of the metadata columns."""
    limits: dict[str, float]
    """Limits of one request: `k`, `queries`, `characters`, `hits`, `rerank_depth`, `reranked`, `body_bytes`."""
    version: str
    """Version of Isotrope."""
    columns: list[dict[str, Any]]
    """Facets of the metadata columns, as `/v1/facets` returns them."""
    examples: list[dict[str, str]]
    """Queries that fit this index."""


class Fault(BaseModel):
    """An error."""

    message: str
    """The fault, and the value that was expected."""
    type: str
    """Kind of error, in OpenAI's words."""
    param: str | None = None
    """Name of the field that is wrong."""
    code: str | None = None
    """Always null."""


class ErrorResponse(BaseModel):
    """An error response."""

    error: Fault


def notes_of(reply: SearchReply, place: int) -> dict[str, Any]:
    """Return notes on a query: truncated, or unknown to the encoder."""
    if not reply.lengths:
        return {}
    tokens = reply.lengths[place]
    if tokens > reply.max_length:
        return {"truncated": {"tokens": tokens, "limit": reply.max_length}}
    return {} if tokens else {"unknown": True}
