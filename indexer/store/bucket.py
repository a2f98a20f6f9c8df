"""Files in object storage (S3, Google Cloud Storage, Azure), through obstore, which is loaded when one is asked for.

Credentials and endpoints are those of the environment, by the names that obstore documents: AWS_ACCESS_KEY_ID,
AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME and so on. obstore asks again after errors
of the server and of the connection; what it gives up on, and bodies that end early, are asked for again here, a few
times. Names are relative to the URL. An empty variable counts as one that is not set, as with the stores' own tools:
obstore would take it for a value.
"""

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from indexer.errors import ConfigError, MachineError, StoreError
from indexer.lazy import install_line
from indexer.system.regular_files import open_regular

Result = TypeVar("Result")
PIECE = 8 << 20  # bytes of an upload's piece
_MOST_STORES = 32  # kept open: a corpus may have 10,000 partitions, and a client takes 0.1 MB
_MOST_PIECES = 9000  # of an upload; stores allow 10,000
_READ_BACK = 8 << 20
_MOST_CREATED = 5 << 30  # bytes that S3 takes in one step
_FINAL = re.compile(r"status code: 4(?!08|09|29)\d\d")  # what asking again does not change
# What obstore asks for credentials where the environment has none: the metadata service of a machine in a cloud.
_METADATA = re.compile(r"169\.254\.|metadata\.google\.internal|/latest/api/token|/metadata/identity|/computeMetadata/")
PROBE = "probe-"  # what objects are called that a store is tried with
ATTEMPTS = 6  # of one request, beside the retries of obstore itself
PAUSE = 0.5  # seconds before the second attempt; each later one waits twice as long
TIMEOUTS = {"connect_timeout": "10s", "read_timeout": "30s", "timeout": "300s"}
RETRIES = {"max_retries": 3, "retry_timeout": timedelta(seconds=60)}
_ENVIRONMENT = threading.Lock()
BACKOFF = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2}


@dataclass(frozen=True)
class Variables:
    """The environment of one kind of store: how its variables begin, those of an endpoint (the first that is set
    counts), and in words what has to be set for credentials."""

    prefix: str
    endpoints: tuple[str, ...]
    credentials: str


VARIABLES = {
    "s3": Variables(
        "AWS_",
        ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_SKIP_SIGNATURE=true for a public bucket); files in "
        "~/.aws are not read.",
    ),
    "gs": Variables(
        "GOOGLE_",
        (),
        "Set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account (or GOOGLE_SKIP_SIGNATURE=true for a "
        "public bucket).",
    ),
    "az": Variables(
        "AZURE_",
        ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
        "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or AZURE_SKIP_SIGNATURE=true for a public "
        "container).",
    ),
}


@dataclass(frozen=True)
class StoredObject:
    """An object in a listing."""

    bytes: int
    modified: datetime
    version: str  # an ETag: another one whenever the object was written; empty where the store gives none


class Bucket:
    """The objects below a URL. Safe to share between threads. Raises StoreError, which names the URL and the fix, and
    FileNotFoundError for a missing object."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._variables = VARIABLES[url.partition(":")[0]]
        self._store = _opened(url, self._variables)
        self._honours_create = False

    def list(self, prefix: str = "") -> dict[str, StoredObject]:
        """Every object below `prefix`, a whole name of a folder, by name."""

        def names() -> dict[str, StoredObject]:
            found = (entry for batch in self._store.list(prefix or None) for entry in batch)
            return {
                entry["path"]: StoredObject(entry["size"], entry["last_modified"], entry["e_tag"] or "")
                for entry in found
            }

        return self._asked(prefix, names)

    def top(self) -> set[str]:
        """The names of objects and folders directly below the URL."""

        def names() -> set[str]:
            found = self._store.list_with_delimiter()
            return {*found["common_prefixes"], *(entry["path"] for entry in found["objects"])}

        return self._asked("", names)

    def head(self, name: str) -> StoredObject | None:
        """Return the listing of one object; None if there is none."""
        try:
            entry = self._asked(name, partial(self._store.head, name))
        except FileNotFoundError:
            return None
        return StoredObject(entry["size"], entry["last_modified"], entry["e_tag"] or "")

    def read(self, name: str) -> bytes:
        """A whole object."""
        return self._asked(name, lambda: bytes(self._store.get(name).bytes()))

    def read_range(self, name: str, start: int, end: int, version: str = "") -> bytes:
        """Bytes [start, end) of an object, fewer where it ends before; with `version` only of that one."""
        options: dict[str, Any] = {"range": (start, end)} | ({"if_match": version} if version else {})

        def read() -> bytes:
            result = self._store.get(name, options=options)
            data = bytes(result.bytes())
            if len(data) != result.range[1] - result.range[0]:
                raise EOFError("the connection was cut")
            return data

        return self._asked(name, read)

    def write(self, name: str, path: Path) -> None:
        """Store a local file, in pieces, and see by its checksum that every byte has arrived."""
        size = path.stat().st_size
        piece = _piece(size)

        def send() -> None:
            with open_regular(path, follow_links=False) as file:
                put = self._store.put(name, file, use_multipart=size > piece, chunk_size=piece, max_concurrency=4)
            if (put["e_tag"] or "").strip('"') not in _expected_tags(path, piece):
                self._compare(name, path)

        self._asked(name, send)

    def holds(self, name: str, path: Path) -> bool:
        """Whether an object has the bytes of a file, by its checksum; False where that does not tell."""
        found = self.head(name)
        return found is not None and found.version.strip('"') in _expected_tags(path, _piece(found.bytes))

    def create(self, name: str, data: bytes) -> bool:
        """Create an object in one step; False where there is another one already.

        An attempt whose answer was lost may have succeeded, so what is there is read and compared. That every byte has
        arrived is seen by its checksum, or by reading it back.
        """
        md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()

        def put() -> bool:
            import obstore.exceptions

            try:
                created = self._store.put(name, data, mode="create", use_multipart=False)
            except obstore.exceptions.AlreadyExistsError as error:
                try:
                    return self.read(name) == data
                except FileNotFoundError:  # 409: another one was being created, and was given up
                    raise EOFError(str(error)) from error
            if (created["e_tag"] or "").strip('"') != md5 and self.read(name) != data:
                self.remove([name])
                raise EOFError("what was read back differs from what was sent")
            return True

        self.require_create()
        return self._asked(name, put)

    def create_from(self, name: str, path: Path) -> bool:
        """`create` with the bytes of a local file. Raises StoreError also for one that is too large for one step."""
        if path.stat().st_size > _MOST_CREATED:
            raise StoreError(
                f"{path}: {path.stat().st_size:,} bytes, and object storage creates at most {_MOST_CREATED:,} in one "
                "step. Build with parts of fewer documents (store.part_documents)."
            )
        with open_regular(path, follow_links=False) as file:
            return self.create(name, file.read())

    def put(self, name: str, data: bytes) -> None:
        """Store a few bytes, over what is there."""
        self._asked(name, lambda: self._store.put(name, data, use_multipart=False))

    def remove(self, names: Collection[str]) -> None:
        """Remove objects; those that are gone already are no failure."""
        if not names:
            return
        try:
            self._asked(next(iter(names)), lambda: self._store.delete(sorted(names)))
        except FileNotFoundError:  # as some stores say it
            for name in sorted(names):
                with suppress(FileNotFoundError):
                    self._asked(name, partial(self._store.delete, name))

    def require_create(self) -> None:
        """Refuse a store that would let a second writer overwrite what the first created. Tried once a process."""
        if self._honours_create:
            return
        import obstore.exceptions

        name = f"{PROBE}{os.urandom(8).hex()}"
        self.put(name, b"first")
        try:
            self._asked(name, lambda: self._store.put(name, b"second", mode="create"))
        except ConditionError as error:
            if not isinstance(error.__cause__, obstore.exceptions.AlreadyExistsError):
                raise StoreError(f"{self.url}: cannot create objects conditionally ({error}).") from error
            self._honours_create = True
        finally:
            self.remove([name])
        if not self._honours_create:
            raise StoreError(
                f"{self.url}: this store takes a conditional put (If-None-Match: *) over an object that is there, so "
                "two writers could not be kept apart. Nothing was written. Use a store that honours it, or build on a "
                "local disk and copy the index there."
            )

    def _compare(self, name: str, path: Path) -> None:
        """Read an object back and compare it with the file. Raises EOFError where they differ."""
        position = 0
        with open_regular(path, follow_links=False) as file:
            while data := file.read(_READ_BACK):
                if self.read_range(name, position, position + len(data)) != data:
                    raise EOFError("what was read back differs from what was sent")
                position += len(data)
        found = self.head(name)
        if found is None or found.bytes != position:
            raise EOFError(f"{found.bytes if found else 0:,} bytes arrived of {position:,}")

    def _asked(self, name: str, request: Callable[[], Result]) -> Result:
        """The answer to a request, asked a few times while the server or the connection fails."""
        import obstore.exceptions as failures

        for attempt in range(ATTEMPTS):
            try:
                return request()
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise StoreError(f"{self.url}: there is no such bucket. Create it, or correct the URL.") from error
                raise FileNotFoundError(f"{self._shown(name)}: not there") from error
            except (failures.AlreadyExistsError, failures.PreconditionError) as error:
                raise ConditionError(f"{self._shown(name)}: {_reason(error)}") from error
            except (failures.BaseError, EOFError) as error:
                if final := self._final(name, error):
                    raise final from error
                if attempt == ATTEMPTS - 1:
                    raise StoreError(
                        f"{self._shown(name)}: object storage does not answer as it should ({_reason(error)}); it was "
                        f"asked {ATTEMPTS} times. Check {self._checked('the connection')}, and run the command again."
                    ) from error
            time.sleep(PAUSE * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _final(self, name: str, error: BaseException) -> StoreError | None:
        """Return the error for a failure that asking again does not change, None for another failure."""
        import obstore.exceptions as failures

        if "NoSuchBucket" in str(error):
            return StoreError(f"{self.url}: there is no such bucket. Create it, or correct the URL.")
        if _METADATA.search(str(error)):
            return StoreError(
                f"{self.url}: no credentials found in the environment, and this machine has none of a cloud. "
                f"{self._variables.credentials}"
            )
        if isinstance(error, (failures.PermissionDeniedError, failures.UnauthenticatedError)):
            return StoreError(
                f"{self._shown(name)}: access is denied ({_reason(error)}). Check the credentials in the environment. "
                f"{self._variables.credentials}"
            )
        if _FINAL.search(str(error)):
            return StoreError(
                f"{self._shown(name)}: object storage refuses the request ({_reason(error)}). Check "
                f"{self._checked('the URL')}."
            )
        return None

    def _checked(self, first: str) -> str:
        """Return what a user can check: `first`, the credentials, and the endpoint if one is set."""
        named = _endpoint(self._variables)
        return f"{first}, the credentials and {named}" if named else f"{first} and the credentials"

    def _shown(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url


class ConditionError(StoreError):
    """A condition of a request was not met."""


@lru_cache(_MOST_STORES)
def open_bucket(url: str) -> Bucket:
    """Return the objects below a URL; the buckets used last stay open, with their connections.

    Raises MachineError without obstore, ConfigError for what is no URL.
    """
    return Bucket(url)


def _opened(url: str, variables: Variables) -> Any:
    try:
        import obstore.exceptions
        from obstore.store import from_url
    except ImportError as error:
        raise MachineError(f"{url}: object storage needs obstore. Install it with: {install_line('remote')}") from error
    for name in variables.endpoints:
        _require_endpoint(url, name)
    endpoint = os.environ.get(_endpoint(variables), "")
    plain = {"allow_http": True} if endpoint.lower().startswith("http://") else {}
    try:
        with _without_empty(variables.prefix):
            return from_url(_quoted(url), client_options=TIMEOUTS | plain, retry_config=RETRIES | {"backoff": BACKOFF})  # type: ignore[call-overload]
    except (obstore.exceptions.BaseError, ValueError) as error:
        if not urlsplit(url).netloc:
            raise ConfigError(f"{url}: not a URL that can be opened ({_reason(error)}).") from error
        raise ConfigError(
            f"{url}: cannot be opened by what the environment says ({_reason(error)}). {variables.credentials}"
        ) from error


def _quoted(url: str) -> str:
    """A URL in which ? and # are part of a name: obstore would leave out what follows them."""
    return url.translate({ord("?"): "%3F", ord("#"): "%23"})


@contextmanager
def _without_empty(prefix: str) -> Iterator[None]:
    """Within the block, the environment has no empty variables with this prefix: obstore would use their empty values.

    A variable that the program sets meanwhile keeps its new value.
    """
    with _ENVIRONMENT:
        empty = [name for name, value in os.environ.items() if name.startswith(prefix) and not value]
        for name in empty:
            del os.environ[name]
        try:
            yield
        finally:
            for name in empty:
                os.environ.setdefault(name, "")


def _endpoint(variables: Variables) -> str:
    """The variable whose endpoint counts; empty where none is set."""
    return next((name for name in variables.endpoints if os.environ.get(name)), "")


def _require_endpoint(url: str, name: str) -> None:
    """Raises ConfigError for an endpoint that obstore could not open, and would end the process over."""
    value = os.environ.get(name)
    if not value:
        return
    try:
        found = urlsplit(value)
        sound = found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:  # the port is no number, or a bracket stands alone
        sound = False
    if not sound or re.search(r"[^!-~]|[?#]", value):
        raise ConfigError(
            f"{url}: the environment variable {name} is {value!a}; expected the URL of a server, http://host:port or "
            "https://host."
        )


def _reason(error: BaseException) -> str:
    """Return the message of an error on one line, without the dump that follows it."""
    text = " ".join(str(error).split()).partition("Debug source")[0].strip()
    return (text or type(error).__name__)[:300]


def _piece(size: int) -> int:
    """Return the size of the pieces of an upload of `size` bytes."""
    return max(PIECE, -(-size // (_MOST_PIECES << 20)) << 20)


def _expected_tags(path: Path, piece: int) -> set[str]:
    """ETags that prove the bytes: MD5 of the whole, or, sent in pieces, MD5 of their MD5s. S3 and most others give
    one of them, unless they encrypt with a key of their own."""
    whole, pieces = hashlib.md5(usedforsecurity=False), []
    with open_regular(path, follow_links=False) as file:
        while data := file.read(piece):
            whole.update(data)
            pieces.append(hashlib.md5(data, usedforsecurity=False).digest())
    joined = hashlib.md5(b"".join(pieces), usedforsecurity=False).hexdigest()
    return {whole.hexdigest(), f"{joined}-{len(pieces)}"}
