"""An index in object storage whose parts are encoded by machines that share only the store."""

import json
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from indexer import (
    BuildConfig,
    RunOptions,
    build_index,
    cancel_pending,
    delete_documents,
    encode_pending,
    prepare_parts,
)
from indexer.errors import CorpusError, CorruptIndexError, ExistsError, NotAnIndexError, StoreError
from indexer.executors import Executor
from indexer.pipeline.steps import encode, part_encoder
from indexer.recipe.loading import named_path
from indexer.store import layout, sending
from indexer.store.bucket import open_bucket
from indexer.store.manifest import load_manifest
from search import verify_index
from tests.documents import DOCUMENTS
from tests.indexer.pipeline.test_fatal_documents import poisoned, run_deadly
from tests.indexer.pipeline.test_remote_index import command
from tests.object_storage import Fault, Request, Storage, first, use_cache
from tests.remote_indexes import PARTS, embeddings, names, require_same


def test_parts_prepared_here_are_encoded_anywhere_and_published_elsewhere(
    url: str, tiny_config: BuildConfig, machine: Callable[[str], None], tmp_path: Path
) -> None:
    machine("a")
    prepared = prepare_parts(DOCUMENTS, url, tiny_config)
    assert (prepared.parts, prepared.pending) == (PARTS, PARTS)
    assert {name.rpartition("/")[2] for name in names(url)} == {layout.PENDING, layout.DOCUMENTS}
    machine("b")
    assert encode_pending(url, slice(0, 2)).left == PARTS - 2
    machine("c")
    report = encode_pending(url, slice(1, 3))
    assert (report.parts_encoded, report.parts_kept, report.left) == (1, 1, PARTS - 3)
    machine("d")
    built = build_index(DOCUMENTS, url, tiny_config)
    assert (built.parts_kept, built.parts_encoded) == (3, PARTS - 3)
    assert set(names(url)) == {*load_manifest(named_path(url, "the index")).files, layout.manifest_name(1)}
    require_same(url, tiny_config, tmp_path)


def test_why_no_parts_wait_in_the_store_is_told(url: str, tiny_config: BuildConfig) -> None:
    with pytest.raises(NotAnIndexError, match=rf"^{url}: has no pending parts to encode: the index does not exist"):
        encode_pending(url)
    build_index(DOCUMENTS, url, tiny_config)
    with pytest.raises(
        NotAnIndexError, match=rf"^{url}: has no pending parts.*the index is published \(generation 1\)"
    ):
        encode_pending(url)


@pytest.mark.check
def test_the_same_part_sent_by_several_machines_at_once_is_one_part(
    url: str, tiny_config: BuildConfig, storage: Storage, tmp_path: Path
) -> None:
    prepare_parts(DOCUMENTS, url, tiny_config)
    racing = [command(storage, tmp_path / f"cache{number // 2}", "encode-parts", url, "--quiet") for number in range(4)]
    told = [process.communicate()[1].decode() for process in racing]  # two on each of two machines
    assert [process.returncode for process in racing] == [0] * 4, told
    sent = {name: open_bucket(url).read(name) for name in names(url) if name != layout.PENDING}
    use_cache(tmp_path / "another")
    open_bucket(url).remove([name for name in sent if name.endswith(layout.PART)])
    assert encode_pending(url).parts_encoded == PARTS  # over what is there
    assert {name: open_bucket(url).read(name) for name in names(url) if name != layout.PENDING} == sent
    assert build_index(DOCUMENTS, url, tiny_config).parts_encoded == 0
    require_same(url, tiny_config, tmp_path)


@pytest.mark.check
def test_threads_of_one_machine_take_nothing_from_under_each_other(
    url: str, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    prepare_parts(DOCUMENTS, url, tiny_config)
    failures: list[BaseException] = []

    def encode_all() -> None:
        try:
            encode_pending(url)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test shows it
            failures.append(error)

    several = [threading.Thread(target=encode_all) for _ in range(3)]
    for one in several:
        one.start()
    for one in several:
        one.join()
    assert failures == []
    assert build_index(DOCUMENTS, url, tiny_config).parts_encoded == 0
    require_same(url, tiny_config, tmp_path)


def test_a_part_that_another_processor_has_encoded_meanwhile_stays_as_it_is(
    url: str,
    tiny_config: BuildConfig,
    storage: Storage,
    machine: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare_parts(DOCUMENTS, url, tiny_config)
    before = set(names(url))
    machine("b")
    with monkeypatch.context() as patch:
        exact = part_encoder._all_rows
        patch.setattr(part_encoder, "_all_rows", lambda *each: (exact(*each)[0] * (1 + 2**-20), exact(*each)[1]))
        encode_pending(url, slice(0, 1))
    theirs = {name: open_bucket(url).read(name) for name in set(names(url)) - before}
    open_bucket(url).remove(theirs)
    machine("c")

    record = next(name for name in theirs if name.endswith(layout.PART))
    asked: list[Request] = []

    def finish(request: Request) -> None:
        if request.method == "GET" and request.path.endswith(record):
            asked.append(request)
            if len(asked) == 2:  # the first time nothing is there, so the part is encoded here too
                storage.fault = lambda _: None
                for name, data in theirs.items():
                    open_bucket(url).put(name, data)

    storage.fault = finish
    assert encode_pending(url).parts_encoded == PARTS
    assert build_index(DOCUMENTS, url, tiny_config).parts_encoded == 0
    assert embeddings(url)[0] == next(data for name, data in theirs.items() if name.endswith(layout.EMBEDDINGS))
    assert verify_index(url).passed


@pytest.mark.check
def test_a_part_without_its_record_is_not_taken_for_complete(
    url: str, tiny_config: BuildConfig, storage: Storage, machine: Callable[[str], None], tmp_path: Path
) -> None:
    prepare_parts(DOCUMENTS, url, tiny_config)
    machine("b")
    for number, last in enumerate((layout.EMBEDDINGS, layout.WINDOWS, layout.PART)):  # as they are sent
        storage.fault = first(1000, Fault(status=500), "PUT", last)
        with pytest.raises(StoreError, match=f"{last}: object storage did not answer"):
            encode_pending(url, slice(number, number + 1))
    storage.fault = lambda _: None
    assert (len(names(url, layout.EMBEDDINGS)), len(names(url, layout.WINDOWS))) == (2, 1)
    machine("d")
    assert encode_pending(url, slice(0, 1)).parts_encoded == 1
    built = build_index(DOCUMENTS, url, tiny_config)
    assert (built.parts_kept, built.parts_encoded) == (1, PARTS - 1)
    require_same(url, tiny_config, tmp_path)


@pytest.mark.check
def test_what_a_killed_machine_leaves_is_not_taken_for_complete(
    url: str, tiny_config: BuildConfig, storage: Storage, machine: Callable[[str], None], tmp_path: Path
) -> None:
    prepare_parts(DOCUMENTS, url, tiny_config)
    for number, last in enumerate((layout.EMBEDDINGS, layout.WINDOWS, layout.PART)):  # as they are sent
        arrived, killed = threading.Event(), threading.Event()

        def fault(request: Request, until: tuple[str, threading.Event, threading.Event]) -> Fault | None:
            if request.method != "PUT" or not request.path.partition("?")[0].endswith(until[0]):
                return None
            until[1].set()
            until[2].wait()
            return Fault(status=500)

        storage.fault = partial(fault, until=(last, arrived, killed))
        running = command(storage, tmp_path / f"killed{number}", "encode-parts", url, f"--parts={number}", "--quiet")
        assert arrived.wait(60)
        running.send_signal(signal.SIGKILL)
        running.communicate()
        killed.set()
    storage.fault = lambda _: None
    assert len(names(url, layout.EMBEDDINGS)) == 2
    assert names(url, layout.PART) == []
    machine("d")
    assert encode_pending(url, slice(0, 1)).parts_encoded == 1
    built = build_index(DOCUMENTS, url, tiny_config)
    assert (built.parts_kept, built.parts_encoded) == (1, PARTS - 1)
    require_same(url, tiny_config, tmp_path)


def test_a_part_that_was_whole_when_its_machine_was_killed_is_sent_by_the_next_run(
    url: str, tiny_config: BuildConfig, machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_parts(DOCUMENTS, url, tiny_config)
    machine("b")
    with monkeypatch.context() as patch:
        patch.setattr(sending, "send_part", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            encode_pending(url, slice(0, 1))
    assert names(url, layout.PART) == []
    report = encode_pending(url, slice(0, 1))
    assert (report.parts_encoded, report.parts_kept, report.left) == (0, 1, PARTS - 1)
    assert len(names(url, layout.PART)) == 1


@pytest.mark.check
def test_a_build_prepared_anew_shares_no_name_with_the_one_before(
    url: str, tiny_config: BuildConfig, machine: Callable[[str], None], tmp_path: Path
) -> None:
    """So that who is late with a part of the old one writes over none of the new one."""
    changed = [replace(one, text=f"{one.text} indeed") for one in DOCUMENTS]
    machine("a")
    prepare_parts(DOCUMENTS, url, tiny_config)
    before = set(names(url, layout.DOCUMENTS))
    machine("b")
    encode_pending(url, slice(0, 1))
    machine("a")
    prepare_parts(changed, url, tiny_config)
    after = set(names(url, layout.DOCUMENTS))
    assert len(before & after) == 1  # it is complete; the others are gone
    assert len(after) == PARTS + 1
    machine("b")
    assert encode_pending(url).parts_encoded == PARTS  # the list is not an earlier one's
    machine("a")
    assert build_index(changed, url, tiny_config).parts_encoded == 0
    assert set(names(url)) == {*load_manifest(named_path(url, "the index")).files, layout.manifest_name(1)}
    require_same(url, tiny_config, tmp_path, changed)


@pytest.mark.check
def test_what_was_prepared_stays_until_it_is_given_up(
    url: str, tiny_config: BuildConfig, machine: Callable[[str], None]
) -> None:
    build_index(DOCUMENTS, url, tiny_config)
    before = names(url)
    prepare_parts(DOCUMENTS[:6], url, tiny_config, RunOptions(overwrite=True))
    machine("b")
    encode_pending(url, slice(0, 1))
    machine("c")
    with pytest.raises(ExistsError, match=rf'^{url}: a build was prepared here.*cancel_pending\("{url}"\)\.$'):
        delete_documents(url, [DOCUMENTS[0].id])
    assert cancel_pending(url) == 1
    assert names(url) == before
    with pytest.raises(NotAnIndexError, match=rf"^{url}: has no pending parts"):
        encode_pending(url)
    delete_documents(url, [DOCUMENTS[0].id])


@pytest.mark.parametrize("executor", ["auto", pytest.param("ray", marks=pytest.mark.check)])
def test_a_part_whose_document_killed_the_encoder_is_encoded_again_in_its_place(
    executor: Executor,
    url: str,
    tiny_config: BuildConfig,
    machine: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    options = RunOptions(workers=2, executor=executor)
    with monkeypatch.context() as patch:
        patch.setattr(encode, "run_tasks", run_deadly)
        with pytest.raises(CorpusError, match=f'"{DOCUMENTS[5].id}" crashed the encoder'):
            build_index(poisoned(5), url, tiny_config, options)
    machine("mended")
    with monkeypatch.context() as patch:
        patch.setattr(encode, "run_tasks", lambda setup, tasks, *_: setup(0)(iter(tasks)))
        report = build_index(poisoned(5), url, tiny_config, options)
    assert (report.documents, report.parts_encoded) == (len(DOCUMENTS), 1)
    require_same(url, tiny_config, tmp_path, poisoned(5))


def test_who_is_late_is_told_that_nothing_waits(
    url: str, tiny_config: BuildConfig, storage: Storage, machine: Callable[[str], None]
) -> None:
    prepare_parts(DOCUMENTS, url, tiny_config)
    machine("b")

    def swept(request: Request) -> None:
        if request.method == "GET" and request.path.endswith(layout.DOCUMENTS):
            storage.fault = lambda _: None
            open_bucket(url).remove(names(url))

    storage.fault = swept
    with pytest.raises(NotAnIndexError, match=rf"^{url}: has no pending parts"):
        encode_pending(url)


def _manifest(url: str, number: int) -> list[str]:
    return list(json.loads(open_bucket(url).read(layout.manifest_name(number)))["files"])


@pytest.mark.check
def test_known_embeddings_are_taken_from_the_store(
    url: str, tiny_config: BuildConfig, machine: Callable[[str], None], tmp_path: Path
) -> None:
    changed = [replace(DOCUMENTS[3], id="new", text="Another text."), *DOCUMENTS]
    build_index(DOCUMENTS, url, tiny_config)
    assert prepare_parts(changed, url, tiny_config, RunOptions(overwrite=True)).rows == 1
    machine("b")
    assert encode_pending(url).rows_encoded == 1
    machine("c")
    assert build_index(changed, url, tiny_config, RunOptions(overwrite=True)).parts_encoded == 0
    assert verify_index(url).passed


def test_documents_that_the_store_lost_are_named(
    url: str, tiny_config: BuildConfig, machine: Callable[[str], None]
) -> None:
    prepare_parts(DOCUMENTS, url, tiny_config)
    gone, damaged, *_ = names(url, layout.DOCUMENTS)
    open_bucket(url).remove([gone])
    data = bytearray(open_bucket(url).read(damaged))
    data[len(data) // 2] ^= 1
    open_bucket(url).put(damaged, bytes(data))
    machine("b")
    with pytest.raises(CorruptIndexError, match=f"^{url}/{gone}: .* missing"):
        encode_pending(url, slice(0, 1))
    with pytest.raises(CorruptIndexError, match=f"^{url}/{damaged}: its bytes"):
        encode_pending(url, slice(1, 2))
    assert encode_pending(url, slice(2, 3)).parts_encoded == 1
