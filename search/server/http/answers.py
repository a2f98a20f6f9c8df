"""Answers as JSON bytes, within limits; long ones are written outside the event loop."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from fastapi import Depends
from starlette.responses import Response

from search.result_files import to_json
from search.server.byte_limit import Room, RoomShare
from search.server.http.messages import notes_of
from search.server.links import LinkTemplate, linked
from search.server.service import SearchReply

_SHORT = 100_000  # bytes of documents; longer answers would delay other requests


def share_of(room: Room) -> Any:
    """Return a route dependency: a share of the room until the answer is sent or the client has left."""

    async def share() -> AsyncIterator[RoomShare]:
        with room.share() as taken:
            yield taken

    return Depends(share, scope="request")


async def written(pieces: Iterable[str], share: RoomShare) -> Response:
    """Return an answer from pieces of its JSON; `share` already counts its documents.

    Raises the errors of `RoomShare.reach`.
    """
    body = await asyncio.to_thread(_body, pieces, share) if share.taken > _SHORT else _body(pieces, share)
    return Response(body, media_type="application/json")


def _body(pieces: Iterable[str], share: RoomShare) -> bytes:
    encoded, size = list[bytes](), 0
    for piece in pieces:
        encoded.append(piece.encode("utf-8", "backslashreplace"))
        size += len(encoded[-1])
        share.reach(size)
    return b"".join(encoded)


def search_pieces(reply: SearchReply, names: list[str], link: LinkTemplate | None) -> Iterator[str]:
    """Yield the JSON of an answer hit by hit, in the format of `isotrope query` with links; `names` are shown as the
    queries."""
    yield '{"results": ['
    for place, (name, answer) in enumerate(zip(names, reply.answers, strict=True)):
        head = to_json({"query": name, **notes_of(reply, place)})
        yield f'{", " if place else ""}{head[:-1]}, "hits": ['
        for rank, hit in enumerate(answer, start=1):
            yield f"{', ' if rank > 1 else ''}{to_json(linked(link, hit, rank))}"
        yield "]}"
    yield f'], "index": {to_json(vars(reply.stamp))}}}'
