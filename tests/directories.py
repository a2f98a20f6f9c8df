"""Comparing index directories byte by byte."""

import hashlib
import json
from pathlib import Path


def snapshot(index: Path) -> dict[str, str]:
    """Return the hash of every file, without the manifests' `created` and `checksum`, which may differ."""
    return {
        str(path.relative_to(index)): _hash(path)
        for path in sorted(index.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def _hash(path: Path) -> str:
    data = path.read_bytes()
    if path.parent.name == "manifests" and path.suffix == ".json":
        plain = json.loads(data)
        del plain["created"], plain["checksum"]
        data = json.dumps(plain, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()
