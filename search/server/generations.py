"""The open generation of the index, and older ones that still have questions: none of these is asked of two."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from indexer.config import KIND_TRAITS
from indexer.progress import NoProgress
from search.engine import SearchEngine
from search.filters.facets import ColumnFacet, column_facets

_LONGEST_PAUSE = 60.0  # seconds


@dataclass(frozen=True)
class IndexStamp:
    """Which generation of which index an answer is from."""

    generation: int
    fingerprint: str


class Generation:
    """An open generation, and how many ask it."""

    def __init__(self, engine: SearchEngine) -> None:
        self.engine = engine
        engine.follows = False  # an answer would be of another generation than it says
        manifest = engine.index.manifest
        self.stamp = IndexStamp(manifest.generation, manifest.fingerprint)
        self.users = 0
        self.hybrid = False  # whether it was asked for BM25
        self._facets: list[ColumnFacet] | None = None
        self._facets_lock = threading.Lock()

    def facets(self) -> list[ColumnFacet]:
        """What the metadata columns hold; worked out by the first who asks."""
        with self._facets_lock:
            if self._facets is None:
                self._facets = column_facets(self.engine.index)
            return self._facets


class Generations:
    """The newest generation, once it is loaded; `lease` gives it to one question from beginning to end.

    `on_change` is told what happened, in a sentence. All methods are for the thread of the event loop.
    """

    def __init__(self, engine: SearchEngine, on_change: Callable[[str], None]) -> None:
        self.current = Generation(engine)
        self._on_change = on_change
        self._reloading = asyncio.Lock()
        self.failure: str | None = None  # why the next generation cannot be served
        self.reloads = 0

    @contextlib.contextmanager
    def lease(self) -> Iterator[Generation]:
        """The newest generation, which is not closed before the block ends."""
        generation = self.current
        generation.users += 1
        try:
            yield generation
        finally:
            generation.users -= 1
            if generation is not self.current and not generation.users:
                self._close(generation)

    async def reload(self) -> bool:
        """Go on with the newest generation; False if it is open already.

        It is loaded, and has answered a question, before it takes the place of the one before; whatever goes wrong
        until then leaves that one there. Raises StoreError and what else the opening of an index does.
        """
        async with self._reloading:
            before = self.current
            newest = await asyncio.to_thread(_newest, before)
            if newest is None:
                self.failure = None
                return False
            self.current = newest
            self.reloads += 1
            self.failure = None
            if not before.users:
                self._close(before)
            self._on_change(f"generation {newest.stamp.generation} is served, after {before.stamp.generation}")
            return True

    async def watch(self, seconds: float) -> None:
        """`reload` whenever there is something new, looked for every so many seconds, until it is cancelled.

        What cannot be opened is tried again, less and less often, and told once.
        """
        pause = seconds
        while True:
            await asyncio.sleep(pause)
            try:
                if await asyncio.to_thread(lambda: self.current.engine.index.is_followed):
                    await self.reload()
                self.failure, pause = None, seconds
            except Exception as error:  # noqa: BLE001  # whatever it is, the open generation goes on
                pause = min(2 * pause, _LONGEST_PAUSE)
                if self.failure != str(error):
                    self.failure = str(error)
                    self._on_change(f"the next generation cannot be served: {error}")

    def _close(self, generation: Generation) -> None:
        """Let go of the files. What else is held, vectors above all, goes with the last reference."""
        generation.engine.close()


def _newest(before: Generation) -> Generation | None:
    """The newest generation, ready to answer; None if that is the open one."""
    if not before.engine.index.is_followed:
        return None
    engine = before.engine.newest()
    prepare(engine, before.hybrid)
    generation = Generation(engine)
    generation.hybrid = before.hybrid
    return generation


def prepare(engine: SearchEngine, hybrid: bool = False) -> None:
    """Load all that the first question needs. Raises what opening an index or its encoder raises."""
    if KIND_TRAITS[engine.index.config.encoder.kind].encodes_texts:
        engine.search("a first question", 1)
    else:
        engine.check()
    if hybrid:
        engine.prepare_hybrid(NoProgress())
