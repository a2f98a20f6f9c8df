"""The manifest: the one file that is the index. Nothing but the bytes that were published is accepted."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.errors import CorruptIndexError, NotAnIndexError, StoreError
from indexer.store import layout
from indexer.store.files import FileStamp
from indexer.store.manifest import (
    Manifest,
    PartEntry,
    SegmentEntry,
    canonical_hash,
    canonical_json,
    generations,
    load_generation,
    load_manifest,
    publish,
)

SMALL = Manifest(
    generation=1,
    config={"encoder": {"model": "tiny"}},
    encoder={"dim": 4},
    fingerprint="f" * 8,
    transform={"file": "transforms/0001.safetensors"},
    parts=(PartEntry("parts/00000", 3, 3, "d", "e"),),
    segments=(SegmentEntry("segments/0001-00.faiss", 0, 3, "Flat"),),
    files={"parts/00000/documents.parquet": FileStamp(9, "a"), "big": FileStamp(3 << 20, "b", "c" * 48)},
    schema={"année": "int64"},
    documents=3,
    rows=3,
    quality={"self_hit": {"value": 1.0, "limit": 1.0, "passed": True}},
    versions={"isotrope": "0"},
    created="2026-01-02T03:04:05Z",
)


def numbered(generation: int) -> Manifest:
    return dataclasses.replace(SMALL, generation=generation)


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a published manifest and give it a right checksum, as another version of the program would."""
    plain = json.loads(path.read_bytes())
    del plain["checksum"]
    change(plain)
    plain["checksum"] = canonical_hash(plain)
    path.write_bytes(json.dumps(plain, sort_keys=True, indent=1, ensure_ascii=False).encode() + b"\n")


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """The manifest file of a small index."""
    publish(tmp_path, SMALL)
    return tmp_path / layout.manifest_name(1)


def test_a_published_manifest_is_loaded_as_it_was(published: Path, tmp_path: Path) -> None:
    assert load_manifest(tmp_path) == SMALL
    assert load_generation(tmp_path, 1) == SMALL
    assert [path.name for path in published.parent.iterdir()] == ["00000001.json"]


def test_the_file_is_json_that_says_its_format_and_checksum(published: Path) -> None:
    plain = json.loads(published.read_text(encoding="utf-8"))
    checksum = plain.pop("checksum")
    assert checksum == canonical_hash(plain)
    assert plain["format"] == 1
    assert plain["files"]["big"] == {"bytes": 3 << 20, "sha256": "b", "blocks": "c" * 48}
    assert plain["files"]["parts/00000/documents.parquet"] == {"bytes": 9, "sha256": "a"}


def test_equal_manifests_are_equal_bytes(tmp_path: Path) -> None:
    shuffled = dataclasses.replace(SMALL, files=dict(reversed(SMALL.files.items())))
    for name, manifest in (("a", SMALL), ("b", shuffled)):
        publish(tmp_path / name, manifest)
    assert len({path.read_bytes() for path in tmp_path.glob("*/manifests/*.json")}) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_the_canonical_form_keeps_the_value_and_not_the_order_of_keys(value: Any) -> None:
    data = canonical_json(value)
    assert json.loads(data) == value
    assert canonical_json(json.loads(data)) == data
    assert canonical_json({"a": value, "b": 1}) == canonical_json({"b": 1, "a": value})


def test_the_highest_number_is_the_index(tmp_path: Path) -> None:
    for generation in (2, 10, 9):
        publish(tmp_path, numbered(generation))
    (tmp_path / "manifests" / "00000011.json.77.tmp").write_text("half-written")
    (tmp_path / "manifests" / "notes.json").write_text("not ours")
    assert generations(tmp_path) == [2, 9, 10]
    assert load_manifest(tmp_path).generation == 10
    assert load_generation(tmp_path, 2).generation == 2


@pytest.fixture
def tiny(tmp_path: Path) -> tuple[Path, bytes]:
    """The shortest manifest there is, and its bytes."""
    bare = Manifest(1, {}, {}, "", {}, (), (), {"é": FileStamp(0, "")}, {}, 0, 0, {}, {}, "")
    publish(tmp_path, bare)
    path = tmp_path / layout.manifest_name(1)
    return path, path.read_bytes()


def test_every_flipped_bit_is_refused_naming_the_file(
    tiny: tuple[Path, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, data = tiny
    flipped = bytearray()
    monkeypatch.setattr(Path, "read_bytes", lambda _: bytes(flipped))  # thousands of files would take a while
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            with pytest.raises(StoreError) as caught:
                load_generation(tmp_path, 1)
            assert str(caught.value).startswith(f"{path}: ")
            if not isinstance(caught.value, CorruptIndexError):  # a flip within the number of the format
                assert "Upgrade" in str(caught.value)
                assert b'"format": 1' not in flipped
    flipped = bytearray(data)
    assert load_generation(tmp_path, 1).files == {"é": FileStamp(0, "")}


def test_every_shorter_or_longer_file_is_refused(tiny: tuple[Path, bytes], tmp_path: Path) -> None:
    path, data = tiny
    for changed in [*(data[:length] for length in range(len(data))), data + b"\n", b"\n" + data, data * 2]:
        path.write_bytes(changed)
        with pytest.raises(CorruptIndexError, match=r"00000001\.json: damaged"):
            load_manifest(tmp_path)


@pytest.mark.parametrize("data", [b"[]", b"null", b"7", b'"text"', b"{}", b'{"format": "1", "checksum": ""}'])
def test_other_json_is_refused(data: bytes, published: Path, tmp_path: Path) -> None:
    published.write_bytes(data)
    with pytest.raises(CorruptIndexError, match="damaged"):
        load_manifest(tmp_path)


def test_a_right_checksum_over_missing_keys_is_refused(published: Path, tmp_path: Path) -> None:
    rewrite(published, lambda plain: plain.pop("segments"))
    with pytest.raises(CorruptIndexError, match=r"damaged .*segments"):
        load_manifest(tmp_path)


def test_a_damaged_manifest_says_how_to_get_the_index_back(published: Path, tmp_path: Path) -> None:
    published.write_bytes(b"")
    with pytest.raises(CorruptIndexError, match="Restore it from a copy, or build again with --overwrite"):
        load_manifest(tmp_path)
    publish(tmp_path, numbered(3))
    (tmp_path / layout.manifest_name(3)).write_bytes(b"")
    with pytest.raises(CorruptIndexError, match=r"00000003\.json: .*delete it to go back to generation 1"):
        load_manifest(tmp_path)


def test_a_newer_format_is_refused_with_a_word_about_upgrading(published: Path, tmp_path: Path) -> None:
    rewrite(published, lambda plain: plain.update(format=2, unheard_of=True))
    with pytest.raises(
        StoreError, match=r"00000001\.json: written in format 2; .* reads up to format 1\. Upgrade it"
    ) as caught:
        load_manifest(tmp_path)
    assert not isinstance(caught.value, CorruptIndexError)


def test_a_feature_unknown_to_this_version_is_refused_by_name(published: Path, tmp_path: Path) -> None:
    rewrite(published, lambda plain: plain.update(features=["tombstones", "shards"]))
    with pytest.raises(StoreError, match=r"needs shards, tombstones, unknown to this version.*Upgrade it") as caught:
        load_manifest(tmp_path)
    assert not isinstance(caught.value, CorruptIndexError)


def test_a_path_without_an_index_is_told_apart(tmp_path: Path) -> None:
    empty, unfinished, file = tmp_path / "empty", tmp_path / "unfinished", tmp_path / "file"
    empty.mkdir()
    (unfinished / layout.PARTS / "00000").mkdir(parents=True)
    file.write_text("text")
    for path, message in [
        (tmp_path / "absent", "no such index. Build one with: isotrope build SOURCE"),
        (empty, "not an index"),
        (file, "not an index"),
        (unfinished, "an unfinished build.*Run the same build command again"),
    ]:
        with pytest.raises(NotAnIndexError, match=f"{path}: {message}"):
            load_manifest(path)
        assert generations(path) == []


def test_publishing_refuses_a_generation_that_is_there(published: Path, tmp_path: Path) -> None:
    data = published.read_bytes()
    with pytest.raises(StoreError, match=r"00000001\.json.*File exists"):
        publish(tmp_path, dataclasses.replace(SMALL, documents=4))
    assert published.read_bytes() == data
    assert [path.name for path in published.parent.iterdir()] == ["00000001.json"]
