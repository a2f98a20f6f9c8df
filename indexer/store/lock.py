"""One writer at a time, by an advisory lock that the kernel frees when the writer dies, however it dies."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from indexer.errors import LockedError, StoreError
from indexer.store.layout import LOCK


@contextmanager
def writer_lock(index: Path) -> Iterator[None]:
    """Hold the index directory for writing. Raises LockedError at once if another process does."""
    try:
        file = open(index / LOCK, "ab")  # noqa: SIM115 - closed by the `with` below
    except OSError as error:
        raise StoreError(f"{index / LOCK}: cannot be opened for writing: {error.strerror}.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(f"{index}: another process is writing to this index. Wait for it to end.") from None
        except OSError as error:
            raise StoreError(
                f"{index / LOCK}: this file system cannot lock files ({error.strerror}), so two writers could not be "
                "kept apart. Build on a local disk."
            ) from error
        yield
