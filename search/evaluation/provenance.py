"""What a result file says about how it was made."""

import hashlib
import json
import platform
import shlex
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from indexer.encoders import EncoderSpec
from indexer.errors import EvaluationError
from indexer.store.files import make_folder, write_bytes
from indexer.versions import library_versions

_MEASURING = ("scipy", "ir_measures", "pytrec_eval-terrier", "bm25s", "PyStemmer", "datasets", "matplotlib")


class Clock:
    """Started when a measurement begins; `provenance` says when that was and how long it took."""

    def __init__(self) -> None:
        self.started = datetime.now(UTC)

    def provenance(
        self, encoder: EncoderSpec | None, data: Mapping[str, str], command: str = "", **more: Any
    ) -> dict[str, Any]:
        """JSON types. `data` maps names of data files to their sha256; `command` defaults to this process's own.

        Only "created" and "seconds" differ between two runs of the same command.
        """
        found: dict[str, Any] = {
            "command": command or shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            "created": self.started.isoformat(timespec="seconds"),
            "seconds": round((datetime.now(UTC) - self.started).total_seconds(), 1),
            "machine": platform.machine(),
            "versions": library_versions(_MEASURING),
            "data": dict(sorted(data.items())),
        }
        if encoder is not None:
            found["encoder"] = {"model": encoder.model, "identity": encoder.identity}
        return found | more


def file_hash(path: Path) -> str:
    """sha256 of a file's bytes. Raises EvaluationError when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise EvaluationError(f"{path}: cannot be read: {error.strerror or error}.") from error


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """A result as JSON, written whole or not at all."""
    text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)
    make_folder(path.parent)
    write_bytes(path, text.encode() + b"\n")
