"""`push_index`: only missing files travel, and the repository always contains one complete index."""

import json
import re
import shutil
from pathlib import Path

import pytest

from indexer import BuildConfig, add_documents, build_index, compact_index, pull_index
from indexer.errors import ConfigError, CorruptIndexError, ExistsError, NotAnIndexError, StoreError
from indexer.store.manifest import load_manifest
from search import SearchEngine, verify_index
from search.export import PushOptions, push, push_index
from tests.documents import DOCUMENTS
from tests.hubs import FakeHub, RefusedError
from tests.life import NEW, grown
from tests.object_storage import Storage

URL = "hf://user/name"


@pytest.fixture
def index(tiny_config: BuildConfig, tmp_path: Path) -> Path:
    """An index of several generations with deleted documents."""
    grown(tmp_path / "index", tiny_config)
    return tmp_path / "index"


def published(hub: FakeHub) -> dict[str, bytes]:
    """Return the files of the repository that are not of Git."""
    return {name: data for name, data in hub.repositories["user/name"].files.items() if name != ".gitattributes"}


def test_a_repository_contains_the_newest_generation_and_its_download_is_an_index(
    index: Path, hub: FakeHub, tmp_path: Path
) -> None:
    report = push_index(index, URL)
    manifest = load_manifest(index)
    assert (report.generation, report.documents) == (manifest.generation, manifest.documents)
    files = published(hub)
    assert files.keys() == {*manifest.files, f"manifests/{manifest.generation:08d}.json", "README.md"}
    assert report.sent == len(files)
    assert report.bytes_sent == sum(map(len, files.values()))
    assert {name: data for name, data in files.items() if name != "README.md"} == {
        name: (index / name).read_bytes() for name in files if name != "README.md"
    }
    for name, data in files.items():
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(data)
    assert verify_index(tmp_path / "copy").passed


def test_a_second_push_uploads_nothing_and_a_later_one_only_what_is_new(index: Path, hub: FakeHub) -> None:
    first = push_index(index, URL)
    hub.uploads.clear()
    again = push_index(index, URL)
    assert (again.sent, again.bytes_sent, again.commit) == (0, 0, first.commit)
    assert hub.uploads == []
    before = load_manifest(index).files
    add_documents(NEW[2:], index)
    later, manifest = push_index(index, URL), load_manifest(index)
    new = [name for name, digest in manifest.files.items() if before.get(name) != digest]
    assert 0 < len(new) < len(manifest.files)
    assert later.sent == len(new) + 2  # the manifest and the card
    gone = before.keys() - manifest.files.keys()
    assert later.removed == len(gone) + 1
    assert published(hub).keys() == {*manifest.files, f"manifests/{manifest.generation:08d}.json", "README.md"}
    assert [len(repository.commits) for repository in hub.repositories.values()] == [3]  # with the empty one


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_a_push_that_fails_in_the_middle_shows_nothing_and_the_next_one_sends_the_rest(
    method: str, index: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "_UPLOADS", 4)

    def fails(asked: str, path: str) -> None:
        if asked == method and ("/commit/" in path or (method == "PUT" and len(hub.uploads) == 6)):
            raise RefusedError(400)

    hub.fault = fails
    with pytest.raises(
        StoreError, match=r"hf://user/name: the Hugging Face hub failed \(Bad request.*Fix: run the same"
    ):
        push_index(index, URL)
    assert published(hub) == {}
    sent = list(hub.uploads)
    hub.fault = lambda method, path: None
    push_index(index, URL)
    assert len(sent) >= 6
    assert len(set(hub.uploads)) == len(hub.uploads)  # nothing was sent twice
    pull_index(URL, index.with_name("pulled"))


def test_a_damaged_index_is_not_uploaded(index: Path, hub: FakeHub) -> None:
    path = index / "parts/00000/embeddings.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptIndexError, match=r"embeddings\.npy: its bytes differ"):
        push_index(index, URL)
    assert published(hub) == {}


def test_another_or_a_newer_index_is_replaced_only_by_force(
    index: Path, hub: FakeHub, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    shutil.copytree(index, tmp_path / "older")
    add_documents(NEW[2:], index)
    push_index(index, URL)
    before = published(hub)
    build_index(DOCUMENTS[:5], tmp_path / "other", tiny_config)
    with pytest.raises(ExistsError, match=r"contains another index \(parts/.* differs\).*force=True"):
        push_index(tmp_path / "other", URL)
    with pytest.raises(ExistsError, match=r"contains generation 4, and .* has generation 3; nothing was changed"):
        push_index(tmp_path / "older", URL)
    assert published(hub) == before
    report = push_index(tmp_path / "other", URL, PushOptions(force=True))
    assert published(hub).keys() == {*load_manifest(tmp_path / "other").files, "manifests/00000001.json", "README.md"}
    assert report.removed > 0
    pull_index(URL, tmp_path / "pulled")
    assert verify_index(tmp_path / "pulled").passed


def test_two_pushes_at_once_publish_one(index: Path, hub: FakeHub) -> None:
    push_index(index, URL)
    add_documents(NEW[2:], index)

    def another(method: str, path: str) -> None:
        if method == "PUT":
            hub.fault = lambda method, path: None
            repository = hub.repositories["user/name"]
            repository.commit(repository.files | {"other.txt": b"of another push"})

    hub.fault = another
    with pytest.raises(StoreError, match=r"changed during this push, which published nothing. Fix: run it again"):
        push_index(index, URL)
    push_index(index, URL)
    assert published(hub)["other.txt"] == b"of another push"


def test_the_card_says_what_the_index_is_and_how_to_ask_it(
    index: Path, hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    push_index(index, URL)
    card = published(hub)["README.md"].decode()
    assert card.startswith("---\ntags:\n- isotrope\n")
    engine = SearchEngine(index)
    assert "| documents | 9 in " in card
    assert f"-> {engine.index.transform.dim} dimensions, strength" in card
    assert "recall@10 1.0000" in card
    assert "isotrope pull hf://user/name my-index" in card
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(code, {"__name__": "__main__"})  # noqa: S102
    hits = engine.search("your question", k=5)
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == [hit.id for hit in hits]


def test_the_rest_of_a_card_belongs_to_its_owner(index: Path, hub: FakeHub) -> None:
    push_index(index, URL)
    repository = hub.repositories["user/name"]
    card = repository.files["README.md"].decode()
    mine = card.replace("tags:", "license: mit\ntags:") + "\nCollected by hand.\n"
    repository.commit(repository.files | {"README.md": mine.encode()})
    add_documents(NEW[2:], index)
    push_index(index, URL)
    now = published(hub)["README.md"].decode()
    assert now.startswith("---\nlicense: mit\ntags:")
    assert now.endswith("\nCollected by hand.\n")
    assert "| generation | 4" in now
    repository.commit(repository.files | {"README.md": b"all mine \xff"})
    compact_index(index)
    report = push_index(index, URL)
    assert published(hub)["README.md"] == b"all mine \xff"
    assert report.notes[0] == "README.md of the repository stays as it is, because it has no section for an index."


def test_notes_tell_what_others_see_and_need(index: Path, hub: FakeHub) -> None:
    deleted, encoder = push_index(index, URL).notes
    assert deleted == "the files still contain 2 deleted documents; compact_index removes them before a push."
    assert encoder.startswith("the encoder is a folder on this machine")
    compact_index(index)
    assert push_index(index, URL).notes == (encoder,)


def test_a_private_repository_is_created_and_a_public_one_is_never_taken_for_one(index: Path, hub: FakeHub) -> None:
    push_index(index, URL, PushOptions(private=True))
    assert hub.repositories["user/name"].private
    push_index(index, URL, PushOptions(private=True))
    push_index(index, "hf://datasets/user/public/")
    with pytest.raises(ConfigError, match=r"hf://user/public: is public, .*nothing was uploaded. Fix: make it private"):
        push_index(index, "hf://user/public", PushOptions(private=True))


def test_errors_name_the_fix(
    index: Path, hub: FakeHub, tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in ("user/name", "hf://name", "hf://models/user/name", "s3://bucket/index", "hf://user/na me", ""):
        with pytest.raises(ConfigError, match="not a repository on the Hugging Face hub; expected hf://user/name"):
            push_index(index, url)
    with pytest.raises(NotAnIndexError):
        push_index(tmp_path / "nowhere", URL)
    with pytest.raises(ConfigError, match="s3://bucket/index: is in object storage; hf://user/name needs a folder"):
        push_index("s3://bucket/index", URL)
    push_index(index, URL)
    with pytest.raises(StoreError, match=r"no such branch, tag or commit. Fix: correct the name after @"):
        push_index(index, f"{URL}@typo")

    def forbidden(method: str, path: str) -> None:
        if path.endswith("/preupload/main"):
            raise RefusedError(403)

    hub.fault = forbidden
    add_documents(NEW[2:], index)
    with pytest.raises(StoreError, match=r"access is denied .*hf auth login, or set HF_TOKEN to a token that may"):
        push_index(index, URL)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(StoreError, match=r"the Hugging Face hub cannot be reached .*HF_HUB_OFFLINE"):
        push_index(index, URL)
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(StoreError, match=r"no token .* was found. Fix: log in with hf auth login"):
        push_index(index, URL)


def test_the_hub_limits_the_files_of_a_commit(index: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "MOST_FILES", 3)
    with pytest.raises(ConfigError, match=r"new files, but the hub accepts at most 3 at once. Fix: build with larger"):
        push_index(index, URL)
    assert json.dumps(list(published(hub))) == "[]"
