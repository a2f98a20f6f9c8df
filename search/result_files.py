"""Files named by users: inputs are hashed, outputs checked before the run and written whole or not at all."""

import glob
import hashlib
import json
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from indexer.errors import ConfigError, EvaluationError, ModelError, StoreError, as_argument, as_shown
from indexer.store.files import FileDigest, atomic_write, make_folder, sync_folder
from indexer.system.output_files import (
    behind_links,
    check_output,
    check_output_folder,
    check_writable,
    descriptor_of,
    is_folder,
    is_stream,
    mode_of,
    open_output,
    refuse_inside_index,
)
from indexer.system.regular_files import open_regular

if TYPE_CHECKING:
    from indexer.corpus.sources import SourceFile

Content = bytes | Path
"""Content of a file: bytes, or the path of a file to copy."""
_BLOCK = 8 << 20


def check_outputs(
    written: Mapping[str, Path],
    reads: Iterable[Path] = (),
    force: bool = False,
    made: Mapping[str, Path] | None = None,
    whole: Collection[str] = (),
) -> None:
    """Check all outputs of a run before it begins, for every command.

    `written` maps options to output files; options in `whole` cannot be streams. `reads` are input files and folders
    with all their contents; missing ones are ignored. `made` maps options or arguments to folders that the run
    creates, such as an index. `force` allows existing files. Raises ConfigError for two options with one file, for an
    output over or inside an input or a created folder, and the errors of `check_output`, ExistsError among them.
    """
    sources, made = [path for path in reads if mode_of(path) is not None], made or {}
    for name, folder in made.items():
        refuse_inside_index(folder, name)
    taken: dict[object, str] = {}
    for option, path in written.items():
        _refuse_made(option, path, made.values())
        refuse_inside_index(path, option)
        _refuse_read(option, path, sources)
        check_output(path, option, force, option not in whole)
        place = _identity(path)
        if place in taken and path != Path(os.devnull):
            raise ConfigError(f"{taken[place]} and {option} name the same file, {path}; expected two files.")
        taken[place] = option


def read_by(*named: str | Path | None) -> list[Path]:
    """Return the files and folders that some arguments name: by path, by glob, and the lists of ids of .npy files.

    Arguments that name no file (hub ids, - for stdin, empty text) are ignored.
    """
    paths: list[Path] = []
    for name in named:
        if not name or str(name) == "-":
            continue
        matches = [str(name)] if mode_of(Path(name)) is not None else glob.glob(str(name), recursive=True)  # noqa: PTH207
        paths += map(Path, matches)
    arrays = [path for path in paths if path.suffix.lower() == ".npy"]
    return paths + [ids for path in arrays for ids in path.parent.glob(f"{glob.escape(path.stem)}.ids.*")]


def check_cache(path: Path) -> None:
    """Raise ConfigError for a `cache` folder that cannot be created or written, or lies inside an index."""
    refuse_inside_index(path, as_argument("cache"))
    check_writable(path, path, as_argument("cache"))


def _refuse_read(option: str, path: Path, sources: Iterable[Path]) -> None:
    """Raise ConfigError for an output that is an input, by this name or another, or lies in an input folder."""
    if mode_of(path) is None and not is_stream(path):
        return
    parents = behind_links(path, option).parents
    for source in sources:
        if _identity(source) == _identity(path) and not is_folder(path):
            raise ConfigError(f"{option} {path} is an input of this run. Fix: name another file.")
        if is_folder(source) and source.resolve() in parents and not is_stream(path):
            raise ConfigError(f"{option} {path} is part of {source}, which is read. Fix: name another file.")


def _refuse_made(option: str, path: Path, made: Iterable[Path]) -> None:
    place = behind_links(path, option)
    for folder in made:
        if behind_links(folder, option) in (place, *place.parents):
            raise ConfigError(
                f"{option} {path} is inside {folder}, which this run creates. Fix: name a place outside it."
            )


def _identity(path: Path) -> object:
    """Return an equal value for all names of one file, including hard links."""
    descriptor = descriptor_of(path)
    try:
        status = path.stat() if descriptor is None else os.fstat(descriptor)
    except (OSError, RuntimeError):
        return path.resolve()
    return status.st_dev, status.st_ino


def file_hash(path: Path) -> str:
    """Return the sha256 of a file. Raises EvaluationError if it cannot be read."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise EvaluationError(f"{path}: cannot be read: {error.strerror or error}.") from error


def source_hashes(files: "Iterable[SourceFile]") -> dict[str, str]:
    """Return label -> sha256 of the stored files of a corpus, without stdin. Raises EvaluationError."""
    from indexer.corpus.readers.streams import open_source

    hashes = {}
    for source in files:
        if not source.is_stdin:
            try:
                with open_source(source) as file:
                    hashes[source.label] = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise EvaluationError(f"{source.display_name}: cannot be read: {error.strerror or error}.") from error
    return hashes


def to_json(value: Any, indent: int | None = None) -> str:
    """Return strict JSON, on one line unless `indent` is given; NaN and infinite numbers become null."""
    try:
        encoder = _ENCODER if indent is None else json.JSONEncoder(**_STRICT, indent=indent)
        text = encoder.encode(value)
    except (ValueError, TypeError):  # NaN, or a key that is not text: converted in Python, which is slower
        text = json.dumps(_plain(value), indent=indent, ensure_ascii=False, allow_nan=False, default=str)
    return as_shown(text)


def _of_other_type(value: Any) -> Any:
    plain = _plain(value)
    return str(value) if plain is value else plain


_STRICT: dict[str, Any] = {"ensure_ascii": False, "allow_nan": False, "default": _of_other_type}
_ENCODER = json.JSONEncoder(**_STRICT)  # to make one takes as long as to encode a hit


def _plain(value: Any) -> Any:
    """Return JSON types, except values that `default` converts to text."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    return value


def write_json(path: Path, value: Any, force: bool = False) -> None:
    """Write indented strict JSON with `write_output`; file names that are not UTF-8 are escaped."""
    write_output(path, to_json(value, indent=1).encode("utf-8", "backslashreplace") + b"\n", force=force)


def write_output(path: Path, data: bytes, option: str = "", force: bool = False) -> FileDigest:
    """Write data with `open_output`: whole or not at all, over another file only with `force`."""
    with open_output(path, option, force) as file:
        file.write(data)
    return file.digest


@contextmanager
def open_output_folder(path: Path, option: str = "") -> Iterator[Path]:
    """Yield a folder to write into, and rename it to `path` after the block.

    Raises the errors of `check_output_folder`, ExistsError if `path` exists by then, and StoreError.
    """
    check_output_folder(path, option)
    make_folder(path.parent)
    try:
        with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent, ignore_cleanup_errors=True) as temporary:
            folder = Path(temporary, path.name)
            make_folder(folder)
            yield folder
            check_output_folder(path, option)
            folder.rename(path)
            sync_folder(path.parent)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror or error}.") from error


def write_files(folder: Path, files: Mapping[str, Content]) -> dict[str, FileDigest]:
    """Write files durably and return their digests, both by name relative to the folder ("1_Pooling/config.json").

    Raises StoreError, and ModelError if a file to copy cannot be read.
    """
    return {name: _write(folder / name, content) for name, content in sorted(files.items())}


def _write(path: Path, content: Content) -> FileDigest:
    make_folder(path.parent)
    with atomic_write(path) as file:
        for piece in _pieces(content):
            file.write(piece)
    return file.digest


def _pieces(content: Content) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    try:
        with open_regular(content, follow_links=False) as source:
            while data := source.read(_BLOCK):
                yield data
    except OSError as error:
        raise ModelError(f"{content}: cannot be read: {error.strerror or error}.") from error
