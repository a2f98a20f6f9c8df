"""`AsyncSearchClient`: a client for programs with an event loop, such as web servers."""

from asyncio import TaskGroup, sleep
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from indexer.system.http import AsyncHttpConnection, HttpAnswer
from indexer.typed_arguments import checked
from search.client.calls import ANSWER_SECONDS, Item, ServerCalls, T

_AT_ONCE = 4  # requests of one call: as many of the longest answers as a server has room for by default


class AsyncSearchClient(ServerCalls):
    """Searches an index behind a server with `await`. Arguments, answers and errors are those of `SearchClient`.

    Belongs to the event loop of asyncio in which it sends its first request; any number of tasks may share it. A call
    with many queries, ids or texts sends four requests at once. If a call fails or is cancelled, its other requests are
    cancelled too, and their connections closed.
    """

    @checked
    def __init__(
        self,
        url: str,
        key: str | None = None,
        seconds: float = ANSWER_SECONDS,
        on_wait: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._connection = AsyncHttpConnection(url, "`isotrope serve`", key, seconds)
        super().__init__(self._connection, on_wait)
        self.is_private = self._connection.is_private

    async def __aenter__(self) -> "AsyncSearchClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    async def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> HttpAnswer:
        return await self._connection.exchange(method, path, body)

    async def _sleep(self, seconds: float) -> None:
        await sleep(seconds)

    async def _each(self, ask: Callable[[Item], Awaitable[T]], items: Sequence[Item]) -> list[T]:
        if len(items) == 1:
            return [await ask(items[0])]
        waiting, results = iter(enumerate(items)), dict[int, T]()

        async def work() -> None:
            for place, item in waiting:
                results[place] = await ask(item)

        try:
            async with TaskGroup() as group:
                for _ in range(min(_AT_ONCE, len(items))):
                    group.create_task(work())
        except BaseExceptionGroup as failed:
            error = failed.exceptions[0]
        else:
            return [results[place] for place in range(len(items))]
        raise error  # here, so that it keeps its cause
