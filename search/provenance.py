"""What a result file says about how it was made."""

import hashlib
import json
import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from indexer.config import BuildConfig
from indexer.encoders import EncoderSpec
from indexer.errors import ConfigError, EvaluationError, ExistsError
from indexer.store.files import DurableFile, FileStamp, make_folder, write_file
from indexer.store.manifest import canonical_hash
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


def how_built(config: BuildConfig, opened: OpenIndex | None = None) -> dict[str, Any]:
    """For provenance, JSON types: the "recipe" that was measured, and the "index" it comes from, if any."""
    found: dict[str, Any] = {"recipe": config.to_dict()}
    if opened:
        manifest = opened.manifest
        found["index"] = {"generation": manifest.generation, "manifest": canonical_hash(manifest.to_dict())}
    return found


def check_output(path: Path, option: str = "-o") -> None:
    """Raises ConfigError for a file that could not be written: now, not after minutes of encoding.

    Files are put in place by renaming, which would replace a pipe or a device: only regular files are written.
    """
    target = _behind_links(path, option)
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder; name a file.")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{option} {path} is no regular file but a pipe, socket or device; name a file.")
    _check_writable(path, target.parent, option)


def check_new_folder(path: Path, option: str = "-o") -> None:
    """Raises ExistsError where something is already, ConfigError for a folder that could not be made."""
    if os.path.lexists(path):
        raise ExistsError(f"{option} {path} is already there; expected the name of a new folder.")
    _check_writable(path, path.parent, option)


def check_cache(path: Path) -> None:
    """Raises ConfigError for a folder of --cache that could not be made or written."""
    _check_writable(path, path, "--cache")


def _behind_links(path: Path, option: str) -> Path:
    """Where a path leads, so that a link's target is written and the link stays."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise ConfigError(f"{option} {path} cannot be followed: its links lead in a circle. Name a file.") from error


def _check_writable(path: Path, folder: Path, option: str) -> None:
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        wrong = "is a file" if folder == path else f"cannot be made, for {folder} is a file"
        raise ConfigError(f"{option} {path} {wrong}; expected a place where a folder is or can be.")
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be written: {folder}: {error.strerror or error}.") from error


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
    write_output(path, text.encode() + b"\n")


def write_output(path: Path, data: bytes, option: str = "-o") -> FileStamp:
    """`open_output` for data already in memory."""
    with open_output(path, option) as file:
        file.write(data)
    return file.stamp


@contextmanager
def open_output(path: Path, option: str = "-o") -> Iterator[DurableFile]:
    """Write a file that a user named, whole or not at all, in its folder, made if need be; through links.

    After the block, `.stamp` holds its hashes. Raises ConfigError as `check_output`, and StoreError.
    """
    check_output(path, option)
    target = _behind_links(path, option)
    make_folder(target.parent)
    with write_file(target) as file:
        yield file
