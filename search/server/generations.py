"""The open generation of the index, and older ones in use. Each query is answered by one generation."""

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from logging import INFO, WARNING

from indexer.errors import MachineError, keep_reader, reader
from indexer.progress import NoProgress
from indexer.recipe.config import KIND_TRAITS
from search.abandonment import AbandonedError
from search.engine import SearchEngine
from search.filters.facets import ColumnFacet, column_facets
from search.index import Index
from search.leases import Leases

_LONGEST_PAUSE = 10.0  # seconds
_WORDS_AGAIN = 30.0  # seconds between attempts to build BM25
_FACET_SECONDS = 2.0  # limit for counting the values of filtered documents
_EXAMPLES = 4
_CANDIDATES = 24  # documents for examples
_SHORTEST, _LONGEST = 3, 60  # characters of an example
OnChange = Callable[[str, int], None]
"""Gets a sentence on each change of the generations, and its level of `logging`."""


@dataclass(frozen=True)
class Stamp:
    """The generation and index of an answer."""

    generation: int
    """Number of the generation."""
    fingerprint: str
    """Fingerprint of the encoder."""


class OpenGeneration:
    """An open generation, whose files are closed once it is replaced and unused."""

    def __init__(self, engine: SearchEngine) -> None:
        self.engine = engine
        engine.follows = False  # else an answer could come from another generation than its stamp
        manifest = engine.index.manifest
        self.stamp = Stamp(manifest.generation, manifest.fingerprint)
        self.leases = Leases(self._close)
        self.hybrid = False  # whether it has answered a hybrid query
        self.words_failure: str | None = None  # why BM25 could not be built
        self._words: asyncio.Future[None] | None = None
        self._closed = threading.Event()
        self._facets: list[ColumnFacet] | None = None
        self._examples: list[dict[str, str]] | None = None
        self._facets_lock = threading.Lock()

    def facets(self, where: str | None = None, columns: Collection[str] = ()) -> list[ColumnFacet]:
        """Return facets of metadata columns: computed once for all documents, or within 2 s for a filter."""
        if where is not None or columns:
            return self.engine.facets(where, columns, _FACET_SECONDS)
        with self._facets_lock:
            if self._facets is None:
                self._facets = column_facets(self.engine.index)
            return self._facets

    def examples(self) -> list[dict[str, str]]:
        """Return example queries, computed by the first call."""
        with self._facets_lock:
            if self._examples is None:
                self._examples = example_questions(self.engine.index)
            return self._examples

    async def words(self) -> None:
        """Wait for BM25. The first call starts building it in a thread, which can take minutes.

        Raises the error of a failed build until `prepare_words` succeeds.
        """
        if self._words is None:
            self.prepare_words()
        if self._words is not None:
            await asyncio.shield(self._words)

    def prepare_words(self) -> None:
        """Start building BM25 unless it is in progress, ready, or its packages are missing."""
        failed = self._words is not None and self._words.done() and self.words_failure is not None
        if (self._words is not None and not failed) or not all(map(find_spec, ("bm25s", "Stemmer"))):
            return
        self._words = _in_daemon_thread(self.make_words)
        self._words.add_done_callback(self._note_words)

    def make_words(self) -> None:
        """Build BM25 in this thread. Raises MachineError, StoreError, and AbandonedError once this is closed."""
        self.engine.prepare_hybrid(_UntilClosed(self._closed))

    def _close(self) -> None:
        self._closed.set()
        self.engine.close()

    def _note_words(self, done: "asyncio.Future[None]") -> None:
        error = None if done.cancelled() else done.exception()
        self.words_failure = str(error) if error and not isinstance(error, AbandonedError) else None


def _in_daemon_thread(work: Callable[[], None]) -> "asyncio.Future[None]":
    """Run uninterruptible work in a thread that neither the loop nor the process waits for at its end."""
    done = concurrent.futures.Future[None]()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  # the waiting coroutine raises it
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name="words", daemon=True).start()
    return asyncio.wrap_future(done)


class _UntilClosed(NoProgress):
    def __init__(self, closed: threading.Event) -> None:
        self._closed = closed

    def advance(self, texts: int, tokens: int = 0) -> None:
        if self._closed.is_set():
            raise AbandonedError


class Generations:
    """The newest loaded generation; `lease` keeps it open for one query.

    Call all methods in the thread of the event loop. `watch` writes messages for the reader of this constructor.
    """

    def __init__(self, engine: SearchEngine, on_change: OnChange) -> None:
        self.current = OpenGeneration(engine)
        self._on_change, self._reader = on_change, reader()
        self._loading: asyncio.Future[bool] | None = None
        self.failure: str | None = None  # why the next generation cannot be served
        self.unreadable = False  # the last query could not read the files
        self.reloads = self.failed_reloads = 0
        self._words_reported: str | None = None
        self._words_tried = 0.0

    @contextlib.contextmanager
    def lease(self) -> Iterator[OpenGeneration]:
        """Yield the newest generation, open until the block ends."""
        generation = self.current
        with generation.leases.lease():
            yield generation

    async def reload(self) -> bool:
        """Serve the newest generation from now on; return False if it is already open.

        It is loaded and has answered a query before it replaces the open one, which stays after an error. Concurrent
        calls share one load, which continues if they are cancelled. Raises StoreError and other errors of opening an
        index.
        """
        if self._loading is None or self._loading.done():
            self._loading = asyncio.ensure_future(self._load())
            self._loading.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may read it
        return await asyncio.shield(self._loading)

    async def _load(self) -> bool:
        before = self.current
        try:
            newest = await asyncio.to_thread(self._newest, before)
        except Exception:
            self.failed_reloads += 1
            raise
        if self.failure:
            self._on_change("the newest generation can be loaded again", INFO)
        self.failure = None
        if newest is None:
            return False
        self.current = newest
        self.reloads += 1
        before.leases.close(for_good=True)
        self._on_change(f"generation {newest.stamp.generation} replaces {before.stamp.generation}", INFO)
        return True

    async def watch(self, seconds: float) -> None:
        """Check for a new generation at this interval and `reload` it, until cancelled.

        A generation that fails to open is reported once and tried again at growing intervals. BM25 of the first
        generation is built meanwhile, and tried again after a failure.
        """
        keep_reader(self._reader)
        pause, self._words_tried = seconds, time.monotonic()
        self.current.prepare_words()
        while True:
            await asyncio.sleep(pause)
            self._look_after_words()
            try:
                replaced: bool = await asyncio.to_thread(lambda: self.current.engine.index.is_followed)
                if self.failure or replaced:
                    await self.reload()
                if self.unreadable:  # perhaps only health checks call
                    await asyncio.to_thread(prepare, self.current.engine)
                    self.unreadable = False
                pause = seconds
            except Exception as error:  # noqa: BLE001  # the open generation stays
                pause = min(2 * pause, _LONGEST_PAUSE)
                if self.failure != str(error):
                    self.failure = str(error)
                    self._on_change(f"the next generation cannot be loaded: {error}", WARNING)

    def _look_after_words(self) -> None:
        """Report a failed build of BM25 once, and try again later."""
        failure = self.current.words_failure
        if failure and self._words_reported != failure:
            self._on_change(f"hybrid search is unavailable: {failure}", WARNING)
        self._words_reported = failure
        if failure and time.monotonic() >= self._words_tried + _WORDS_AGAIN:
            self._words_tried = time.monotonic()
            self.current.prepare_words()

    def _newest(self, before: OpenGeneration) -> OpenGeneration | None:
        """Return the newest generation, loaded; None if it is already open."""
        if not before.engine.index.is_followed:
            return None
        engine = before.engine.newest()
        prepare(engine)
        generation = OpenGeneration(engine)
        if before.hybrid:
            try:
                generation.make_words()
                generation.hybrid = True
            except MachineError as error:  # only hybrid queries need it, and try again
                self._on_change(f"BM25 of the next generation was not built: {error}", WARNING)
        return generation


def prepare(engine: SearchEngine) -> None:
    """Load everything that the first query needs. Raises the errors of opening the index or its encoder."""
    if KIND_TRAITS[engine.index.config.encoder.kind].encodes_texts:
        engine.search("a first query", 1)
    else:
        engine.check()


def example_questions(index: Index) -> list[dict[str, str]]:
    """Return example queries for people who do not know the corpus: `id` and `text` of at most four documents.

    The text is the title or the first words. The documents are spread over the index, always the same in a generation;
    long and very short titles are skipped.
    """
    documents, count = index.documents, len(index.documents)
    places = sorted({count * (2 * number + 1) // (2 * _CANDIDATES) for number in range(_CANDIDATES)} if count else [])
    named = [(identity, _line(title or "")) for identity, title in documents.names(places)]
    if not any(title for _, title in named):
        middle = places[len(places) // 2 : len(places) // 2 + 1]
        adjacent = range(middle[0], min(middle[0] + _EXAMPLES, count)) if middle else ()  # one read
        named = [(document.id, _beginning(document.text)) for document in documents.fetch(adjacent)]
    texts = {text: identity for identity, text in reversed(named) if _SHORTEST <= len(text) <= _LONGEST}
    chosen = list(texts.items())[::-1]
    return [
        {"id": identity, "text": text} for text, identity in chosen[:: max(1, len(chosen) // _EXAMPLES)][:_EXAMPLES]
    ]


def _line(text: str) -> str:
    return " ".join(text.split())


def _beginning(text: str) -> str:
    """Return the first words of a text, at most the length of an example."""
    start = _line(text[: 4 * _LONGEST])
    return start if len(start) <= _LONGEST else start[: _LONGEST + 1].rpartition(" ")[0]
