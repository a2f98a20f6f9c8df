"""A client of `isotrope serve`, with the methods of `SearchEngine`, that loads no numerical library."""

import json
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

import httpx2

from indexer.errors import ConfigError, MachineError, UnknownDocumentError
from indexer.system.urls import is_loopback
from indexer.typed_json import MAX_DEPTH, decode_json
from search.formatting import escape
from search.hits import Answer, Hit, Truncated
from search.ranking.options import SEARCH_OPTIONS, SearchOptions, require_queries

MOST_QUERIES = 64  # per request; the server accepts 256 by default, but other clients wait meanwhile
_MOST_HITS = 10_000  # of all queries of a request: the server's default
_MOST_BYTES = 4 << 20  # of query texts per request: half of the server's default
_LARGEST_ANSWER = 1 << 30  # bytes
_ATTEMPTS = 5  # while the server is busy
_LONGEST_WAIT = 60  # seconds between two attempts
_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 300.0  # the server ends a request sooner, by its own deadline
_SHOWN = 500  # characters of a server's message
_DEPTH = MAX_DEPTH + 8  # metadata is nested this deep in an answer
T = TypeVar("T")


@dataclass(frozen=True)
class ServedResult:
    """The answer to one query.

    `unknown` means that the encoder knows no token of the query: its hits are meaningless, hybrid hits are BM25's.
    """

    query: str
    hits: list[Hit]
    truncated: Truncated | None = None
    unknown: bool | None = None


@dataclass(frozen=True)
class _Results:
    results: list[ServedResult]


@dataclass(frozen=True)
class _Fault:
    message: str
    param: str | None = None


@dataclass(frozen=True)
class _Failure:
    error: _Fault


class _TooMuchError(ConfigError):
    """The server refused a request with this many queries, hits or characters; fewer queries may be accepted."""


class SearchClient:
    """Searches an index behind a server over HTTP. Scores and hits equal those of the server's `SearchEngine`.

    `url` is the URL that `isotrope serve` prints, or the URL of a proxy in front of it, with its path. `key` is one of
    the server's keys. It is sent in plain text, so use https beyond this machine; `is_private` is True if nobody on the
    network can read along. `seconds` limits one request. `on_wait` gets the seconds before each retry at a busy server.

    Dates and times in metadata arrive as text, infinite numbers and NaN as None, because JSON has none of them.
    Queries beyond one request may be answered by a later generation of the index. Proxies from the environment are
    used for other machines only. Redirects are not followed, because they would receive the key.

    Raises ConfigError for an invalid URL or key. Methods raise ConfigError for a refused request, and MachineError for
    a server that is unreachable, too busy, or failing. Safe to share between threads.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        seconds: float = _ANSWER_SECONDS,
        on_wait: Callable[[float], None] = lambda _: None,
    ) -> None:
        parts = _require_url(url)
        is_here = is_loopback(parts.hostname or "")
        self.url, self.is_private = url.rstrip("/"), parts.scheme == "https" or is_here
        self._on_wait = on_wait
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if key is not None:
            if not (key and key.isascii() and key.isprintable() and " " not in key):
                raise ConfigError("the key is invalid: expected ASCII letters, digits and punctuation, without spaces.")
            headers["Authorization"] = f"Bearer {key}"
        try:
            self._http = httpx2.Client(
                headers=headers,
                timeout=httpx2.Timeout(seconds, connect=_CONNECT_SECONDS),
                verify=_trusted(parts.scheme, is_here),
                trust_env=not is_here,
            )
        except (OSError, ValueError, ImportError, httpx2.InvalidURL) as error:
            raise MachineError(
                f"the HTTP settings of the environment (HTTPS_PROXY, SSL_CERT_FILE, ...) are invalid: {error}."
            ) from error

    def __enter__(self) -> "SearchClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def search(self, query: str, options: SearchOptions | int | None = None, **fields: Any) -> Answer[Hit]:
        """Return the documents closest to the query, as `SearchEngine.search` does."""
        return self.search_many([query], options, **fields)[0]

    def search_many(
        self, queries: Sequence[str], options: SearchOptions | int | None = None, **fields: Any
    ) -> list[Answer[Hit]]:
        """Search for any number of queries, in as few requests as the server allows."""
        return [Answer(result.hits) for result in self.results(queries, options, **fields)]

    def results(
        self, queries: Sequence[str], options: SearchOptions | int | None = None, **fields: Any
    ) -> list[ServedResult]:
        """Return the answers as `search_many` does, with the server's notes on each query."""
        request = _fields_of(SearchOptions.of(options, fields))
        pieces = _pieces(_require_unicode(require_queries(queries)), request["k"])
        return [result for piece in pieces for result in self._results_of(piece, request)]

    def neighbours(self, identity: str, options: SearchOptions | int | None = None, **fields: Any) -> Answer[Hit]:
        """Return the documents closest to a stored document: `SearchEngine.neighbours`. Raises UnknownDocumentError."""
        chosen = SearchOptions.of(options, fields)
        chosen.require_no_text()
        _require_unicode([identity], "the id")
        return Answer(self._results(_fields_of(chosen) | {"like": identity}, 1)[0].hits)

    def info(self) -> dict[str, Any]:
        """Return the description of the index: how it was built, its measured quality, and its metadata columns."""
        return self._decoded(self._request("GET", "/v1/info"), dict[str, Any])

    def _results_of(self, queries: list[str], request: dict[str, Any]) -> list[ServedResult]:
        """Return the answers to some queries, by one request, or by halves if that request is too large."""
        try:
            return self._results(request | {"query": queries}, len(queries))
        except _TooMuchError:
            if len(queries) == 1:
                raise
            half = len(queries) // 2
            return self._results_of(queries[:half], request) + self._results_of(queries[half:], request)

    def _results(self, request: dict[str, Any], count: int) -> list[ServedResult]:
        results = self._decoded(self._request("POST", "/v1/search", request), _Results).results
        if len(results) != count:
            raise self._stranger(f"{len(results):,} answers to {count:,} queries")
        return results

    def _decoded(self, body: bytes, kind: type[T]) -> T:
        try:
            return decode_json(body, kind, _DEPTH)
        except ValueError as error:
            raise self._stranger(str(error)) from error

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        """Return the body of a successful response; retry while the server is busy."""
        for attempt in range(1, _ATTEMPTS + 1):
            status, headers, answer = self._exchange(method, path, body)
            if status != 429:
                break
            if attempt < _ATTEMPTS:
                wait = _seconds_to_wait(headers.get("retry-after", ""))
                self._on_wait(wait)
                time.sleep(wait)
        if status != 200:
            raise self._failure(status, answer, headers)
        return answer

    def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, httpx2.Headers, bytes]:
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        pieces, length = list[bytes](), 0
        with self._reached(), self._http.stream(method, self.url + path, content=content, headers=headers) as response:
            for piece in response.iter_bytes():
                pieces.append(piece)
                length += len(piece)
                if length > _LARGEST_ANSWER:
                    raise MachineError(f"{self.url}: the answer is over {_LARGEST_ANSWER:,} bytes long. Ask for less.")
        return response.status_code, response.headers, b"".join(pieces)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Turn errors of the connection into MachineError and ConfigError."""
        try:
            yield
        except httpx2.ConnectTimeout as error:
            raise MachineError(f"{self.url}: no connection within {_CONNECT_SECONDS:g} s. Check the URL.") from error
        except httpx2.TimeoutException as error:
            raise MachineError(f"{self.url}: the server accepted the request, but did not answer in time.") from error
        except httpx2.ProxyError as error:
            raise MachineError(f"{self.url}: the proxy from the environment refuses ({_shown(error)}).") from error
        except httpx2.ConnectError as error:
            raise MachineError(f"{self.url}: {_unreached(error)}") from error
        except httpx2.TransportError as error:
            raise MachineError(
                f"{self.url}: the connection broke ({_shown(error)}). Is the server running, and is it http or https?"
            ) from error
        except (httpx2.RequestError, httpx2.InvalidURL, UnicodeError) as error:
            raise ConfigError(f"{self.url}: the request cannot be sent ({_shown(error)}).") from error

    def _failure(self, status: int, body: bytes, headers: httpx2.Headers) -> Exception:
        """Return the error for a status of the server."""
        try:
            fault = decode_json(body, _Failure, _DEPTH).error
        except ValueError:
            return self._stranger_failure(status, headers)
        message = _shown(fault.message)
        if status == 401:
            return ConfigError(f"{self.url}: the key is missing or wrong. Give --api-key-file FILE (in Python `key`).")
        if status == 404 and not message.startswith("Not Found"):
            return UnknownDocumentError(f"{self.url}: {message}")
        if status == 429:
            return MachineError(f"{self.url}: still busy after {_ATTEMPTS} attempts: {message} Ask again later.")
        if status == 404:
            return self._stranger("it has no /v1/search; the path after the host may be wrong")
        if status == 422 and fault.param in ("k", "query"):
            return _TooMuchError(f"{self.url}: {message}")
        if status == 422 and fault.param == "fold":
            message = message.replace("Input should be", "a server accepts values").rstrip(".")
            return ConfigError(f"{self.url}: {message}; an index that is opened locally also accepts lower ones.")
        return (MachineError if status >= 500 else ConfigError)(f"{self.url}: {message}")

    def _stranger_failure(self, status: int, headers: httpx2.Headers) -> Exception:
        """Return the error for a status that does not come from Isotrope."""
        if status in (301, 302, 303, 307, 308):
            to = _shown(headers.get("location", "elsewhere"))
            return ConfigError(
                f"{self.url}: redirects to {to}. Redirects are not followed, to keep the key. Give that URL instead."
            )
        if status >= 500 or status == 429:
            return MachineError(
                f"{self.url}: answers {status}, but not as Isotrope does: a proxy, whose server may be down."
            )
        return self._stranger(f"it answers {status}")

    def _stranger(self, why: str) -> ConfigError:
        return ConfigError(
            f"{self.url}: this is no Isotrope server ({_shown(why)}). Expected the URL that `isotrope serve` prints."
        )


def _require_url(url: str) -> SplitResult:
    """Return the parts of a server's URL. Raises ConfigError, without repeating parts that may be secret."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(
            f'"{escape(url)}" is not a URL ({error}); expected for example http://127.0.0.1:8080.'
        ) from error
    if parts.scheme not in ("http", "https") or not host or not url.isprintable() or " " in url:
        raise ConfigError(f'"{escape(url)}" is not the URL of a server; expected one such as http://127.0.0.1:8080.')
    if "@" in parts.netloc:
        raise ConfigError("the URL contains a user or a password, which other users can see. Leave them out.")
    if parts.query or parts.fragment:
        raise ConfigError(f'"{url}" contains ? or #; expected the address of a server alone.')
    return parts


def _trusted(scheme: str, is_here: bool) -> ssl.SSLContext | bool:
    """Return the trusted certificates; none for http, because reading them takes longer than an answer."""
    if scheme == "http":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return ssl.create_default_context() if is_here else True


def _fields_of(options: SearchOptions) -> dict[str, Any]:
    """Return the options as fields of a request: `k`, and the options that differ from their defaults."""
    values = [(option, getattr(options, option.name)) for option in SEARCH_OPTIONS]
    fields = [(option, value) for option, value in values if value != option.default or option.name == "k"]
    if not all(option.is_served for option, _ in fields):
        raise ConfigError("partial is for segments in other processes; a server always answers from all segments.")
    return {option.name: float(value) if option.kind is float else value for option, value in fields}


def _require_unicode(texts: list[str], what: str = "query") -> list[str]:
    for number, text in enumerate(texts, start=1):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            name = f"{what} {number}" if len(texts) > 1 else what
            raise ConfigError(
                f"{name} is not valid text: half a surrogate pair, or bytes that are not UTF-8."
            ) from error
    return texts


def _pieces(queries: list[str], k: int) -> Iterator[list[str]]:
    """Split queries into requests, within the limits of queries, hits and bytes."""
    most, piece, length = max(min(MOST_QUERIES, _MOST_HITS // k), 1), list[str](), 0
    for query in queries:
        size = len(json.dumps(query, ensure_ascii=False).encode())
        if piece and (len(piece) == most or length + size > _MOST_BYTES):
            yield piece
            piece, length = [], 0
        piece.append(query)
        length += size
    if piece:
        yield piece


def _seconds_to_wait(retry_after: str) -> int:
    return min(int(retry_after), _LONGEST_WAIT) if retry_after.isascii() and retry_after.isdigit() else 1


def _shown(foreign: object) -> str:
    text = escape(" ".join(str(foreign).split())) or type(foreign).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _unreached(error: httpx2.ConnectError) -> str:
    """Return the reason for a failed connection, and the fix."""
    message, cause = _shown(error), error.__cause__ or error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in message:
        return f"its certificate is not trusted ({message}). Fix: set SSL_CERT_FILE to its authority's certificate."
    if isinstance(cause, ssl.SSLError) or "SSL" in message:
        return f"the server speaks no TLS ({message}). Does its URL begin with http:// instead of https://?"
    return f"the server cannot be reached ({message}). Check the address, and that `isotrope serve` is running there."
