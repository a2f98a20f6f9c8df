"""Objects in S3, Google Cloud Storage and Azure, through obstore, which is imported on first use.

Credentials and endpoints come from the environment variables that obstore documents: AWS_ACCESS_KEY_ID,
AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME and so on. obstore retries after server and
connection errors; this module repeats requests that obstore gives up on, and those whose body ends early. Names are
relative to the URL. An empty variable counts as unset, as in the stores' own tools; obstore would use the empty value.
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
from indexer.lazy_imports import install_line
from indexer.system.regular_files import open_regular

Result = TypeVar("Result")
PIECE = 8 << 20  # bytes of a piece of an upload
_MOST_STORES = 32  # kept open: a corpus may have 10,000 partitions, and a client needs 0.1 MB
_MOST_PIECES = 9000  # of an upload; stores allow 10,000
_READ_BACK = 8 << 20
_MOST_CREATED = 5 << 30  # bytes that S3 accepts in one step
_FINAL = re.compile(r"status code: 4(?!08|09|29)\d\d")  # errors that a retry does not change
# The metadata service of cloud machines, which obstore queries if the environment has no credentials.
_METADATA = re.compile(r"169\.254\.|metadata\.google\.internal|/latest/api/token|/metadata/identity|/computeMetadata/")
PROBE = "probe-"  # start of the names of objects that test a store
ATTEMPTS = 6  # of one request, in addition to the retries of obstore
PAUSE = 0.5  # seconds before the second attempt, doubled for each later one
TIMEOUTS = {"connect_timeout": "10s", "read_timeout": "30s", "timeout": "300s"}
RETRIES = {"max_retries": 3, "retry_timeout": timedelta(seconds=60)}
_ENVIRONMENT = threading.Lock()
BACKOFF = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2}


@dataclass(frozen=True)
class Variables:
    """Environment variables of a kind of store: their prefix, those of an endpoint (the first that is set counts), and
    instructions for setting credentials."""

    prefix: str
    endpoints: tuple[str, ...]
    credentials: str


VARIABLES = {
    "s3": Variables(
        "AWS_",
        ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        "Fix: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_SKIP_SIGNATURE=true for a public bucket); files "
        "in ~/.aws are not read.",
    ),
    "gs": Variables(
        "GOOGLE_",
        (),
        "Fix: set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account (or GOOGLE_SKIP_SIGNATURE=true for a "
        "public bucket).",
    ),
    "az": Variables(
        "AZURE_",
        ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
        "Fix: set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or AZURE_SKIP_SIGNATURE=true for a public "
        "container).",
    ),
}


@dataclass(frozen=True)
class StoredObject:
    """An object in a listing."""

    bytes: int
    modified: datetime
    version: str  # an ETag, which changes with every write; empty if the store gives none

    @classmethod
    def of(cls, entry: Any) -> "StoredObject":
        return cls(entry["size"], entry["last_modified"], entry["e_tag"] or "")


class Bucket:
    """The objects below a URL. Safe to share between threads. Raises StoreError, which names the URL and the fix, and
    FileNotFoundError for a missing object."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._variables = VARIABLES[url.partition(":")[0]]
        self._store = _opened(url, self._variables)
        self._honours_create = False

    def list(self, prefix: str = "") -> dict[str, StoredObject]:
        """Return every object below the folder `prefix`, by name."""

        def objects() -> dict[str, StoredObject]:
            batches = self._store.list(prefix or None)
            return {entry["path"]: StoredObject.of(entry) for batch in batches for entry in batch}

        return self._request(prefix, objects)

    def top(self) -> set[str]:
        """Return the names of objects and folders directly below the URL."""
        listing = self._request("", self._store.list_with_delimiter)
        return {*listing["common_prefixes"], *(entry["path"] for entry in listing["objects"])}

    def head(self, name: str) -> StoredObject | None:
        """Return the listing of an object; None if it is missing."""
        try:
            return StoredObject.of(self._request(name, partial(self._store.head, name)))
        except FileNotFoundError:
            return None

    def read(self, name: str) -> bytes:
        """Return a whole object."""
        return self._request(name, lambda: bytes(self._store.get(name).bytes()))

    def read_range(self, name: str, start: int, end: int, version: str = "") -> bytes:
        """Return bytes [start, end) of an object, fewer at its end; with `version`, only of that version."""
        options: dict[str, Any] = {"range": (start, end)} | ({"if_match": version} if version else {})

        def read() -> bytes:
            result = self._store.get(name, options=options)
            data = bytes(result.bytes())
            if len(data) != result.range[1] - result.range[0]:
                raise EOFError("the connection was cut")
            return data

        return self._request(name, read)

    def write(self, name: str, path: Path) -> None:
        """Store a local file, in pieces, and verify it by its checksum."""
        size = path.stat().st_size
        piece = _piece(size)

        def send() -> None:
            with open_regular(path, follow_links=False) as file:
                put = self._store.put(name, file, use_multipart=size > piece, chunk_size=piece, max_concurrency=4)
            if (put["e_tag"] or "").strip('"') not in _expected_tags(path, piece):
                self._compare(name, path)

        self._request(name, send)

    def holds(self, name: str, path: Path) -> bool:
        """Whether an object has the bytes of a file, by its checksum; False if the checksum proves nothing."""
        entry = self.head(name)
        return entry is not None and entry.version.strip('"') in _expected_tags(path, _piece(entry.bytes))

    def create(self, name: str, data: bytes) -> bool:
        """Create an object in one step; return False if another object has the name.

        An attempt whose answer was lost may have succeeded, so an existing object is read and compared. The bytes are
        verified by checksum, or by reading them back.
        """
        md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()

        def put() -> bool:
            import obstore.exceptions

            try:
                created = self._store.put(name, data, mode="create", use_multipart=False)
            except obstore.exceptions.AlreadyExistsError as error:
                try:
                    return self.read(name) == data
                except FileNotFoundError:  # 409: another writer was creating the object, and failed
                    raise EOFError(str(error)) from error
            if (created["e_tag"] or "").strip('"') != md5 and self.read(name) != data:
                self.remove([name])
                raise EOFError("what was read back differs from what was sent")
            return True

        self.require_create()
        return self._request(name, put)

    def create_from(self, name: str, path: Path) -> bool:
        """`create` with the bytes of a local file. Raises StoreError for a file too large for one step."""
        if path.stat().st_size > _MOST_CREATED:
            raise StoreError(
                f"{path}: has {path.stat().st_size:,} bytes, but object storage creates at most {_MOST_CREATED:,} in "
                "one step. Fix: build with fewer documents per part (store.part_documents)."
            )
        with open_regular(path, follow_links=False) as file:
            return self.create(name, file.read())

    def put(self, name: str, data: bytes) -> None:
        """Store a few bytes, replacing an existing object."""
        self._request(name, lambda: self._store.put(name, data, use_multipart=False))

    def remove(self, names: Collection[str]) -> None:
        """Remove objects; missing ones are not an error."""
        if not names:
            return
        try:
            self._request(next(iter(names)), lambda: self._store.delete(sorted(names)))
        except FileNotFoundError:  # some stores report missing objects
            for name in sorted(names):
                with suppress(FileNotFoundError):
                    self._request(name, partial(self._store.delete, name))

    def require_create(self) -> None:
        """Raise StoreError if the store lets a second writer overwrite an object. Tried once a process."""
        if self._honours_create:
            return
        import obstore.exceptions

        name = f"{PROBE}{os.urandom(8).hex()}"
        self.put(name, b"first")
        try:
            self._request(name, lambda: self._store.put(name, b"second", mode="create"))
        except ConditionError as error:
            if not isinstance(error.__cause__, obstore.exceptions.AlreadyExistsError):
                raise StoreError(f"{self.url}: cannot create objects conditionally ({error}).") from error
            self._honours_create = True
        finally:
            self.remove([name])
        if not self._honours_create:
            raise StoreError(
                f"{self.url}: this store ignores If-None-Match: * and overwrites existing objects, so two writers "
                "could overwrite each other. Nothing was written. Fix: use a store that honours it, or build on a "
                "local disk and copy the index there."
            )

    def _compare(self, name: str, path: Path) -> None:
        """Read an object back. Raises EOFError if it differs from the file."""
        position = 0
        with open_regular(path, follow_links=False) as file:
            while data := file.read(_READ_BACK):
                if self.read_range(name, position, position + len(data)) != data:
                    raise EOFError("what was read back differs from what was sent")
                position += len(data)
        entry = self.head(name)
        if entry is None or entry.bytes != position:
            raise EOFError(f"{entry.bytes if entry else 0:,} bytes arrived of {position:,}")

    def _request(self, name: str, request: Callable[[], Result]) -> Result:
        """Return the result of a request, repeated a few times while the server or the connection fails."""
        import obstore.exceptions as failures

        for attempt in range(ATTEMPTS):
            try:
                return request()
            except (failures.AlreadyExistsError, failures.PreconditionError) as error:
                raise ConditionError(f"{self._shown(name)}: {_reason(error)}") from error
            except (FileNotFoundError, failures.BaseError, EOFError) as error:
                if final := self._final(name, error):
                    raise final from error
                if attempt == ATTEMPTS - 1:
                    raise StoreError(
                        f"{self._shown(name)}: object storage did not answer correctly in {ATTEMPTS} attempts "
                        f"({_reason(error)}). Fix: check {self._checked('the connection')}, and run the command again."
                    ) from error
            time.sleep(PAUSE * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _final(self, name: str, error: BaseException) -> Exception | None:
        """Return the error for a failure that a retry does not change, None for other failures."""
        import obstore.exceptions as failures

        if "NoSuchBucket" in str(error):
            return StoreError(f"{self.url}: there is no such bucket. Fix: create it, or correct the URL.")
        if isinstance(error, FileNotFoundError):
            return FileNotFoundError(f"{self._shown(name)}: missing")
        if _METADATA.search(str(error)):
            return StoreError(
                f"{self.url}: no credentials found in the environment or on this machine's cloud. "
                f"{self._variables.credentials}"
            )
        if isinstance(error, (failures.PermissionDeniedError, failures.UnauthenticatedError)):
            return StoreError(
                f"{self._shown(name)}: access is denied ({_reason(error)}) with the credentials in the environment. "
                f"{self._variables.credentials}"
            )
        if _FINAL.search(str(error)):
            return StoreError(
                f"{self._shown(name)}: object storage refuses the request ({_reason(error)}). Fix: check "
                f"{self._checked('the URL')}."
            )
        return None

    def _checked(self, first: str) -> str:
        """Return a list of what to check: `first`, the credentials, and the endpoint if one is set."""
        named = _endpoint(self._variables)
        return f"{first}, the credentials and {named}" if named else f"{first} and the credentials"

    def _shown(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url


class ConditionError(StoreError):
    """A condition of a request was not met."""


@lru_cache(_MOST_STORES)
def open_bucket(url: str) -> Bucket:
    """Return the objects below a URL; recently used buckets stay open, with their connections. Raises MachineError
    without obstore, ConfigError for an invalid URL."""
    return Bucket(url)


def _opened(url: str, variables: Variables) -> Any:
    try:
        import obstore.exceptions
        from obstore.store import from_url
    except ImportError as error:
        raise MachineError(f"{url}: object storage needs obstore. Install it: {install_line('remote')}") from error
    for name in variables.endpoints:
        _require_endpoint(url, name)
    quoted = url.translate({ord("?"): "%3F", ord("#"): "%23"})  # obstore would drop everything from ? and # on
    endpoint = os.environ.get(_endpoint(variables), "")
    plain = {"allow_http": True} if endpoint.lower().startswith("http://") else {}
    try:
        with _without_empty(variables.prefix):
            return from_url(quoted, client_options=TIMEOUTS | plain, retry_config=RETRIES | {"backoff": BACKOFF})  # type: ignore[call-overload]
    except (obstore.exceptions.BaseError, ValueError) as error:
        if not urlsplit(url).netloc:
            raise ConfigError(f"{url}: not a URL that can be opened ({_reason(error)}).") from error
        raise ConfigError(
            f"{url}: cannot be opened with the settings of the environment ({_reason(error)}). {variables.credentials}"
        ) from error


@contextmanager
def _without_empty(prefix: str) -> Iterator[None]:
    """Within the block, remove empty environment variables with this prefix, whose empty values obstore would use. A
    variable that the program sets meanwhile keeps its new value."""
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
    """Return the name of the endpoint variable that counts; empty if none is set."""
    return next((name for name in variables.endpoints if os.environ.get(name)), "")


def _require_endpoint(url: str, name: str) -> None:
    """Raise ConfigError for an endpoint that obstore could not open and would abort the process for."""
    value = os.environ.get(name)
    if not value:
        return
    try:
        parts = urlsplit(value)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port, or an unmatched bracket
        valid = False
    if not valid or re.search(r"[^!-~]|[?#]", value):
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
    """Return the ETags that prove the bytes: MD5 of the whole, or of the MD5s of its pieces. S3 and most other stores
    return one of them, unless they encrypt with their own key."""
    whole, pieces = hashlib.md5(usedforsecurity=False), []
    with open_regular(path, follow_links=False) as file:
        while data := file.read(piece):
            whole.update(data)
            pieces.append(hashlib.md5(data, usedforsecurity=False).digest())
    joined = hashlib.md5(b"".join(pieces), usedforsecurity=False).hexdigest()
    return {whole.hexdigest(), f"{joined}-{len(pieces)}"}
