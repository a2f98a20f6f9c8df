"""One writer at a time, by an advisory lock that the kernel frees when the writer dies, however it dies."""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from indexer.errors import LockedError, StoreError
from indexer.store.files import require_own_files
from indexer.store.layout import LOCK


@contextmanager
def writer_lock(index: Path) -> Iterator[None]:
    """Hold the index directory for writing.

    Raises LockedError at once if another process does, and StoreError if anything in it is a link or a special file.
    """
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.fdopen(os.open(index / LOCK, flags, 0o666), "wb")
    except OSError as error:
        what = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise StoreError(f"{index / LOCK}: cannot be opened for writing: {what}.") from error
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise StoreError(f"{index / LOCK}: is no regular file. Remove it, and run the command again.")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(f"{index}: another process is writing to this index. Wait for it to end.") from None
        except OSError as error:
            raise StoreError(
                f"{index / LOCK}: this file system cannot lock files ({error.strerror}), so two writers could not be "
                "kept apart. Build on a local disk."
            ) from error
        require_own_files(index)
        yield
