"""Waiting for changes of local sources, for `isotrope sync --watch`."""

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path

from indexer.corpus.readers.hub import is_on_hub
from indexer.errors import ConfigError, MachineError
from indexer.lazy_imports import install_line
from indexer.system.urls import local_path, url_of

IGNORE_FILES = (".gitignore", ".isotropeignore")
_QUIET = 1000  # ms without a change after which changes are reported
_LONGEST = 30_000  # ms after which they are reported in any case


def watch_sources(sources: Sequence[str], ignored: Sequence[Path]) -> Iterator[None]:
    """Yield once now, and after each set of changes of the sources, without those at or below `ignored` paths.

    Changes are collected from the first yield on, so none is missed while the caller works. A file is watched through
    its folder, because many programs replace a file instead of writing into it. Raises ConfigError for a source that
    cannot be watched, and MachineError without watchfiles.
    """
    try:
        from watchfiles import watch
    except ImportError as error:
        raise MachineError(f"--watch needs the package watchfiles. Install it: {install_line('files')}.") from error
    paths = [_watched(source) for source in sources]
    skipped = [path.resolve() for path in ignored]

    def is_source(_: object, changed: str) -> bool:
        at = Path(changed)
        below = (at.relative_to(path) for path in paths if at.is_relative_to(path))
        return not any(map(at.is_relative_to, skipped)) and not all(map(_is_hidden, below))

    folders = {path if path.is_dir() else path.parent for path in paths}
    changes = watch(
        *folders,
        watch_filter=is_source,
        step=_QUIET,
        debounce=_LONGEST,
        rust_timeout=_QUIET,
        yield_on_timeout=True,
        recursive=any(path.is_dir() for path in paths),
    )
    started = False
    for found in changes:
        if found or not started:
            started = True
            yield


def _is_hidden(path: Path) -> bool:
    """Whether a path below a source is left out of a corpus. Lists of ignored files are hidden, too, but matter."""
    return path.name not in IGNORE_FILES and any(part.startswith(".") for part in path.parts)


def _watched(source: str) -> Path:
    """Return the file or folder to watch; of a glob, the folder above its first wildcard."""
    if source == "-" or is_on_hub(source) or url_of(source):
        raise ConfigError(f"{source}: only local files and folders can be watched. Fix: run sync without --watch.")
    path = local_path(source)
    while glob.has_magic(str(path)) and not path.exists():
        path = path.parent
    if not path.exists():
        raise ConfigError(f"{source}: does not exist; expected a file, a folder or a glob to watch.")
    return path.resolve()
