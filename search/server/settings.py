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

_SHORTEST_KEY = 16
_LARGEST_FILE = 1 << 20


@dataclass(frozen=True)
class Keys:
    """Keys that open some routes; only their hashes are held. Without any, `are_needed` is False."""

    hashes: tuple[bytes, ...] = ()

    @classmethod
    def read(cls, path: Path) -> "Keys":
        """The keys of a file: `read_keys`."""
        return cls(tuple(_hash(key.encode()) for key in read_keys(path)))

    @property
    def are_needed(self) -> bool:
        """Whether there are any."""
        return bool(self.hashes)

    def admit(self, key: bytes) -> bool:
        """Whether this is one of the keys. Takes the same time for every key, right or wrong."""
        given, found = _hash(key), False
        for known in self.hashes:
            found |= hmac.compare_digest(given, known)
        return found


def read_keys(path: Path) -> list[str]:
    """The keys of a file, one a line; blank lines and lines that begin with # are no keys.

    Raises ConfigError for a file that cannot be read or holds no key, and for a key that is short or no plain text.
    """
    try:
        with open_regular(path) as file:
            lines = file.read(_LARGEST_FILE).decode("utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: the keys cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is no UTF-8 text; expected one key a line.") from error
    keys = [(number, line.strip()) for number, line in enumerate(lines, start=1)]
    keys = [(number, key) for number, key in keys if key and not key.startswith("#")]
    for number, key in keys:
        if len(key) < _SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError(
                f"{path}:{number}: is no key; expected at least {_SHORTEST_KEY} letters, digits and signs without "
                "spaces. Make one: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
    if not keys:
        raise ConfigError(f"{path}: holds no key; expected one a line.")
    return [key for _, key in keys]


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def is_readable_by_others(path: Path) -> bool:
    """Whether other users of the machine may read a file of keys."""
    mode = mode_of(path)
    return mode is not None and bool(mode & 0o044)


@dataclass(frozen=True)
class ServerLimits:
    """Limits of a server. Raises ConfigError for a limit that is not positive and finite.

    `pending` requests are answered at once or wait; one more is refused with 429. `deadline` and `drain` are the
    seconds that a request may take, and that those under way are given when the server is stopped. `body_bytes` is the
    longest body, `reading_bytes` the most that bodies hold together while they arrive, `reading_seconds` how long one
    may take. `connections` are open at once. One request has at most `queries` of `characters` each, and asks for `k`
    hits of each, of all of them `hits`; of each the first `rerank_depth` are reranked at most, of all of them
    `reranked`. `answer_bytes` is the longest answer with documents or vectors, `answering_bytes` the most that answers
    hold together until they are sent.
    """

    pending: int = 256
    deadline: float = 30.0
    drain: float = 30.0
    body_bytes: int = 8 << 20
    reading_bytes: int = 64 << 20
    reading_seconds: float = 15.0
    connections: int = 1024
    queries: int = 256
    characters: int = 100_000
    k: int = 1000
    hits: int = 10_000
    rerank_depth: int = 200
    reranked: int = 2000
    answer_bytes: int = 64 << 20
    answering_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value}; expected more than 0, and a finite number.")


def open_connections(most: int) -> int:
    """Return how many connections, at most `most`, fit into half of the files that this process may open.

    The other half is for the index and the model. Raises the process's own soft limit as far as the system allows.
    """
    limit, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * most
    if limit not in (resource.RLIM_INFINITY, highest) and limit < wanted:
        limit = wanted if highest == resource.RLIM_INFINITY else min(highest, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, highest))
    return most if limit == resource.RLIM_INFINITY else min(most, max(1, limit // 2))


@dataclass(frozen=True)
class ServerSettings:
    """`name` is what clients call the index. `read_keys` open all routes but the admin's, `admin_keys` those alone.
    With `access_log`, the logger "uvicorn.access" gets a line for each request.

    Raises ConfigError for an address that others reach where no key is needed, and for a port that is none.
    """

    name: str
    host: str = "127.0.0.1"
    port: int = 8080
    read_keys: Keys = Keys()
    admin_keys: Keys = Keys()
    limits: ServerLimits = field(default_factory=ServerLimits)
    access_log: bool = False

    def __post_init__(self) -> None:
        if not self.name.strip() or "/" in self.name or not self.name.isprintable():
            raise ConfigError(f'name is "{self.name}"; expected a word without "/", which clients call the index by.')
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port is {self.port}; expected 0 (any that is free) to 65535.")
        if not self.read_keys.are_needed and not is_loopback(self.host):
            raise ConfigError(
                f'"{self.host}" can be reached from other machines, so callers need a key: give --api-key-file, or '
                "leave out --host to listen on this machine alone (127.0.0.1)."
            )
        both = set(self.read_keys.hashes) & set(self.admin_keys.hashes)
        if both:
            raise ConfigError("a key is in --api-key-file and in --admin-key-file; give each its own.")
