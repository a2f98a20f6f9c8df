"""An index in object storage as its writer sees it: files are made in the mirror folder, sent, and published.

Several machines may write to one index. Each gives its new files numbers of its own, so that nobody's are overwritten,
and who creates the next manifest first has published. The mirror folder's lock keeps apart those of one machine.
"""

import random
import re
from collections import deque
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

from indexer.blob_cache import blob_cache
from indexer.errors import LockedError
from indexer.store import layout
from indexer.store.files import FileDigest, atomic_write_bytes, digest_file, make_folder
from indexer.store.mirror import Mirror, mirror_of
from indexer.store.object_store import PROBE

_THREADS, _WAITING = 2, 4  # that send parts, and parts that may wait to be sent
_WRITERS = 10**7  # numbers that tell writers apart
_PARTS = 10**6  # that one writer may number
_ABANDONED = timedelta(days=7)  # what no manifest names by then is of nobody who is still at work
_SWEPT = {layout.PARTS, layout.TRANSFORMS, layout.SEGMENTS, layout.DELETED, layout.ENCODER}


class Sender:
    """Sends what the writer of an index makes; of an index on a disk there is nothing to send.

    Only for who holds the lock of the index. Raises StoreError, also for an earlier part that could not be sent.
    """

    def __init__(self, index: Path) -> None:
        found = mirror_of(index)
        self._mirror: Mirror | None = found[0] if found else None
        self._writer = 0 if self._mirror is None else _writer(self._mirror)
        self._threads: ThreadPoolExecutor | None = None
        self._sending: deque[Future[None]] = deque()
        if self._mirror is not None:
            self._mirror.store.require_create()
            _fetch_states(self._mirror)

    @property
    def first_part(self) -> int:
        """The lowest number that a new part may have."""
        return self._writer * _PARTS

    def file_number(self, generation: int) -> int:
        """What new files of a generation are numbered by."""
        return generation * _WRITERS + self._writer if self._mirror is not None else generation

    def send_part(self, name: str, files: Mapping[str, FileDigest]) -> None:
        """Send a complete part, while the next is being made. `files` are those beside its record."""
        if self._mirror is None:
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="send")
        while self._sending and (self._sending[0].done() or len(self._sending) >= _WAITING):
            self._sending.popleft().result()
        digests = {f"{name}/{file}": digest for file, digest in files.items()}
        record = f"{name}/{layout.PART}"
        digests[record] = digest_file(self._mirror.folder / record)
        self._sending.append(self._threads.submit(_send, self._mirror, digests))

    def wait(self) -> None:
        """Until every part is sent; from then on none of their files moves."""
        while self._sending:
            self._sending.popleft().result()

    def send_all(self, files: Mapping[str, FileDigest], generation: int) -> None:
        """Send what a manifest names and the store has not got; then see that it has all of it.

        Raises LockedError where that generation is there already.
        """
        if (mirror := self._mirror) is None:
            return
        self.wait()
        if mirror.store.head(layout.manifest_name(generation)) is not None:
            raise _lost(mirror, generation)
        _send(mirror, {name: digest for name, digest in files.items() if not mirror.knows(name, digest)})
        mirror.check_sizes(files)

    def close(self) -> None:
        """End what is being sent; what waits is not begun."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def sweep(self, named: Collection[str], forgotten: Collection[str]) -> None:
        """Remove from the store what no manifest names: of this writer, of `forgotten` manifests, or a week old."""
        if self._mirror is None:
            return
        before = datetime.now(UTC) - _ABANDONED
        gone = [
            name
            for name, entry in self._mirror.store.list().items()
            if name not in named
            and (name.partition("/")[0] in _SWEPT or name.startswith(PROBE))
            and (name in forgotten or entry.modified < before or self._is_own(name))
        ]
        marks = [name for name in gone if name.endswith(".json")]
        self._mirror.store.remove(marks)  # first, so that nobody takes for complete what is going
        self._mirror.store.remove(sorted(set(gone) - set(marks)))

    def _is_own(self, name: str) -> bool:
        """Whether a file was numbered by this writer."""
        folder, _, rest = name.partition("/")
        number = re.split(r"[-./]", rest)[0]
        if folder == layout.ENCODER or not number.isdecimal():
            return False
        return self._writer == (int(number) // _PARTS if folder == layout.PARTS else int(number) % _WRITERS)


def create_manifest(mirror: Mirror, generation: int, data: bytes) -> None:
    """Publish. Raises LockedError where another writer has published that generation first."""
    if not mirror.store.create(layout.manifest_name(generation), data):
        raise _lost(mirror, generation)


def _lost(mirror: Mirror, generation: int) -> LockedError:
    return LockedError(
        f"{mirror.url}: another writer has published generation {generation} meanwhile. Nothing of it was touched, and "
        "nothing of this run was published. Run the same command again to go on from that generation; parts that were "
        "encoded are kept."
    )


def _writer(mirror: Mirror) -> int:
    """The number of this machine's writer of an index, drawn once."""
    place = mirror.folder.parent / "writer"
    try:
        return int(place.read_text(encoding="ascii"))
    except (OSError, ValueError):
        number = random.SystemRandom().randrange(_WRITERS // 10, _WRITERS)
        atomic_write_bytes(place, str(number).encode())
        return number


def _send(mirror: Mirror, digests: Mapping[str, FileDigest]) -> None:
    """Send those that lie in the mirror folder; they are blobs from then on. What says that others are complete comes
    last."""
    here = {name: digest for name, digest in digests.items() if (mirror.folder / name).is_file()}
    for name in sorted(here, key=lambda name: (name.endswith(".json"), name)):
        mirror.store.write(name, mirror.folder / name)
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
