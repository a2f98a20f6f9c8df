"""A part in object storage: every file of it is created once, by whoever is first, and never written over.

Machines with the same processors make the same bytes of a part. Where they differ in the last bits, who comes second
takes the files that are there. So the files go together, whoever sends them, in whatever order and however far it gets,
and a machine that is late changes nothing that another has read or published.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from indexer.arrays import Embeddings
from indexer.blob_cache import blob_cache
from indexer.errors import StoreError
from indexer.moments import Moments
from indexer.store import layout
from indexer.store.files import FileDigest, atomic_write_bytes, remove_file
from indexer.store.mirror import Mirror, mirror_of
from indexer.store.parts import PartRecord, parse_record, write_moments

Result = TypeVar("Result")
_TRIES = 5  # to send a file that others take away and make again


def send_written(index: Path, name: str, record: PartRecord) -> PartRecord:
    """Send a part from the machine where it was made, which need not be the one that publishes; its record as it
    stands."""
    found = mirror_of(index)
    return record if found is None else send_part(found[0], name, record)


def send_part(mirror: Mirror, name: str, record: PartRecord) -> PartRecord:
    """Send a complete part from a mirror folder, unless another machine has; its record as it stands then.

    Raises StoreError.
    """
    mark = f"{name}/{layout.PART}"
    if not (mirror.folder / mark).is_file():  # it was sent by who made it
        mirror.know({f"{name}/{file}": digest for file, digest in record.files.items()})
        return record
    stands = _standing(mirror, name)
    here = record if stands is not None else _create_part(mirror, name, record)
    stands = stands or here
    remove_file(mirror.folder, mark, missing_ok=True)  # first: files without it are nothing
    for file, digest in stands.files.items():
        mirror.know({f"{name}/{file}": digest})
        if here.files[file] == digest:
            blob_cache().take(mirror.folder / name / file, digest.sha256)
        else:
            remove_file(mirror.folder, f"{name}/{file}", missing_ok=True)
    return stands


def _standing(mirror: Mirror, name: str) -> PartRecord | None:
    """The record of a part in the store, if there is one and every file is there with its size."""
    try:
        record = parse_record(mirror.store.read(f"{name}/{layout.PART}"))
    except (FileNotFoundError, ValueError):
        return None
    sizes = {path: entry.bytes for path, entry in mirror.store.list(name).items()}
    return record if all(sizes.get(f"{name}/{file}") == one.bytes for file, one in record.files.items()) else None


def _create_part(mirror: Mirror, name: str, record: PartRecord) -> PartRecord:
    """Create every file of a part in the store, the record last; the record of what is there then.

    Where another machine was first with a file, its bytes are taken. So whoever sends, in whatever order and however
    far it gets, the files go together: embeddings come first, and the moments are theirs.
    """
    folder, files = mirror.folder / name, dict(record.files)
    for file in sorted(files):
        create = partial(_created, mirror, f"{name}/{file}", files[file])
        created = while_there(folder / file, create) if (folder / file).is_file() else None
        if created is None:  # it was sent before, by this machine or another
            continue
        files[file] = created
        if file == layout.EMBEDDINGS and files[file] != record.files[file]:
            files[layout.MOMENTS] = write_moments(folder, Moments.of(_taken_embeddings(folder / file, record)))
    stands = replace(record, files=files)
    if not mirror.store.create(f"{name}/{layout.PART}", stands.to_json()):
        raise StoreError(
            f"{mirror.url}/{name}: the store holds the record of another part, or files of this one are lost. "
            "Run the command again; with isotrope build, add --overwrite if that does not help."
        )
    return stands


def while_there(path: Path, send: Callable[[], Result]) -> Result | None:
    """What `send` returns; None where the file is gone, because another process of this machine has sent it.

    A third process may make the file again at that moment, so it is tried a few times.
    """
    for left in reversed(range(_TRIES)):
        try:
            return send()
        except FileNotFoundError:
            if not path.is_file():
                return None
            if not left:
                raise
    return None


def _created(mirror: Mirror, name: str, digest: FileDigest) -> FileDigest:
    """Create a file in the store, or take the one that is there in its place; the digest of what is there."""
    path = mirror.folder / name
    return digest if mirror.store.create_from(name, path) else atomic_write_bytes(path, mirror.store.read(name))


def _taken_embeddings(path: Path, record: PartRecord) -> Embeddings:
    """Another machine's embeddings of a part. Raises StoreError for what are none."""
    try:
        found: Embeddings = np.load(path, allow_pickle=False)
        if found.shape != (record.rows, record.dim):
            raise ValueError(f"they are {found.shape}, expected {(record.rows, record.dim)}")
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path}: another machine has sent these embeddings, and they are not the part's ({error}). "
            "Run isotrope build, which encodes it under another name."
        ) from error
    return found
