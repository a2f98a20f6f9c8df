"""The answers of a server: their types, and the error for every other answer."""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from indexer.errors import ConfigError, MachineError, UnknownDocumentError, spelled
from indexer.system.escaping import shown
from indexer.system.http import HttpAnswer, redirect_error
from indexer.typed_json import MAX_DEPTH, decode_json
from search.hits import Hit, Truncated

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

ATTEMPTS = 5  # while the server is busy
_LONGEST_WAIT = 60  # seconds between two attempts
_DEPTH = MAX_DEPTH + 8  # metadata is nested this deep in an answer
_NO_ROUTE = ("Not Found", "There is no such route")
T = TypeVar("T")


@dataclass(frozen=True)
class ServedResult:
    """The answer to one query.

    `unknown` means that the encoder knows no token of the query: its hits are meaningless; hybrid hits are BM25's.
    """

    query: str
    hits: list[Hit]
    truncated: Truncated | None = None
    unknown: bool | None = None


@dataclass(frozen=True)
class ServedResults:
    """The answer of /v1/search."""

    results: list[ServedResult]


@dataclass(frozen=True)
class ServedDocument:
    """The answer of /v1/documents."""

    id: str
    title: str | None
    text: str
    metadata: dict[str, Any]


@dataclass(frozen=True)
class ServedModel:
    """A model name of /v1/models: the role and dimensions of its vectors."""

    id: str
    role: str
    dimensions: int


@dataclass(frozen=True)
class ServedModels:
    """The answer of /v1/models; empty if the index has no encoder."""

    data: list[ServedModel]


@dataclass(frozen=True)
class _Row:
    index: int
    embedding: str


@dataclass(frozen=True)
class _Stamp:
    generation: int


@dataclass(frozen=True)
class ServedVectors:
    """The answer of /v1/embeddings: float32 vectors as base64, and the generation whose transform they went through."""

    data: list[_Row]
    index: _Stamp


@dataclass(frozen=True)
class _Fault:
    message: str
    param: str | None = None


@dataclass(frozen=True)
class _Failure:
    error: _Fault


class TooMuchError(ConfigError):
    """The server refused a request with this many queries, hits or characters; fewer queries may be accepted."""


def seconds_to_wait(answer: HttpAnswer) -> int:
    """Return the seconds that a busy server asks for, at most a minute."""
    after = answer.headers.get("retry-after", "")
    return min(int(after), _LONGEST_WAIT) if after.isascii() and after.isdigit() else 1


def decoded(url: str, body: bytes, kind: type[T]) -> T:
    """Return the body of a successful answer of the server at `url`. Raises ConfigError for another program's body."""
    try:
        return decode_json(body, kind, _DEPTH)
    except ValueError as error:
        raise stranger(url, str(error)) from error


def vectors_of(url: str, answers: Sequence[ServedVectors], dimensions: int) -> "npt.NDArray[np.float32]":
    """Return the vectors (n, k), float32, of consecutive texts; (0, dimensions) without answers.

    Raises MachineError for vectors of several generations, which cannot be compared after a refit.
    """
    import numpy as np

    generations = {answer.index.generation for answer in answers}
    if len(generations) > 1:
        raise MachineError(
            f"{url}: the server changed from generation {min(generations):,} to {max(generations):,} during "
            "the requests, so the vectors may not be comparable. Fix: embed all texts again."
        )
    try:
        rows = [b64decode(row.embedding, validate=True) for answer in answers for row in answer.data]
        arrays = [np.frombuffer(row, "<f4") for row in rows]
        return np.stack(arrays).astype(np.float32) if arrays else np.zeros((0, dimensions), np.float32)
    except ValueError as error:
        raise stranger(url, f"its vectors are not float32 in base64, of one length: {error}") from error


def require_rows(url: str, answer: ServedVectors, count: int) -> ServedVectors:
    """Return the answer if it has one vector for each of `count` texts, in order. Raises ConfigError."""
    if [row.index for row in answer.data] != list(range(count)):
        raise stranger(url, f"{len(answer.data):,} vectors for {count:,} texts, or another order")
    return answer


def failure_of(url: str, path: str, answer: HttpAnswer, has_key: bool) -> Exception:
    """Return the error for an answer whose status is not 200, to a request with or without a key."""
    status, headers = answer.status, answer.headers
    try:
        fault = decode_json(answer.body, _Failure, _DEPTH).error
    except ValueError:
        return _failure_of_stranger(url, status, headers)
    message = shown(fault.message)
    if status == 401:
        why, more = ("rejects the key", " with a key of the server") if has_key else ("needs a key", "")
        return ConfigError(f"{url}: the server {why}. Fix: give {spelled('key=KEY', '--api-key-file FILE')}{more}.")
    if status == 404 and message.startswith(_NO_ROUTE):
        return stranger(url, f"it has no {path.partition('?')[0]}; the path after the host may be wrong")
    if status == 404 and fault.param != "model":
        return UnknownDocumentError(f"{url}: {message}")
    if status == 429:
        return MachineError(f"{url}: still busy after {ATTEMPTS} attempts: {message} Fix: ask again later.")
    if status == 422 and fault.param in ("k", "query"):
        return TooMuchError(f"{url}: {message}")
    if status == 422 and fault.param == "fold":
        message = message.removesuffix(".")
        return ConfigError(f"{url}: {message}; an index that is opened locally also accepts lower values.")
    return (MachineError if status >= 500 else ConfigError)(f"{url}: {message}")


def _failure_of_stranger(url: str, status: int, headers: Mapping[str, str]) -> Exception:
    """Return the error for a status that does not come from Isotrope."""
    if status in (301, 302, 303, 307, 308):
        return redirect_error(url, headers)
    if status >= 500 or status == 429:
        return MachineError(f"{url}: answers {status}, but not as Isotrope does. Fix: check the proxy and its server.")
    return stranger(url, f"it answers {status}")


def stranger(url: str, why: str) -> ConfigError:
    """Return the error for an answer that is not Isotrope's."""
    return ConfigError(
        f"{url}: this is not an Isotrope server ({shown(why)}). Expected the URL that `isotrope serve` prints."
    )
