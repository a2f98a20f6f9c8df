"""A route that answers valid bodies without FastAPI's dependencies, which take as long as a search."""

import json
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from search.server.byte_limit import Room, RoomShare
from search.server.http.failures import RequestError

Body = TypeVar("Body", bound=BaseModel)


def direct_route(
    model: type[Body], answer: Callable[[Body, RoomShare], Awaitable[Response]], room: Room
) -> type[APIRoute]:
    """Return a route class whose routes pass a body that fits `model` to `answer`, with a share of the room until the
    answer is sent. FastAPI answers all other requests, and its error says what is wrong."""

    class DirectRoute(APIRoute):
        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive)
            body = await request.body()
            try:
                kind = request.headers.get("content-type", "")
                if request.method not in (self.methods or ()) or not kind.startswith("application/json"):
                    raise ValueError("not for this route")
                given = model.model_validate(json.loads(body))
            except (ValueError, RecursionError, RequestError):
                await super().handle(scope, _with_body(body, receive), send)
                return
            with room.share() as share:
                response = await answer(given, share)
                await response(scope, receive, send)

    return DirectRoute


def _with_body(body: bytes, receive: Receive) -> Receive:
    """Return a function that receives a body that was received before, then what follows."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again
