"""The writer's side of a store: files are made in the index's folder, sent to object storage, and published.

Several machines may write to one index in object storage. Each gives its new files numbers of its own, so that no file
is overwritten, and the first to create the next manifest has published. The mirror folder's lock keeps apart the
writers of one machine.

Parts whose documents were sent may be encoded by any machine, which sends the rest of their files. Every file of a part
is created once, by the first machine, and never written over. Machines with the same processors make the same bytes;
where they differ in the last bits, the second machine takes the files that exist. So the files of a part go together,
and a late machine changes nothing that another has read or published. The number of a part is never given to another.
"""

import json
import random
import re
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from indexer.arrays import Embeddings
from indexer.errors import StoreError
from indexer.moments import Moments
from indexer.store import layout
from indexer.store.bucket import PROBE
from indexer.store.files import FileDigest, atomic_write_bytes, remove_file
from indexer.store.local_store import LocalStore
from indexer.store.object_store import ObjectStore
from indexer.store.parts import PartRecord, parse_record, write_moments
from indexer.store.stores import store_at
from indexer.system.blob_cache import blob_cache
from indexer.system.threads import ordered_map

Result = TypeVar("Result")
_TRIES = 5  # to send a file that others take away and make again
_THREADS, _WAITING = 2, 4  # that send parts, and parts that may wait to be sent
_SHARING = 8  # threads that send documents
_WRITERS = 10**7  # numbers that tell writers apart
_NUMBERS = "writer"  # file beside a mirror folder: those of this machine
PARTS_OF_WRITER = 10**6  # that one writer may number
_ABANDONED = timedelta(days=7)  # a file that no manifest names after this time has no writer any more
_SWEPT = {layout.PARTS, layout.TRANSFORMS, layout.SEGMENTS, layout.DELETED, layout.ENCODER}


class LocalSender:
    """The sender of an index on a disk: its files are in their place. Only for the holder of the index's lock."""

    first_part = 0

    def __init__(self, store: LocalStore) -> None:
        self._folder = store.folder

    def file_number(self, generation: int) -> int:
        """Return the number in the names of new files of a generation."""
        return generation

    def generation_of(self, file_number: int) -> int:
        """Return the generation that a file was made for, by its number."""
        return file_number

    def send_part(self, name: str, record: PartRecord) -> None:
        """Send a complete part."""

    def wait(self) -> Mapping[str, PartRecord]:
        """Wait until every part is sent; return the records that may have changed."""
        return {}

    def withdraw(self, name: str) -> None:
        """Take back a part that was sent and is to be encoded again."""

    def share(self, documents: Mapping[str, FileDigest], state: Mapping[str, FileDigest]) -> None:
        """Send the files that other machines need to encode some parts."""

    def list_pending(self, data: bytes) -> None:
        """Write `pending.json` where every machine sees it."""
        atomic_write_bytes(self._folder / layout.PENDING, data)

    def end_pending(self, named: Collection[str] | None = None) -> None:
        """Remove `pending.json`, and files that were sent of parts in it."""
        if (self._folder / layout.PENDING).exists():
            remove_file(self._folder, layout.PENDING)

    def send_all(self, files: Mapping[str, FileDigest], generation: int) -> None:
        """Send the files that a manifest names."""

    def sweep(self, unnamed: Callable[[Collection[str]], Collection[str]], forgotten: Collection[str]) -> None:
        """Remove files from the store that no manifest names."""

    def close(self) -> None:
        """End the sending."""


class ObjectSender:
    """The sender of an index in object storage, with the interface of `LocalSender`.

    Only for the holder of the index's lock; a process that shares the lock sends parts alone. Raises StoreError, also
    for an earlier part that could not be sent.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._writers = _writers(store)  # this writer's number is the last
        self._abandoned: set[str] = set()  # parts that were to be encoded, and are no longer
        self._threads: ThreadPoolExecutor | None = None
        self._sending: deque[tuple[str, Future[PartRecord]]] = deque()
        self._sent: dict[str, PartRecord] = {}
        store.bucket.require_create()
        store.fetch_states()

    @property
    def first_part(self) -> int:
        return self._writers[-1] * PARTS_OF_WRITER

    def file_number(self, generation: int) -> int:
        return generation * _WRITERS + self._writers[-1]

    def generation_of(self, file_number: int) -> int:
        return file_number // _WRITERS

    def send_part(self, name: str, record: PartRecord) -> None:
        """Send a complete part in a thread, unless the process that made it has sent it."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="send")
        while self._sending and (self._sending[0][1].done() or len(self._sending) >= _WAITING):
            self._settle()
        self._sending.append((name, self._threads.submit(send_part, self._store, name, record)))

    def wait(self) -> Mapping[str, PartRecord]:
        """Wait until every part is sent; from then on none of their files moves. Return their records."""
        while self._sending:
            self._settle()
        return self._sent

    def _settle(self) -> None:
        name, sent = self._sending.popleft()
        self._sent[name] = sent.result()

    def withdraw(self, name: str) -> None:
        """Remove a sent part that is to be encoded again, except its documents; the record goes first."""
        bucket, mark = self._store.bucket, f"{name}/{layout.PART}"
        if bucket.head(mark) is not None:
            bucket.remove([mark])
            bucket.remove(sorted(bucket.list(name).keys() - {f"{name}/{layout.DOCUMENTS}"}))
            self._store.forget(name)

    def share(self, documents: Mapping[str, FileDigest], state: Mapping[str, FileDigest]) -> None:
        """Send the documents of some parts, and the files of the encoder's fitted state."""

        def send(name: str) -> None:
            _send(self._store, {name: documents[name]})

        for _ in ordered_map(send, documents, _SHARING):
            pass
        _send(self._store, state)
        _add_writer(self._store, self._writers)  # what this machine makes from the next run on has other numbers

    def list_pending(self, data: bytes) -> None:
        """Write `pending.json` where everyone sees it."""
        place = self._store.folder.parent  # not in the folder: an earlier list must not be found there
        atomic_write_bytes(place / layout.PENDING, data)
        self._store.bucket.write(layout.PENDING, place / layout.PENDING)
        remove_file(place, layout.PENDING)

    def end_pending(self, named: Collection[str] | None = None) -> None:
        """Remove `pending.json`, and the sent files of incomplete parts in it.

        Complete parts are kept until a publication that does not name them. With `named`, only those parts are kept.
        """
        bucket = self._store.bucket
        try:
            listed = bucket.read(layout.PENDING)
        except FileNotFoundError:
            return
        bucket.remove([layout.PENDING])
        self._abandoned = _listed_parts(listed)
        gone = self._abandoned.difference(self._store.complete_parts() if named is None else named)
        files = [name for name in bucket.list(layout.PARTS) if name.rpartition("/")[0] in gone]
        bucket.remove([name for name in files if name.endswith(f"/{layout.PART}")])  # see `sweep`
        bucket.remove(files)

    def send_all(self, files: Mapping[str, FileDigest], generation: int) -> None:
        """Send the files of a manifest that the store lacks, then compare all sizes.

        Raises LockedError if that generation exists already.
        """
        self.wait()
        self._store.require_unpublished(generation)
        _send(self._store, {name: digest for name, digest in files.items() if not self._store.knows(name, digest)})
        self._store.check_sizes(files)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def sweep(self, unnamed: Callable[[Collection[str]], Collection[str]], forgotten: Collection[str]) -> None:
        """Remove files that no manifest names from the store: those of this writer, of `forgotten` manifests, of parts
        that are no longer pending, and those a week old. `unnamed` returns the files that no manifest names."""
        before = datetime.now(UTC) - _ABANDONED
        gone = unnamed(
            [
                name
                for name, entry in self._store.bucket.list().items()
                if (name.partition("/")[0] in _SWEPT or name.startswith(PROBE))
                and (name in forgotten or entry.modified < before or self._is_own(name) or self._is_abandoned(name))
            ]
        )
        marks = [name for name in gone if name.endswith(".json")]
        self._store.bucket.remove(marks)  # first, so that nobody takes for complete what is going
        self._store.bucket.remove(sorted(set(gone) - set(marks)))

    def _is_own(self, name: str) -> bool:
        """Whether a file was numbered by this writer."""
        folder, _, rest = name.partition("/")
        number = re.split(r"[-./]", rest)[0]
        if folder == layout.ENCODER or not number.isdecimal():
            return False
        return (int(number) // PARTS_OF_WRITER if folder == layout.PARTS else int(number) % _WRITERS) in self._writers

    def _is_abandoned(self, name: str) -> bool:
        return name.rpartition("/")[0] in self._abandoned


Sender = LocalSender | ObjectSender


def open_sender(index: Path) -> Sender:
    """Return the sender of an index. Raises StoreError."""
    store = store_at(index)
    return ObjectSender(store) if isinstance(store, ObjectStore) else LocalSender(store)


def send_written(index: Path, name: str, record: PartRecord) -> PartRecord:
    """Send a part from the machine where it was made, which need not be the one that publishes; return its record."""
    store = store_at(index)
    return send_part(store, name, record) if isinstance(store, ObjectStore) else record


def _writers(store: ObjectStore) -> list[int]:
    """Return the numbers that this machine's writer of an index has drawn, the newest last."""
    try:
        numbers = [int(number) for number in (store.folder.parent / _NUMBERS).read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        numbers = []
    return numbers or _add_writer(store, [])


def _add_writer(store: ObjectStore, numbers: Sequence[int]) -> list[int]:
    """Draw another number; return all of them."""
    more = [*numbers, random.SystemRandom().randrange(_WRITERS // 10, _WRITERS)]
    atomic_write_bytes(store.folder.parent / _NUMBERS, " ".join(map(str, more)).encode())
    return more


def _listed_parts(data: bytes) -> set[str]:
    """Return the parts that a `pending.json` names; none if it is damaged."""
    try:
        return {part["name"] for part in json.loads(data)["parts"]}
    except (ValueError, KeyError, TypeError):
        return set()


def _send(store: ObjectStore, digests: Mapping[str, FileDigest]) -> None:
    """Send the files that lie in the mirror folder; they are blobs from then on. Records of complete files come last.

    A file that disappears in the meantime was sent by another process, which makes the same part.
    """
    here = {name: digest for name, digest in digests.items() if (store.folder / name).is_file()}
    for name in sorted(here, key=lambda name: (name.endswith(".json"), name)):
        path = store.folder / name
        while_there(path, partial(store.bucket.write, name, path))
    store.know(here)
    for name, digest in here.items():
        if not name.startswith(layout.ENCODER):  # which libraries read where it is
            blob_cache().take(store.folder / name, digest.sha256)


def send_part(store: ObjectStore, name: str, record: PartRecord) -> PartRecord:
    """Send a complete part from a mirror folder, unless another machine has; return the record in the store.

    Raises StoreError.
    """
    mark = f"{name}/{layout.PART}"
    if not (store.folder / mark).is_file():  # the process that made it has sent it
        store.know({f"{name}/{file}": digest for file, digest in record.files.items()})
        return record
    stands = _standing(store, name)
    here = record if stands is not None else _create_part(store, name, record)
    stands = stands or here
    remove_file(store.folder, mark, missing_ok=True)  # first: files without it are nothing
    for file, digest in stands.files.items():
        store.know({f"{name}/{file}": digest})
        if here.files[file] == digest:
            blob_cache().take(store.folder / name / file, digest.sha256)
        else:
            remove_file(store.folder, f"{name}/{file}", missing_ok=True)
    return stands


def _standing(store: ObjectStore, name: str) -> PartRecord | None:
    """Return the record of a part in the store if every file is there with its size, else None."""
    try:
        record = parse_record(store.bucket.read(f"{name}/{layout.PART}"))
    except (FileNotFoundError, ValueError):
        return None
    sizes = {path: entry.bytes for path, entry in store.bucket.list(name).items()}
    return record if all(sizes.get(f"{name}/{file}") == one.bytes for file, one in record.files.items()) else None


def _create_part(store: ObjectStore, name: str, record: PartRecord) -> PartRecord:
    """Create every file of a part in the store, the record last; return the record of the files in the store.

    The bytes of another machine are taken for a file that it created first. Embeddings come before their moments, so
    the files go together in any order of machines and after any interruption.
    """
    folder, files = store.folder / name, dict(record.files)
    for file in sorted(files):
        create = partial(_created, store, f"{name}/{file}", files[file])
        created = while_there(folder / file, create) if (folder / file).is_file() else None
        if created is None:  # it was sent before, by this machine or another
            continue
        files[file] = created
        if file == layout.EMBEDDINGS and files[file] != record.files[file]:
            files[layout.MOMENTS] = write_moments(folder, Moments.of(_taken_embeddings(folder / file, record)))
    stands = replace(record, files=files)
    if not store.bucket.create(f"{name}/{layout.PART}", stands.to_json()):
        raise StoreError(
            f"{store.url}/{name}: the store holds the record of another part, or files of this one are lost. "
            "Run the command again; with isotrope build, add --overwrite if that does not help."
        )
    return stands


def while_there(path: Path, send: Callable[[], Result]) -> Result | None:
    """Return the result of `send`; None if the file is gone, because another process of this machine has sent it.

    A third process may make the file again at that moment, so `send` is tried a few times.
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


def _created(store: ObjectStore, name: str, digest: FileDigest) -> FileDigest:
    """Create a file in the store, or take the existing one in its place; return the digest of the file there."""
    path = store.folder / name
    return digest if store.bucket.create_from(name, path) else atomic_write_bytes(path, store.bucket.read(name))


def _taken_embeddings(path: Path, record: PartRecord) -> Embeddings:
    """Return another machine's embeddings of a part. Raises StoreError for other contents."""
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
