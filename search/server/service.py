"""Questions to answers: THE way in which every protocol asks the open index.

A question passes two queues: one thread encodes, others rank, and each takes all waiting questions as one batch. The
service limits the number and the duration of requests for all protocols.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from indexer import ann
from indexer.arrays import Embeddings, Vectors
from indexer.corpus.document import Document
from indexer.encoders.protocol import EncodeStats
from indexer.errors import ConfigError, IsotropeError, StoreError, as_shown
from indexer.progress import NoProgress
from indexer.recipe.config import Role
from search.abandonment import AbandonedError, awaited_while
from search.engine import SearchEngine
from search.filters.facets import ColumnFacet
from search.hits import Answer, Hit
from search.ranking.documents import RankedDocument
from search.ranking.options import SearchOptions
from search.server.batches import GreedyBatches
from search.server.facts import facts_of
from search.server.generations import Generations, OpenGeneration, Stamp
from search.server.room import BusyError as BusyError
from search.server.room import Room, RoomShare
from search.server.settings import ServerSettings

MOST_TEXTS = 64  # encoded together
PIECE = 16  # texts of a large request that wait together: others come in between
_MOST_HITS = 4096  # ranked together
_RANKERS = 2  # threads, of which one takes light questions alone
_LIGHT_K, _LIGHT_FOLD = 100, 0.9  # more hits, or folding at less, is no light question
_READERS = 4  # threads that read documents and transform vectors
_LOOK = 2.0  # seconds between two looks for a new generation
Answered = TypeVar("Answered")
Texts = tuple[str, ...]
Hits = list[Answer[Hit]]


class DeadlineError(Exception):
    """A request was not answered in time."""


@dataclass(frozen=True)
class EncodedTexts:
    """Raw embeddings (n, d), and tokens of each text before it was cut."""

    embeddings: Embeddings
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class TextVectors:
    """Unit vectors (n, k) of texts, tokens of each text before it was cut at `max_length`, and the index's stamp."""

    vectors: Vectors
    lengths: tuple[int, ...]
    max_length: int
    stamp: Stamp


@dataclass(frozen=True)
class SearchReply:
    """An answer to each query, tokens of each before it was cut at `max_length`, and the stamp of ONE generation."""

    answers: list[Answer[Hit]]
    lengths: tuple[int, ...]
    max_length: int
    stamp: Stamp


class SearchService:
    """The open index, for questions of many callers at once. All methods are for the thread of the event loop.

    Methods raise the engine's errors, BusyError if the server is full, and DeadlineError. A cancelled caller gives its
    place back, and its question is not computed unless that has begun.
    """

    def __init__(self, engine: SearchEngine, settings: ServerSettings, on_change: Callable[[str], None]) -> None:
        self.settings = settings
        self.generations = Generations(engine, on_change)
        self.on_batch: Callable[[str, int], None] = lambda stage, texts: None
        self.encoding = GreedyBatches("encode", self._encode, MOST_TEXTS)
        self.ranking = GreedyBatches("rank", self._rank, _MOST_HITS, _RANKERS, _is_light)
        self._readers = ThreadPoolExecutor(_READERS, "read")
        self._describer, self._counter = ThreadPoolExecutor(1, "describe"), ThreadPoolExecutor(1, "count")
        self.room = Room(settings.limits.answering_bytes, settings.limits.answer_bytes)
        self.pending = 0
        self.draining = False
        self._seconds = 0.05  # that a request takes, lately
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Watch for new generations from now on."""
        self._watcher = asyncio.create_task(self.generations.watch(_LOOK))

    async def stop(self) -> None:
        """End the threads and close the index. Ask nothing afterwards."""
        self.draining = True
        if self._watcher:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        for close in (self.encoding.close, self.ranking.close):
            await asyncio.to_thread(close)
        for executor in (self._readers, self._describer, self._counter):
            await asyncio.to_thread(executor.shutdown)
        self.generations.current.leases.close()

    async def search(
        self, queries: Sequence[str], options: SearchOptions, share: RoomShare | None = None
    ) -> SearchReply:
        """The best documents for each query: `SearchEngine.search_many`.

        The memory of the documents counts against `share`, which the caller gives back once the answer was sent;
        without a share it counts until this returns. Raises ConfigError and BusyError if it is too much.
        """

        async def ask(generation: OpenGeneration) -> SearchReply:
            texts = tuple(queries)
            encoded = await self._encoded(generation, texts, "query")
            key = _RankKey(generation, options)
            each = max(options.k, _reranked(key))
            if options.hybrid:
                await generation.words()
            found = await self._ranked(key, _Question(held, texts, encoded), each * len(texts))
            generation.hybrid |= options.hybrid
            return SearchReply(found, encoded.lengths, _max_length(generation), generation.stamp)

        with self._share(share) as held:
            return await self._ask(ask)

    async def neighbours(self, identity: str, options: SearchOptions, share: RoomShare | None = None) -> SearchReply:
        """The documents closest to a stored one: `SearchEngine.neighbours`. `share` is as for `search`."""

        async def ask(generation: OpenGeneration) -> SearchReply:
            key = _RankKey(generation, options, like=True)
            found = await self._ranked(key, _Question(held, like=identity), options.k)
            return SearchReply(found, (), _max_length(generation), generation.stamp)

        with self._share(share) as held:
            return await self._ask(ask)

    async def embed(self, texts: Sequence[str], role: Role) -> TextVectors:
        """Unit vectors of texts, any number of them: `SearchEngine.embed`."""

        async def ask(generation: OpenGeneration) -> TextVectors:
            encoded = await self._encoded(generation, tuple(texts), role)
            transform = partial(generation.engine.index.transform.transform, encoded.embeddings, role)
            vectors = await asyncio.get_running_loop().run_in_executor(self._readers, transform)
            return TextVectors(vectors, encoded.lengths, _max_length(generation), generation.stamp)

        return await self._ask(ask)

    async def document(self, identity: str) -> tuple[Document, Stamp]:
        """A stored document. Raises UnknownDocumentError."""
        return await self._read(self._readers, lambda generation: generation.engine.document(identity))

    async def facets(self, where: str | None = None, columns: Collection[str] = ()) -> tuple[list[ColumnFacet], Stamp]:
        """Facets of the metadata columns. Those of all documents and columns are computed once a generation."""
        return await self._read(self._counter, lambda generation: generation.facets(where, columns))

    async def info(self) -> dict[str, Any]:
        """Return the description of the index: `facts_of`, of one generation."""
        facts, _ = await self._read(self._describer, lambda generation: facts_of(generation, self.settings))
        return facts

    def told(self, error: IsotropeError) -> str:
        """Return the message of an error with the name of the index in place of its folder."""
        folder, message = as_shown(str(self.generations.current.engine.index.path)), str(error)
        if Path(folder).is_absolute() or "://" in folder:
            return message.replace(folder, self.settings.name)
        return f"{self.settings.name}: {message.removeprefix(f'{folder}: ')}" if message.startswith(folder) else message

    def _share(self, given: RoomShare | None) -> contextlib.AbstractContextManager[RoomShare]:
        return contextlib.nullcontext(given) if given else self.room.share()

    async def _read(
        self, threads: ThreadPoolExecutor, read: Callable[[OpenGeneration], Answered]
    ) -> tuple[Answered, Stamp]:
        """Return the result of a function that waits for files, and the stamp of its generation."""

        async def ask(generation: OpenGeneration) -> tuple[Answered, Stamp]:
            return await asyncio.get_running_loop().run_in_executor(threads, read, generation), generation.stamp

        return await self._ask(ask)

    async def _ask(self, ask: Callable[[OpenGeneration], Awaitable[Answered]]) -> Answered:
        """Return the answer of one generation from beginning to end, or of the next one if its files are gone."""
        async with self._place():
            while True:
                with self.generations.lease() as generation:
                    try:
                        answer = await ask(generation)
                    except StoreError:
                        self.generations.unreadable = True
                        if not generation.engine.index.is_followed:
                            raise
                    else:
                        self.generations.unreadable = False
                        return answer
                if generation is self.generations.current:
                    await self.generations.reload()

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """Hold one of the places for requests, for as long as the deadline."""
        limits = self.settings.limits
        if self.pending >= limits.pending:
            after = self.retry_after
            raise BusyError(
                f"{self.pending:,} requests are under way, as many as are taken; try again in {after} s.", after
            )
        self.pending += 1
        began = time.monotonic()
        try:
            async with asyncio.timeout(limits.deadline):
                yield
        except TimeoutError as error:
            raise DeadlineError(f"not answered in {limits.deadline:g} s, which is the limit here.") from error
        finally:
            self.pending -= 1
            self._seconds += 0.1 * (time.monotonic() - began - self._seconds)

    @property
    def retry_after(self) -> int:
        """Whole seconds after which half of the waiting requests should have been answered."""
        return min(max(round(self._seconds), 1), 60)

    async def _encoded(self, generation: OpenGeneration, texts: tuple[str, ...], role: Role) -> EncodedTexts:
        """Embeddings of texts, piece by piece, so that a large request does not keep a small one waiting."""
        key = (generation, role)
        pieces = [texts[start : start + PIECE] for start in range(0, len(texts), PIECE)]
        done = [await self.encoding.submit(key, piece, len(piece)) for piece in pieces]
        if len(done) == 1:
            return done[0]
        dim = int(generation.engine.index.manifest.encoder["dim"])
        rows = np.concatenate([np.zeros((0, dim), np.float32), *(one.embeddings for one in done)])
        return EncodedTexts(rows, tuple(length for one in done for length in one.lengths))

    async def _ranked(self, key: "_RankKey", question: "_Question", size: int) -> Hits:
        """Answers from the queue of the rankers, which stop between two steps once all callers have left."""
        try:
            return await self.ranking.submit(key, question, size)
        finally:
            question.is_awaited = False

    # --- in the threads of the queues

    def _encode(self, key: Hashable, items: Sequence[Texts]) -> list[EncodedTexts]:
        """The texts of several requests, encoded together. `key` is the generation and the role."""
        generation, role = cast(tuple[OpenGeneration, Role], key)
        texts, log = [text for some in items for text in some], EncodeStats()
        if not items:
            return []
        self.on_batch("encode", len(texts))
        rows, start, found = generation.engine.encoder.encode(texts, role, log), 0, []
        for some in items:
            end = start + len(some)
            found.append(EncodedTexts(rows[start:end], tuple(log.lengths[start:end])))
            start = end
        return found

    def _rank(self, key: Hashable, questions: "Sequence[_Question]") -> list[Hits | Exception]:
        """`_answers`, abandoned once all callers have left."""
        try:
            with awaited_while(lambda: not questions or any(question.is_awaited for question in questions)):
                return self._answers(cast(_RankKey, key), questions)
        except AbandonedError:
            return [[] for _ in questions]

    def _answers(self, key: "_RankKey", items: "Sequence[_Question]") -> list[Hits | Exception]:
        """The queries of several requests, or the neighbours of documents, all asked for with the same options."""
        ann.set_threads(1)  # of this thread: threads that each take all cores wait for one another
        engine, options = key.generation.engine, key.options
        if not items:
            engine.check(options)
            if options.hybrid:
                engine.prepare_hybrid(NoProgress())
            return []
        if key.like:
            self.on_batch("rank", len(items))
            return [_hits(engine, [engine.rank_neighbours(item.like, options)], item.share) for item in items]
        texts = [text for item in items for text in item.texts]
        self.on_batch("rank", len(texts))
        embeddings = np.concatenate([item.encoded.embeddings for item in items])
        lengths = [tokens for item in items for tokens in item.encoded.lengths]
        ranked = iter(engine.rank(embeddings, options, None, texts, lengths))
        return [_hits(engine, [next(ranked) for _ in item.texts], item.share) for item in items]


_NOTHING = EncodedTexts(np.zeros((0, 0), np.float32), ())


@dataclass(eq=False)
class _Question:
    """The texts of one request, or the document whose neighbours it wants (`like`), and its share of the room."""

    share: RoomShare
    texts: Texts = ()
    encoded: EncodedTexts = _NOTHING
    like: str = ""
    is_awaited: bool = True


def _hits(engine: SearchEngine, ranked: Sequence[Answer[RankedDocument]], share: RoomShare) -> Hits | Exception:
    """Return the documents of one request, or the error of that request alone: the rest of its batch is answered."""
    try:
        return engine.hits(ranked, share.reach)
    except (ConfigError, BusyError) as error:
        return error


@dataclass(frozen=True)
class _RankKey:
    """The key of questions that are ranked together: one generation, the same options, all texts or all documents."""

    generation: OpenGeneration
    options: SearchOptions
    like: bool = False


def _is_light(key: Hashable) -> bool:
    """Whether a question is answered in milliseconds: one thread takes only these.

    The neighbours of a document of many windows are searched by each window.
    """
    key = cast(_RankKey, key)
    asked, one_to_one = key.options, key.generation.engine.index.numbering.one_to_one
    slow = asked.where or asked.exact or asked.hybrid or asked.similarity != "cosine" or _reranked(key)
    slow = slow or (key.like and not one_to_one)
    return not slow and asked.k <= _LIGHT_K and (asked.fold is None or asked.fold >= _LIGHT_FOLD)


def _reranked(key: _RankKey) -> int:
    """How many hits of a question a cross-encoder reads."""
    recipe, asked = key.generation.engine.index.config.rerank, key.options.rerank_depth
    if key.like or not recipe.model:
        return 0
    return recipe.depth if asked is None else asked


def _max_length(generation: OpenGeneration) -> int:
    return generation.engine.index.encoder.max_length
