"""The writer's side of a store: files are created in the index's folder, sent to object storage, and published.

Several machines may write to one index in object storage. Each numbers its new files differently, so that no file is
overwritten, and the first machine to create the next manifest publishes. The lock of the mirror folder separates
writers on one machine.

Any machine may encode parts whose documents were sent, and send the rest of their files. Each file of a part is created
once, by the first machine, and never overwritten. Machines with the same processors make the same bytes; if the last
bits differ, the second machine adopts the existing files. So the files of a part are consistent, and a late machine
changes nothing that was read or published. Part numbers are never reused.
"""

import json
import random
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
from indexer.errors import StoreError, spelled
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
_TRIES = 5  # to send a file that other processes remove and create again
_THREADS, _WAITING = 2, 4  # threads that send parts, and parts that may wait
_SHARING = 8  # threads that send documents
_WRITERS = 10**7  # numbers of writers
_NUMBERS = "writer"  # file next to a mirror folder: the writer numbers of this machine
PARTS_OF_WRITER = 10**6  # part numbers of one writer
_ABANDONED = timedelta(days=7)  # age after which a file that no manifest names has lost its writer
_SWEPT = {layout.PARTS, layout.TRANSFORMS, layout.SEGMENTS, layout.DELETED, layout.ENCODER}


class LocalSender:
    """The sender of an index on a disk, with the interface of `ObjectSender`: its files are in place, so there is
    little to do. Only for the holder of the index's lock."""

    first_part = 0

    def __init__(self, store: LocalStore) -> None:
        self._folder = store.folder

    def _nothing(self, *_: object) -> None:
        """Do nothing."""

    send_part = withdraw = share = send_all = sweep = close = _nothing

    def file_number(self, generation: int) -> int:
        return generation

    def generation_of(self, file_number: int) -> int:
        return file_number

    def wait(self) -> Mapping[str, PartRecord]:
        return {}

    def list_pending(self, data: bytes) -> None:
        atomic_write_bytes(self._folder / layout.PENDING, data)

    def end_pending(self, named: Collection[str] | None = None) -> None:
        if (self._folder / layout.PENDING).exists():
            remove_file(self._folder, layout.PENDING)


class ObjectSender:
    """The sender of an index in object storage.

    Only for the holder of the index's lock; a process with a shared lock sends only parts. Raises StoreError, also for
    an earlier part that could not be sent.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._writers = _writers(store)  # the current number last
        self._abandoned: set[str] = set()  # parts that are no longer pending
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="send")
        self._sending: deque[tuple[str, Future[PartRecord]]] = deque()
        self._sent: dict[str, PartRecord] = {}
        store.bucket.require_create()
        store.fetch_states()

    @property
    def first_part(self) -> int:
        return self._writers[-1] * PARTS_OF_WRITER

    def file_number(self, generation: int) -> int:
        """Return the number in the names of new files of a generation."""
        return generation * _WRITERS + self._writers[-1]

    def generation_of(self, file_number: int) -> int:
        """Return the generation for which a file was made, by its number."""
        return file_number // _WRITERS

    def send_part(self, name: str, record: PartRecord) -> None:
        """Send a complete part in a thread, unless the process that made it has sent it."""
        while self._sending and (self._sending[0][1].done() or len(self._sending) >= _WAITING):
            self._collect()
        self._sending.append((name, self._threads.submit(send_part, self._store, name, record)))

    def wait(self) -> Mapping[str, PartRecord]:
        """Wait until every part is sent and its files have moved; return the records."""
        while self._sending:
            self._collect()
        return self._sent

    def _collect(self) -> None:
        name, sent = self._sending.popleft()
        self._sent[name] = sent.result()

    def withdraw(self, name: str) -> None:
        """Remove a sent part that will be encoded again, except its documents; the record goes first."""
        bucket, mark = self._store.bucket, f"{name}/{layout.PART}"
        if bucket.head(mark) is not None:
            bucket.remove([mark])
            bucket.remove(sorted(bucket.list(name).keys() - {f"{name}/{layout.DOCUMENTS}"}))
            self._store.forget(name)

    def share(self, documents: Mapping[str, FileDigest], state: Mapping[str, FileDigest]) -> None:
        """Send the documents of some parts, and the files of the encoder's fitted state."""
        for _ in ordered_map(lambda name: _send(self._store, {name: documents[name]}), documents, _SHARING):
            pass
        _send(self._store, state)
        _add_writer(self._store, self._writers)  # for files of this machine's next runs

    def list_pending(self, data: bytes) -> None:
        """Write `pending.json` where everyone sees it."""
        place = self._store.folder.parent  # not the folder, where an old list would be found
        atomic_write_bytes(place / layout.PENDING, data)
        self._store.bucket.write(layout.PENDING, place / layout.PENDING)
        remove_file(place, layout.PENDING)

    def end_pending(self, named: Collection[str] | None = None) -> None:
        """Remove `pending.json` and the sent files of its incomplete parts. Complete parts are kept until a publication
        that does not name them. With `named`, only those parts are kept."""
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
        """Send the files of a manifest that the store lacks, then compare all sizes. Raises LockedError if that
        generation exists."""
        self.wait()
        self._store.require_unpublished(generation)
        _send(self._store, {name: digest for name, digest in files.items() if not self._store.knows(name, digest)})
        self._store.check_sizes(files)

    def close(self) -> None:
        """Stop sending."""
        self._threads.shutdown(cancel_futures=True)

    def sweep(self, unnamed: Callable[[Collection[str]], Collection[str]], forgotten: Collection[str]) -> None:
        """Remove files that no manifest names: those of this writer, of `forgotten` manifests, of parts that are no
        longer pending, and those a week old. `unnamed` returns the files that no manifest names."""
        before = datetime.now(UTC) - _ABANDONED
        gone = unnamed(
            [
                name
                for name, entry in self._store.bucket.list().items()
                if (name.partition("/")[0] in _SWEPT or name.startswith(PROBE))
                and (name in forgotten or entry.modified < before or self._is_unused(name))
            ]
        )
        records = [name for name in gone if name.endswith(".json")]
        self._store.bucket.remove(records)  # first, so that no incomplete part has a record
        self._store.bucket.remove(sorted(set(gone) - set(records)))

    def _is_unused(self, name: str) -> bool:
        """Whether a file without a manifest was numbered by this writer, or is of a part that is no longer pending."""
        if name.rpartition("/")[0] in self._abandoned:
            return True
        folder, number = name.partition("/")[0], layout.file_number(name)
        if folder == layout.ENCODER or number is None:
            return False
        return (number // PARTS_OF_WRITER if folder == layout.PARTS else number % _WRITERS) in self._writers


Sender = LocalSender | ObjectSender


def open_sender(index: Path) -> Sender:
    """Return the sender of an index. Raises StoreError."""
    store = store_at(index)
    return ObjectSender(store) if isinstance(store, ObjectStore) else LocalSender(store)


def send_written(index: Path, name: str, record: PartRecord) -> PartRecord:
    """Send a part from the machine that made it, which need not publish it; return its record."""
    store = store_at(index)
    return send_part(store, name, record) if isinstance(store, ObjectStore) else record


def _writers(store: ObjectStore) -> list[int]:
    """Return the numbers drawn by this machine's writer of an index, the newest last."""
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
    """Return the parts in a `pending.json`; none if it is damaged."""
    try:
        return {part["name"] for part in json.loads(data)["parts"]}
    except (ValueError, KeyError, TypeError):
        return set()


def _send(store: ObjectStore, digests: Mapping[str, FileDigest]) -> None:
    """Send files from the mirror folder and move them to the cache. Records of complete files come last. A file that
    disappears meanwhile was sent by another process that makes the same part."""
    here = {name: digest for name, digest in digests.items() if (store.folder / name).is_file()}
    for name in sorted(here, key=lambda name: (name.endswith(".json"), name)):
        path = store.folder / name
        while_there(path, partial(store.bucket.write, name, path))
    store.know(here)
    for name, digest in here.items():
        if not name.startswith(layout.ENCODER):  # libraries read encoder files in the folder
            blob_cache().take(store.folder / name, digest.sha256)


def send_part(store: ObjectStore, name: str, record: PartRecord) -> PartRecord:
    """Send a complete part from a mirror folder, unless another machine has; return the record in the store. Raises
    StoreError."""
    mark = f"{name}/{layout.PART}"
    if not (store.folder / mark).is_file():  # sent by the process that made it
        store.know({f"{name}/{file}": digest for file, digest in record.files.items()})
        return record
    stored = _stored_record(store, name)
    local = record if stored is not None else _create_part(store, name, record)
    stored = stored or local
    remove_file(store.folder, mark, missing_ok=True)  # first: files without a record are ignored
    for file, digest in stored.files.items():
        store.know({f"{name}/{file}": digest})
        if local.files[file] == digest:
            blob_cache().take(store.folder / name / file, digest.sha256)
        else:
            remove_file(store.folder, f"{name}/{file}", missing_ok=True)
    return stored


def _stored_record(store: ObjectStore, name: str) -> PartRecord | None:
    """Return the record of a part in the store if every file has its size there, else None."""
    try:
        record = parse_record(store.bucket.read(f"{name}/{layout.PART}"))
    except (FileNotFoundError, ValueError):
        return None
    sizes = store.sent_sizes(name)
    intact = all(sizes.get(f"{name}/{file}") == digest.bytes for file, digest in record.files.items())
    return record if intact else None


def _create_part(store: ObjectStore, name: str, record: PartRecord) -> PartRecord:
    """Create every file of a part in the store, the record last; return the record of the files in the store. If
    another machine created a file first, its bytes are adopted. Embeddings come before their moments, so the files are
    consistent in any order of machines and after any interruption."""
    folder, files = store.folder / name, dict(record.files)
    for file in sorted(files):
        create = partial(_created, store, f"{name}/{file}", files[file])
        created = while_there(folder / file, create) if (folder / file).is_file() else None
        if created is None:  # already sent
            continue
        files[file] = created
        if file == layout.EMBEDDINGS and created != record.files[file]:
            files[layout.MOMENTS] = write_moments(folder, Moments.of(_adopted_embeddings(folder / file, record)))
    stored = replace(record, files=files)
    if not store.bucket.create(f"{name}/{layout.PART}", stored.to_json()):
        raise StoreError(
            f"{store.url}/{name}: the store contains the record of another part, or files of this part are missing. "
            + spelled(
                "Fix: run the function again; with build_index, add RunOptions(overwrite=True) if that does not help.",
                "Fix: run the command again; with isotrope build, add --overwrite if that does not help.",
            )
        )
    return stored


def while_there(path: Path, send: Callable[[], Result]) -> Result | None:
    """Return the result of `send`; None if another process of this machine has sent the file, which is then gone. A
    third process may create the file again at that moment, so `send` is tried a few times."""
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
    """Create a file in the store, or adopt the existing one; return its digest."""
    path = store.folder / name
    return digest if store.bucket.create_from(name, path) else atomic_write_bytes(path, store.bucket.read(name))


def _adopted_embeddings(path: Path, record: PartRecord) -> Embeddings:
    """Return another machine's embeddings of a part. Raises StoreError for other contents."""
    try:
        embeddings: Embeddings = np.load(path, allow_pickle=False)
        if embeddings.shape != (record.rows, record.dim):
            raise ValueError(f"they are {embeddings.shape}, expected {(record.rows, record.dim)}")
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path}: the embeddings sent by another machine do not fit this part ({error}). "
            f"Fix: run {spelled('build_index', 'isotrope build')}, which encodes the part under another name."
        ) from error
    return embeddings
