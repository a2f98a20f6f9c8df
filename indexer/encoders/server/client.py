"""POST /v1/embeddings as in OpenAI's API: one request, tried again where that helps, and its rows, checked.

The key comes from the environment only, goes into one header, and is removed from messages of the server.
"""

import json
import os
import random
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Event
from typing import Any

import numpy as np

from indexer.arrays import Float32Array
from indexer.errors import ConfigError, IsotropeError, MachineError, ModelError, as_argument, spelled
from indexer.system.escaping import shown
from indexer.system.http import HttpAnswer, HttpConnection, UnreachedError, redirect_error
from indexer.system.urls import is_loopback, require_server_url
from indexer.typed_json import convert_json, decode_json

KEY = "ISOTROPE_EMBEDDINGS_KEY"
_OPENAI_KEY, _OPENAI = "OPENAI_API_KEY", "api.openai.com"
_SECONDS = 300.0  # for one answer
_ATTEMPTS = 8
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds; each pause is twice as long as the one before
_AGAIN = (408, 429)  # and all from 500 on
_TOO_LARGE = (400, 413, 422)  # a server has no common status for too many texts or tokens
_REDIRECTS = (301, 302, 303, 307, 308)
_EMPTY_ACCOUNT = "insufficient_quota"  # OpenAI's code of a 429 that no pause ends
_FIXES = {
    400: "Fix: shorten the text (chunk.tokens), or check encoder.model.",
    401: f"Fix: set the environment variable {KEY} to a valid key.",
    403: f"Fix: set the environment variable {KEY} to a key that may use this model.",
    404: "Fix: check encoder.url and encoder.model.",
    413: "Fix: shorten the text (chunk.tokens).",
    422: "Fix: shorten the text (chunk.tokens), or check encoder.model.",
}


@dataclass(frozen=True)
class _Row:
    index: int
    embedding: list[float]


@dataclass(frozen=True)
class _Answer:
    data: list[_Row]


@dataclass(frozen=True)
class Patience:
    """The pauses that a request may make: `seconds` together, and none after `stop` is set."""

    seconds: float = 600.0
    stop: Event = field(default_factory=Event)


class TooLargeError(ModelError):
    """The server refuses a request; it may accept fewer texts."""


class EmbeddingClient:
    """Asks one server for embeddings of one model. Safe to share between threads.

    `url` is the server's address, with the path of its API; without a path /v1 is added. Raises ConfigError for an
    invalid URL or key, and for a key that plain http would send across the network.
    """

    def __init__(self, url: str, model: str, seconds: float = _SECONDS) -> None:
        base = url.rstrip("/").removesuffix("/embeddings")
        parts = require_server_url(base, "encoder.url")
        self._key = _key_for(base)
        at = base if parts.path.strip("/") else f"{base}/v1"
        self._connection = HttpConnection(at, "the embedding server", self._key, seconds)
        self.url, self.model, self.host = self._connection.url, model, parts.netloc
        self._answered = False
        weakref.finalize(self, self._connection.close)  # encoders are not closed

    def embed(self, texts: Sequence[str], patience: Patience) -> Float32Array:
        """Return the rows of the texts, float32 (n, d), in their order; a batch that is too large is halved.

        Raises MachineError for a server that fails, ModelError for a request
        that it refuses and for rows that are no embeddings.
        """
        try:
            return self.embed_at_once(texts, patience)
        except TooLargeError:
            if len(texts) == 1:
                raise
        half = len(texts) // 2
        first, second = (self.embed(part, patience) for part in (texts[:half], texts[half:]))
        if first.shape[1] != second.shape[1]:
            raise ModelError(f"{self.url}: rows of {first.shape[1]} and of {second.shape[1]} numbers in one batch.")
        return np.concatenate([first, second])

    def embed_at_once(self, texts: Sequence[str], patience: Patience) -> Float32Array:
        """Return the rows of one request. Raises TooLargeError if the server refuses it, and others as `embed`."""
        body = {"model": self.model, "input": list(texts), "encoding_format": "float"}
        waited, attempt = 0.0, 0
        while True:
            attempt += 1
            headers: Mapping[str, str] = {}
            try:
                answer = self._connection.exchange("POST", "/embeddings", body)
                headers = answer.headers
                rows = self._accepted(answer, texts)
                self._answered = True
                return rows
            except MachineError as error:
                if isinstance(error, UnreachedError) and not self._answered:
                    raise  # a wrong address: waiting does not help
                pause = _pause(attempt, headers)
                if attempt == _ATTEMPTS or waited + pause > patience.seconds or patience.stop.is_set():
                    raise self._given_up(error, attempt, waited, pause) from error
            wait(pause, patience.stop)
            waited += pause

    def _accepted(self, answer: HttpAnswer, texts: Sequence[str]) -> Float32Array:
        """Return the rows of an answer. Raises MachineError for a fault that may pass, and others as `embed`."""
        if answer.status == 200:
            return self._checked(self._decoded(answer.body), texts)
        if answer.status in _REDIRECTS:
            raise redirect_error(self.url, answer.headers)
        message, code = _message_of(answer.body)
        said = f'{self.url}: status {answer.status}: "{self._without_key(message.rstrip("."))}".'
        if code == _EMPTY_ACCOUNT:
            raise ConfigError(f"{said} Fix: raise the quota of the account. {_continue()}.")
        if answer.status in _AGAIN or answer.status >= 500:
            raise MachineError(said)
        said = f"{said} {_fix_of(answer.status) or 'Fix: look at the log of the server.'}"
        if answer.status in _TOO_LARGE:
            whole = "" if len(texts) > 1 else f' The text begins "{shown(texts[0], 60)}".'
            raise TooLargeError(said + whole)
        raise ConfigError(said)

    def _given_up(self, error: MachineError, attempt: int, waited: float, pause: float) -> IsotropeError:
        fix = _fix_of(429) if "status 429" in str(error) else f"Fix: look at the log of the server. {_continue()}."
        asked = f"; the server asks for a pause of {pause:,.0f} s" if pause > _LONGEST_PAUSE else ""
        return MachineError(f"{error} Gave up after {attempt} attempts and {waited:,.0f} s of pauses{asked}. {fix}")

    def _decoded(self, body: bytes) -> list[_Row]:
        try:
            return decode_json(body, _Answer).data
        except ValueError as error:
            reason = str(error)
        try:
            return convert_json(json.loads(body), _Answer).data  # with NaN and Infinity, which JSON lacks
        except (ValueError, RecursionError) as error:
            if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
                raise MachineError(f"{self.url}: the answer is not JSON, or was cut off ({shown(reason)}).") from error
            raise ModelError(
                f"{self.url}: the answer contains no embeddings ({shown(self._without_key(reason))}); expected data "
                "with index and embedding. Fix: check encoder.url."
            ) from error

    def _checked(self, data: Sequence[_Row], texts: Sequence[str]) -> Float32Array:
        """Return rows by their index. Raises ModelError for other rows than one of finite numbers for each text."""
        places = sorted(row.index for row in data)
        if places != list(range(len(texts))):
            raise ModelError(
                f"{self.url}: {len(data):,} rows for {len(texts):,} texts"
                + (f", with the indexes {shown(places, 60)}" if len(data) == len(texts) else "")
                + "; expected one row for each text."
            )
        rows = sorted(data, key=lambda row: row.index)
        sizes = {len(row.embedding) for row in rows}
        if len(sizes) > 1 or not min(sizes):
            raise ModelError(f"{self.url}: rows of {min(sizes):,} to {max(sizes):,} numbers; expected one size.")
        with np.errstate(over="ignore"):
            array = np.array([row.embedding for row in rows], np.float64).astype(np.float32)
        if not np.isfinite(array).all():
            row, place = np.argwhere(~np.isfinite(array))[0].tolist()
            raise ModelError(
                f"{self.url}: number {place + 1} of the embedding of a text is {rows[row].embedding[place]}; expected "
                f'finite numbers of float32. The text begins "{shown(texts[row], 60)}".'
            )
        return array

    def _without_key(self, text: str) -> str:
        return shown(text.replace(self._key, "[key]") if self._key else text, 300)


def wait(seconds: float, stop: Event) -> None:
    """Wait, but not after `stop` is set."""
    stop.wait(seconds)


def _key_for(url: str) -> str | None:
    """Return the key for a server. Raises ConfigError if others on the network could read it."""
    parts = require_server_url(url)
    names = (KEY, _OPENAI_KEY) if parts.hostname == _OPENAI else (KEY,)
    name = next((name for name in names if os.environ.get(name, "").strip()), None)
    if name is None:
        return None
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ConfigError(
            f"{url}: is not https, so others on the network could read the key in {name}. Fix: use https, or unset "
            f"{name} if the server needs no key."
        )
    return os.environ[name].strip()


def _continue() -> str:
    return f"The same {spelled('call', 'command')} continues later: complete parts are kept"


def _fix_of(status: int) -> str | None:
    if status == 429:
        return f"Fix: send fewer requests at once ({as_argument('requests')}). {_continue()}."
    return _FIXES.get(status)


def _pause(attempt: int, headers: Mapping[str, str]) -> float:
    """Return the seconds before the next attempt: those that the server asks for, else twice as many each time."""
    asked = headers.get("retry-after", "").strip()
    if asked.isascii() and asked.isdigit():
        return float(asked)
    try:
        return max(0.0, (parsedate_to_datetime(asked) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        longest: float = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (attempt - 1))
        return longest * random.uniform(0.5, 1)  # noqa: S311 - so that parallel requests do not return together


def _message_of(body: bytes) -> tuple[str, str]:
    """Return the message and the code of a failure, in the form of any known server; else the body as text."""
    try:
        plain = json.loads(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace"), ""
    fault: Any = plain.get("error", plain) if isinstance(plain, dict) else plain
    if not isinstance(fault, dict):
        return str(fault), ""
    message = next((fault[name] for name in ("message", "detail", "error") if fault.get(name)), fault)
    return str(message), str(fault.get("code", ""))
