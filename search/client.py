"""A client of `isotrope serve`, with the methods of `SearchEngine`. It loads no numerical library."""

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
from search.hits import Answer, Hit, Truncated
from search.ranking.options import SEARCH_OPTIONS, SearchOptions, require_queries
from search.text import escape

MOST_QUERIES = 64  # of one request; the server takes 256 by default, but others want their turn
_MOST_HITS = 10_000  # of all queries of one request: the default of the server
_MOST_BYTES = 4 << 20  # of the texts of one request: half of what the server takes by default
_LARGEST_ANSWER = 1 << 30  # bytes
_ATTEMPTS = 5  # at a server that is busy
_LONGEST_WAIT = 60  # seconds between two of them
_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 300.0  # the server ends a request sooner, by its own deadline
_SHOWN = 500  # characters of a message of the server's
_DEPTH = MAX_DEPTH + 8  # metadata lie so deep in an answer
T = TypeVar("T")


@dataclass(frozen=True)
class ServedResult:
    """The answer to one query.

    `unknown`: nothing of it is known to the encoder, so its hits mean nothing; hybrid ones are those of BM25 alone.
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
    """A request of this many queries, hits or characters is refused; one of fewer queries may not be."""


class SearchClient:
    """An index behind a server, asked over HTTP. Scores and hits equal those of the server's `SearchEngine`.

    `url` is the URL that `isotrope serve` prints, or that of a proxy before it, with its path. `key` is one of the
    server's keys. It is sent in plain text, so use https beyond this machine; `is_private` says whether the connection
    is safe from readers on the way. `seconds` limits one request. `on_wait` gets the seconds before each of a few
    further attempts at a busy server.

    Dates and times in metadata arrive as text, and infinite numbers and NaN as None, because JSON has none of them.
    Queries beyond one request may be answered by a later generation of the index. Proxies of the environment are used
    for other machines only. Redirects are not followed, because the key would go with them.

    Raises ConfigError for an invalid URL or key. Methods raise ConfigError for a refused request, and MachineError for
    a server that cannot be reached, is too busy, or fails. Safe to share between threads.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        seconds: float = _ANSWER_SECONDS,
        on_wait: Callable[[float], None] = lambda _: None,
    ) -> None:
        parts = _require_url(url)
        self.url, self.is_private = url.rstrip("/"), parts.scheme == "https" or _is_loopback(parts)
        self._on_wait = on_wait
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if key is not None:
            if not (key and key.isascii() and key.isprintable() and " " not in key):
                raise ConfigError("the key is none: expected letters, digits and signs without spaces.")
            headers["Authorization"] = f"Bearer {key}"
        try:
            self._http = httpx2.Client(
                headers=headers,
                timeout=httpx2.Timeout(seconds, connect=_CONNECT_SECONDS),
                verify=_trusted(parts),
                trust_env=not _is_loopback(parts),
            )
        except (OSError, ValueError, ImportError, httpx2.InvalidURL) as error:
            raise MachineError(
                f"what the environment names for HTTP (HTTPS_PROXY, SSL_CERT_FILE and the like) is of no use: {error}."
            ) from error

    def __enter__(self) -> "SearchClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def search(self, query: str, options: SearchOptions | int | None = None, **fields: Any) -> Answer[Hit]:
        """The documents closest to the query: `SearchEngine.search`."""
        return self.search_many([query], options, **fields)[0]

    def search_many(
        self, queries: Sequence[str], options: SearchOptions | int | None = None, **fields: Any
    ) -> list[Answer[Hit]]:
        """`search` for several queries, of any number, in as few requests as the server takes."""
        return [Answer(result.hits) for result in self.results(queries, options, **fields)]

    def results(
        self, queries: Sequence[str], options: SearchOptions | int | None = None, **fields: Any
    ) -> list[ServedResult]:
        """Return the answers as `search_many` does, with the server's notes on each query."""
        asked = _fields_of(SearchOptions.of(options, fields))
        pieces = _pieces(_require_unicode(require_queries(queries)), asked["k"])
        return [result for some in pieces for result in self._results_of(some, asked)]

    def neighbours(self, identity: str, options: SearchOptions | int | None = None, **fields: Any) -> Answer[Hit]:
        """The documents closest to a stored one: `SearchEngine.neighbours`. Raises UnknownDocumentError."""
        asked = SearchOptions.of(options, fields)
        if asked.hybrid:
            raise ConfigError("hybrid search needs the text of a query, not a document's id.")
        if asked.rerank_depth:
            raise ConfigError("reranking needs the text of a query, not a document's id. Leave out the depth.")
        _require_unicode([identity], "the id")
        return Answer(self._results(_fields_of(asked) | {"like": identity}, 1)[0].hits)

    def info(self) -> dict[str, Any]:
        """Return the description of the index: how it was built, its measured quality, and its metadata columns."""
        return self._decoded(self._asked("GET", "/v1/info"), dict[str, Any])

    def _results_of(self, queries: list[str], asked: dict[str, Any]) -> list[ServedResult]:
        """Return answers to the queries of one request, in halves if they or their answers are too much at once."""
        try:
            return self._results(asked | {"query": queries}, len(queries))
        except _TooMuchError:
            if len(queries) == 1:
                raise
            half = len(queries) // 2
            return self._results_of(queries[:half], asked) + self._results_of(queries[half:], asked)

    def _results(self, asked: dict[str, Any], count: int) -> list[ServedResult]:
        found = self._decoded(self._asked("POST", "/v1/search", asked), _Results).results
        if len(found) != count:
            raise self._stranger(f"{len(found):,} answers to {count:,} questions")
        return found

    def _decoded(self, body: bytes, kind: type[T]) -> T:
        try:
            return decode_json(body, kind, _DEPTH)
        except ValueError as error:
            raise self._stranger(str(error)) from error

    def _asked(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        """The body of a good answer; while the server is busy, it is asked again."""
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
                    raise MachineError(
                        f"{self.url}: the answer is longer than {_LARGEST_ANSWER:,} bytes: ask for less."
                    )
        return response.status_code, response.headers, b"".join(pieces)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Turn errors of the connection into MachineError and ConfigError."""
        try:
            yield
        except httpx2.ConnectTimeout as error:
            raise MachineError(f"{self.url}: no answer within {_CONNECT_SECONDS:g} s; is the address right?") from error
        except httpx2.TimeoutException as error:
            raise MachineError(f"{self.url}: the server took the question, but did not answer in time.") from error
        except httpx2.ProxyError as error:
            raise MachineError(f"{self.url}: the proxy that the environment names refuses ({_said(error)}).") from error
        except httpx2.ConnectError as error:
            raise MachineError(f"{self.url}: {_unreached(error)}") from error
        except httpx2.TransportError as error:
            raise MachineError(
                f"{self.url}: the connection broke ({_said(error)}). Does the server run, and is it http or https?"
            ) from error
        except (httpx2.RequestError, httpx2.InvalidURL, UnicodeError) as error:
            raise ConfigError(f"{self.url}: cannot be asked ({_said(error)}).") from error

    def _failure(self, status: int, body: bytes, headers: httpx2.Headers) -> Exception:
        """Return the error that a status of the server means to the caller."""
        try:
            fault = decode_json(body, _Failure, _DEPTH).error
        except ValueError:
            return self._stranger_failure(status, headers)
        said = _said(fault.message)
        if status == 401:
            return ConfigError(f"{self.url}: wants a key, or another one: give --api-key-file FILE (in Python `key`).")
        if status == 404 and not said.startswith("Not Found"):
            return UnknownDocumentError(f"{self.url}: {said}")
        if status == 429:
            return MachineError(f"{self.url}: still busy after {_ATTEMPTS} attempts: {said} Ask again later.")
        if status == 404:
            return self._stranger("it knows no /v1/search; the path after the host may be wrong")
        if status == 422 and fault.param in ("k", "query"):
            return _TooMuchError(f"{self.url}: {said}")
        if status == 422 and fault.param == "fold":
            said = said.replace("Input should be", "a server takes what is").rstrip(".")
            return ConfigError(f"{self.url}: {said}; an index that is opened here folds at less as well.")
        return (MachineError if status >= 500 else ConfigError)(f"{self.url}: {said}")

    def _stranger_failure(self, status: int, headers: httpx2.Headers) -> Exception:
        """Return the error that a status means which does not come from Isotrope."""
        if status in (301, 302, 303, 307, 308):
            to = _said(headers.get("location", "elsewhere"))
            return ConfigError(f"{self.url}: points to {to}, which is not followed: a key might go with it. Name that.")
        if status >= 500 or status == 429:
            return MachineError(
                f"{self.url}: answers {status}, not in the words of Isotrope: a proxy, whose server may not run."
            )
        return self._stranger(f"it answers {status}")

    def _stranger(self, why: str) -> ConfigError:
        return ConfigError(
            f"{self.url}: what answers there is no Isotrope server ({_said(why)}). Expected the address that "
            "`isotrope serve` prints."
        )


def _require_url(url: str) -> SplitResult:
    """Return the parts of a server's URL. Raises ConfigError, without repeating parts that may be secret."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f'"{escape(url)}" is no URL ({error}); expected one like http://127.0.0.1:8080.') from error
    if parts.scheme not in ("http", "https") or not host or not url.isprintable() or " " in url:
        raise ConfigError(f'"{escape(url)}" is no URL of a server; expected one such as http://127.0.0.1:8080.')
    if "@" in parts.netloc:
        raise ConfigError("the URL holds a user or a password, which others can see as it is typed; leave it out.")
    if parts.query or parts.fragment:
        raise ConfigError(f'"{url}" has a ? or # in it; expected the address of a server alone.')
    return parts


def _is_loopback(parts: SplitResult) -> bool:
    """Whether a URL is of this machine, for which a proxy elsewhere cannot speak."""
    return is_loopback(parts.hostname or "")


def _trusted(parts: SplitResult) -> ssl.SSLContext | bool:
    """The certificates that are trusted. Without TLS none are needed, and reading them takes longer than an answer."""
    if parts.scheme == "http":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return ssl.create_default_context() if _is_loopback(parts) else True


def _fields_of(options: SearchOptions) -> dict[str, Any]:
    """Return the options as a request has them: `k`, and those that differ from their defaults."""
    given = [(option, getattr(options, option.name)) for option in SEARCH_OPTIONS]
    asked = [(option, value) for option, value in given if value != option.default or option.name == "k"]
    if not all(option.is_served for option, _ in asked):
        raise ConfigError("partial is for segments that processes hold; a server answers from all or not at all.")
    return {option.name: float(value) if option.kind is float else value for option, value in asked}


def _require_unicode(texts: list[str], what: str = "query") -> list[str]:
    for number, text in enumerate(texts, start=1):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            name = f"{what} {number}" if len(texts) > 1 else what
            raise ConfigError(f"{name} holds bytes that are no text: half a surrogate pair, or no UTF-8.") from error
    return texts


def _pieces(queries: list[str], k: int) -> Iterator[list[str]]:
    """Queries as requests take them: not too many, and neither they nor their hits too much at once."""
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


def _said(by: object) -> str:
    """Return foreign text, made fit for a message."""
    words = escape(" ".join(str(by).split())) or type(by).__name__
    return words if len(words) <= _SHOWN else f"{words[:_SHOWN]}..."


def _unreached(error: httpx2.ConnectError) -> str:
    """Why there is no connection, and what to do."""
    said, cause = _said(error), error.__cause__ or error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in said:
        return f"its certificate is not trusted ({said}). Name that of its authority by the variable SSL_CERT_FILE."
    if isinstance(cause, ssl.SSLError) or "SSL" in said:
        return f"no TLS there ({said}). Does its URL begin with http:// in place of https://?"
    return f"no server can be reached ({said}). Is the address right, and does `isotrope serve` run there?"
