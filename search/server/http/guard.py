"""Checks before all routes: hosts and origins, keys, sizes of bodies, disconnects.

Pure ASGI, cheapest checks first: a body is read only after its sender is authorized.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from functools import lru_cache
from typing import Any

from starlette.datastructures import Headers

from indexer.errors import ConfigError
from indexer.system.urls import is_loopback
from search.server.byte_limit import BusyError, Room, RoomShare
from search.server.http.failures import LOG, error_response
from search.server.metrics import ServerMetrics
from search.server.settings import ServerSettings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

HEALTH = "/healthz"
PAGE = "/"
ASSETS = "/assets/"
ADMIN = "/admin/"
ABORT = "isotrope.abort"  # extension of the scope: "call" aborts the connection, "is_closed" returns whether it is
_KEY_HEADERS = ("authorization", "x-api-key")
_LEFT = 499  # the usual status in logs if the client disconnects before the answer
_AFTER = 5.0  # seconds after the deadline to send an answer
_DRAIN_SECONDS = 2.0  # for reading the rest of a refused body
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9.-]+))(?::[0-9]{0,5})?", re.ASCII | re.IGNORECASE)
_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        b"trusted-types 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]


class Guard:
    """An application behind the checks of this module."""

    def __init__(self, app: Application, settings: ServerSettings, metrics: ServerMetrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._limit = settings.limits.deadline + _AFTER
        self.bodies = Room(settings.limits.reading_bytes, settings.limits.body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        answer = _Answer(scope, send)
        began = time.monotonic()
        try:
            if refusal := self._refusal(scope):
                await self._refuse(refusal, answer)
            else:
                await self._answer(scope, receive, answer)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            self._metrics.requests.labels(route, str(answer.status)).inc()
            self._metrics.seconds.labels(route).observe(time.monotonic() - began)

    # --- callers

    def _refusal(self, scope: Scope) -> tuple[int, str, str] | None:
        """Return (status, reason, message) of a refusal, None if the request is allowed."""
        headers, path = Headers(scope=scope), scope["path"]
        if not self._settings.read_keys.are_needed and (fault := _foreign(headers, path, scope["method"])):
            return 403, "host", fault
        if path in (HEALTH, PAGE) or path.startswith(ASSETS):
            return None
        admin, key, readers = path.startswith(ADMIN), _key_of(headers), self._settings.read_keys
        keys = self._settings.admin_keys if admin else readers
        if admin and not keys.are_needed and (readers.admit(key) or not readers.are_needed):
            return 403, "key", "The admin routes are disabled: the server was started without --admin-key-file."
        if (admin or keys.are_needed) and any(len(headers.getlist(name)) > 1 for name in _KEY_HEADERS):
            return 401, "key", "More than one key. Send one, as: Authorization: Bearer KEY"
        if (admin or keys.are_needed) and not keys.admit(key):
            if admin and readers.admit(key):
                return 403, "key", "The admin routes need a key of --admin-key-file."
            return 401, "key", "The key is missing or wrong. Send it as: Authorization: Bearer KEY"
        return None

    async def _refuse(
        self, refusal: tuple[int, str, str], answer: "_Answer", rest: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Send a refusal, and close the connection after `rest` has read more of the body.

        Many clients read the answer only after sending their body. Closing earlier would reset the connection, and
        they would never see the answer.
        """
        status, reason, message = refusal
        self._metrics.refused.labels(reason).inc()
        headers = {"Connection": "close"} | ({"WWW-Authenticate": "Bearer"} if status == 401 else {})
        if status == 503:
            headers["Retry-After"] = "1"
        response = error_response(status, message, headers=headers)
        await answer.send({"type": "http.response.start", "status": status, "headers": response.raw_headers})
        await answer.send({"type": "http.response.body", "body": response.body, "more_body": True})
        if rest:
            await rest()
        await answer.send({"type": "http.response.body", "body": b""})

    # --- bodies and answers

    async def _answer(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        with self.bodies.share() as share:
            body = _Body(share)
            if refusal := await self._read(scope, receive, body):
                await self._refuse(refusal, answer, lambda: self._drain(receive, body))
            elif not body.left:
                await self._run(scope, receive, body, answer)
            else:
                self._metrics.left.inc()

    async def _read(self, scope: Scope, receive: Receive, body: "_Body") -> tuple[int, str, str] | None:
        """Read a body. A stated length is used only if it is too long."""
        limits = self._settings.limits
        too_long = (413, "body", f"The body is longer than {limits.body_bytes:,} bytes, the limit of this server.")
        stated = Headers(scope=scope).get("content-length", "")
        if stated.isdigit() and (len(stated) > 18 or int(stated) > limits.body_bytes):
            return too_long
        try:
            async with asyncio.timeout(limits.reading_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        body.left = True
                        return None
                    body.take(message.get("body", b""))
                    if not message.get("more_body", False):
                        return None
        except ConfigError:
            return too_long
        except BusyError:
            return 503, "bodies", "The server is receiving too many long bodies; try again."
        except TimeoutError:
            return 408, "body", f"The body did not arrive within {limits.reading_seconds:g} s."

    async def _drain(self, receive: Receive, body: "_Body") -> None:
        """Read and discard more of a body: at most twice `body_bytes`, for at most two seconds."""
        body.share.give_back()
        body.pieces.clear()
        left = 2 * self._settings.limits.body_bytes
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return

    async def _run(self, scope: Scope, receive: Receive, body: "_Body", answer: "_Answer") -> None:
        """Run the application in this task, which is cancelled if the client leaves or does not read."""
        caller = _Caller(receive, body.whole())
        try:
            # Loading a new generation has no deadline.
            async with asyncio.timeout(None if scope["path"].startswith(ADMIN) else self._limit):
                await self._app(scope, caller.receive, answer.send)
        except TimeoutError:
            answer.abort()
            self._metrics.left.inc()
        except asyncio.CancelledError:
            if caller.gone.is_set():
                self._metrics.left.inc()
            elif answer.status == _LEFT:  # the server stops before this request ends
                await error_response(503, "The server stopped before it answered this request.")(
                    scope, _nothing, answer.send
                )
            else:
                answer.abort()
        except Exception:  # noqa: BLE001  # the last handler
            if answer.status != _LEFT:  # already logged and answered
                return
            LOG.exception("a request failed unexpectedly")
            await error_response(500, "The server failed at this request; see its log.")(scope, _nothing, answer.send)
        finally:
            caller.close()


class _Caller:
    """The client of a request: passes the body on, and cancels the answering task if the client leaves."""

    def __init__(self, receive: Receive, body: bytes) -> None:
        self._receive, self._task = receive, asyncio.current_task()
        self._body: bytes | None = body
        self.gone = asyncio.Event()
        self._watcher = asyncio.ensure_future(self._watch())

    async def receive(self) -> Message:
        """Return the next message for the application."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    def close(self) -> None:
        """Stop watching the client."""
        self._task = None
        self._watcher.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone.set()
        if self._task is not None:
            self._task.cancel()


class _Body:
    """An arriving body, counted in its `share` of the room for bodies."""

    def __init__(self, share: RoomShare) -> None:
        self.share, self.pieces = share, list[bytes]()
        self.left = False  # whether the client has left

    def take(self, piece: bytes) -> None:
        """Add a piece. Raises ConfigError for a body that is too long, BusyError if all bodies together are."""
        self.share.reach(self.share.taken + len(piece))
        self.pieces.append(piece)

    def whole(self) -> bytes:
        """Return the whole body, and forget it."""
        pieces, self.pieces = self.pieces, []
        return b"".join(pieces)


class _Answer:
    """Sends an answer with the common headers, and records its status."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send, self._api = send, scope["path"] != PAGE and not scope["path"].startswith(ASSETS)
        connection = scope.get("extensions", {}).get(ABORT, {})
        self._abort: Callable[[], None] | None = connection.get("call")
        self._is_closed: Callable[[], bool] = connection.get("is_closed", lambda: False)
        self.status = _LEFT

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), *_HEADERS]
            if self._api:
                headers.append((b"cache-control", b"no-store"))
            message = {**message, "headers": headers}
        try:
            await self._send(message)
        except RuntimeError:
            if not self._is_closed():  # closed by the client, which uvicorn does not know yet
                raise

    def abort(self) -> None:
        """Abort the connection."""
        if self._abort:
            self._abort()


def _foreign(headers: Headers, path: str, method: str) -> str | None:
    """Return the reason to refuse a request that may come from a page of another site; None if it cannot.

    Such a page can send requests to 127.0.0.1, and read the answers under a domain name that resolves to it (DNS
    rebinding). Browsers reveal both by Origin, Sec-Fetch-Site and Host.
    """
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not _is_this_machine(hosts[0]):
        return "The Host does not name this machine. Use 127.0.0.1 or localhost, or serve with --api-key-file."
    allowed = (f"http://{hosts[0].lower()}", f"https://{hosts[0].lower()}")
    for origin in headers.getlist("origin"):
        if origin.lower() not in allowed:
            return "The Origin is another site, which is not allowed."
    site = headers.get("sec-fetch-site", "none")
    if site not in ("none", "same-origin") and not (path == PAGE and method in ("GET", "HEAD")):
        return "The request comes from a page of another site, which is not allowed."
    return None


@lru_cache(maxsize=64)
def _is_this_machine(host: str) -> bool:
    match = _HOST.fullmatch(host)
    return match is not None and is_loopback((match[1] or match[2]).lower())


def _key_of(headers: Headers) -> bytes:
    """Return the key of a request: Authorization: Bearer KEY, or X-API-Key: KEY."""
    kind, _, key = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return key.strip().encode()
    return headers.get("x-api-key", "").encode()


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}
