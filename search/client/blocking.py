"""`SearchClient`: a client for ordinary programs, whose methods return when the server has answered."""

import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from indexer.corpus.document import Document
from indexer.system.http import HttpAnswer, HttpConnection
from indexer.typed_arguments import checked
from search.client.answers import ServedResult
from search.client.calls import ANSWER_SECONDS, Item, ServerCalls, T
from search.hits import Answer, Hit
from search.ranking.options import SearchFields, SearchOptions

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from indexer.recipe.config import Role


class SearchClient:
    """Searches an index behind a server over HTTP. Scores and hits equal those of the server's `SearchEngine`.

    `url` is the URL that `isotrope serve` prints, or the URL of a proxy in front of it, with its path. `key` is one of
    the server's keys. It is sent in plain text, so use https beyond this machine; `is_private` is True if nobody on the
    network can read it. `seconds` limits one request. `on_wait` gets the seconds before each retry at a busy server.

    Dates and times in metadata arrive as text, infinite numbers and NaN as None, because JSON has none of them.
    Queries beyond one request may be answered by a later generation of the index. Proxies from the environment are
    used for other machines only. Redirects are not followed, because they would receive the key.

    Raises ConfigError for an invalid URL or key. Methods raise ConfigError for a refused request, and MachineError for
    a server that is unreachable, too busy, or failing. Safe to share between threads.
    """

    @checked
    def __init__(
        self,
        url: str,
        key: str | None = None,
        seconds: float = ANSWER_SECONDS,
        on_wait: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._connection = HttpConnection(url, "`isotrope serve`", key, seconds)
        self.url, self.is_private = self._connection.url, self._connection.is_private
        self._calls = _BlockingCalls(self._connection, on_wait)

    def __enter__(self) -> "SearchClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    @checked
    def search(
        self, query: str, options: SearchOptions | int | None = None, **fields: Unpack[SearchFields]
    ) -> Answer[Hit]:
        """Return the documents closest to the query, as `SearchEngine.search` does."""
        return _result_of(self._calls.search(query, options, **fields))

    @checked
    def search_many(
        self, queries: Sequence[str], options: SearchOptions | int | None = None, **fields: Unpack[SearchFields]
    ) -> list[Answer[Hit]]:
        """Search for any number of queries, in as few requests as the server allows."""
        return _result_of(self._calls.search_many(queries, options, **fields))

    @checked
    def results(
        self, queries: Sequence[str], options: SearchOptions | int | None = None, **fields: Unpack[SearchFields]
    ) -> list[ServedResult]:
        """Return the answers as `search_many` does, with the server's notes on each query."""
        return _result_of(self._calls.results(queries, options, **fields))

    @checked
    def neighbours(
        self, identity: str, options: SearchOptions | int | None = None, **fields: Unpack[SearchFields]
    ) -> Answer[Hit]:
        """Return the documents closest to a stored document: `SearchEngine.neighbours`. Raises UnknownDocumentError."""
        return _result_of(self._calls.neighbours(identity, options, **fields))

    @checked
    def document(self, identity: str) -> Document:
        """Return a stored document: `SearchEngine.document`. Raises UnknownDocumentError."""
        return _result_of(self._calls.document(identity))

    @checked
    def documents(self, ids: Iterable[str]) -> list[Document]:
        """Return stored documents in the order of their ids, without those that the index does not contain.

        Each document takes one request, so the documents may come from several generations.
        """
        return _result_of(self._calls.documents(ids))

    @checked
    def embed(self, texts: Iterable[str], role: "Role" = "query") -> "npt.NDArray[np.float32]":
        """Return unit vectors (n, k), float32, of texts by the index's encoder and transform.

        They equal those of `SearchEngine.embed` within rounding, but are a plain array, which `search_vectors` of an
        engine would read as raw embeddings. Raises ConfigError for a blank text and for an index without an encoder,
        and MachineError if the server changes its generation meanwhile.
        """
        return _result_of(self._calls.embed(texts, role))

    def info(self) -> dict[str, Any]:
        """Return the description of the index: how it was built, its measured quality, and its metadata columns."""
        return _result_of(self._calls.info())


class _BlockingCalls(ServerCalls):
    """Calls that block in this thread, one request after the other: their coroutines never suspend."""

    def __init__(self, connection: HttpConnection, on_wait: Callable[[float], None]) -> None:
        super().__init__(connection, on_wait)
        self._connection = connection

    async def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> HttpAnswer:
        return self._connection.exchange(method, path, body)

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def _each(self, ask: Callable[[Item], Awaitable[T]], items: Sequence[Item]) -> list[T]:
        return [await ask(item) for item in items]


def _result_of(call: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, and return its result."""
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("a blocking call was suspended")
