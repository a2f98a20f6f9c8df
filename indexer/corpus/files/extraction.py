"""The texts of files in order, extracted by worker processes with limits, because files can be hostile.

Files that are UTF-8 text are read in this process: no library parses them. Every other file is parsed in a worker,
which ends if a file takes too much time or memory, or crashes a library. A file then becomes a rejected row, and the
next file gets a new worker.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from indexer.corpus.files.extracted import ExtractedText
from indexer.corpus.files.formats.text import decode_utf8, title_of
from indexer.corpus.files.markup import FILE_KINDS, FileKind
from indexer.corpus.files.worker import ExtractionLimits as ExtractionLimits
from indexer.corpus.files.worker import Request, bad, too_large
from indexer.corpus.readers.remote import open_object
from indexer.corpus.row import BadRow
from indexer.corpus.sources import SourceFile
from indexer.errors import MachineError
from indexer.system.child_process import start_python
from indexer.system.regular_files import open_regular
from indexer.system.threads import available_cores, ordered_map

Outcome = ExtractedText | BadRow
DEFAULT_LIMITS = ExtractionLimits()
_PIECE = 1 << 20  # bytes
_FORMATS = "indexer.corpus.files.formats"
_DECODER = f"{_FORMATS}.text:read_text"
_ARCHIVES = ("docx", "pptx", "epub")
_OF_TIME = {-signal.SIGPROF, -signal.SIGALRM}  # exit codes
READERS = {name: f"{_FORMATS}.{name}:read_{name}" for name in ("html", "pdf", *_ARCHIVES)}


def extract_files(
    files: Iterable[SourceFile], workers: int = 0, limits: ExtractionLimits = DEFAULT_LIMITS
) -> Iterator[tuple[SourceFile, Outcome]]:
    """Yield each file with its text, or with the reason why it has none, in the order of `files`.

    At most 2 x `workers` (0: one for each core) files are read ahead. Raises MachineError for a missing library, and
    the errors of object storage.
    """
    workers = workers or available_cores()
    pool = _Pool(limits)
    results = ordered_map(partial(_extract, pool), files, workers, waiting=2 * workers)
    try:
        for result in results:  # noqa: UP028 - `yield from` would end the threads before their workers
            yield result
    finally:
        pool.close()  # threads that wait for a worker end now


def _extract(pool: "_Pool", file: SourceFile) -> tuple[SourceFile, Outcome]:
    kind = FILE_KINDS.get(Path(file.label).suffix.lower(), FileKind("plain"))
    try:
        with _local_copy(file, pool.limits) as path:
            return file, _text_here(path, kind, pool.limits) or _text_of_worker(pool, path, kind)
    except BadRow as row:
        return file, row
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        reason, finding = (
            ("missing", "no longer exists") if missing else ("broken", f"cannot be read: {error.strerror}")
        )
        return file, BadRow(reason, f"the file {finding}", "check the file and run the command again")


@contextmanager
def _local_copy(file: SourceFile, limits: ExtractionLimits) -> Iterator[Path]:
    """Yield the path of a file; an object is copied to a temporary file first."""
    if file.path is not None:
        yield file.path
        return
    with tempfile.NamedTemporaryFile() as copy, open_object(file.url) as source:
        size = source.seek(0, os.SEEK_END)
        if size > limits.file_bytes:
            raise too_large(size, limits.file_bytes)
        source.seek(0)
        shutil.copyfileobj(source, copy, _PIECE)
        copy.flush()
        yield Path(copy.name)


def _text_here(path: Path, kind: FileKind, limits: ExtractionLimits) -> ExtractedText | None:
    """Return the text of a file in UTF-8 or UTF-16; None for other files, which need a worker."""
    most = limits.file_bytes if kind.reader else limits.text_bytes
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise too_large(size, most)
        if kind.reader:
            return None
        text = decode_utf8(file.read(most))
    if text is None:
        return None
    if not text.strip():
        raise bad("blank", limits)
    return ExtractedText(text, title_of(text, kind.markup))


def _text_of_worker(pool: "_Pool", path: Path, kind: FileKind) -> ExtractedText:
    if kind.reader:
        return pool.extract(Request(os.fspath(path), READERS[kind.reader], kind.reader in _ARCHIVES))
    extracted = pool.extract(Request(os.fspath(path), _DECODER))
    return replace(extracted, title=title_of(extracted.text, kind.markup))


class _Worker:
    """A worker process, seen from its parent."""

    def __init__(self, limits: ExtractionLimits) -> None:
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = start_python("indexer.corpus.files.worker:serve", asdict(limits), **streams)
        self.used = False  # whether it has read a file

    def read(self, request: Request) -> ExtractedText:
        """Return the text of a file. Raises BadRow; `_EndedError` if the worker must be replaced."""
        try:
            reply, text = self._ask(request)
        except OSError as error:  # it has died
            raise _EndedError(self._cause()) from error
        self.used = True
        if "error" in reply:
            raise MachineError(reply["error"])
        if "failed" in reply:
            raise _EndedError(reply["failed"])
        if "reason" in reply:
            raise BadRow(**reply)
        return ExtractedText(text, **reply)

    def _ask(self, request: Request) -> tuple[dict[str, Any], str]:
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None and replies is not None  # noqa: S101, PT018 - pipes
        requests.write(request.encoded())
        requests.flush()
        line = replies.readline()
        if not line.endswith(b"\n"):
            raise BrokenPipeError
        reply = json.loads(line)
        size = reply.pop("bytes")
        text = replies.read(size)
        if len(text) < size:
            raise BrokenPipeError
        return reply, text.decode("utf-8")

    def _cause(self) -> str:
        return "time" if self._process.wait() in _OF_TIME else "crash"

    def close(self) -> None:
        """End the process. Safe to call again, and while a thread waits for a reply."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # a request that nobody reads
                pipe.close()  # type: ignore[union-attr]


class _EndedError(Exception):
    """A worker has ended, or has to, because of a file; the argument is the reason."""


class _Pool:
    """Idle workers, one for each call; new ones replace ended ones. Safe for threads."""

    def __init__(self, limits: ExtractionLimits) -> None:
        self.limits = limits
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._all: set[_Worker] = set()
        self._closed = False

    def extract(self, request: Request) -> ExtractedText:
        """Return the text of a file. Raises BadRow.

        A file that ends a worker with earlier files is read again in a new one, so that files do not affect each other.
        """
        worker = self._idle_worker() or self._start()
        was_used = worker.used
        try:
            return self._read(worker, request)
        except _EndedError as error:
            if not was_used or error.args == ("time",) or self._closed:
                raise bad(error.args[0], self.limits) from error
        try:
            return self._read(self._start(), request)
        except _EndedError as error:
            raise bad(error.args[0], self.limits) from error

    def _idle_worker(self) -> _Worker | None:
        try:
            return self._idle.get_nowait()
        except Empty:
            return None

    def _start(self) -> _Worker:
        worker = _Worker(self.limits)
        self._all.add(worker)
        if self._closed:
            worker.close()
        return worker

    def _read(self, worker: _Worker, request: Request) -> ExtractedText:
        try:
            return worker.read(request)
        except _EndedError:
            self._all.discard(worker)
            worker.close()
            raise
        finally:
            if worker in self._all:
                self._idle.put(worker)

    def close(self) -> None:
        """End all workers."""
        self._closed = True
        for worker in list(self._all):
            worker.close()
