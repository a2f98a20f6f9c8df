"""The store of an index, by its path: `LocalStore`, or `ObjectStore` for the mirror folder of a URL."""

from functools import cache
from pathlib import Path
from typing import IO

from indexer.store.files import open_own
from indexer.store.local_store import LocalStore
from indexer.store.object_store import ObjectStore
from indexer.system.urls import mirrored

Store = LocalStore | ObjectStore


def store_at(index: Path) -> Store:
    """Return the store of an index."""
    place = mirrored(index)
    return LocalStore(index) if place is None else _object_store(place[0], place[1])


def store_of(path: Path) -> tuple[Store, str]:
    """Return the store of a file or part of an index, and its name there."""
    place = mirrored(path)
    return (LocalStore(path.parent), path.name) if place is None else (_object_store(place[0], place[1]), place[2])


def holder_of(path: Path) -> tuple[Store, str]:
    """Like `store_of`, but a file in a mirror folder, which waits to be sent, has the store of that folder."""
    store, name = store_of(path)
    return (LocalStore(path.parent), path.name) if store.url and path.is_file() else (store, name)


@cache
def _object_store(folder: Path, url: str) -> ObjectStore:
    return ObjectStore(folder, url)


def open_stored(path: Path) -> IO[bytes]:
    """Open a whole file of an index for reading. Raises OSError, and StoreError from object storage."""
    try:
        return open_own(path)
    except FileNotFoundError:
        store, name = store_of(path)
        return store.open(name)
