"""What a result file says about how it was made."""

import platform
import shlex
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from indexer.config import BuildConfig
from indexer.encoders import EncoderSpec
from indexer.hashing import canonical_sha256
from indexer.versions import library_versions
from search.opened import OpenIndex

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
            "command": _on_one_line(command or shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])),
            "created": self.started.isoformat(timespec="seconds"),
            "seconds": round((datetime.now(UTC) - self.started).total_seconds(), 1),
            "machine": platform.machine(),
            "versions": library_versions(_MEASURING),
            "data": {_on_one_line(name): digest for name, digest in sorted(data.items())},
        }
        if encoder is not None:
            found["encoder"] = {"model": encoder.model, "identity": encoder.identity.to_dict()}
        return found | more


def how_built(config: BuildConfig, opened: OpenIndex | None = None) -> dict[str, Any]:
    """For provenance, JSON types: the "recipe" that was measured, and the "index" it comes from, if any."""
    found: dict[str, Any] = {"recipe": config.to_dict()}
    if opened:
        manifest = opened.manifest
        found["index"] = {"generation": manifest.generation, "manifest": canonical_sha256(manifest.to_dict())}
    return found


def _on_one_line(text: str) -> str:
    """Names of files may hold line breaks, and bytes that are no text; a recipe's remarks and JSON may not."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
