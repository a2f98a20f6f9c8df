"""A client of `isotrope serve`, with the methods of `SearchEngine`, that loads no numerical library."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from indexer.errors import ConfigError, MachineError, UnknownDocumentError, spelled
from indexer.system.escaping import shown
from indexer.system.http import HttpConnection, redirect_error
from indexer.typed_arguments import checked
from indexer.typed_json import MAX_DEPTH, decode_json
from search.hits import Answer, Hit, Truncated
from search.ranking.options import SEARCH_OPTIONS, SearchOptions, require_queries

MOST_QUERIES = 64  # per request; the server accepts 256 by default, but other clients wait meanwhile
_MOST_HITS = 10_000  # of all queries of a request: the server's default
_MOST_BYTES = 4 << 20  # of query texts per request: half of the server's default
_ATTEMPTS = 5  # while the server is busy
_LONGEST_WAIT = 60  # seconds between two attempts
_ANSWER_SECONDS = 300.0  # the server ends a request sooner, by its own deadline
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

    @checked
    def __init__(
        self,
        url: str,
        key: str | None = None,
        seconds: float = _ANSWER_SECONDS,
        on_wait: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._connection = HttpConnection(url, "`isotrope serve`", key, seconds)
        self.url, self.is_private = self._connection.url, self._connection.is_private
        self._on_wait = on_wait

    def __enter__(self) -> "SearchClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    @checked
    def search(self, query: str, options: SearchOptions | int | None = None, **fields: Any) -> Answer[Hit]:
        """Return the documents closest to the query, as `SearchEngine.search` does."""
        return self.search_many([query], options, **fields)[0]

    @checked
    def search_many(
        self, queries: Sequence[str], options: SearchOptions | int | None = None, **fields: Any
    ) -> list[Answer[Hit]]:
        """Search for any number of queries, in as few requests as the server allows."""
        return [Answer(result.hits) for result in self.results(queries, options, **fields)]

    @checked
    def results(
        self, queries: Sequence[str], options: SearchOptions | int | None = None, **fields: Any
    ) -> list[ServedResult]:
        """Return the answers as `search_many` does, with the server's notes on each query."""
        request = _fields_of(SearchOptions.of(options, fields))
        pieces = _pieces(_require_unicode(require_queries(queries)), request["k"])
        return [result for piece in pieces for result in self._results_of(piece, request)]

    @checked
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
            status, headers, answer = self._connection.exchange(method, path, body)
            if status != 429:
                break
            if attempt < _ATTEMPTS:
                wait = _seconds_to_wait(headers.get("retry-after", ""))
                self._on_wait(wait)
                time.sleep(wait)
        if status != 200:
            raise self._failure(status, answer, headers)
        return answer

    def _failure(self, status: int, body: bytes, headers: Mapping[str, str]) -> Exception:
        """Return the error for a status of the server."""
        try:
            fault = decode_json(body, _Failure, _DEPTH).error
        except ValueError:
            return self._stranger_failure(status, headers)
        message = shown(fault.message)
        if status == 401:
            return ConfigError(
                f"{self.url}: the key is missing or wrong. Fix: give {spelled('key', '--api-key-file FILE')}."
            )
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

    def _stranger_failure(self, status: int, headers: Mapping[str, str]) -> Exception:
        """Return the error for a status that does not come from Isotrope."""
        if status in (301, 302, 303, 307, 308):
            return redirect_error(self.url, headers)
        if status >= 500 or status == 429:
            return MachineError(
                f"{self.url}: answers {status}, but not as Isotrope does: a proxy, whose server may be down."
            )
        return self._stranger(f"it answers {status}")

    def _stranger(self, why: str) -> ConfigError:
        return ConfigError(
            f"{self.url}: this is no Isotrope server ({shown(why)}). Expected the URL that `isotrope serve` prints."
        )


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
