"""Erasure in object storage: every object is searched, local caches are cleared, and any stop is continued."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from indexer import compact_index
from indexer.errors import ExistsError, LockedError, StoreError
from indexer.pipeline.erase import read_erasure
from indexer.recipe.config import BuildConfig
from indexer.recipe.loading import named_path
from indexer.store.bucket import open_bucket
from indexer.store.manifest import load_manifest
from indexer.store.object_store import ObjectStore
from indexer.system.blob_cache import blob_cache
from search import SearchEngine, verify_index
from search.erasure.proof import erase_documents, read_proof, verify_erased
from tests.life import grown
from tests.object_storage import Fault, Request, Storage, use_cache

SECRET = b"suspension bridge hangs"  # of d1


@pytest.fixture
def url(storage: Storage) -> str:
    return f"{storage.bucket()}/index"


@pytest.fixture
def index(url: str, tiny_config: BuildConfig) -> str:
    grown(Path(named_path(url, "the index")), tiny_config)
    return url


def test_an_erased_document_is_in_no_object_and_no_cache(index: str, tmp_path: Path) -> None:
    SearchEngine(index).close()  # fills the cache
    assert any(blob_cache().folder.iterdir())
    (named_path(index, "the index") / "leftover").write_bytes(b"A suspension bridge hangs.")
    report = erase_documents(index, ["d1"], tmp_path / "erased.json")
    bucket = open_bucket(index)
    assert report.passed
    assert read_erasure(named_path(index, "the index")) is None
    manifest = load_manifest(named_path(index, "the index"))
    assert set(bucket.list()) == {*manifest.files, f"manifests/{manifest.generation:08d}.json"}
    cached = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert not [path for path in cached if SECRET in path.read_bytes().lower()]
    before = {digest for one in read_proof(tmp_path / "erased.json").files if not one.after for digest in one.before}
    assert not [path for path in blob_cache().folder.iterdir() if path.name.partition("-")[0] in before]
    assert verify_index(index).passed
    proof = read_proof(tmp_path / "erased.json")
    assert proof.index == index
    assert any("versions" in limit for limit in proof.limits)
    use_cache(tmp_path / "elsewhere")
    assert verify_erased(tmp_path / "erased.json").passed


def test_a_leak_in_the_bucket_or_its_mirror_folder_is_found(index: str, tmp_path: Path) -> None:
    erase_documents(index, ["d1"], tmp_path / "erased.json")
    open_bucket(index).put("notes/leak", b"... the suspension bridge hangs ...")
    (named_path(index, "the index") / "leak").write_bytes(b"a suspension bridge hangs here")
    found = verify_erased(tmp_path / "erased.json")
    assert [problem.partition(": ")[0].rpartition("/")[2] for problem in found.problems] == ["leak", "leak"]
    assert found.changed == ["notes/leak"]


@pytest.mark.check
def test_a_generation_that_another_machine_publishes_first_is_erased_by_the_next_run(
    index: str, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = ObjectStore.create
    script = (
        "import sys; from indexer import *; add_documents([Document('d1', 'Another text about bridges.')], sys.argv[1])"
    )

    def other_first(self: ObjectStore, name: str, data: bytes) -> None:
        environment = os.environ | storage.environment(tmp_path / "other machine")
        subprocess.run([sys.executable, "-c", script, index], env=environment, check=True)
        create(self, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "create", other_first)
        with pytest.raises(LockedError, match="another writer published"):
            erase_documents(index, ["d1"], tmp_path / "erased.json")
    with pytest.raises(ExistsError, match="an erasure of documents is unfinished"):
        compact_index(index)
    assert erase_documents(index, ["d1"], tmp_path / "erased.json").passed
    open_bucket(index).put("leak", b"another text about bridges")
    assert len(verify_erased(tmp_path / "erased.json").problems) == 1


@pytest.mark.check
def test_an_erasure_that_fails_at_any_request_is_continued(
    url: str, tiny_config: BuildConfig, storage: Storage, tmp_path: Path
) -> None:
    """Every second failing request arrives, but not its answer, as if the process had been killed after it."""
    failed, faults = 0, (Fault(status=500), Fault(lost=True))
    while True:
        index = f"{url}/{failed}"
        grown(named_path(index, "the index"), tiny_config)
        left = [failed]

        def fault(request: Request, left: list[int] = left, kind: Fault = faults[failed % 2]) -> Fault | None:
            if request.method in ("PUT", "POST", "DELETE"):
                left[0] -= 1
            return kind if left[0] < 0 else None

        storage.fault = fault
        try:
            erase_documents(index, ["d1"], tmp_path / f"{failed}.json")
            finished = True
        except StoreError:
            finished = False
        storage.fault = lambda _: None
        use_cache(tmp_path / f"cache{failed}")
        problems = verify_index(index).problems
        assert [problem for problem in problems if "erasure of documents is unfinished" not in problem] == []
        assert not (finished and problems)
        if finished:
            break
        assert erase_documents(index, ["d1"], tmp_path / f"{failed}.json").passed
        assert verify_erased(tmp_path / f"{failed}.json").passed
        failed += 1
    assert failed > 10
