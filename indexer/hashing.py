"""The hashes that indexes store, compare or sort by; format 1 fixes all of them."""

import hashlib
import json
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexer.system.regular_files import open_regular

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from indexer.arrays import Embeddings, RowIds, TextHashes

_BLOCK = 16 << 20  # bytes hashed at once, between which a thread has to wait for the GIL


def fingerprint(identity: dict[str, Any]) -> str:
    """Return the sha256, hex, of an identity as JSON: sorted keys, no spaces, ASCII only (unlike `canonical_json`)."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def canonical_json(value: Any) -> bytes:
    """Return a value as JSON with sorted keys, no spaces, UTF-8: the form that is hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def canonical_sha256(value: Any) -> str:
    """Return the sha256, hex, of the canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def file_sha256(path: Path) -> str:
    """Return the sha256, hex, of a file; an unchanged file is hashed once a process. Raises OSError."""
    state = path.stat()
    with _one_at_a_time(path):  # callers wait for a hash that is being computed
        return _file_sha256(path, state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


def hash_ahead(paths: Iterable[Path]) -> None:
    """Hash files in a thread (hashing needs no GIL) before `file_sha256` is called for them.

    `file_sha256` raises the error of an unreadable file.
    """

    def work() -> None:
        for path in paths:
            with suppress(OSError):
                file_sha256(path)

    threading.Thread(target=work, name="hash-ahead", daemon=True).start()


def hash_texts(texts: Iterable[str]) -> "TextHashes":
    """Return one 128-bit hash a text, (n, 2)."""
    import numpy as np

    digests = b"".join(map(_hash_text, texts))
    return np.frombuffer(digests, dtype=np.uint64).reshape(-1, 2)


def _hash_text(text: str) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for start in range(0, len(text), _BLOCK):  # a long text is not copied as a whole
        digest.update(text[start : start + _BLOCK].encode())
    return digest.digest()


def hash_vectors(embeddings: "Embeddings") -> "TextHashes":
    """Return one 128-bit hash of the bytes of each row, (n, 2), in place of the hash of a text."""
    import numpy as np

    digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in embeddings)
    return np.frombuffer(digests, np.uint64).reshape(-1, 2)


def hash_id(identity: str) -> int:
    """Return the 64-bit hash of an id, by which samples are drawn."""
    return int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "big")


def bottom_k(hashes: "npt.NDArray[np.uint64]", size: int | str) -> "RowIds":
    """Return the positions, ascending, of the `size` smallest id hashes; `size` "all" returns every position."""
    import numpy as np

    count = len(hashes) if size == "all" else min(int(size), len(hashes))
    return np.sort(np.argsort(hashes, kind="stable")[:count])


@lru_cache(maxsize=256)
def _one_at_a_time(_: Path) -> threading.Lock:
    return threading.Lock()


@lru_cache(maxsize=256)
def _file_sha256(path: Path, *_: int) -> str:
    digest = hashlib.sha256()
    with open_regular(path) as file:
        buffer = memoryview(bytearray(min(_BLOCK, max(1, os.fstat(file.fileno()).st_size))))
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()
