"""Queries to answers, for every protocol of the server.

A query passes two queues: one thread encodes, others rank, and each takes all waiting queries as one batch. The
service limits the number and duration of requests of all protocols.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
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
from indexer.system.threads import available_cores
from search.abandonment import AbandonedError, awaited_while
from search.engine import SearchEngine
from search.filters.facets import ColumnFacet
from search.hits import Answer, Hit
from search.ranking.documents import RankedDocument
from search.ranking.options import SearchOptions
from search.server.batches import GreedyBatches
from search.server.byte_limit import BusyError as BusyError
from search.server.byte_limit import Room, RoomShare
from search.server.generations import Generations, OnChange, OpenGeneration, Stamp
from search.server.index_info import facts_of
from search.server.settings import ServerSettings
from search.unit_vectors import UnitVectors, joined

MOST_TEXTS = 64  # encoded together
PIECE = 16  # texts that a large request queues at once, so that other requests come in between
_MOST_HITS = 4096  # ranked together
_RANKERS = 2  # threads: one for light queries, one for the others
_LIGHT_K, _LIGHT_FOLD = 100, 0.9  # a light query has at most this k, and folds at this or more
_READERS = 4  # threads that read documents and transform vectors
_CHECK_SECONDS = 2.0  # between two checks for a new generation
Answered = TypeVar("Answered")
Texts = tuple[str, ...]
Hits = list[Answer[Hit]]


class DeadlineError(Exception):
    """A request was not answered in time."""


@dataclass(frozen=True)
class EncodedTexts:
    """Texts as `SearchEngine.encode` returns them, and tokens of each text before truncation."""

    embeddings: Embeddings
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class TextVectors:
    """Unit vectors (n, k), tokens of each text before truncation at `max_length`, and the stamp of the generation."""

    vectors: Vectors
    lengths: tuple[int, ...]
    max_length: int
    stamp: Stamp


@dataclass(frozen=True)
class SearchReply:
    """An answer per query, tokens of each query before truncation at `max_length`, and the stamp of one generation."""

    answers: list[Answer[Hit]]
    lengths: tuple[int, ...]
    max_length: int
    stamp: Stamp


class SearchService:
    """The open index for many concurrent callers. Call all methods in the thread of the event loop.

    Methods raise the engine's errors, BusyError if the server is full, and DeadlineError. A cancelled request frees its
    place, and its query is not computed unless that has begun.
    """

    def __init__(self, engine: SearchEngine, settings: ServerSettings, on_change: OnChange) -> None:
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
        self._seconds = 0.05  # moving average of a request
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start watching for new generations."""
        self._watcher = asyncio.create_task(self.generations.watch(_CHECK_SECONDS))

    async def stop(self) -> None:
        """End the threads and close the index."""
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
        """Return the best documents for each query, as `SearchEngine.search_many` does.

        The memory of the documents counts against `share`, which the caller gives back once the answer is sent; without
        a share it counts until this returns. Raises ConfigError and BusyError if it is too much.
        """

        async def ask(generation: OpenGeneration) -> SearchReply:
            texts = tuple(queries)
            encoded = await self._encoded(generation, texts, "query", options.prompt)
            key = _RankKey(generation, replace(options, prompt=None))
            each = max(options.k, _reranked(key))
            if options.hybrid:
                await generation.words()
            answers = await self._ranked(key, _Question(room, texts, encoded), each * len(texts))
            generation.hybrid |= options.hybrid
            return SearchReply(answers, encoded.lengths, _max_length(generation), generation.stamp)

        with self._share(share) as room:
            return await self._ask(ask)

    async def neighbours(self, identity: str, options: SearchOptions, share: RoomShare | None = None) -> SearchReply:
        """Return the documents closest to a stored document; `share` as for `search`."""

        async def ask(generation: OpenGeneration) -> SearchReply:
            key = _RankKey(generation, options, like=True)
            answers = await self._ranked(key, _Question(room, like=identity), options.k)
            return SearchReply(answers, (), _max_length(generation), generation.stamp)

        with self._share(share) as room:
            return await self._ask(ask)

    async def embed(self, texts: Sequence[str], role: Role) -> TextVectors:
        """Return unit vectors of any number of texts, as `SearchEngine.embed` does."""

        async def ask(generation: OpenGeneration) -> TextVectors:
            encoded = await self._encoded(generation, tuple(texts), role)
            vectors = encoded.embeddings
            if not isinstance(vectors, UnitVectors):
                transform = partial(generation.engine.index.transform.transform, vectors, role)
                vectors = await asyncio.get_running_loop().run_in_executor(self._readers, transform)
            limit = generation.engine.index.encoder.max_length if role == "document" else _max_length(generation)
            return TextVectors(vectors, encoded.lengths, limit, generation.stamp)

        return await self._ask(ask)

    async def document(self, identity: str) -> tuple[Document, Stamp]:
        """Return a stored document. Raises UnknownDocumentError."""
        return await self._read(self._readers, lambda generation: generation.engine.document(identity))

    async def facets(self, where: str | None = None, columns: Collection[str] = ()) -> tuple[list[ColumnFacet], Stamp]:
        """Return facets of metadata columns; without arguments they are computed once per generation."""
        return await self._read(self._counter, lambda generation: generation.facets(where, columns))

    async def info(self) -> dict[str, Any]:
        """Return the description of one generation: `facts_of`."""
        facts, _ = await self._read(self._describer, lambda generation: facts_of(generation, self.settings))
        return facts

    def message_of(self, error: IsotropeError) -> str:
        """Return the message of an error, with the name of the index instead of its folder."""
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
        limits = self.settings.limits
        if self.pending >= limits.pending:
            after = self.retry_after
            raise BusyError(
                f"{self.pending:,} requests are in progress, the limit of this server; try again in {after} s.",
                after,
            )
        self.pending += 1
        began = time.monotonic()
        try:
            async with asyncio.timeout(limits.deadline):
                yield
        except TimeoutError as error:
            raise DeadlineError(f"not answered within {limits.deadline:g} s, the limit of this server.") from error
        finally:
            self.pending -= 1
            self._seconds += 0.1 * (time.monotonic() - began - self._seconds)

    @property
    def retry_after(self) -> int:
        """Expected whole seconds until half of the waiting requests are answered."""
        return min(max(round(self._seconds), 1), 60)

    async def _encoded(
        self, generation: OpenGeneration, texts: tuple[str, ...], role: Role, prompt: str | None = None
    ) -> EncodedTexts:
        """Encode texts piece by piece, so that a large request does not delay small ones."""
        key = (generation, role, prompt)
        pieces = [texts[start : start + PIECE] for start in range(0, len(texts), PIECE)]
        done = [await self.encoding.submit(key, piece, len(piece)) for piece in pieces]
        if len(done) == 1:
            return done[0]
        dim = int(generation.engine.index.manifest.encoder["dim"])
        rows = joined([piece.embeddings for piece in done] or [np.zeros((0, dim), np.float32)])
        return EncodedTexts(rows, tuple(length for piece in done for length in piece.lengths))

    async def _ranked(self, key: "_RankKey", question: "_Question", size: int) -> Hits:
        """Return answers from the rankers, which stop between two steps once all callers have left."""
        try:
            return await self.ranking.submit(key, question, size)
        finally:
            question.is_awaited = False

    # --- in the threads of the queues

    def _encode(self, key: Hashable, items: Sequence[Texts]) -> list[EncodedTexts]:
        """Encode the texts of several requests together. `key` is the generation, the role and the prompt."""
        generation, role, prompt = cast(tuple[OpenGeneration, Role, str | None], key)
        texts, log = [text for item in items for text in item], EncodeStats()
        if not items:
            return []
        self.on_batch("encode", len(texts))
        rows, start, encoded = generation.engine.encode(texts, role, log, prompt), 0, []
        for item in items:
            end = start + len(item)
            encoded.append(EncodedTexts(rows[start:end], tuple(log.lengths[start:end])))
            start = end
        return encoded

    def _rank(self, key: Hashable, questions: "Sequence[_Question]") -> list[Hits | Exception]:
        """Return `_answers`; stop once all callers have left."""
        try:
            with awaited_while(lambda: not questions or any(question.is_awaited for question in questions)):
                return self._answers(cast(_RankKey, key), questions)
        except AbandonedError:
            return [[] for _ in questions]

    def _answers(self, key: "_RankKey", items: "Sequence[_Question]") -> list[Hits | Exception]:
        """Rank the queries of several requests, or neighbours of documents, with the same options."""
        ann.set_threads(max(1, available_cores() // 2))  # of this thread; the event loop needs the rest
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
        embeddings = joined([item.encoded.embeddings for item in items])
        lengths = [tokens for item in items for tokens in item.encoded.lengths]
        ranked = iter(engine.rank(embeddings, options, None, texts, lengths))
        return [_hits(engine, [next(ranked) for _ in item.texts], item.share) for item in items]


_NOTHING = EncodedTexts(np.zeros((0, 0), np.float32), ())


@dataclass(eq=False)
class _Question:
    """The texts of a request, or the document of its neighbours (`like`), and its share of the room."""

    share: RoomShare
    texts: Texts = ()
    encoded: EncodedTexts = _NOTHING
    like: str = ""
    is_awaited: bool = True


def _hits(engine: SearchEngine, ranked: Sequence[Answer[RankedDocument]], share: RoomShare) -> Hits | Exception:
    """Return the documents of a request, or its error, so that the rest of the batch is answered."""
    try:
        return engine.hits(ranked, share.reach)
    except (ConfigError, BusyError) as error:
        return error


@dataclass(frozen=True)
class _RankKey:
    """Key of requests that are ranked together: generation, options, and texts or documents."""

    generation: OpenGeneration
    options: SearchOptions
    like: bool = False


def _is_light(key: Hashable) -> bool:
    """Return whether a request takes milliseconds; one thread takes only such requests."""
    key = cast(_RankKey, key)
    options, one_to_one = key.options, key.generation.engine.index.numbering.one_to_one
    slow = options.where or options.exact or options.hybrid or options.similarity != "cosine" or _reranked(key)
    slow = slow or (key.like and not one_to_one)  # neighbours of a chunked document: a search per window
    return not slow and options.k <= _LIGHT_K and (options.fold is None or options.fold >= _LIGHT_FOLD)


def _reranked(key: _RankKey) -> int:
    recipe, depth = key.generation.engine.index.config.rerank, key.options.rerank_depth
    if key.like or not recipe.model:
        return 0
    return recipe.depth if depth is None else depth


def _max_length(generation: OpenGeneration) -> int:
    return generation.engine.longest_query
