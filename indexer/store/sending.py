"""An index in object storage as its writer sees it: files are made in the mirror folder, sent, and published.

Several machines may write to one index. Each gives its new files numbers of its own, so that nobody's are overwritten,
and who creates the next manifest first has published. The mirror folder's lock keeps apart those of one machine.

Parts whose documents were sent may be encoded by any machine, which sends the rest of them (see `sent_parts`). A part's
number is then never given to another: who is late harms none.
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

from indexer.blob_cache import blob_cache
from indexer.parallel import ordered_map
from indexer.store import layout
from indexer.store.files import FileDigest, atomic_write_bytes, make_folder, remove_file
from indexer.store.mirror import Mirror, mirror_of
from indexer.store.object_store import PROBE
from indexer.store.parts import PartRecord
from indexer.store.sent_parts import send_part, while_there

_THREADS, _WAITING = 2, 4  # that send parts, and parts that may wait to be sent
_SHARING = 8  # threads that send documents
_WRITERS = 10**7  # numbers that tell writers apart
_NUMBERS = "writer"  # file beside a mirror folder: those of this machine
PARTS_OF_WRITER = 10**6  # that one writer may number
_ABANDONED = timedelta(days=7)  # what no manifest names by then is of nobody who is still at work
_SWEPT = {layout.PARTS, layout.TRANSFORMS, layout.SEGMENTS, layout.DELETED, layout.ENCODER}


class Sender:
    """Sends what the writer of an index makes; of an index on a disk there is nothing to send.

    Only for who holds the lock of the index; who shares it sends parts alone. Raises StoreError, also for an earlier
    part that could not be sent.
    """

    def __init__(self, index: Path) -> None:
        found = mirror_of(index)
        self._index = index
        self._mirror: Mirror | None = found[0] if found else None
        self._writers = [0] if self._mirror is None else _writers(self._mirror)  # it is the last
        self._abandoned: set[str] = set()  # parts that were to be encoded, and are no longer
        self._threads: ThreadPoolExecutor | None = None
        self._sending: deque[tuple[str, Future[PartRecord]]] = deque()
        self._sent: dict[str, PartRecord] = {}
        if self._mirror is not None:
            self._mirror.store.require_create()
            _fetch_states(self._mirror)

    @property
    def first_part(self) -> int:
        """The lowest number that a new part may have."""
        return self._writers[-1] * PARTS_OF_WRITER

    def file_number(self, generation: int) -> int:
        """What new files of a generation are numbered by."""
        return generation * _WRITERS + self._writers[-1] if self._mirror is not None else generation

    def generation_of(self, file_number: int) -> int:
        """The generation that a file was made for, by its number."""
        return file_number // _WRITERS if self._mirror is not None else file_number

    def send_part(self, name: str, record: PartRecord) -> None:
        """Send a complete part, while the next is being made, unless who made it did."""
        if self._mirror is None:
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="send")
        while self._sending and (self._sending[0][1].done() or len(self._sending) >= _WAITING):
            self._settle()
        self._sending.append((name, self._threads.submit(send_part, self._mirror, name, record)))

    def wait(self) -> Mapping[str, PartRecord]:
        """Until every part is sent; from then on none of their files moves. Their records, as they stand."""
        while self._sending:
            self._settle()
        return self._sent

    def _settle(self) -> None:
        name, sent = self._sending.popleft()
        self._sent[name] = sent.result()

    def withdraw(self, name: str) -> None:
        """Take back a part that was sent and is to be encoded again, but for its documents; the record goes first."""
        if self._mirror is None:
            return
        store, mark = self._mirror.store, f"{name}/{layout.PART}"
        if store.head(mark) is not None:
            store.remove([mark])
            store.remove(sorted(store.list(name).keys() - {f"{name}/{layout.DOCUMENTS}"}))
            self._mirror.forget(name)

    def share(self, documents: Mapping[str, FileDigest], state: Mapping[str, FileDigest]) -> None:
        """Send what others need to encode some parts: their documents, and files of the encoder's fitted state."""
        if (mirror := self._mirror) is None:
            return

        def send(name: str) -> None:
            _send(mirror, {name: documents[name]})

        for _ in ordered_map(send, documents, _SHARING):
            pass
        _send(mirror, state)
        _add_writer(mirror, self._writers)  # what this machine makes from the next run on has other numbers

    def list_pending(self, data: bytes) -> None:
        """Write `pending.json` where everyone sees it."""
        if self._mirror is None:
            atomic_write_bytes(self._index / layout.PENDING, data)
            return
        place = self._mirror.folder.parent  # not in the folder: an earlier list must not be found there
        atomic_write_bytes(place / layout.PENDING, data)
        self._mirror.store.write(layout.PENDING, place / layout.PENDING)
        remove_file(place, layout.PENDING)

    def end_pending(self, named: Collection[str] | None = None) -> None:
        """Remove `pending.json`, and what was sent of parts in it that are not complete. Complete ones are kept, until
        a publication that does not name them; with `named`, the parts that manifests name, those alone are kept."""
        if self._mirror is None:
            if (self._index / layout.PENDING).exists():
                remove_file(self._index, layout.PENDING)
            return
        store = self._mirror.store
        try:
            listed = store.read(layout.PENDING)
        except FileNotFoundError:
            return
        store.remove([layout.PENDING])
        self._abandoned = _listed_parts(listed)
        gone = self._abandoned.difference(self._mirror.complete_parts() if named is None else named)
        files = [name for name in store.list(layout.PARTS) if name.rpartition("/")[0] in gone]
        store.remove([name for name in files if name.endswith(f"/{layout.PART}")])  # see `sweep`
        store.remove(files)

    def send_all(self, files: Mapping[str, FileDigest], generation: int) -> None:
        """Send what a manifest names and the store has not got; then see that it has all of it.

        Raises LockedError where that generation is there already.
        """
        if (mirror := self._mirror) is None:
            return
        self.wait()
        mirror.require_unpublished(generation)
        _send(mirror, {name: digest for name, digest in files.items() if not mirror.knows(name, digest)})
        mirror.check_sizes(files)

    def close(self) -> None:
        """End what is being sent; what waits is not begun."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def sweep(self, unnamed: Callable[[Collection[str]], Collection[str]], forgotten: Collection[str]) -> None:
        """Remove files that no manifest names from the store: those of this writer, of `forgotten` manifests, of parts
        that are no longer pending, and those a week old. `unnamed` returns the files that no manifest names."""
        if self._mirror is None:
            return
        before = datetime.now(UTC) - _ABANDONED
        gone = unnamed(
            [
                name
                for name, entry in self._mirror.store.list().items()
                if (name.partition("/")[0] in _SWEPT or name.startswith(PROBE))
                and (name in forgotten or entry.modified < before or self._is_own(name) or self._is_abandoned(name))
            ]
        )
        marks = [name for name in gone if name.endswith(".json")]
        self._mirror.store.remove(marks)  # first, so that nobody takes for complete what is going
        self._mirror.store.remove(sorted(set(gone) - set(marks)))

    def _is_own(self, name: str) -> bool:
        """Whether a file was numbered by this writer."""
        folder, _, rest = name.partition("/")
        number = re.split(r"[-./]", rest)[0]
        if folder == layout.ENCODER or not number.isdecimal():
            return False
        return (int(number) // PARTS_OF_WRITER if folder == layout.PARTS else int(number) % _WRITERS) in self._writers

    def _is_abandoned(self, name: str) -> bool:
        return name.rpartition("/")[0] in self._abandoned


def fetch_states(index: Path) -> None:
    """Fitted states of encoders, as far as they were sent, into the mirror folder."""
    if (found := mirror_of(index)) is not None:
        _fetch_states(found[0])


def _writers(mirror: Mirror) -> list[int]:
    """The numbers that this machine's writer of an index has drawn, the newest last."""
    try:
        numbers = [int(number) for number in (mirror.folder.parent / _NUMBERS).read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        numbers = []
    return numbers or _add_writer(mirror, [])


def _add_writer(mirror: Mirror, numbers: Sequence[int]) -> list[int]:
    """Draw another."""
    more = [*numbers, random.SystemRandom().randrange(_WRITERS // 10, _WRITERS)]
    atomic_write_bytes(mirror.folder.parent / _NUMBERS, " ".join(map(str, more)).encode())
    return more


def _listed_parts(data: bytes) -> set[str]:
    """The parts that a `pending.json` names; none where it is damaged."""
    try:
        return {part["name"] for part in json.loads(data)["parts"]}
    except (ValueError, KeyError, TypeError):
        return set()


def _send(mirror: Mirror, digests: Mapping[str, FileDigest]) -> None:
    """Send those that lie in the mirror folder; they are blobs from then on. What says that others are complete comes
    last. A file that goes in the meantime was sent by another process, which makes the same part."""
    here = {name: digest for name, digest in digests.items() if (mirror.folder / name).is_file()}
    for name in sorted(here, key=lambda name: (name.endswith(".json"), name)):
        path = mirror.folder / name
        while_there(path, partial(mirror.store.write, name, path))
    mirror.know(here)
    for name, digest in here.items():
        if not name.startswith(layout.ENCODER):  # which libraries read where it is
            blob_cache().take(mirror.folder / name, digest.sha256)


def _fetch_states(mirror: Mirror) -> None:
    """Fitted states of encoders, an interrupted build's among them, are read by libraries from the mirror folder."""
    for name in mirror.store.list(layout.ENCODER):
        path = mirror.folder / name
        if re.match(layout.FILE_PATTERN, name) and not (path.is_file() and mirror.store.holds(name, path)):
            make_folder(path.parent)
            atomic_write_bytes(path, mirror.store.read(name))
