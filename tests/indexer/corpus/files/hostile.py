"""Readers that behave like a library that a hostile file has broken."""

import os
import signal

from indexer.corpus.files.extracted import ExtractedText


def read(data: bytes) -> ExtractedText:
    """Do what the file names."""
    order = data.decode()
    while order == "forever":
        pass
    if order == "memory":
        bytearray(8 << 30)
    if order == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if order == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if order == "broken":
        raise ValueError(f"{object()} is broken")
    if order == "noisy":
        os.write(1, b"output of a library\n")
    return ExtractedText(order, "title", 3)
