"""Answers of searches as bytes: limited, alone and together, and written outside the event loop where they are long."""

import asyncio
import weakref
from collections.abc import Iterator

from starlette.responses import Response

from search.files import to_json
from search.server.failures import RequestError
from search.server.messages import notes_of
from search.server.service import BusyError, SearchReply
from search.server.settings import ServerLimits

_SHORT = 100_000  # characters of texts; writing what is longer would hold up other requests


class SearchAnswers:
    """The answers that are under way: what they hold together is counted until each was sent, or its client left."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self.held = 0  # bytes

    async def response(self, reply: SearchReply, names: list[str]) -> Response:
        """The answer, in which `names` stand for the queries; its hits are those of the command line's JSON.

        Raises RequestError for one that is too long, and BusyError where all are too long together.
        """
        characters = sum(len(hit.text) for answer in reply.answers for hit in answer)
        body = await asyncio.to_thread(self._body, reply, names) if characters > _SHORT else self._body(reply, names)
        if self.held + len(body) > self._limits.answering_bytes:
            raise BusyError("Too many long answers are being sent; try again in 1 s, or ask for fewer hits.", 1)
        response = Response(body, media_type="application/json")
        self.held += len(body)
        weakref.finalize(response, self._release, len(body))
        return response

    def _release(self, count: int) -> None:
        self.held -= count

    def _body(self, reply: SearchReply, names: list[str]) -> bytes:
        pieces, size = [], 0
        for piece in _pieces(reply, names):
            pieces.append(piece.encode("utf-8", "backslashreplace"))
            size += len(pieces[-1])
            if size > self._limits.answer_bytes:
                raise RequestError(
                    422,
                    f"k: the answer is longer than {self._limits.answer_bytes:,} bytes, as its documents are long. Ask "
                    "for fewer hits, or fewer queries at once.",
                    "k",
                )
        return b"".join(pieces)


def _pieces(reply: SearchReply, names: list[str]) -> Iterator[str]:
    """The JSON of an answer, a hit at a time."""
    yield '{"results": ['
    for place, (name, answer) in enumerate(zip(names, reply.answers, strict=True)):
        head = to_json({"query": name, **notes_of(reply, place)})
        yield f'{", " if place else ""}{head[:-1]}, "hits": ['
        for rank, hit in enumerate(answer, start=1):
            yield f"{', ' if rank > 1 else ''}{to_json({'rank': rank, **hit.to_dict()})}"
        yield "]}"
    yield f'], "index": {to_json(vars(reply.stamp))}}}'
