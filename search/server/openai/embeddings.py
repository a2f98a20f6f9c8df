"""POST /v1/embeddings and GET /v1/models, in the shapes of OpenAI's API: texts to the unit vectors of the index.

That API knows no roles, but here the vector of a query may differ from that of a document with the same words (their
means differ, and some models put a prefix before one of them). So there are three models: NAME and NAME/document give
vectors of documents, NAME/query those of queries. With NAME, `input_type` can state the role, as in other APIs.

Unknown fields are refused, since most of those that other servers take would change the vectors (a prompt, another
pooling, where to cut); of the fields that change nothing, those of OpenAI's API are taken and not looked at.
"""

import asyncio
from binascii import b2a_base64
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field, WithJsonSchema

from indexer.arrays import Vectors
from indexer.models.identity import UNLIMITED
from indexer.recipe.config import KIND_TRAITS, Role
from search.files import to_json
from search.hits import Truncated
from search.server.generations import OpenGeneration, Stamp
from search.server.http.answers import share_of
from search.server.http.failures import JsonResponse, RequestError
from search.server.http.messages import ErrorResponse, Name, Request, not_blank
from search.server.http.routes import ERRORS
from search.server.room import RoomShare
from search.server.service import SearchService, TextVectors
from search.server.settings import ServerLimits

_PIECE_BYTES = 256 << 10  # of vectors that are written as JSON together
_ROLES: dict[str, Role] = {
    "query": "query",
    "search_query": "query",
    "document": "document",
    "search_document": "document",
    "passage": "document",
}
_JSON = "application/json"
_NO_TOKENS = (
    "tokens, numbers of a model's own vocabulary, are not taken here; expected text. In LangChain say "
    "OpenAIEmbeddings(..., check_embedding_ctx_length=False)"
)
TEXTS_SCHEMA: dict[str, Any] = {
    "anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]
}
_ERRORS = ERRORS | {
    400: {"model": ErrorResponse, "description": "the body is no JSON, or a field asks for what is not done here"},
    404: {"model": ErrorResponse, "description": "there is no such model"},
}


class EmbeddingRequest(Request):
    """Texts, and the model that says what they are."""

    input: Annotated[Any, WithJsonSchema(TEXTS_SCHEMA)] = Field(
        description="A text, or several: any number that fits into a body. Tokens are refused."
    )
    model: Name = Field(description="One of GET /v1/models: the index's name, or that with /query or /document.")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description='"base64": float32, little-endian. Left out: "float".'
    )
    dimensions: int | None = Field(None, description="Only what the index has.")
    input_type: Literal["query", "document", "search_query", "search_document", "passage"] | None = Field(
        None, description="What the texts are, where the model leaves it open."
    )
    user: Any = Field(None, description="Not looked at.")
    safety_identifier: Any = Field(None, description="Not looked at.")


class EmbeddingUsage(BaseModel):
    """Tokens that were read: what was cut off is not counted."""

    prompt_tokens: int
    total_tokens: int


@dataclass(frozen=True, kw_only=True)
class TruncatedText(Truncated):
    """The place of a text that was cut, because the encoder reads no more."""

    index: int


class EmbeddingRow(BaseModel):
    """The unit vector of a text: numbers, or base64 of them."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingResponse(BaseModel):
    """The vectors of some texts, in their order."""

    object: Literal["list"]
    model: str
    role: Role = Field(description="What the texts were taken for.")
    usage: EmbeddingUsage
    index: Stamp
    truncated: list[TruncatedText] | None = None
    unknown: list[int] | None = Field(None, description="Texts of which the encoder knows nothing.")
    data: list[EmbeddingRow]


class ModelResponse(BaseModel):
    """A name for `model`, and what its vectors are."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    role: Role
    dimensions: int
    max_length: int | None = Field(description="Tokens of a text that are read; null: all.")
    description: str


class ModelsResponse(BaseModel):
    """All names for `model`."""

    object: Literal["list"]
    data: list[ModelResponse]


@dataclass(frozen=True)
class EmbeddingModel:
    """A name for `model`; `fixed`: it says the role, and `input_type` can only repeat it."""

    id: str
    role: Role
    description: str
    fixed: bool = True


def embedding_routes(service: SearchService) -> APIRouter:
    """POST /v1/embeddings, GET /v1/models, GET /v1/models/{id}."""
    router = APIRouter(prefix="/v1", responses=_ERRORS, tags=["openai"])
    models, shares = embedding_models(service.settings.name), share_of(service.room)

    @router.post("/embeddings", response_model=EmbeddingResponse, response_model_exclude_none=True)
    async def embed(asked: EmbeddingRequest, share: RoomShare = shares) -> Response:
        """Unit vectors of texts, as OpenAI's clients ask for them."""
        role = _role(asked, models)
        with service.generations.lease() as generation:
            require_encoder(generation, service.settings.name)
            dimensions = generation.engine.index.transform.dim
        _require_dimensions(asked, dimensions)
        _require_room(asked.input, dimensions, service.room.most_of_one)
        texts = await asyncio.to_thread(_texts, asked.input, service.settings.limits)
        share.reach(4 * dimensions * len(texts))
        found = await service.embed(texts, role)
        _require_dimensions(asked, found.vectors.shape[1])  # a new generation may have another number
        return await asyncio.to_thread(embedding_answer, asked, role, found)

    @router.get("/models", response_model=ModelsResponse)
    async def list_models() -> Response:
        """The names that `model` may have; none where the vectors came with the corpus."""
        with service.generations.lease() as generation:
            there = [_facts(model, generation) for model in models.values()] if _encodes(generation) else []
        return JsonResponse({"object": "list", "data": there})

    @router.get("/models/{id:path}", response_model=ModelResponse)
    async def model(id: str) -> Response:  # noqa: A002  # what the route calls it
        """One of these names."""
        with service.generations.lease() as generation:
            require_encoder(generation, service.settings.name)
            return JsonResponse(_facts(_model(id, models), generation))

    return router


def embedding_models(name: str) -> dict[str, EmbeddingModel]:
    """The models of an index, by id."""
    models = [
        EmbeddingModel(name, "document", f"Vectors of documents; of queries with {name}/query or input_type.", False),
        EmbeddingModel(f"{name}/query", "query", "Vectors of queries: compare them with those of documents."),
        EmbeddingModel(f"{name}/document", "document", "Vectors of documents, as the index holds them."),
    ]
    return {model.id: model for model in models}


def texts_of(given: Any, field: str, limits: ServerLimits) -> list[str]:
    """The texts of a field: one, or a list. Raises RequestError with the place of the first that is none."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts:
        what = "an empty list" if texts == [] else f"of type {type(given).__name__}"
        raise RequestError(400, f"{field}: is {what}; expected a text, or a list of texts.", field)
    for number, text in enumerate(texts):
        if fault := _fault(text, limits):
            place = field if isinstance(given, str) else f"{field}.{number}"
            raise RequestError(400, f"{place}: {fault}.", place)
    return texts


def embedding_answer(asked: EmbeddingRequest, role: Role, found: TextVectors) -> Response:
    """The answer: sent in pieces where it is long, so that little of it is in memory beside the vectors."""
    read = sum(min(length, found.max_length) for length in found.lengths)
    facts: dict[str, Any] = {
        "object": "list",
        "model": asked.model,
        "role": role,
        "usage": {"prompt_tokens": read, "total_tokens": read},
        "index": vars(found.stamp),
    }
    facts |= notes_on_texts(found.lengths, found.max_length)
    head = f'{to_json(facts)[:-1]},"data":['.encode()
    vectors = np.ascontiguousarray(found.vectors, dtype="<f4")
    count = max(1, _PIECE_BYTES // max(1, vectors[:1].nbytes))
    if len(vectors) <= count:
        return Response(head + rows_as_json(vectors, 0, asked.encoding_format) + b"]}", media_type=_JSON)
    return StreamingResponse(_pieces(head, vectors, count, asked.encoding_format), media_type=_JSON)


def notes_on_texts(lengths: Sequence[int], limit: int) -> dict[str, Any]:
    """Return the fields of an answer on texts that were cut, and on texts without known tokens: JSON types."""
    numbered = list(enumerate(lengths))
    cut = [{"index": number, "tokens": length, "limit": limit} for number, length in numbered if length > limit]
    unknown = [number for number, length in numbered if not length]
    return {name: found for name, found in (("truncated", cut), ("unknown", unknown)) if found}


async def _pieces(head: bytes, vectors: Vectors, count: int, form: str | None) -> AsyncIterator[bytes]:
    """A body; each piece of it is written in a thread."""
    yield head
    for start in range(0, len(vectors), count):
        piece = await asyncio.to_thread(rows_as_json, vectors[start : start + count], start, form)
        yield b"," + piece if start else piece
    yield b"]}"


def rows_as_json(vectors: Vectors, first: int, form: str | None) -> bytes:
    """The objects of some vectors (n, k), float32, with commas between them; `first` is the index of the first.

    Numbers are written so that they are read as the very float32 that they are.
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
    """Return the fault of a text; None if it has none."""
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
    """Return the texts. Raises RequestError for the first item that is no text; LangChain sends tokens by default."""
    if isinstance(given, list):
        number = next((number for number, one in enumerate(given) if type(one) is not str), None)
        if number is not None and type(given[number]) in (int, list):
            raise RequestError(400, f"input.{number}: {_NO_TOKENS}.", f"input.{number}")
    return texts_of(given, "input", limits)


def _model(name: str, models: dict[str, EmbeddingModel]) -> EmbeddingModel:
    if name not in models:
        there = ", ".join(f'"{model}"' for model in models)
        raise RequestError(404, f'there is no model "{name}"; there are {there}.', "model")
    return models[name]


def _role(asked: EmbeddingRequest, models: dict[str, EmbeddingModel]) -> Role:
    """Return the role of the texts. Raises RequestError for an unknown model, and one that contradicts `input_type`."""
    model = _model(asked.model, models)
    role = model.role if asked.input_type is None else _ROLES[asked.input_type]
    if model.fixed and role != model.role:
        raise RequestError(
            400,
            f'input_type is "{asked.input_type}", but the model "{model.id}" is for texts of the other role; leave one '
            "of the two out.",
            "input_type",
        )
    return role


def _require_dimensions(asked: EmbeddingRequest, dimensions: int) -> None:
    if asked.dimensions not in (None, dimensions):
        raise RequestError(
            400,
            f"dimensions: is {asked.dimensions}; the index has {dimensions}, and its vectors cannot be shortened.",
            "dimensions",
        )


def _require_room(given: Any, dimensions: int, most_bytes: int) -> None:
    most = most_bytes // (4 * dimensions)
    if isinstance(given, list) and len(given) > most:
        raise RequestError(
            400,
            f"input: {len(given):,} texts; their vectors of {dimensions} numbers are too much for one answer, which "
            f"has at most {most:,}. Send several requests.",
            "input",
        )


def _encodes(generation: OpenGeneration) -> bool:
    return KIND_TRAITS[generation.engine.index.config.encoder.kind].encodes_texts


def require_encoder(generation: OpenGeneration, name: str) -> None:
    """Raises RequestError for an index that makes no vectors of texts."""
    if not _encodes(generation):
        raise RequestError(
            400,
            f'The vectors of "{name}" came with its corpus: there is no model here that makes one of a text. What is '
            'close to a stored document can be asked for: POST /v1/search with "like".',
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
