"""A build in two halves gives the same index for any assignment, order and repetition of encoded parts."""

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexer import (
    BuildConfig,
    Document,
    RunOptions,
    add_documents,
    build_index,
    cancel_pending,
    compact_index,
    delete_documents,
    encode_pending,
    prepare_parts,
    refit_index,
)
from indexer.errors import (
    ConfigError,
    CorruptIndexError,
    ExistsError,
    LockedError,
    MismatchError,
    NotAnIndexError,
    StoreError,
)
from indexer.pipeline import pending_parts
from indexer.store import layout
from indexer.store.files import writer_lock
from tests.directories import snapshot
from tests.documents import DOCUMENTS

PARTS = -(-len(DOCUMENTS) // 4)
SLICES = st.lists(st.builds(slice, st.integers(0, PARTS), st.integers(0, PARTS + 2)), max_size=4)


@given(slices=SLICES)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_parts_encoded_apart_make_the_same_index(
    slices: list[slice], tiny_config: BuildConfig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("halves")
    prepared = prepare_parts(DOCUMENTS, folder / "index", tiny_config)
    assert (prepared.parts, prepared.pending, prepared.rows) == (PARTS, PARTS, len(DOCUMENTS))
    done = set[int]()
    for numbers in slices:
        wanted = set(range(PARTS)[numbers])
        if not wanted:
            with pytest.raises(ConfigError, match=f"contains no part: parts are numbered 0 to {PARTS - 1}"):
                encode_pending(folder / "index", numbers)
            continue
        report = encode_pending(folder / "index", numbers)
        assert (report.parts_encoded, report.parts_kept) == (len(wanted - done), len(wanted & done))
        done |= wanted
        assert report.left == PARTS - len(done)
    built = build_index(DOCUMENTS, folder / "index", tiny_config)
    assert (built.parts_encoded, built.parts_kept) == (PARTS - len(done), len(done))
    build_index(DOCUMENTS, folder / "alone", tiny_config)
    assert snapshot(folder / "index") == snapshot(folder / "alone")


def test_two_at_once_write_the_same_part(tiny_config: BuildConfig, tmp_path: Path) -> None:
    prepare_parts(DOCUMENTS, tmp_path / "index", tiny_config)
    several = [threading.Thread(target=encode_pending, args=(tmp_path / "index",)) for _ in range(3)]
    for one in several:
        one.start()
    for one in several:
        one.join()
    assert build_index(DOCUMENTS, tmp_path / "index", tiny_config).parts_encoded == 0
    build_index(DOCUMENTS, tmp_path / "alone", tiny_config)
    assert snapshot(tmp_path / "index") == snapshot(tmp_path / "alone")


def test_known_embeddings_are_taken_over_as_in_one_build(tiny_config: BuildConfig, tmp_path: Path) -> None:
    changed = [replace(DOCUMENTS[3], text="Another text."), *DOCUMENTS]
    for name in ("halves", "alone"):
        build_index(DOCUMENTS, tmp_path / name, tiny_config)
    overwrite = RunOptions(overwrite=True)
    changed[0] = replace(changed[0], id="new")
    prepared = prepare_parts(changed, tmp_path / "halves", tiny_config, overwrite)
    assert prepared.rows == 1
    assert encode_pending(tmp_path / "halves").rows_encoded == 1
    for name in ("halves", "alone"):
        build_index(changed, tmp_path / name, tiny_config, overwrite)
    assert snapshot(tmp_path / "halves") == snapshot(tmp_path / "alone")


@pytest.mark.parametrize(
    ("numbers", "written"),
    [(slice(99, 100), "99"), (slice(5, 2), "5:2"), (slice(0, 0), "0:0"), (slice(99, None), "99:")],
)
def test_numbers_that_no_part_has_are_refused(
    numbers: slice, written: str, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    prepare_parts(DOCUMENTS, tmp_path / "index", tiny_config)
    with pytest.raises(
        ConfigError, match=rf"numbers {written} contains no part: parts are numbered 0 to {PARTS - 1}\."
    ):
        encode_pending(tmp_path / "index", numbers)


def test_a_range_that_ends_beyond_the_last_part_is_noted(tiny_config: BuildConfig, tmp_path: Path) -> None:
    prepare_parts(DOCUMENTS, tmp_path / "index", tiny_config)
    report = encode_pending(tmp_path / "index", slice(1, 99))
    assert report.parts_encoded == PARTS - 1
    assert report.notes == (f"numbers 1:99 ends beyond the last part: parts are numbered 0 to {PARTS - 1}",)
    assert encode_pending(tmp_path / "index", slice(0, PARTS)).notes == ()


def test_where_every_part_was_encoded_before_any_numbers_are_right(tiny_config: BuildConfig, tmp_path: Path) -> None:
    prepare_parts(DOCUMENTS, tmp_path / "index", tiny_config)
    encode_pending(tmp_path / "index")
    assert prepare_parts(DOCUMENTS, tmp_path / "index", tiny_config).pending == 0
    report = encode_pending(tmp_path / "index", slice(3, 4))
    assert (report.parts_encoded, report.parts_kept, report.left, report.notes) == (0, 0, 0, ())


def test_why_no_parts_wait_is_told(tiny_config: BuildConfig, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    for name in ("missing", "plain"):
        with pytest.raises(NotAnIndexError, match="has no pending parts to encode: the index does not exist"):
            encode_pending(tmp_path / name)
    assert list((tmp_path / "plain").iterdir()) == []
    index = tmp_path / "index"
    prepare_parts(DOCUMENTS, index, tiny_config)
    (index / layout.PENDING).unlink()
    with pytest.raises(
        NotAnIndexError, match="has no pending parts to encode: a build was started without prepare_parts"
    ):
        encode_pending(index)
    build_index(DOCUMENTS, index, tiny_config)
    with pytest.raises(NotAnIndexError, match=r"published \(generation 1\), and no build has been prepared since"):
        encode_pending(index)


def test_a_finished_index_leaves_nothing_to_do(tiny_config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    assert prepare_parts(DOCUMENTS, tmp_path / "index", tiny_config).up_to_date
    with pytest.raises(NotAnIndexError, match=r"has no pending parts.*prepare_parts"):
        encode_pending(tmp_path / "index")
    with pytest.raises(ExistsError):
        prepare_parts(DOCUMENTS[:4], tmp_path / "index", tiny_config)


@pytest.mark.parametrize("change", ["delete", "add", "refit", "compact"])
def test_what_was_prepared_is_not_dropped_by_another_change(
    change: str, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    index, before = tmp_path / "index", tmp_path / "before"
    build_index(DOCUMENTS, index, tiny_config)
    shutil.copytree(index, before)
    prepare_parts(DOCUMENTS[:6], index, tiny_config, RunOptions(overwrite=True))
    encode_pending(index, slice(0, 1))
    acts: dict[str, Callable[[], object]] = {
        "delete": lambda: delete_documents(index, [DOCUMENTS[0].id]),
        "add": lambda: add_documents([Document("new", "A new text.")], index),
        "refit": lambda: refit_index(index),
        "compact": lambda: compact_index(index),
    }
    with pytest.raises(ExistsError, match=rf"^{index}: a build was prepared here.*cancel_pending..{index}..\.$"):
        acts[change]()
    assert encode_pending(index, slice(0, 1)).parts_kept == 1
    assert cancel_pending(index) == 1
    assert snapshot(index) == snapshot(before)
    with pytest.raises(NotAnIndexError, match="has no pending parts"):
        cancel_pending(index)
    acts[change]()


def test_what_was_prepared_where_nothing_is_published_is_given_up(tiny_config: BuildConfig, tmp_path: Path) -> None:
    index = tmp_path / "index"
    prepare_parts(DOCUMENTS, index, tiny_config)
    (index / layout.PENDING).write_bytes(b"{")
    cancel_pending(index)
    assert build_index(DOCUMENTS, index, tiny_config).parts_encoded == PARTS


def test_nobody_builds_while_parts_are_being_encoded(tiny_config: BuildConfig, tmp_path: Path) -> None:
    index = tmp_path / "index"
    prepare_parts(DOCUMENTS, index, tiny_config)
    with writer_lock(index, shared=True), pytest.raises(LockedError):
        build_index(DOCUMENTS, index, tiny_config)
    with writer_lock(index), pytest.raises(LockedError):
        encode_pending(index)
    assert encode_pending(index).parts_encoded == PARTS


def test_another_encoder_is_refused(tiny_config: BuildConfig, tmp_path: Path) -> None:
    index = tmp_path / "index"
    prepare_parts(DOCUMENTS, index, tiny_config)
    plain = json.loads((index / layout.PENDING).read_text())
    plain["config"]["encoder"]["max_length"] = 16
    (index / layout.PENDING).write_text(json.dumps(plain))
    with pytest.raises(MismatchError, match="prepared for another encoder"):
        encode_pending(index)


def test_changed_documents_are_refused(tiny_config: BuildConfig, tmp_path: Path) -> None:
    index = tmp_path / "index"
    prepare_parts(DOCUMENTS, index, tiny_config)
    path = index / "parts/00001" / layout.DOCUMENTS
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptIndexError, match=r"parts/00001/documents.parquet: its bytes"):
        encode_pending(index)
    assert encode_pending(index, slice(0, 1)).parts_encoded == 1


@pytest.mark.parametrize(
    "data", [b"{", b'{"format": 1}', b'{"format": 2, "config": {}, "fingerprint": "%s", "parts": []}' % (b"0" * 64)]
)
def test_a_damaged_list_is_named(data: bytes, tiny_config: BuildConfig, tmp_path: Path) -> None:
    index = tmp_path / "index"
    prepare_parts(DOCUMENTS, index, tiny_config)
    (index / layout.PENDING).write_bytes(data)
    with pytest.raises(CorruptIndexError, match=r"pending.json: damaged.*prepare the build again"):
        encode_pending(index)


def test_a_list_of_parts_that_could_not_be_read_back_is_not_written(
    tiny_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    monkeypatch.setattr(pending_parts, "_MOST_BYTES", 2000)
    with pytest.raises(StoreError, match=rf"pending\.json: would have .* bytes for {PARTS} parts; the limit is 2,000"):
        prepare_parts(DOCUMENTS, index, tiny_config)
    assert not (index / layout.PENDING).exists()
    monkeypatch.setattr(pending_parts, "_MOST_BYTES", 1 << 20)
    prepare_parts(DOCUMENTS, index, tiny_config)
    size = (index / layout.PENDING).stat().st_size
    monkeypatch.setattr(pending_parts, "_MOST_BYTES", size)
    prepare_parts(DOCUMENTS, index, tiny_config)
    assert encode_pending(index).left == 0  # a list within the limit can be read
