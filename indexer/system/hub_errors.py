"""Errors of Hugging Face's libraries, as messages with a fix."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from indexer.errors import IsotropeError, StoreError
from indexer.system.escaping import shown

LOGIN = "Fix: log in with hf auth login, or set HF_TOKEN to a token that may write to it"


class NoRepositoryError(StoreError):
    """There is no such repository, or the token may not read it."""


@contextmanager
def hub_requests(url: str) -> Iterator[None]:
    """Within the block, convert errors of the hub's libraries, which are of many types, to StoreError."""
    try:
        yield
    except (IsotropeError, MemoryError):
        raise
    except Exception as error:
        raise _failure(url, error) from error


def _failure(url: str, error: Exception) -> StoreError:
    hub: Any = import_module("huggingface_hub.errors")  # Any: not all of its names are typed
    if type(error) in (RuntimeError, hub.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    status = getattr(getattr(error, "response", None), "status_code", None)
    reason = shown(error, 300).rstrip(".")
    if isinstance(error, hub.GatedRepoError):
        return StoreError(f"{url}: is gated. Fix: accept its terms on the hub, and log in with hf auth login.")
    if isinstance(error, hub.RepositoryNotFoundError):
        return NoRepositoryError(
            f"{url}: no such dataset repository on the Hugging Face hub, or it is private. Fix: check the name; for a "
            "private one log in with hf auth login, or set HF_TOKEN."
        )
    if isinstance(error, hub.RevisionNotFoundError):
        return StoreError(f"{url}: no such branch, tag or commit. Fix: correct the name after @.")
    if status in (401, 403):
        return StoreError(f"{url}: access is denied ({reason}). {LOGIN}.")
    if status == 412:
        return StoreError(f"{url}: changed during this push, which published nothing. Fix: run it again.")
    if isinstance(error, OSError) and not isinstance(error, hub.HTTPError) and error.errno:
        return StoreError(f"{error.filename or url}: {error.strerror}.")
    if isinstance(error, hub.HTTPError | hub.OfflineModeIsEnabled) and status is None:
        return StoreError(
            f"{url}: the Hugging Face hub cannot be reached ({reason}). Fix: check the network and the environment "
            "(HF_ENDPOINT, HF_HUB_OFFLINE, HTTPS_PROXY), and run the same command again to continue."
        )
    return StoreError(f"{url}: the Hugging Face hub failed ({reason}). Fix: run the same command again.")
