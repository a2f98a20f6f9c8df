"""Every hash whose value is stored, compared or sorted by, none of which may change: format 1 holds them."""

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

_BLOCK = 16 << 20  # read and hashed at once: after each, a thread that others keep from the GIL waits for it


def fingerprint(identity: dict[str, Any]) -> str:
    """sha256, hex, of an identity as JSON: sorted keys, no spaces, and ASCII only, unlike `canonical_json`."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces, UTF-8: the form that hashes are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def canonical_sha256(value: Any) -> str:
    """sha256, hex, of the canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def file_sha256(path: Path) -> str:
    """sha256, hex, of a file's bytes; a file that was not touched since is hashed once a process. Raises OSError."""
    state = path.stat()
    with _one_at_a_time(path):  # whoever asks for what is being hashed waits for it
        return _file_sha256(path, state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


def hash_ahead(paths: Iterable[Path]) -> None:
    """Begin to hash files that `file_sha256` will be asked for, in a thread; hashing needs no GIL.

    What cannot be read is left for `file_sha256` to raise.
    """

    def work() -> None:
        for path in paths:
            with suppress(OSError):
                file_sha256(path)

    threading.Thread(target=work, name="hash-ahead", daemon=True).start()


def hash_texts(texts: Iterable[str]) -> "TextHashes":
    """One 128-bit hash a text, (n, 2)."""
    import numpy as np

    digests = b"".join(map(_hash_text, texts))
    return np.frombuffer(digests, dtype=np.uint64).reshape(-1, 2)


def _hash_text(text: str) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for start in range(0, len(text), _BLOCK):  # a long text is not copied as a whole
        digest.update(text[start : start + _BLOCK].encode())
    return digest.digest()


def hash_vectors(embeddings: "Embeddings") -> "TextHashes":
    """One 128-bit hash a row, (n, 2), of its bytes: it stands where another index has the hash of a text."""
    import numpy as np

    digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in embeddings)
    return np.frombuffer(digests, np.uint64).reshape(-1, 2)


def hash_id(identity: str) -> int:
    """64 bits of an id, by which samples are drawn."""
    return int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "big")


def bottom_k(hashes: "npt.NDArray[np.uint64]", size: int | str) -> "RowIds":
    """Positions, ascending, of the `size` smallest of some id hashes, or of "all"."""
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
