"""Clearing away what interrupted builds left behind. Nothing that a manifest names is ever touched."""

from pathlib import Path

from indexer.errors import StoreError
from indexer.store import layout, parts
from indexer.store.files import remove_file, remove_folder
from indexer.store.manifest import list_generations, load_generation

_FOLDERS = (layout.MANIFESTS, layout.TRANSFORMS, layout.SEGMENTS, layout.DELETED)


def sweep_before(index: Path, fingerprint: str) -> None:
    """Remove temporary files and unfinished parts; before the first publication also parts of another encoder."""
    for name in _FOLDERS:
        _remove_temporary(index, name)
    fresh = not list_generations(index)
    for number in layout.part_numbers(index):
        folder = index / layout.part_name(number)
        record = parts.read_record(folder)
        unfinished = not (folder / layout.PART).exists()
        if unfinished or (fresh and (record is None or record.fingerprint != fingerprint)):
            remove_folder(index, layout.part_name(number))
        else:
            _remove_temporary(index, layout.part_name(number))


def sweep_after(index: Path) -> str:
    """Remove parts, transforms and segments that no manifest names; files we did not make are left alone.

    The index is published by now, so what cannot be removed is no failure: it is said in the note returned.
    """
    try:
        named = {name for number in list_generations(index) for name in load_generation(index, number).files}
        for number in layout.part_numbers(index):
            name = layout.part_name(number)
            if f"{name}/{layout.PART}" not in named:
                remove_folder(index, name)
        for name in _ours(index):
            if name not in named:
                remove_file(index, name)
        for name in _states(index):
            if f"{name}/{layout.STATE}" not in named:
                remove_folder(index, name)
    except StoreError as error:
        return f"leftovers of earlier builds stay: {error}"
    return ""


def _ours(index: Path) -> list[str]:
    """Transforms, segments and lists of deleted documents, by their names."""
    patterns = {
        layout.TRANSFORMS: layout.TRANSFORM_NAME,
        layout.SEGMENTS: layout.SEGMENT_NAME,
        layout.DELETED: layout.DELETED_NAME,
    }
    return [
        f"{folder}/{path.name}"
        for folder, pattern in patterns.items()
        for path in sorted((index / folder).glob("*"))
        if pattern.fullmatch(path.name)
    ]


def _states(index: Path) -> list[str]:
    """Folders of fitted encoder state, by their names."""
    folders = sorted((index / layout.ENCODER).glob("*"))
    return [f"{layout.ENCODER}/{path.name}" for path in folders if layout.STATE_NAME.fullmatch(path.name)]


def _remove_temporary(index: Path, folder: str) -> None:
    for path in sorted((index / folder).glob(f"*{layout.TEMPORARY}")):
        remove_file(index, f"{folder}/{path.name}")
