"""Segment files: opened as FAISS indexes, loaded or memory-mapped, and compared with their digests."""

import os
import weakref
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from indexer import ann
from indexer.errors import ConfigError, CorruptIndexError
from indexer.store.files import BLOCK, FileDigest
from indexer.store.integrity import BackgroundCheck, CheckedFile, read_checked
from indexer.store.manifest import SegmentEntry
from indexer.store.stores import holder_of

MAPPED_BYTES = 256 << 20  # a larger segment is memory-mapped


def open_segment_file(
    path: Path, entry: SegmentEntry, digest: FileDigest, dim: int, at_once: bool
) -> tuple[Any, BackgroundCheck | None]:
    """Open a segment's index with its search parameters, and the check of a large file that is hashed while it is used.

    `at_once` hashes the file now, for a small index. Raises CorruptIndexError.
    """
    background = None
    small, (store, name) = digest.bytes <= MAPPED_BYTES, holder_of(path)
    if at_once or (small and not store.is_local):  # sha256 is twice as fast as the digests per MiB
        index = ann.load_index(BytesIO(read_checked(path, digest)), str(path), digest.bytes)
    elif not small:
        with CheckedFile(path, digest) as file:  # parts that FAISS reads to lay out the index
            file.check((np.array([0, digest.bytes - 1]), np.array([BLOCK, digest.bytes])))
        mapped, descriptor = store.map(name, digest)
        if descriptor is None:  # it reads ahead of FAISS, which faults in single pages
            background = BackgroundCheck(path, digest)
        with ExitStack() as stack:
            if descriptor is not None:
                stack.callback(os.close, descriptor)
            index = ann.map_index(mapped)
            weakref.finalize(index, stack.pop_all().close)  # the descriptor, once the index is collected
    else:
        with CheckedFile(path, digest) as file:
            index = ann.load_index(file, str(path), digest.bytes)
    if not index.is_trained:
        raise CorruptIndexError(f"{path}: contains an untrained index. Fix: build the index again.")
    if index.ntotal != entry.rows or index.d != dim:
        raise CorruptIndexError(
            f"{path}: contains {index.ntotal:,} vectors of {index.d} dimensions; the manifest lists {entry.rows:,} of "
            f"{dim}. Fix: build the index again."
        )
    try:
        ann.require_parameters(index, ann.search_parameters(index))  # with efSearch 0, FAISS would never return
        ann.set_search_parameters(index, entry.search_parameters)
    except ConfigError as error:
        raise CorruptIndexError(f"{path}: {error} Fix: build the index again.") from error
    return index, background
