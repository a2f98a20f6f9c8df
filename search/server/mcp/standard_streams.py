"""Standard input and output, reserved for a protocol."""

import os
import signal
import sys
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True)
class ProtocolStreams:
    """Both directions, as lines of UTF-8."""

    input: TextIO
    output: TextIO


def take_standard_streams() -> ProtocolStreams:
    """Return standard input and output, reserved for the caller until the process ends.

    The output of libraries and child processes then goes to standard error, and their standard input is empty. Ctrl-C
    ends the process at once, because a thread that waits for input cannot be woken. Streams that another program has
    replaced are returned unchanged.
    """
    if not (_is_descriptor(sys.stdin, 0) and _is_descriptor(sys.stdout, 1)):
        return ProtocolStreams(sys.stdin, sys.stdout)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    taken = ProtocolStreams(
        os.fdopen(os.dup(0), encoding="utf-8", errors="replace"),
        os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n"),
    )
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # no standard error
        os.dup2(nothing, 1)
    os.close(nothing)
    return taken


def _is_descriptor(stream: TextIO | None, number: int) -> bool:
    try:
        return stream is not None and stream.fileno() == number
    except (OSError, ValueError):
        return False
