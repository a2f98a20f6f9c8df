"""Objects created once, stored and read while the server and the connection fail in various ways."""

import gc
import os
import re
import sys
import threading
import weakref
from pathlib import Path

import pytest

from indexer.errors import ConfigError, MachineError, StoreError
from indexer.store import bucket as bucket_module
from indexer.store.bucket import Bucket, ConditionError, open_bucket
from tests.object_storage import Fault, Storage, first


@pytest.fixture
def store(storage: Storage) -> Bucket:
    return Bucket(f"{storage.bucket()}/folder")


def test_what_was_stored_is_listed_and_read_back(store: Bucket) -> None:
    store.put("a/one", b"0123456789")
    store.put("two", b"x")
    assert {name: entry.bytes for name, entry in store.list().items()} == {"a/one": 10, "two": 1}
    assert list(store.list("a")) == ["a/one"]
    assert store.top() == {"a", "two"}
    assert store.read("a/one") == b"0123456789"
    assert store.read_range("a/one", 3, 7) == b"3456"
    assert store.read_range("a/one", 8, 100) == b"89"
    store.remove(["a/one", "never there"])
    assert store.head("a/one") is None
    with pytest.raises(FileNotFoundError, match=r"s3://test-.*/folder/a/one"):
        store.read("a/one")


def test_an_object_is_created_once(store: Bucket) -> None:
    assert store.create("manifest", b"ours")
    assert not store.create("manifest", b"theirs")
    assert store.read("manifest") == b"ours"
    assert set(store.list()) == {"manifest"}  # the test object is gone


def test_a_creation_whose_answer_was_lost_has_succeeded(store: Bucket, storage: Storage) -> None:
    storage.fault = first(1, Fault(lost=True), "PUT", "manifest")
    assert store.create("manifest", b"ours")
    assert store.read("manifest") == b"ours"


@pytest.mark.parametrize("status", [409, 500, 503])
def test_a_creation_is_asked_for_again(store: Bucket, storage: Storage, status: int) -> None:
    storage.fault = first(2, Fault(status=status), "PUT", "manifest")
    assert store.create("manifest", b"ours")


def test_a_store_that_overwrites_what_was_created_is_refused(store: Bucket, storage: Storage) -> None:
    storage.fault = lambda _: Fault(without="if-none-match")
    with pytest.raises(StoreError, match=r"ignores If-None-Match.* Nothing was written"):
        store.create("manifest", b"ours")
    assert store.list() == {}


@pytest.mark.parametrize("fault", [Fault(status=500), Fault(cut=True), Fault(lost=True)], ids=["500", "cut", "lost"])
def test_reading_is_tried_again(store: Bucket, storage: Storage, fault: Fault) -> None:
    data = os.urandom(100_000)
    store.put("one", data)
    storage.fault = first(3, fault, "GET", "one")
    assert store.read("one") == data
    storage.fault = first(3, fault, "GET", "one")
    assert store.read_range("one", 10, 90_000) == data[10:90_000]


def test_a_body_that_stands_still_is_asked_for_again(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module, "TIMEOUTS", {"read_timeout": "300ms"})
    store = Bucket(storage.bucket())
    store.put("one", b"x" * 100_000)
    go_on = threading.Event()
    storage.fault = first(1, Fault(wait=go_on), "GET", "one")
    assert store.read_range("one", 0, 100_000) == b"x" * 100_000  # while the first response is still waiting
    assert sum(request.method == "GET" for request in storage.requests) >= 2
    go_on.set()


def test_a_server_that_goes_on_failing_is_named(store: Bucket, storage: Storage) -> None:
    storage.fault = lambda _: Fault(status=500)
    with pytest.raises(
        StoreError, match=r"s3://test-.*/one: object storage did not answer .* in 6 attempts.* run the command"
    ):
        store.read("one")
    assert len(storage.requests) == bucket_module.ATTEMPTS


def test_what_asking_again_does_not_change_is_asked_once(store: Bucket, storage: Storage) -> None:
    storage.fault = lambda _: Fault(status=400)
    with pytest.raises(StoreError, match=r"object storage refuses the request .*400.*check the URL, .* AWS_ENDPOINT"):
        store.read("one")


def test_access_that_is_denied_and_buckets_that_are_not_there_are_named(store: Bucket, storage: Storage) -> None:
    storage.fault = lambda _: Fault(status=403)
    with pytest.raises(StoreError, match=r"access is denied .* AWS_ACCESS_KEY_ID"):
        store.read("one")
    storage.fault = lambda _: None
    absent = Bucket("s3://no-such-bucket/folder")
    for ask in (absent.list, lambda: absent.read("one"), lambda: absent.create("one", b"")):
        with pytest.raises(StoreError, match="s3://no-such-bucket/folder: there is no such bucket"):
            ask()
    with pytest.raises(ConfigError, match="not a URL that can be opened"):
        Bucket("s3:///")


@pytest.mark.parametrize("name", ["one#two", "one?two", "one?two#three"])
def test_every_character_of_a_url_counts(name: str, storage: Storage) -> None:
    bucket = storage.bucket()
    Bucket(f"{bucket}/{name}").put("a", b"1")
    Bucket(f"{bucket}/one").put("b", b"2")
    assert set(Bucket(bucket).list()) == {f"{name}/a", "one/b"}
    assert set(Bucket(f"{bucket}/{name}").list()) == {"a"}


@pytest.mark.parametrize(
    "value",
    ["127.0.0.1:5555", "localhost", "http://", "//host", "ftp://host", "http://host:port", "http://host:0",
     "http://[::1", " http://host", "http://host?x"],
)  # fmt: skip
def test_an_endpoint_that_is_no_url_of_a_server_is_named(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", value)
    with pytest.raises(ConfigError, match=rf"AWS_ENDPOINT_URL is {re.escape(repr(value))}; expected .* http://host"):
        Bucket("s3://bucket/folder")


def test_an_empty_variable_is_one_that_is_not_set(store: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_SKIP_SIGNATURE", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "")
    before = dict(os.environ)
    store.put("one", b"1")
    assert Bucket(store.url).read("one") == b"1"
    assert dict(os.environ) == before  # the environment is the host program's


@pytest.mark.parametrize(
    ("url", "variable", "asked"),
    [
        ("s3://bucket/folder", "AWS_SECRET_ACCESS_KEY", "PUT http://169.254.169.254/latest/api/token"),
        ("gs://bucket/folder", "GOOGLE_APPLICATION_CREDENTIALS", "GET http://169.254.169.254/computeMetadata/v1"),
        ("az://bucket/folder", "AZURE_STORAGE_ACCOUNT_KEY", "GET http://169.254.169.254/metadata/identity/oauth2"),
    ],
)
def test_where_there_are_no_credentials_the_variables_to_set_are_named(
    url: str, variable: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "name")
    error = Bucket(url)._final("one", OSError(f"Error performing {asked} - status code: 403 Forbidden"))
    assert re.fullmatch(rf"{url}: no credentials found .*{variable}.*SKIP_SIGNATURE.*", str(error))


def test_credentials_that_the_machine_does_not_give_are_missing(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", storage.endpoint)
    storage.fault = lambda _: Fault(status=403)
    with pytest.raises(StoreError, match="no credentials found"):
        Bucket("s3://bucket/folder").read("one")


def test_half_of_the_credentials_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"s3://bucket/folder: .*Missing SecretAccessKey.*set AWS_ACCESS_KEY_ID and"):
        Bucket("s3://bucket/folder")


def test_large_files_are_sent_in_pieces_and_proved_by_their_checksum(
    store: Bucket, storage: Storage, tmp_path: Path
) -> None:
    data = os.urandom(bucket_module.PIECE + 1000)
    (tmp_path / "large").write_bytes(data)
    storage.fault = first(1, Fault(status=500), "PUT", "large")
    store.write("large", tmp_path / "large")
    assert sum("partNumber" in request.path for request in storage.requests) >= 3  # two, and one at least again
    assert not storage.served  # nothing had to be read back
    assert store.read("large") == data


def test_a_file_that_arrives_changed_is_sent_again(store: Bucket, storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    storage.fault = first(1, Fault(changed=True), "PUT", "file")
    store.write("file", tmp_path / "file")
    assert store.read("file") == b"0123456789"
    storage.fault = first(99, Fault(changed=True), "PUT", "file")
    with pytest.raises(StoreError, match="differs from what was sent"):
        store.write("file", tmp_path / "file")


def test_without_obstore_the_way_to_install_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(MachineError, match=r"needs obstore. Install it: pip install '.*isotrope\[remote\]"):
        Bucket("s3://bucket/folder")


def test_another_version_of_an_object_is_not_read_for_the_first(store: Bucket) -> None:
    store.put("one", b"first")
    found = store.head("one")
    assert found is not None
    store.put("one", b"other")
    with pytest.raises(ConditionError):
        store.read_range("one", 0, 5, found.version)


def test_stores_that_were_not_used_lately_are_let_go_of(storage: Storage) -> None:
    first = weakref.ref(open_bucket("s3://bucket/0"))
    last = open_bucket(f"s3://bucket/{bucket_module._MOST_STORES}")
    for number in range(1, bucket_module._MOST_STORES):
        open_bucket(f"s3://bucket/{number}")
    gc.collect()
    assert first() is None
    assert open_bucket(last.url) is last
