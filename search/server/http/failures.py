"""Error responses: `{"error": {"message", "type", "param", "code"}}`, without tracebacks.

This is the format of OpenAI's API, so its clients show the message.
"""

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from indexer.errors import ConfigError, IsotropeError, MachineError, UnknownDocumentError
from search.result_files import to_json
from search.server.http.field_faults import in_words
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
    """An invalid request: `status`, a message, and the field `param`."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param

    @classmethod
    def of_field(cls, param: str, fault: str, status: int = 400) -> "RequestError":
        """Return the error of a field, with its name before the fault."""
        return cls(status, f"{param}: {fault}", param)


class JsonResponse(Response):
    """Strict JSON, as the command line writes it: dates as text, NaN and infinite numbers as null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content).encode("utf-8", "backslashreplace")


def error_response(
    status: int, message: str, param: str | None = None, headers: Mapping[str, str] | None = None
) -> JsonResponse:
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    body = {"error": {"message": message, "type": kind, "param": param, "code": None}}
    return JsonResponse(body, status, dict(headers or {}))


def answer_failures(app: FastAPI, service: SearchService) -> None:
    """Register a handler that turns every exception of a route into a response."""

    async def answer(request: Request, error: Exception) -> Response:
        match error:
            case RequestValidationError():
                return _invalid(request, error)
            case RequestError():
                return error_response(error.status, str(error), error.param)
            case HTTPException():
                return error_response(error.status_code, _of_http(error), headers=error.headers)
            case BusyError():
                return error_response(429, str(error), headers={"Retry-After": str(error.retry_after)})
            case DeadlineError():
                return error_response(504, str(error))
            case IsotropeError():
                status, message = status_and_message(error, service)
                is_temporary = status == 503 and not isinstance(error, MachineError)
                return error_response(status, message, headers={"Retry-After": "5"} if is_temporary else None)
        LOG.error("a request failed unexpectedly", exc_info=error)
        return error_response(500, "The server failed at this request; see its log.")

    known = (RequestValidationError, RequestError, HTTPException, BusyError, DeadlineError, IsotropeError)
    for kind in (*known, Exception):
        app.add_exception_handler(kind, answer)


def _invalid(request: Request, error: RequestValidationError) -> Response:
    kind = request.headers.get("content-type", "")
    if request.method != "POST" or "json" in kind:
        return error_response(422, *_first_fault(error))
    given = f'is "{kind[:60]}"' if kind else "is missing"
    return error_response(422, f"The body is not read as JSON: Content-Type {given}; expected application/json.")


def _of_http(error: HTTPException) -> str:
    if error.status_code == 404:
        return "There is no such route; /openapi.json lists the routes of the API."
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another")
        return f"The method is not allowed; this route accepts {allowed}."
    cause = error.__cause__
    if isinstance(cause, UnicodeDecodeError):
        return f"The body is not {cause.encoding.upper()}: {cause.reason} at byte {cause.start}. Send JSON in UTF-8."
    if isinstance(cause, RecursionError):
        return "The body nests lists or objects too deeply."
    if isinstance(cause, ValueError):  # Python limits the digits of numbers
        return "The body contains a number with too many digits."
    return str(error.detail)


def _place(error: RequestValidationError, character: int) -> str:
    """Return the line and column of a character of a body, counted from 1."""
    before = str(error.body)[:character]
    line, column = before.count("\n") + 1, character - before.rfind("\n")
    return f"line {line}, column {column} (character {character})"


def status_and_message(error: IsotropeError, service: SearchService) -> tuple[int, str]:
    """Return the status and message of an error. Faults of the server's machine are only logged."""
    if isinstance(error, ConfigError):
        return 404 if isinstance(error, UnknownDocumentError) else 422, service.message_of(error)
    LOG.error("a request could not be answered: %s", error)
    if isinstance(error, MachineError):
        return 503, "The server's machine cannot do this; see its log."
    return 503, "The index cannot be read now; see the server's log."


def _first_fault(error: RequestValidationError) -> tuple[str, str | None]:
    """Return the fault and name of the first invalid field.

    For a field of several types, the message lists the fault for each type.
    """
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return f"The body is not JSON: {first['ctx']['error']} at {_place(error, first['loc'][-1])}.", None
    faults = [(fault["loc"][1:], in_words(fault)) for fault in error.errors()]
    if not faults[0][0]:
        if first["type"] == "missing":
            return "The body is empty; expected a JSON object.", None
        return ("The body " if first["type"] == "model_attributes_type" else "") + faults[0][1], None
    field = str(faults[0][0][0])
    of_field = [(place, message) for place, message in faults if place and str(place[0]) == field]
    message = ", or: ".join(dict.fromkeys(message for _, message in of_field))
    place = ".".join(map(str, of_field[0][0])) if len(of_field) == 1 else field
    return f"{place}: {message}", field
