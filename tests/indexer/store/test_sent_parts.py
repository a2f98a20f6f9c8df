"""Parts sent by machines whose processors differ in the last bits: the files in the store are consistent."""

import contextlib
import json
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from indexer.errors import StoreError
from indexer.moments import Moments
from indexer.recipe.loading import named_path
from indexer.store import layout
from indexer.store.bucket import Bucket, open_bucket
from indexer.store.files import FileDigest, atomic_write_bytes, make_folder
from indexer.store.parts import PartDocuments, PartRecord, PartRows, is_intact, parse_record, read_record, write_part
from indexer.store.sending import ObjectSender, send_part
from tests.indexer.store.test_object_store import digest_of, object_store
from tests.object_storage import Fault, Request, Storage, first, use_cache

PART = "parts/00000"
EMBEDDINGS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
DATA = (layout.DOCUMENTS, layout.EMBEDDINGS, layout.MOMENTS, layout.WINDOWS)


class Machine:
    """A machine that has written a part. `bits` is the rounding difference of its processor, in all numbers."""

    def __init__(self, folder: Path, url: str, bits: int) -> None:
        use_cache(folder)
        self.index = named_path(url, "the index")
        self.store = object_store(self.index)
        self.write(bits)

    def write(self, bits: int) -> None:
        folder = self.index / PART
        make_folder(folder)
        digest = atomic_write_bytes(folder / layout.DOCUMENTS, b"documents are everywhere alike")
        rows = PartRows(np.zeros((40, 2), np.uint64), np.ones(40, np.int32), EMBEDDINGS * np.float32(1 + bits * 2**-20))
        self.record = write_part(folder, PartDocuments(40, 64 * "1", 64 * "2", {}, digest), rows, 64 * "3")

    def send(self) -> PartRecord:
        return send_part(self.store, PART, self.record)

    def left(self) -> list[str]:
        """The files of the part in the mirror folder."""
        return sorted(path.name for path in (self.index / PART).iterdir())


@pytest.fixture
def url(storage: Storage) -> str:
    return f"{storage.bucket()}/index"


@pytest.fixture
def one(tmp_path: Path, url: str) -> Machine:
    return Machine(tmp_path / "one", url, 0)


@pytest.fixture(params=[0, 1], ids=["same processor", "another processor"])
def other(tmp_path: Path, url: str, request: pytest.FixtureRequest) -> Machine:
    return Machine(tmp_path / "other", url, request.param)


def stored(url: str) -> PartRecord:
    """The record of the part. Fails unless the store has each file of the record, and the moments match."""
    store = open_bucket(url)
    record = parse_record(store.read(f"{PART}/{layout.PART}"))
    files = {name: store.read(f"{PART}/{name}") for name in DATA}
    assert {name: digest_of(data) for name, data in files.items()} == record.files
    embeddings = np.frombuffer(files[layout.EMBEDDINGS][-EMBEDDINGS.nbytes :], np.float32).reshape(EMBEDDINGS.shape)
    assert files[layout.MOMENTS] == Moments.of(embeddings).to_bytes()
    return record


def test_a_part_that_is_there_is_not_sent_again(one: Machine, other: Machine, url: str, storage: Storage) -> None:
    assert one.send() == one.record
    storage.requests.clear()
    assert other.send() == one.record == stored(url)
    assert [request.method for request in storage.requests[:2]] == ["GET", "GET"]  # the record, and a listing
    assert not any(request.method in ("PUT", "POST", "DELETE") for request in storage.requests)
    assert one.left() == other.left() == []


@pytest.mark.parametrize("moment", [*DATA, layout.PART])
def test_another_machine_that_comes_in_between_leaves_one_part(
    moment: str, one: Machine, other: Machine, url: str, storage: Storage
) -> None:
    theirs: list[PartRecord] = []

    def intrude(request: Request) -> None:
        if request.method == "PUT" and request.path.partition("?")[0].endswith(moment):
            storage.fault = lambda _: None
            theirs.append(other.send())

    storage.fault = intrude
    assert [one.send()] == theirs == [stored(url)]
    assert one.left() == other.left() == []


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
def test_another_process_of_the_machine_may_send_the_part_in_between(
    again: bool, one: Machine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, between = Bucket.create_from, list[str]()

    def other_first(store: Bucket, name: str, path: Path) -> bool:
        if not between:
            between.append(name)
            one.send()
            if again:  # a third process creates it just after the check for the file
                one.write(0)
                raise FileNotFoundError(path)
        return create(store, name, path)

    monkeypatch.setattr(Bucket, "create_from", other_first)
    assert one.send() == one.record == stored(url)
    assert between


@pytest.mark.parametrize("last", [*DATA, layout.PART])
def test_who_finishes_what_another_machine_left_takes_its_files(
    last: str, one: Machine, other: Machine, url: str, storage: Storage
) -> None:
    storage.fault = first(100, Fault(status=500), "PUT", last)
    with pytest.raises(StoreError, match="object storage did not answer"):
        one.send()
    storage.fault = lambda _: None
    assert other.send() == stored(url)
    assert one.send() == stored(url)


def test_nothing_that_is_published_is_written_over_by_who_is_late(
    one: Machine, other: Machine, url: str, storage: Storage
) -> None:
    """The late machine found no record, and then paused during a publication."""
    seen: list[dict[str, bytes]] = []

    def publish(request: Request) -> None:
        if request.method == "PUT" and request.path.endswith(layout.DOCUMENTS):
            storage.fault = lambda _: None
            one.send()
            seen.append({name: open_bucket(url).read(name) for name in open_bucket(url).list(PART)})

    storage.fault = publish
    other.send()
    assert seen == [{name: open_bucket(url).read(name) for name in open_bucket(url).list(PART)}]


def test_machines_that_race(tmp_path: Path, url: str) -> None:
    machines = [Machine(tmp_path / str(number), url, number % 3) for number in range(5)]
    found: list[PartRecord] = []
    racing = [threading.Thread(target=lambda one=one: found.append(one.send())) for one in machines]
    for thread in racing:
        thread.start()
    for thread in racing:
        thread.join()
    assert found == [stored(url)] * len(machines)


def test_tags_that_say_nothing_of_the_bytes(one: Machine, other: Machine, url: str, storage: Storage) -> None:
    storage.opaque = True
    assert one.send() == other.send() == stored(url)


def test_what_arrives_changed_is_sent_again(one: Machine, url: str, storage: Storage) -> None:
    for name in DATA:
        storage.fault = first(1, Fault(changed=True), "PUT", name)
    assert one.send() == stored(url)


def test_a_part_whose_file_was_lost_is_withdrawn_and_sent_again(one: Machine, other: Machine, url: str) -> None:
    one.send()
    open_bucket(url).remove([f"{PART}/{layout.EMBEDDINGS}"])
    assert not is_intact(other.index / PART, one.record)
    sender = ObjectSender(other.store)
    if other.record != one.record:
        with pytest.raises(StoreError, match=f"^{url}/{PART}: the store contains the record of another part, or files"):
            other.send()
        other.write(1)
    sender.withdraw(PART)
    assert set(open_bucket(url).list(PART)) == {f"{PART}/{layout.DOCUMENTS}"}
    sender.send_part(PART, other.record)
    assert sender.wait() == {PART: stored(url)} == {PART: other.record}


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff"])
def test_a_damaged_record_is_no_record(data: bytes, one: Machine, url: str) -> None:
    one.send()
    open_bucket(url).put(f"{PART}/{layout.PART}", data)
    one.store.forget(PART)
    assert read_record(one.index / PART) is None
    one.write(0)
    ObjectSender(one.store).withdraw(PART)
    assert one.send() == stored(url)


def test_a_record_that_waits_here_does_not_stand_for_the_one_in_the_store(one: Machine, other: Machine) -> None:
    one.send()
    assert read_record(other.index / PART) == one.record
    assert is_intact(other.index / PART, one.record)


def test_a_part_that_waits_to_be_sent_is_whole_by_what_is_here(one: Machine, url: str) -> None:
    assert is_intact(one.index / PART, one.record)
    store = open_bucket(url)
    store.put(f"{PART}/{layout.DOCUMENTS}", (one.index / PART / layout.DOCUMENTS).read_bytes())
    (one.index / PART / layout.DOCUMENTS).unlink()
    assert is_intact(one.index / PART, one.record)
    store.put(f"{PART}/{layout.EMBEDDINGS}", (one.index / PART / layout.EMBEDDINGS).read_bytes())
    (one.index / PART / layout.EMBEDDINGS).unlink()
    assert not is_intact(one.index / PART, one.record)  # of unknown writers


def test_embeddings_of_another_shape_are_refused(one: Machine, url: str) -> None:
    path = one.index / PART / layout.EMBEDDINGS
    kept = path.read_bytes()
    np.save(path, EMBEDDINGS[:3])
    open_bucket(url).put(f"{PART}/{layout.EMBEDDINGS}", path.read_bytes())
    path.write_bytes(kept)
    with pytest.raises(StoreError, match=r"they are \(3, 6\), expected \(40, 6\)"):
        one.send()


def test_a_file_too_large_for_one_step_is_refused(one: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indexer.store.bucket._MOST_CREATED", 100)
    with pytest.raises(StoreError, match=r"bytes, but object storage creates at most 100 .*store\.part_documents"):
        one.send()


def test_the_record_is_of_what_stands(one: Machine, other: Machine, url: str) -> None:
    one.send()
    found = other.send()
    assert replace(other.record, files=one.record.files) == found
    assert all(isinstance(digest, FileDigest) for digest in found.files.values())
    assert found == stored(url)


@pytest.mark.parametrize("verb", ["sweep", "withdraw", "end_pending"])
def test_a_stop_between_two_removals_leaves_no_part_that_looks_complete(
    verb: str, one: Machine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stops in the first removal, the second and so on; an interrupted removal leaves the record."""
    store, sender = open_bucket(url), ObjectSender(one.store)
    remove, mark = Bucket.remove, f"{PART}/{layout.PART}"
    verbs = {
        "sweep": lambda: sender.sweep(lambda names: names, [f"{PART}/{name}" for name in (*DATA, layout.PART)]),
        "withdraw": lambda: sender.withdraw(PART),
        "end_pending": lambda: sender.end_pending(()),
    }
    left = {f"{PART}/{layout.DOCUMENTS}"} if verb == "withdraw" else set()
    for stop in range(5):
        one.write(0)
        one.send()
        store.put(layout.PENDING, json.dumps({"parts": [{"name": PART}]}).encode())
        calls = iter(range(stop))

        def interrupted(self: Bucket, names: Collection[str], calls: Iterator[int] = calls) -> None:
            if next(calls, None) is None:
                remove(self, [name for name in names if name != mark])
                raise KeyboardInterrupt
            remove(self, names)

        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(Bucket, "remove", interrupted)
            verbs[verb]()
            break
        assert mark not in store.list() or store.list(PART).keys() >= {f"{PART}/{name}" for name in DATA}
    assert store.list(PART).keys() == left
    assert stop > 1
