"""Answers to faulty requests, in one shape: `{"error": {"message", "type", "param", "code"}}`.

It is the shape of OpenAI's API, so that its clients show the message. It never holds a traceback.
"""

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from indexer.errors import ConfigError, IsotropeError, MachineError, UnknownDocumentError
from search.files import to_json
from search.server.service import BusyError, DeadlineError, SearchService

LOG = logging.getLogger("isotrope.server")
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
}


class RequestError(Exception):
    """A request cannot be answered as it stands; `status` and a message that says why, and `param` which field."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param


class JsonResponse(Response):
    """Strict JSON, as the command line writes it: dates as text, a number that JSON has no word for as null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content).encode("utf-8", "backslashreplace")


def error_response(
    status: int, message: str, param: str | None = None, headers: Mapping[str, str] | None = None
) -> JsonResponse:
    """Return an answer that is no success."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    body = {"error": {"message": message, "type": kind, "param": param, "code": None}}
    return JsonResponse(body, status, dict(headers or {}))


def answer_failures(app: FastAPI, service: SearchService) -> None:
    """Every exception of a route becomes an answer."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        kind = request.headers.get("content-type", "")
        if request.method == "POST" and "json" not in kind:
            given = f'is "{kind[:60]}"' if kind else "is missing"
            return error_response(422, f"The body is not taken for JSON: Content-Type {given}; send application/json.")
        return error_response(422, *_told(error))

    @app.exception_handler(RequestError)
    async def refused(_: Request, error: RequestError) -> Response:
        return error_response(error.status, str(error), error.param)

    @app.exception_handler(HTTPException)
    async def unknown(_: Request, error: HTTPException) -> Response:
        return error_response(error.status_code, _of_http(error), headers=error.headers)

    @app.exception_handler(BusyError)
    async def busy(_: Request, error: BusyError) -> Response:
        return error_response(429, str(error), headers={"Retry-After": str(error.retry_after)})

    @app.exception_handler(DeadlineError)
    async def late(_: Request, error: DeadlineError) -> Response:
        return error_response(504, str(error))

    @app.exception_handler(IsotropeError)
    async def known(_: Request, error: IsotropeError) -> Response:
        status, message = said_of(error, service)
        passes = status == 503 and not isinstance(error, MachineError)
        return error_response(status, message, headers={"Retry-After": "5"} if passes else None)

    @app.exception_handler(Exception)
    async def unforeseen(_: Request, error: Exception) -> Response:
        LOG.error("a request failed unexpectedly", exc_info=error)
        return error_response(500, "The server failed at this request; its log says where.")


def _of_http(error: HTTPException) -> str:
    """Return the fault of a path, a method or the bytes of a body, and the fix."""
    if error.status_code == 404:
        return "There is no such route; /openapi.json lists those of the API."
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another")
        return f"The method is not allowed here; this route takes {allowed}."
    cause = error.__cause__
    if isinstance(cause, UnicodeDecodeError):
        return f"The body is not {cause.encoding.upper()}: {cause.reason} at byte {cause.start}. Send JSON in UTF-8."
    if isinstance(cause, RecursionError):
        return "The body nests lists or objects too deeply."
    if isinstance(cause, ValueError):  # Python converts no number of thousands of digits
        return "The body holds a number with too many digits."
    return str(error.detail)


def _place(error: RequestValidationError, character: int) -> str:
    """Where a body stops being JSON, as editors count."""
    read = str(error.body)[:character]
    line, column = read.count("\n") + 1, character - (read.rfind("\n") + 1) + 1
    return f"line {line}, column {column} (character {character})"


def said_of(error: IsotropeError, service: SearchService) -> tuple[int, str]:
    """Return a status, and a message on the caller's mistake. Faults of the server's machine go to its log alone."""
    if isinstance(error, ConfigError):
        return 404 if isinstance(error, UnknownDocumentError) else 422, service.told(error)
    LOG.error("a request could not be answered: %s", error)
    if isinstance(error, MachineError):
        return 503, "The server's machine lacks what this takes; its log says what."
    return 503, "The index cannot be read now; the server's log says why."


def _told(error: RequestValidationError) -> tuple[str, str | None]:
    """Return the fault of the first wrong field, and its name. The value is not repeated: it may be NaN, or huge.

    For a field of several types the message has the fault by each of them.
    """
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return f"The body is no JSON: {first['ctx']['error']} at {_place(error, first['loc'][-1])}.", None
    found = [(one["loc"][1:], str(one["msg"]).removeprefix("Value error, ")) for one in error.errors()]
    if not found[0][0]:
        return ("The body is empty; expected a JSON object." if first["type"] == "missing" else found[0][1]), None
    field = str(found[0][0][0])
    of_field = [(place, what) for place, what in found if place and str(place[0]) == field]
    what = ", or: ".join(dict.fromkeys(what for _, what in of_field))
    place = ".".join(map(str, of_field[0][0])) if len(of_field) == 1 else field
    return f"{place}: {what}", field
