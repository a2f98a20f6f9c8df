"""The address, keys and limits of a server."""

import hashlib
import hmac
import math
import resource
from dataclasses import dataclass, field
from pathlib import Path

from indexer.errors import ConfigError
from indexer.system.output_files import mode_of
from indexer.system.regular_files import open_regular
from indexer.system.urls import is_loopback
from search.server.links import LinkTemplate

_SHORTEST_KEY = 16
_LARGEST_FILE = 1 << 20


@dataclass(frozen=True)
class Keys:
    """The hashes of keys for some routes."""

    hashes: tuple[bytes, ...] = ()

    @classmethod
    def read(cls, path: Path) -> "Keys":
        """Return the keys of a file (see `read_keys`)."""
        return cls(tuple(_hash(key.encode()) for key in read_keys(path)))

    @property
    def are_needed(self) -> bool:
        """Whether there are keys."""
        return bool(self.hashes)

    def admit(self, key: bytes) -> bool:
        """Return whether this is one of the keys, in the same time for every key."""
        given, is_known = _hash(key), False
        for known in self.hashes:
            is_known |= hmac.compare_digest(given, known)
        return is_known


def read_keys(path: Path) -> list[str]:
    """Return the keys of a file, one per line; blank lines and lines that begin with # are skipped.

    Raises ConfigError for a file that is unreadable or without keys, and for a short or invalid key.
    """
    try:
        with open_regular(path) as file:
            lines = file.read(_LARGEST_FILE).decode("utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: the keys cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text; expected one key per line.") from error
    keys = [(number, line.strip()) for number, line in enumerate(lines, start=1)]
    keys = [(number, key) for number, key in keys if key and not key.startswith("#")]
    for number, key in keys:
        if len(key) < _SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError(
                f"{path}:{number}: invalid key; expected {_SHORTEST_KEY} or more ASCII letters, digits and punctuation "
                "without spaces. Create one: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
    if not keys:
        raise ConfigError(f"{path}: contains no key; expected one per line.")
    return [key for _, key in keys]


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def is_readable_by_others(path: Path) -> bool:
    """Return whether other users of the machine can read a file of keys."""
    mode = mode_of(path)
    return mode is not None and bool(mode & 0o044)


@dataclass(frozen=True)
class ServerLimits:
    """Limits of a server. Raises ConfigError for a limit that is not positive and finite."""

    pending: int = 256
    """Requests that are waiting or being answered; the next gets 429. Set by --max-pending."""
    deadline: float = 30.0
    """Seconds that a request may take. Set by --deadline."""
    drain: float = 30.0
    """Seconds for open requests when the server stops, never less than the deadline."""
    body_bytes: int = 8 << 20
    """Bytes of the longest body."""
    reading_bytes: int = 64 << 20
    """Bytes of all bodies that are arriving."""
    reading_seconds: float = 15.0
    """Seconds for a body to arrive."""
    connections: int = 1024
    """Open connections, at most half of the process's limit of open files."""
    queries: int = 256
    """Texts in one request."""
    characters: int = 100_000
    """Characters of one text."""
    k: int = 1000
    """Hits of a query."""
    hits: int = 10_000
    """Hits of all queries of a request."""
    rerank_depth: int = 200
    """Hits of a query that a cross-encoder reads."""
    reranked: int = 2000
    """Hits of all queries of a request that a cross-encoder reads."""
    answer_bytes: int = 64 << 20
    """Bytes of the longest answer with documents, and of the vectors of one answer."""
    answering_bytes: int = 256 << 20
    """Bytes of all answers, from the first document read or text encoded until they are sent."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value}; expected a finite number above 0.")


def open_connections(most: int) -> int:
    """Return the number of connections, at most `most`, that fit into half of this process's open file limit.

    The other half is for the index and the model. Increases the soft limit as far as the system allows.
    """
    limit, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * most
    if limit not in (resource.RLIM_INFINITY, highest) and limit < wanted:
        limit = wanted if highest == resource.RLIM_INFINITY else min(highest, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, highest))
    return most if limit == resource.RLIM_INFINITY else min(most, max(1, limit // 2))


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a server. `name` is the index's name for clients. `read_keys` are for all routes except the admin
    routes, which need `admin_keys`. With `access_log`, the logger "uvicorn.access" gets a line per request. `link`
    makes the addresses of documents.

    Raises ConfigError for a public address without keys, and for an invalid name or port.
    """

    name: str
    host: str = "127.0.0.1"
    port: int = 8080
    read_keys: Keys = Keys()
    admin_keys: Keys = Keys()
    limits: ServerLimits = field(default_factory=ServerLimits)
    access_log: bool = False
    link: LinkTemplate | None = None

    def __post_init__(self) -> None:
        if not self.name.strip() or "/" in self.name or not self.name.isprintable():
            raise ConfigError(f'name is "{self.name}"; expected a name of the index for clients, without "/".')
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port is {self.port}; expected 0 (any free port) to 65535.")
        if not self.read_keys.are_needed and not is_loopback(self.host):
            raise ConfigError(
                f'"{self.host}" can be reached from other machines, so a key is required. Fix: pass --api-key-file, or '
                "leave out --host to listen on this machine only (127.0.0.1)."
            )
        both = set(self.read_keys.hashes) & set(self.admin_keys.hashes)
        if both:
            raise ConfigError("a key is in both --api-key-file and --admin-key-file; expected different keys.")
