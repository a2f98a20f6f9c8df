"""POST /v1/embeddings and GET /v1/models as in OpenAI's API: texts to unit vectors of the index.

OpenAI's API has no roles, but here a query and a document with the same words can have different vectors (their means
differ, and some models add a prefix to one of them). So there are three models: NAME and NAME/document return vectors
of documents, NAME/query vectors of queries. With NAME, `input_type` can set the role, as in other APIs.

Unknown fields are refused, because most extra fields of other servers would change the vectors (a prompt, another
pooling, a truncation). Fields of OpenAI's API that change nothing are accepted and ignored.
"""

import asyncio
from binascii import b2a_base64
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from fastapi import APIRouter, Path, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field, WithJsonSchema

from indexer.arrays import Vectors
from indexer.models.identity import UNLIMITED
from indexer.recipe.config import KIND_TRAITS, Role
from search.hits import Truncated
from search.result_files import to_json
from search.server.byte_limit import RoomShare
from search.server.generations import OpenGeneration, Stamp
from search.server.http.answers import share_of
from search.server.http.failures import JsonResponse, RequestError
from search.server.http.messages import ErrorResponse, Name, Request, not_blank
from search.server.http.routes import ERRORS
from search.server.service import SearchService, TextVectors
from search.server.settings import ServerLimits

_PIECE_BYTES = 256 << 10  # of vectors, written as JSON at once
_ROLES: dict[str, Role] = {
    "query": "query",
    "search_query": "query",
    "document": "document",
    "search_document": "document",
    "passage": "document",
}
_JSON = "application/json"
_NO_TOKENS = (
    "tokens are not supported; expected text. In LangChain use OpenAIEmbeddings(..., check_embedding_ctx_length=False)"
)
TEXTS_SCHEMA: dict[str, Any] = {
    "anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]
}
_ERRORS = ERRORS | {
    400: {"model": ErrorResponse, "description": "the body is not JSON, or a field asks for something unsupported"},
    404: {"model": ErrorResponse, "description": "there is no such model"},
}


class EmbeddingRequest(Request):
    """Texts, and the model, which sets their role."""

    input: Annotated[Any, WithJsonSchema(TEXTS_SCHEMA)] = Field(
        description="A text, or a list of as many texts as fit into a body. Tokens are refused."
    )
    model: Name = Field(description="A model of GET /v1/models: the index's name, optionally with /query or /document.")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description='"base64": float32, little-endian. Default: "float".'
    )
    dimensions: int | None = Field(None, description="If given, the number of dimensions of the index.")
    input_type: Literal["query", "document", "search_query", "search_document", "passage"] | None = Field(
        None, description="The role of the texts, if the model does not set it."
    )
    user: Any = Field(None, description="Ignored.")
    safety_identifier: Any = Field(None, description="Ignored.")


class EmbeddingUsage(BaseModel):
    """Encoded tokens, without truncated ones."""

    prompt_tokens: int
    """Tokens of all texts."""
    total_tokens: int
    """The same number."""


@dataclass(frozen=True, kw_only=True)
class TruncatedText(Truncated):
    """A truncated text, by its place in the input."""

    index: int
    """Place of the text in the input, from 0."""


class EmbeddingRow(BaseModel):
    """The unit vector of a text: numbers or base64."""

    object: Literal["embedding"]
    """Kind of object, in OpenAI's words."""
    index: int
    """Place of the text in the input, from 0."""
    embedding: list[float] | str
    """The vector: numbers, or their bytes with `encoding_format` "base64"."""


class EmbeddingResponse(BaseModel):
    """The vectors of the texts, in order."""

    object: Literal["list"]
    """Kind of object, in OpenAI's words."""
    model: str
    """The model of the request."""
    role: Role
    """The role of the texts."""
    usage: EmbeddingUsage
    """Encoded tokens."""
    index: Stamp
    """The `generation` that answered, and the `fingerprint` of its encoder."""
    truncated: list[TruncatedText] | None = None
    """Texts that were longer than the encoder's limit."""
    unknown: list[int] | None = None
    """Places of texts without known tokens."""
    data: list[EmbeddingRow]
    """A vector for each text, in order."""


class ModelResponse(BaseModel):
    """A model name and its vectors."""

    id: str
    """Name of the model, for the field `model` of a request."""
    object: Literal["model"]
    """Kind of object, in OpenAI's words."""
    created: int
    """Time of publication of the index, in seconds since 1970."""
    owned_by: str
    """Always "isotrope"."""
    role: Role
    """Role of the texts that it encodes."""
    dimensions: int
    """Dimensions of the vectors."""
    max_length: int | None
    """Most tokens encoded per text; null: all."""
    description: str
    """Purpose of the model."""


class ModelsResponse(BaseModel):
    """All model names."""

    object: Literal["list"]
    """Kind of object, in OpenAI's words."""
    data: list[ModelResponse]
    """The model names."""


@dataclass(frozen=True)
class EmbeddingModel:
    """A model name. If it is `fixed`, it sets the role, and `input_type` can only repeat it."""

    id: str
    role: Role
    description: str
    fixed: bool = True


def embedding_routes(service: SearchService) -> APIRouter:
    """Return POST /v1/embeddings, GET /v1/models, GET /v1/models/{id}."""
    router = APIRouter(prefix="/v1", responses=_ERRORS, tags=["openai"])
    models, shares = embedding_models(service.settings.name), share_of(service.room)

    @router.post("/embeddings", response_model=EmbeddingResponse, response_model_exclude_none=True)
    async def embed(request: EmbeddingRequest, share: RoomShare = shares) -> Response:
        """Return unit vectors of texts in OpenAI's format."""
        role = _role(request, models)
        with service.generations.lease() as generation:
            require_encoder(generation, service.settings.name)
            dimensions = generation.engine.index.transform.dim
        _require_dimensions(request, dimensions)
        _require_room(request.input, dimensions, service.room.most_of_one)
        texts = await asyncio.to_thread(_texts, request.input, service.settings.limits)
        share.reach(4 * dimensions * len(texts))
        embedded = await service.embed(texts, role)
        _require_dimensions(request, embedded.vectors.shape[1])  # a new generation can have other dimensions
        return await asyncio.to_thread(embedding_answer, request, role, embedded)

    @router.get("/models", response_model=ModelsResponse)
    async def list_models() -> Response:
        """List the model names; none if the vectors came with the corpus."""
        with service.generations.lease() as generation:
            data = [_facts(model, generation) for model in models.values()] if _encodes(generation) else []
        return JsonResponse({"object": "list", "data": data})

    @router.get("/models/{id:path}", response_model=ModelResponse)
    async def model(id: Annotated[str, Path(description="Name of the model.")]) -> Response:  # noqa: A002
        """Describe one model name."""
        with service.generations.lease() as generation:
            require_encoder(generation, service.settings.name)
            return JsonResponse(_facts(_model(id, models), generation))

    return router


def embedding_models(name: str) -> dict[str, EmbeddingModel]:
    """Return the models of an index by id."""
    models = [
        EmbeddingModel(name, "document", f"Vectors of documents; use {name}/query or input_type for queries.", False),
        EmbeddingModel(f"{name}/query", "query", "Vectors of queries, to be compared with vectors of documents."),
        EmbeddingModel(f"{name}/document", "document", "Vectors of documents, as in the index."),
    ]
    return {model.id: model for model in models}


def texts_of(given: Any, field: str, limits: ServerLimits) -> list[str]:
    """Return the text or texts of a field. Raises RequestError with the place of the first invalid one."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts:
        kind = "an empty list" if texts == [] else f"of type {type(given).__name__}"
        raise RequestError.of_field(field, f"is {kind}; expected a text, or a list of texts.")
    for number, text in enumerate(texts):
        if fault := _fault(text, limits):
            raise RequestError.of_field(field if isinstance(given, str) else f"{field}.{number}", f"{fault}.")
    return texts


def embedding_answer(request: EmbeddingRequest, role: Role, embedded: TextVectors) -> Response:
    """Return the answer, sent in pieces if it is long, to use little memory besides the vectors."""
    read = sum(min(length, embedded.max_length) for length in embedded.lengths)
    facts: dict[str, Any] = {
        "object": "list",
        "model": request.model,
        "role": role,
        "usage": {"prompt_tokens": read, "total_tokens": read},
        "index": vars(embedded.stamp),
    }
    facts |= notes_on_texts(embedded.lengths, embedded.max_length)
    head = f'{to_json(facts)[:-1]},"data":['.encode()
    vectors = np.ascontiguousarray(embedded.vectors, dtype="<f4")
    count = max(1, _PIECE_BYTES // max(1, vectors[:1].nbytes))
    if len(vectors) <= count:
        return Response(head + rows_as_json(vectors, 0, request.encoding_format) + b"]}", media_type=_JSON)
    return StreamingResponse(_pieces(head, vectors, count, request.encoding_format), media_type=_JSON)


def notes_on_texts(lengths: Sequence[int], limit: int) -> dict[str, Any]:
    """Return the fields of an answer on truncated texts, and texts without known tokens: JSON types."""
    cut = [{"index": place, "tokens": length, "limit": limit} for place, length in enumerate(lengths) if length > limit]
    unknown = [place for place, length in enumerate(lengths) if not length]
    return {name: texts for name, texts in (("truncated", cut), ("unknown", unknown)) if texts}


async def _pieces(head: bytes, vectors: Vectors, count: int, form: str | None) -> AsyncIterator[bytes]:
    yield head
    for start in range(0, len(vectors), count):
        piece = await asyncio.to_thread(rows_as_json, vectors[start : start + count], start, form)
        yield b"," + piece if start else piece
    yield b"]}"


def rows_as_json(vectors: Vectors, first: int, form: str | None) -> bytes:
    """Return the JSON objects of vectors (n, k), float32, separated by commas; the first has index `first`.

    Numbers are written so that reading them gives the same float32.
    """
    if form == "base64":
        written = [b'"%b"' % b2a_base64(row, newline=False) for row in vectors]
    else:
        written = [msgspec.json.encode(row) for row in vectors.tolist()]
    return b",".join(
        b'{"object":"embedding","index":%d,"embedding":%b}' % (first + number, row)
        for number, row in enumerate(written)
    )


def _fault(text: Any, limits: ServerLimits) -> str | None:
    if not isinstance(text, str):
        return f"is of type {type(text).__name__}; expected text"
    if len(text) > limits.characters:
        return f"{len(text):,} characters; expected at most {limits.characters:,}"
    try:
        not_blank(text)
    except ValueError as error:
        return str(error)
    return None


def _texts(given: Any, limits: ServerLimits) -> list[str]:
    """Return the texts. Raises RequestError for the first other item; LangChain sends tokens by default."""
    if isinstance(given, list):
        number = next((number for number, text in enumerate(given) if type(text) is not str), None)
        if number is not None and type(given[number]) in (int, list):
            raise RequestError.of_field(f"input.{number}", f"{_NO_TOKENS}.")
    return texts_of(given, "input", limits)


def _model(name: str, models: dict[str, EmbeddingModel]) -> EmbeddingModel:
    if name not in models:
        known = ", ".join(f'"{model}"' for model in models)
        raise RequestError(404, f'unknown model "{name}"; expected one of {known}.', "model")
    return models[name]


def _role(request: EmbeddingRequest, models: dict[str, EmbeddingModel]) -> Role:
    """Return the role of the texts. Raises RequestError for an unknown model, or one that contradicts `input_type`."""
    model = _model(request.model, models)
    role = model.role if request.input_type is None else _ROLES[request.input_type]
    if model.fixed and role != model.role:
        fault = f'input_type is "{request.input_type}", but the model "{model.id}" is for the other role; '
        raise RequestError(400, f"{fault}leave out one of them.", "input_type")
    return role


def _require_dimensions(request: EmbeddingRequest, dimensions: int) -> None:
    if request.dimensions not in (None, dimensions):
        fault = f"is {request.dimensions}; the index has {dimensions}, and its vectors cannot be shortened."
        raise RequestError.of_field("dimensions", fault)


def _require_room(given: Any, dimensions: int, most_bytes: int) -> None:
    most = most_bytes // (4 * dimensions)
    if isinstance(given, list) and len(given) > most:
        fault = f"{len(given):,} texts; an answer has at most {most:,} vectors of {dimensions} dimensions. "
        raise RequestError.of_field("input", f"{fault}Send several requests.")


def _encodes(generation: OpenGeneration) -> bool:
    return KIND_TRAITS[generation.engine.index.config.encoder.kind].encodes_texts


def require_encoder(generation: OpenGeneration, name: str) -> None:
    """Raise RequestError for an index that cannot encode texts."""
    if not _encodes(generation):
        raise RequestError(
            400,
            f'The vectors of "{name}" came with its corpus, so there is no model to encode texts. To find documents '
            'close to a stored one, use POST /v1/search with "like".',
        )


def _facts(model: EmbeddingModel, generation: OpenGeneration) -> dict[str, Any]:
    index = generation.engine.index
    longest = index.encoder.max_length
    return {
        "id": model.id,
        "object": "model",
        "created": int(datetime.fromisoformat(index.manifest.created).timestamp()),
        "owned_by": "isotrope",
        "role": model.role,
        "dimensions": index.transform.dim,
        "max_length": None if longest >= UNLIMITED else longest,
        "description": model.description,
    }
