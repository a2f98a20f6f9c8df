"""A worker process that extracts the texts of files within limits, and its messages.

A request is a line of JSON. A reply is a line of JSON, followed by the text in UTF-8. The system ends the worker at the
limit of time, so that it ends even inside a library that never returns, and without a parent.
"""

import json
import os
import queue
import resource
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from indexer.corpus.files.extracted import ExtractedText
from indexer.corpus.files.formats.zipped import check_archive
from indexer.corpus.row import BadRow
from indexer.errors import MachineError
from indexer.system.child_process import named
from indexer.system.regular_files import open_regular

_LEAVE_OUT = "convert the file, or leave it out"
_PATIENCE = 10  # times the limit of processor time that a file may wait, for a disk or a lock
_CONTROLS = dict.fromkeys([*range(9), 11, *range(13, 32), 0xFFFE, 0xFFFF])  # but \t, \n and \f


@dataclass(frozen=True)
class ExtractionLimits:
    """Limits for each file."""

    seconds: float = 60.0  # of processor time
    memory: int = 1 << 30  # bytes of the worker's address space
    file_bytes: int = 256 << 20  # of the file, and of the unpacked files of an archive
    text_bytes: int = 32 << 20  # of the text in UTF-8


@dataclass(frozen=True)
class Request:
    """A file to read."""

    path: str  # bytes that are not UTF-8 as surrogates
    reader: str  # "package.module:function", which maps bytes to an ExtractedText
    is_archive: bool = False

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def bad(reason: str, limits: ExtractionLimits) -> BadRow:
    """Return the error of a file that is beyond a limit, or has no text."""
    if reason == "time":
        return BadRow("time", f"the file takes more than {limits.seconds:g} s to read", _LEAVE_OUT)
    if reason == "memory":
        return BadRow("memory", f"the file takes more than {limits.memory >> 20:,} MiB of memory to read", _LEAVE_OUT)
    if reason == "crash":
        return BadRow("crash", "the file crashes the library that reads it", _LEAVE_OUT)
    return BadRow("blank", "the file contains no text", "run text recognition (OCR) on scanned pages, or leave it out")


def too_large(size: int, most: int, what: str = "file") -> BadRow:
    """Return the error of a file or text with too many bytes."""
    return BadRow(
        "too-large", f"the {what} has {size:,} bytes; expected at most {most:,}", "split the file, or leave it out"
    )


def serve(limits: dict[str, Any]) -> None:
    """Run a worker: answer requests of the standard input, one after the other, until it ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps the output of libraries out of the answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit(bounds := ExtractionLimits(**limits))
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests,), daemon=True).start()
    while True:
        reply, text = _answer(Request(**json.loads(requests.get())), bounds)
        answers.write(json.dumps(reply | {"bytes": len(text)}).encode() + b"\n")
        answers.write(text)
        answers.flush()


def _limit(limits: ExtractionLimits) -> None:
    kind = resource.RLIMIT_AS if sys.platform == "linux" else resource.RLIMIT_DATA
    for limit, most in ((kind, limits.memory), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # the user has a lower one
            resource.setrlimit(limit, (most, most))
    for timer in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(timer, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF, signal.SIGALRM])


def _receive(requests: "queue.SimpleQueue[bytes]") -> None:
    """Pass on requests, and end the process with its parent."""
    for line in sys.stdin.buffer:
        requests.put(line)
    os._exit(0)


def _answer(request: Request, limits: ExtractionLimits) -> tuple[dict[str, Any], bytes]:
    """Return the reply and the text."""
    _set_timers(limits.seconds)
    try:
        text = _read(request, limits)
        encoded = text.text.translate(_CONTROLS).encode("utf-8", "replace")
        if len(encoded) > limits.text_bytes:
            raise too_large(len(encoded), limits.text_bytes, "text")
        if not encoded.strip():
            raise bad("blank", limits)
    except BadRow as row:
        return {"reason": row.reason, "what": row.what, "way_out": row.way_out}, b""
    except MemoryError:
        return {"failed": "memory"}, b""
    except MachineError as error:
        return {"error": str(error)}, b""
    finally:
        _set_timers(0)
    return {"title": text.title, "pages": text.pages}, encoded


def _set_timers(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * _PATIENCE)


def _read(request: Request, limits: ExtractionLimits) -> ExtractedText:
    with open_regular(request.path) as file:
        data = file.read(limits.file_bytes)
    if request.is_archive:
        check_archive(data, limits.file_bytes)
    read: Callable[[bytes], ExtractedText] = named(request.reader)
    try:
        return read(data)
    except (BadRow, MachineError, MemoryError):
        raise
    except Exception as error:
        raise BadRow(
            "broken", f"the file is broken ({type(error).__name__})", "replace it with an intact copy"
        ) from error
