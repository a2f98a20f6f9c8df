"""Parts sent by several machines whose processors differ in the last bits: the store has one machine's, never both."""

import json
import threading
from pathlib import Path

import pytest

from indexer.errors import CorruptIndexError, StoreError
from indexer.store import layout
from indexer.store.files import FileDigest, make_folder
from indexer.store.integrity import check_file
from indexer.store.mirror import Mirror
from indexer.store.object_store import open_store
from indexer.store.sending import _send_part
from tests.indexer.store.test_mirror import digest_of
from tests.object_storage import Request, Storage

PART = "parts/00000"
FILES = (layout.DOCUMENTS, layout.EMBEDDINGS, layout.MOMENTS, layout.WINDOWS)


class Machine:
    """One that has written a part into its mirror folder."""

    def __init__(self, folder: Path, url: str, bits: str) -> None:
        self.mirror = Mirror(folder, url)
        contents = {name: f"{name} of {bits}" for name in FILES} | {layout.DOCUMENTS: "documents are everywhere alike"}
        self.files = {name: digest_of(content.encode()) for name, content in contents.items()}
        record = {"files": {name: digest.to_dict() for name, digest in self.files.items()}}
        make_folder(folder / PART)
        for name, content in (contents | {layout.PART: json.dumps(record)}).items():
            (folder / PART / name).write_text(content)

    def send(self) -> bool:
        return _send_part(self.mirror, PART, self.files)

    def left(self) -> set[str]:
        """The files of the part that lie in the mirror folder."""
        return {path.name for path in (self.mirror.folder / PART).iterdir()}


@pytest.fixture
def url(storage: Storage) -> str:
    return f"{storage.bucket()}/index"


def machine(tmp_path: Path, url: str, name: str, bits: str) -> Machine:
    return Machine(tmp_path / name, url, bits)


def stored(url: str) -> dict[str, FileDigest]:
    """The files of the part, by its record. Fails unless the store holds each as it is named."""
    store = open_store(url)
    files = {
        name: FileDigest(**plain) for name, plain in json.loads(store.read(f"{PART}/{layout.PART}"))["files"].items()
    }
    assert {name: digest_of(store.read(f"{PART}/{name}")) for name in files} == files
    return files


def test_a_part_that_is_there_is_not_sent_again(tmp_path: Path, url: str, storage: Storage) -> None:
    one, other = machine(tmp_path, url, "one", "bits"), machine(tmp_path, url, "other", "bits")
    assert one.send()
    storage.requests.clear()
    assert other.send()
    assert [request.method for request in storage.requests] == ["GET"]
    assert one.left() == other.left() == set()


def test_who_comes_later_with_other_bits_takes_those_that_are_there(tmp_path: Path, url: str) -> None:
    one, other = machine(tmp_path, url, "one", "bits"), machine(tmp_path, url, "other", "other bits")
    assert one.send()
    assert not other.send()
    assert stored(url) == one.files
    assert other.left() == {layout.DOCUMENTS}  # which are alike
    with pytest.raises(CorruptIndexError):
        check_file(other.mirror.folder / PART / layout.EMBEDDINGS, other.files[layout.EMBEDDINGS])


@pytest.mark.parametrize("bits", ["bits", "other bits"])
@pytest.mark.parametrize("moment", [*FILES, layout.PART])
def test_another_machine_that_comes_in_between_leaves_a_whole_part(
    moment: str, bits: str, tmp_path: Path, url: str, storage: Storage
) -> None:
    one, other = machine(tmp_path, url, "one", "bits"), machine(tmp_path, url, "other", bits)

    def intrude(request: Request) -> None:
        if request.method == "PUT" and request.path.partition("?")[0].endswith(moment):
            storage.fault = lambda _: None
            assert other.send()

    storage.fault = intrude
    assert one.send() == (bits == "bits" or moment != layout.PART)
    files = stored(url)
    assert files in (one.files, other.files)
    assert open_store(url).read(f"{PART}/{layout.DOCUMENTS}") == b"documents are everywhere alike"


def test_machines_that_never_stop_are_an_error(tmp_path: Path, url: str, storage: Storage) -> None:
    one, number = machine(tmp_path, url, "one", "bits"), [0]

    def intrude(request: Request) -> None:
        if request.method == "PUT" and request.path.endswith(layout.PART):
            storage.fault = lambda _: None
            number[0] += 1
            open_store(url).put(f"{PART}/{layout.PART}", json.dumps({"files": _foreign(number[0])}).encode())
            storage.fault = intrude

    storage.fault = intrude
    with pytest.raises(StoreError, match=f"^{url}/{PART}: other machines write this part at the same time"):
        one.send()


def _foreign(number: int) -> dict[str, dict[str, object]]:
    return {name: digest_of(f"{name} {number}".encode()).to_dict() for name in FILES}


def test_machines_that_race(tmp_path: Path, url: str) -> None:
    machines = [machine(tmp_path, url, f"machine{number}", f"bits {number % 2}") for number in range(4)]
    racing = [threading.Thread(target=one.send) for one in machines]
    for one in racing:
        one.start()
    for one in racing:
        one.join()
    assert stored(url) in [one.files for one in machines]
