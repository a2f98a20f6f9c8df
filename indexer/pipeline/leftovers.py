"""Files of an index that an interrupted change may have left, found by name."""

import os
from pathlib import Path

from indexer.store import layout
from indexer.store.files import remove_file

SWEPT = {
    layout.TRANSFORMS: layout.TRANSFORM_NAME,
    layout.SEGMENTS: layout.SEGMENT_NAME,
    layout.DELETED: layout.DELETED_NAME,
}


def swept_files(index: Path) -> list[str]:
    """Return the transforms, segments and lists of deleted documents."""
    return [
        f"{folder}/{name}" for folder, kind in SWEPT.items() for name in _names(index / folder) if kind.fullmatch(name)
    ]


def state_folders(index: Path) -> list[str]:
    """Return the folders of fitted encoder state."""
    return [f"{layout.ENCODER}/{name}" for name in _names(index / layout.ENCODER) if layout.STATE_NAME.fullmatch(name)]


def remove_temporary(index: Path, folder: str) -> None:
    """Remove the temporary files of a folder."""
    for name in _names(index / folder):
        if name.endswith(layout.TEMPORARY):
            remove_file(index, f"{folder}/{name}")


def _names(folder: Path) -> list[str]:
    """Return the sorted names in a folder; none if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries)
    except OSError:
        return []
