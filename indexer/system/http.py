"""Requests with JSON to a server, and the errors of its connection as messages with a fix."""

import json
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import httpx2

from indexer.errors import ConfigError, MachineError
from indexer.system.escaping import shown
from indexer.system.urls import is_loopback, require_server_url

LARGEST_ANSWER = 1 << 30  # bytes
_CONNECT_SECONDS = 10.0
Opened = TypeVar("Opened", httpx2.Client, httpx2.AsyncClient)


class UnreachedError(MachineError):
    """There is no connection to the server."""


class HttpAnswer(NamedTuple):
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Connection:
    """The shared part of both kinds of connections: the URL, the settings of httpx2's client, and the errors."""

    def __init__(self, url: str, program: str, key: str | None, seconds: float) -> None:
        parts = require_server_url(url)
        is_here = is_loopback(parts.hostname or "")
        self.url, self.is_private = url.rstrip("/"), parts.scheme == "https" or is_here
        self._program, self.has_key = program, key is not None
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if key is not None:
            if not (key and key.isascii() and key.isprintable() and " " not in key):
                raise ConfigError("the key is invalid: expected ASCII letters, digits and punctuation, without spaces.")
            headers["Authorization"] = f"Bearer {key}"
        self._headers, self._scheme, self._is_here = headers, parts.scheme, is_here
        self._timeout = httpx2.Timeout(seconds, connect=_CONNECT_SECONDS, pool=None)  # waiting to be sent has no limit

    def _opened(self, client: Callable[..., Opened]) -> Opened:
        """Return httpx2's client of the class `client`."""
        try:
            return client(
                headers=self._headers,
                timeout=self._timeout,
                verify=_trusted(self._scheme, self._is_here),
                trust_env=not self._is_here,
            )
        except (OSError, ValueError, ImportError, httpx2.InvalidURL) as error:
            raise MachineError(
                f"the HTTP settings of the environment (HTTPS_PROXY, SSL_CERT_FILE, ...) are invalid: {error}."
            ) from error

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Turn errors of the connection into MachineError and ConfigError."""
        try:
            yield
        except httpx2.ConnectTimeout as error:
            raise UnreachedError(
                f"{self.url}: no connection within {_CONNECT_SECONDS:g} s. Fix: check the URL."
            ) from error
        except httpx2.TimeoutException as error:
            raise MachineError(f"{self.url}: the server accepted the request, but did not answer in time.") from error
        except httpx2.ProxyError as error:
            raise UnreachedError(f"{self.url}: the proxy from the environment refuses ({shown(error)}).") from error
        except httpx2.ConnectError as error:
            raise UnreachedError(f"{self.url}: {self._unreached(error)}") from error
        except httpx2.TransportError as error:
            raise MachineError(
                f"{self.url}: the connection broke ({shown(error)}). Fix: check that the server is running, and "
                "whether its URL begins with http or https."
            ) from error
        except (httpx2.RequestError, httpx2.InvalidURL, UnicodeError) as error:
            raise ConfigError(f"{self.url}: the request cannot be sent ({shown(error)}).") from error

    def _unreached(self, error: httpx2.ConnectError) -> str:
        """Return the reason for a failed connection, and the fix."""
        cause, message = _origin(error), shown(error)
        if isinstance(cause, ConnectionError) and cause.errno:
            message = os.strerror(cause.errno)  # asyncio only says that all attempts failed
        if isinstance(cause, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in message:
            return f"its certificate is not trusted ({message}). Fix: set SSL_CERT_FILE to its authority's certificate."
        if isinstance(cause, ssl.SSLError) or "SSL" in message:
            return f"the server does not use TLS ({message}). Fix: check whether its URL begins with http://."
        return (
            f"the server cannot be reached ({message}). Fix: check the address, and that {self._program} is running "
            "there."
        )


class HttpConnection(_Connection):
    """Connections to one server. Safe to share between threads.

    `key` is sent to it in the header Authorization. `seconds` limits one request. `program` is the expected server, for
    messages. Proxies from the environment are used for other machines only. Redirects are not followed, because they
    would receive the key. Raises ConfigError for an invalid URL or key, MachineError for an invalid environment.
    """

    def __init__(self, url: str, program: str, key: str | None, seconds: float) -> None:
        super().__init__(url, program, key, seconds)
        self._http = self._opened(httpx2.Client)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def exchange(self, method: str, path: str, body: Any = None) -> HttpAnswer:
        """Send a request, with `body` as JSON, and return the response.

        Raises UnreachedError without a connection, MachineError for a broken or slow one and an endless response,
        ConfigError for a request that cannot be sent.
        """
        pieces = _Pieces(self.url)
        with self._reached(), self._http.stream(method, self.url + path, **_content(body)) as response:
            for piece in response.iter_bytes():
                pieces.add(piece)
        return HttpAnswer(response.status_code, response.headers, pieces.joined())


class AsyncHttpConnection(_Connection):
    """Connections as `HttpConnection`, for the tasks of one event loop."""

    def __init__(self, url: str, program: str, key: str | None, seconds: float) -> None:
        super().__init__(url, program, key, seconds)
        self._http = self._opened(httpx2.AsyncClient)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def exchange(self, method: str, path: str, body: Any = None) -> HttpAnswer:
        """Send a request as `HttpConnection.exchange` does. A cancelled request closes its connection."""
        pieces = _Pieces(self.url)
        with self._reached():
            async with self._http.stream(method, self.url + path, **_content(body)) as response:
                async for piece in response.aiter_bytes():
                    pieces.add(piece)
        return HttpAnswer(response.status_code, response.headers, pieces.joined())


class _Pieces:
    """The body of a response as it arrives, of at most `LARGEST_ANSWER` bytes."""

    def __init__(self, url: str) -> None:
        self._url, self._pieces, self._length = url, list[bytes](), 0

    def add(self, piece: bytes) -> None:
        """Add a piece. Raises MachineError if the body is too long."""
        self._pieces.append(piece)
        self._length += len(piece)
        if self._length > LARGEST_ANSWER:
            raise MachineError(f"{self._url}: the answer exceeds {LARGEST_ANSWER:,} bytes. Fix: request less.")

    def joined(self) -> bytes:
        """Return the body."""
        return b"".join(self._pieces)


def _content(body: Any) -> dict[str, Any]:
    """Return the arguments of httpx2 for a body as JSON, None for no body."""
    if body is None:
        return {}
    content = json.dumps(body, ensure_ascii=False).encode()
    return {"content": content, "headers": {"Content-Type": "application/json"}}


def _origin(error: BaseException) -> BaseException:
    """Return the first error of a chain; asyncio groups the errors of several addresses."""
    earlier = error.__cause__ or error.__context__
    if isinstance(error, BaseExceptionGroup):
        earlier = error.exceptions[0]
    return _origin(earlier) if earlier else error


def redirect_error(url: str, headers: Mapping[str, str]) -> ConfigError:
    """Return the error for an answer that redirects."""
    to = shown(headers.get("location", "elsewhere"))
    return ConfigError(f"{url}: redirects to {to}. Redirects are not followed, to protect the key. Fix: use that URL.")


def _trusted(scheme: str, is_here: bool) -> ssl.SSLContext | bool:
    """Return the trusted certificates; none for http, because reading them takes longer than an answer."""
    if scheme == "http":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return ssl.create_default_context() if is_here else True
