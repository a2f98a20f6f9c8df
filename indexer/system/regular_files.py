"""Reading of files by name that opens only regular files, so that nothing hangs.

A pipe without a writer waits forever, and a device such as /dev/zero never ends. Both raise OSError, which callers
handle like any other failure to read.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

_LINK = "it is a link; expected the file itself"
_SPECIAL = "it is a pipe, socket or device; expected a regular file"


def open_regular(path: str | Path, follow_links: bool = True) -> BufferedReader:
    """Open a regular file for reading. Raises OSError, also for pipes, sockets, devices and folders.

    Without `follow_links` the last name of the path must not be a link.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow_links:
            raise OSError(errno.ELOOP, _LINK, str(path)) from None
        if error.errno == errno.ENXIO:  # a socket
            raise OSError(errno.EINVAL, _SPECIAL, str(path)) from None
        raise
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, _SPECIAL, str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | Path, most_bytes: int | None = None, follow_links: bool = True) -> bytes:
    """Return the bytes of a regular file. Raises OSError as `open_regular`, and for more than `most_bytes`."""
    with open_regular(path, follow_links) as file:
        size = os.fstat(file.fileno()).st_size
        if most_bytes is not None and size > most_bytes:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes; expected at most {most_bytes:,}", str(path))
        return file.read()
