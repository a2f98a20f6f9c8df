"""The methods of both clients, written once: what to request, and what the answers mean."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from indexer.corpus.document import Document
from indexer.errors import ConfigError
from indexer.system.http import AsyncHttpConnection, HttpAnswer, HttpConnection
from search.client.answers import (
    ATTEMPTS,
    ServedDocument,
    ServedModel,
    ServedModels,
    ServedResult,
    ServedResults,
    ServedVectors,
    TooMuchError,
    decoded,
    failure_of,
    require_rows,
    seconds_to_wait,
    stranger,
    vectors_of,
)
from search.client.requests import (
    fields_of,
    path_of,
    pieces_of,
    require_embeddable,
    require_ids,
    require_unicode,
)
from search.hits import Answer, Hit
from search.ranking.options import SearchFields, SearchOptions, require_queries

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from indexer.recipe.config import Role

ANSWER_SECONDS = 300.0  # the server ends a request sooner, by its own deadline
Item = TypeVar("Item")
T = TypeVar("T")


class ServerCalls(ABC):
    """The methods of a client. A subclass sends the requests, waits, and decides how many requests run at once."""

    def __init__(self, connection: HttpConnection | AsyncHttpConnection, on_wait: Callable[[float], None]) -> None:
        self.url, self._has_key, self._on_wait = connection.url, connection.has_key, on_wait
        self._models = list[ServedModel]()  # read once; a server keeps its name

    @abstractmethod
    async def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> HttpAnswer:
        """Send one request and return the response, whatever its status."""

    @abstractmethod
    async def _sleep(self, seconds: float) -> None:
        """Wait before the next attempt."""

    @abstractmethod
    async def _each(self, ask: Callable[[Item], Awaitable[T]], items: Sequence[Item]) -> list[T]:
        """Return the results of `ask` for all items, in order. The first error ends all of them."""

    async def search(
        self, query: str, options: SearchOptions | int | None = None, **fields: Unpack[SearchFields]
    ) -> Answer[Hit]:
        """Return the documents closest to the query, as `SearchEngine.search` does."""
        return (await self.search_many([query], options, **fields))[0]

    async def search_many(
        self, queries: Sequence[str], options: SearchOptions | int | None = None, **fields: Unpack[SearchFields]
    ) -> list[Answer[Hit]]:
        """Search for any number of queries, in as few requests as the server allows."""
        return [Answer(result.hits) for result in await self.results(queries, options, **fields)]

    async def results(
        self, queries: Sequence[str], options: SearchOptions | int | None = None, **fields: Unpack[SearchFields]
    ) -> list[ServedResult]:
        """Return the answers as `search_many` does, with the server's notes on each query."""
        request = fields_of(SearchOptions.of(options, fields))
        pieces = list(pieces_of(require_unicode(require_queries(queries)), request["k"]))
        answers = await self._each(partial(self._results_of, request), pieces)
        return [result for answer in answers for result in answer]

    async def neighbours(
        self, identity: str, options: SearchOptions | int | None = None, **fields: Unpack[SearchFields]
    ) -> Answer[Hit]:
        """Return the documents closest to a stored document: `SearchEngine.neighbours`. Raises UnknownDocumentError."""
        chosen = SearchOptions.of(options, fields)
        chosen.require_no_text()
        require_unicode([identity], "the id")
        return Answer((await self._results(fields_of(chosen) | {"like": identity}, 1))[0].hits)

    async def document(self, identity: str) -> Document:
        """Return a stored document: `SearchEngine.document`. Raises UnknownDocumentError."""
        require_ids([identity])
        return _document(self._decoded(await self._request("GET", path_of(identity, False)), ServedDocument))

    async def documents(self, ids: Iterable[str]) -> list[Document]:
        """Return stored documents in the order of their ids, without those that the index does not contain.

        Each document is a request, so they may come from several generations.
        """
        found = await self._each(self._stored, require_ids(ids))
        return [document for document in found if document is not None]

    async def embed(self, texts: Iterable[str], role: "Role" = "query") -> "npt.NDArray[np.float32]":
        """Return unit vectors (n, k), float32, of texts by the index's encoder and transform.

        They equal those of `SearchEngine.embed` within rounding, but are a plain array, which `search_vectors` of an
        engine would read as raw embeddings. Raises ConfigError for a blank text and for an index without an encoder,
        and MachineError if the server changes its generation meanwhile.
        """
        checked = require_embeddable(texts)
        model = await self._model_for(role)
        try:
            answers = await self._each(partial(self._vectors, model.id), list(pieces_of(checked)))
        except ConfigError:
            self._models = []  # another server may answer here since
            raise
        return vectors_of(self.url, answers, model.dimensions)

    async def info(self) -> dict[str, Any]:
        """Return the description of the index: how it was built, its measured quality, and its metadata columns."""
        return self._decoded(await self._request("GET", "/v1/info"), dict[str, Any])

    async def _results_of(self, request: dict[str, Any], queries: list[str]) -> list[ServedResult]:
        """Return the answers to some queries, by one request, or by halves if that request is too large."""
        try:
            return await self._results(request | {"query": queries}, len(queries))
        except TooMuchError:
            if len(queries) == 1:
                raise
            half = len(queries) // 2
            first = await self._results_of(request, queries[:half])
            return first + await self._results_of(request, queries[half:])

    async def _results(self, request: dict[str, Any], count: int) -> list[ServedResult]:
        results = self._decoded(await self._request("POST", "/v1/search", request), ServedResults).results
        if len(results) != count:
            raise stranger(self.url, f"{len(results):,} answers to {count:,} queries")
        return results

    async def _stored(self, identity: str) -> Document | None:
        body = await self._request("GET", path_of(identity, True))
        return None if body == b"null" else _document(self._decoded(body, ServedDocument))

    async def _model_for(self, role: "Role") -> ServedModel:
        """Return the model name for the texts of a role."""
        if role not in ("query", "document"):
            raise ConfigError(f'role is {role!r}; expected "query" or "document".')
        models = self._models or self._decoded(await self._request("GET", "/v1/models"), ServedModels).data
        self._models = models
        model = next((model for model in models if model.role == role), None)
        if model is None:
            raise ConfigError(
                f"{self.url}: the index has no encoder, because its vectors came with its corpus; expected an index "
                "that can encode texts."
            )
        return model

    async def _vectors(self, model: str, texts: list[str]) -> ServedVectors:
        body = {"model": model, "input": texts, "encoding_format": "base64"}
        answer = self._decoded(await self._request("POST", "/v1/embeddings", body), ServedVectors)
        return require_rows(self.url, answer, len(texts))

    def _decoded(self, body: bytes, kind: type[T]) -> T:
        return decoded(self.url, body, kind)

    async def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        """Return the body of a successful response; retry while the server is busy."""
        answer = await self._exchange(method, path, body)
        for _ in range(ATTEMPTS - 1):
            if answer.status != 429:
                break
            wait = seconds_to_wait(answer)
            self._on_wait(wait)
            await self._sleep(wait)
            answer = await self._exchange(method, path, body)
        if answer.status != 200:
            raise failure_of(self.url, path, answer, self._has_key)
        return answer.body


def _document(served: ServedDocument) -> Document:
    return Document(served.id, served.text, served.title, served.metadata)
