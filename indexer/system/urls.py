"""URLs of object storage as paths, their mirror folders on this machine; URLs of servers, and the hosts that are this
machine.

An index in object storage has a local path: its mirror folder, in the cache. `indexer.store.stores` returns the store
of such a path, which fetches and sends the files.
"""

import hashlib
import ipaddress
import os
import re
from functools import cache
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from indexer.errors import ConfigError, StoreError, show_as, spelled
from indexer.system.cache import cache_folder
from indexer.system.escaping import escape

_URL = re.compile(r"(s3|gs|az|file):/+(.*)", re.DOTALL | re.IGNORECASE)
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):/.*", re.DOTALL | re.IGNORECASE)  # one letter is a drive of Windows
_PLACE = re.compile(r"[0-9a-f]{20}")  # folder of the cache that contains one mirror folder
_NAMED_URL = "url"  # file next to a mirror folder with its URL


def url_of(path: str | Path) -> str:
    """Return the URL in object storage of a text or a path, without a trailing slash; "" for a local one.

    Path makes one slash of two, so `s3:/bucket/name` counts as well. Raises ConfigError for a URL without a bucket or
    with "." or ".." in it, and for other schemes, unless a folder of that name exists.
    """
    match = _URL.fullmatch(str(path))
    if match is None:
        _refuse_other_scheme(str(path))
        return ""
    scheme = match[1].lower()
    if scheme == "file":
        return ""
    rest = re.sub(r"/+", "/", match[2]).rstrip("/")
    if not rest:
        raise ConfigError(f'"{path}" has no bucket; expected a URL such as {scheme}://bucket/folder.')
    if dots := {".", ".."}.intersection(rest.split("/")):
        raise ConfigError(f'"{path}" contains "{min(dots)}", which has no meaning in a URL. Fix: remove it.')
    return f"{scheme}://{rest}"


def _refuse_other_scheme(path: str) -> None:
    match = _SCHEME.fullmatch(path)
    if match is None or os.path.lexists(f"{match[1]}:"):
        return
    scheme = match[1].lower()
    fix = "download the file first, and pass the copy." if scheme in ("http", "https", "ftp") else "correct it."
    if scheme == "hf":
        url = f"hf://{path.partition(':')[2].strip('/')}"
        pull = spelled(f'pull_index("{url}", folder)', f"isotrope pull {url} FOLDER")
        fix = f"{pull}, and use the folder."
    raise ConfigError(
        f'"{path}" has an unsupported URL scheme; expected s3://, gs://, az:// or file:///, or a path. Fix: {fix} '
        f'(A new folder named "{match[1]}:" needs its absolute path.)'
    )


def local_path(path: str | Path) -> Path:
    """Return the local path of a text, a path, or a file URL (file:///data/docs.jsonl)."""
    match = _URL.fullmatch(str(path))
    return Path("/" + unquote(match[2])) if match is not None and match[1].lower() == "file" else Path(path)


def remote_folder() -> Path:
    """Return the folder of the cache for object storage."""
    return cache_folder().absolute() / "remote"


def mirror_folder(url: str) -> Path:
    """Return the mirror folder of an index in object storage, created if needed. Raises StoreError."""
    if url.count("/") < 3:
        raise ConfigError(f"{url}: is a whole bucket; expected a folder in it, such as {url}/my-index.")
    place = remote_folder() / _place_name(url)
    folder = place / url.rpartition("/")[2]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if _named_url(place) != url:
            _name_url(place, url)
    except OSError as error:
        raise StoreError(
            f"{url}: the cache {remote_folder()} cannot be written ({error.strerror}). Fix: choose another folder with "
            "ISOTROPE_CACHE."
        ) from error
    _url_beside(place)  # remembered even if the cache is deleted
    return folder


def mirrored(path: Path) -> tuple[Path, str, str] | None:
    """Return (mirror folder, its URL, name in it) of a path in a mirror folder, in any process; else None.

    Raises StoreError for a mirror folder without a URL, whose files would be written locally and never sent.
    """
    remote = remote_folder()
    if not path.is_relative_to(remote):
        return None
    parts = path.relative_to(remote).parts
    if len(parts) < 2 or not _PLACE.fullmatch(parts[0]):
        return None
    folder = remote / parts[0] / parts[1]
    return folder, _url_beside(remote / parts[0]), "/".join(parts[2:])


def _place_name(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:20]


def _named_url(place: Path) -> str:
    """Return the URL in the file next to a mirror folder; "" if the file is missing or damaged."""
    try:
        url = (place / _NAMED_URL).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    return url if _place_name(url) == place.name else ""


def _name_url(place: Path, url: str) -> None:
    """Write the URL atomically: other processes may read the file, and this process may be killed."""
    temporary = place / f"{_NAMED_URL}.{os.urandom(6).hex()}"  # with the usual permissions
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(url)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(place / _NAMED_URL)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@cache
def _url_beside(place: Path) -> str:
    url = _named_url(place)
    if not url:
        raise StoreError(
            f"{place}: the cache of an index in object storage, but its file {_NAMED_URL!r}, which contains the URL of "
            "the index, is missing or damaged. Fix: use the index by its URL, which writes the file again, or delete "
            "this folder."
        )
    show_as(str(place / url.rpartition("/")[2]), url)
    return url


def require_server_url(url: str, name: str = "") -> SplitResult:
    """Return the parts of a server's URL. Raises ConfigError, without repeating parts that may be secret.

    `name` is the setting that the URL is from.
    """
    at = f"{name}: " if name else ""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(
            f'{at}"{escape(url)}" is not a URL ({error}); expected a URL such as http://127.0.0.1:8080.'
        ) from error
    if "@" in parts.netloc:
        raise ConfigError(f"{at}the URL contains a user or a password, which other users can see. Fix: leave them out.")
    if parts.scheme not in ("http", "https") or not host or not url.isprintable() or " " in url:
        raise ConfigError(
            f'{at}"{escape(url)}" is not the URL of a server; expected one such as http://127.0.0.1:8080.'
        )
    if parts.query or parts.fragment:
        raise ConfigError(f'{at}"{url}" contains ? or #; expected only the address of a server.')
    return parts


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine only: "localhost", or an address such as 127.0.0.1 or ::1."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
