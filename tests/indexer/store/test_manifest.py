"""The manifest: only the published bytes are accepted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.errors import CorruptIndexError, NotAnIndexError, StoreError
from indexer.hashing import canonical_json, canonical_sha256
from indexer.store import layout, local_store
from indexer.store.files import FileDigest
from indexer.store.manifest import (
    Manifest,
    PartEntry,
    SegmentEntry,
    list_generations,
    load_generation,
    load_manifest,
    publish,
)

PART = [f"parts/00000/{name}" for name in (*layout.PART_DATA, layout.PART)]
NAMES = [*PART, "transforms/0001.safetensors", "segments/0001-00.faiss"]
GATE = {"value": 1.0, "limit": 1.0, "passed": True}
SMALL = Manifest(
    generation=1,
    config={"encoder": {"model": "tiny"}},
    encoder={"model": "tiny", "folder": "", "dim": 4, "identity": {"kind": "vectors", "rules": 1, "model": "é"}},
    fingerprint="f" * 64,
    transform={"file": NAMES[-2], "kind": "whitening", "dim": 4, "note": "", "query_texts": {"source": "", "texts": 0}},
    parts=(PartEntry("parts/00000", 3, 3, "d" * 64, "e" * 64),),
    segments=(SegmentEntry(NAMES[-1], 0, 3, "Flat"),),
    files={name: FileDigest(9, "a" * 64) for name in NAMES} | {NAMES[2]: FileDigest(3 << 20, "b" * 64, "c" * 48)},
    schema={"année": "int64"},
    documents=3,
    rows=3,
    quality={"self_hit": GATE, "tokens": 7, "truncated": 0},
    versions={"isotrope": "0"},
    created="2026-01-02T03:04:05Z",
)


def numbered(generation: int) -> Manifest:
    return msgspec.structs.replace(SMALL, generation=generation)


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a published manifest and give it a right checksum, like another version of the program."""
    plain = json.loads(path.read_bytes())
    del plain["checksum"]
    change(plain)
    plain["checksum"] = canonical_sha256(plain)
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
    assert checksum == canonical_sha256(plain)
    assert plain["format"] == 1
    assert plain["files"]["parts/00000/embeddings.npy"] == {"bytes": 3 << 20, "sha256": "b" * 64, "blocks": "c" * 48}
    assert plain["files"]["parts/00000/documents.parquet"] == {"bytes": 9, "sha256": "a" * 64}


def test_equal_manifests_are_equal_bytes(tmp_path: Path) -> None:
    shuffled = msgspec.structs.replace(SMALL, files=dict(reversed(SMALL.files.items())))
    for name, one in (("a", SMALL), ("b", shuffled)):
        publish(tmp_path / name, one)
    assert len({path.read_bytes() for path in tmp_path.glob("*/manifests/*.json")}) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=30)
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
    assert list_generations(tmp_path) == [2, 9, 10]
    assert load_manifest(tmp_path).generation == 10
    assert load_generation(tmp_path, 2).generation == 2


@pytest.mark.parametrize("every_bit", [False, pytest.param(True, marks=pytest.mark.check)])
def test_a_flipped_bit_of_any_byte_is_refused_naming_the_file(
    every_bit: bool, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = published.read_bytes()
    number = data.index(b'"format":') + len(b'"format":')
    flipped = bytearray()
    monkeypatch.setattr(local_store, "read_regular", lambda *_, **__: bytes(flipped))  # thousands of files take a while
    for position in range(len(data)):
        for bit in range(8) if every_bit or position in (number, number + 1) else [position % 8]:
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            with pytest.raises(StoreError) as caught:
                load_generation(tmp_path, 1)
            assert str(caught.value).startswith(f"{published}: ")
            if not isinstance(caught.value, CorruptIndexError):  # a flip within the number of the format
                assert "upgrade" in str(caught.value)
                assert b'"format": 1' not in flipped
    flipped = bytearray(data)
    assert load_generation(tmp_path, 1) == SMALL


def test_every_shorter_or_longer_file_is_refused(published: Path, tmp_path: Path) -> None:
    data = published.read_bytes()
    for changed in [
        *(data[:length] for length in range(0, len(data), 7)),
        data[:-1],
        data + b"\n",
        b"\n" + data,
        data * 2,
    ]:
        published.write_bytes(changed)
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


HOSTILE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a name that climbs": lambda plain: plain["files"].update({"parts/00000/../../../x": plain["files"][NAMES[0]]}),
    "an absolute name": lambda plain: plain["files"].update({"/etc/passwd": plain["files"][NAMES[0]]}),
    "a device": lambda plain: plain["segments"][0].update(file="/dev/zero"),
    "a folder of the encoder that climbs": lambda plain: plain["files"].update({"encoder/../x": {}}),
    "a state that climbs": lambda plain: plain["encoder"]["identity"].update(
        kind="static", layers=[], pooling="sif", max_length=9, query_prefix="", document_prefix="", precision="float32",
        state={"../../x": "a" * 64},
    ),
    "digits of another script": lambda plain: plain["parts"][0].update(name="parts/\u0660" + "0" * 4),
    "a name with a line break": lambda plain: plain["files"].update({NAMES[0] + "\n": plain["files"][NAMES[0]]}),
    "a negative count": lambda plain: plain["files"][NAMES[0]].update(bytes=-1),
    "a count that is text": lambda plain: plain.update(rows="3"),
    "more rows than there are": lambda plain: plain.update(rows=4),
    "fewer documents without a list of deleted ones": lambda plain: plain.update(documents=2),
    "segments that overlap": lambda plain: plain["segments"].append(plain["segments"][0]),
    "segments of too few rows": lambda plain: plain["segments"][0].update(rows=2),
    "a part twice": lambda plain: plain["parts"].append(plain["parts"][0]),
    "no part": lambda plain: plain.update(parts=[], segments=[]),
    "a file without a checksum": lambda plain: plain["files"].pop(NAMES[3]),
    "a checksum that is none": lambda plain: plain["files"][NAMES[0]].update(sha256="z" * 64),
    "the number of another generation": lambda plain: plain.update(generation=2),
    "a vast dimension": lambda plain: plain["encoder"].update(dim=10**9),
    "an unknown kind of encoder": lambda plain: plain["encoder"]["identity"].update(kind="pickle"),
    "a setting of another type": lambda plain: plain["config"].update(whitening={"strength": []}),
    "figures that are no figures": lambda plain: plain["quality"].update(self_hit=[]),
    "a schema that is a list": lambda plain: plain.update(schema=[]),
    "deep nesting": lambda plain: plain["quality"].update(added=json.loads('{"a":' * 200 + "1" + "}" * 200)),
    "features that are a number": lambda plain: plain.update(features=7),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_right_checksum_over_hostile_values_is_refused_at_once(name: str, published: Path, tmp_path: Path) -> None:
    """A manifest with a right checksum can contain anything, and its readers rely on its types."""
    rewrite(published, HOSTILE[name])
    with pytest.raises(CorruptIndexError, match=r"00000001\.json: damaged \(.+\)\. Fix: restore it"):
        load_manifest(tmp_path)


def test_a_manifest_that_is_a_link_or_lies_behind_one_is_refused_by_name(published: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    published.parent.rename(elsewhere)
    published.parent.symlink_to(elsewhere)
    with pytest.raises(StoreError, match=r"manifests: is a link"):
        load_manifest(tmp_path)
    published.parent.unlink()
    published.parent.mkdir()
    published.symlink_to(elsewhere / published.name)
    with pytest.raises(StoreError, match=r"00000001\.json: cannot be read: it is a link"):
        load_manifest(tmp_path)


def test_a_damaged_manifest_says_how_to_get_the_index_back(published: Path, tmp_path: Path) -> None:
    published.write_bytes(b"")
    with pytest.raises(
        CorruptIndexError, match=r"Fix: restore it from a copy, or build again with RunOptions\(overwrite=True\)"
    ):
        load_manifest(tmp_path)
    publish(tmp_path, numbered(3))
    (tmp_path / layout.manifest_name(3)).write_bytes(b"")
    with pytest.raises(CorruptIndexError, match=r"00000003\.json: .*delete it to go back to generation 1"):
        load_manifest(tmp_path)


def test_a_newer_format_is_refused_with_a_word_about_upgrading(published: Path, tmp_path: Path) -> None:
    rewrite(published, lambda plain: plain.update(format=2, unheard_of=True))
    with pytest.raises(
        StoreError, match=r"00000001\.json: written in format 2, .* reads up to format 1\. Fix: upgrade isotrope"
    ) as caught:
        load_manifest(tmp_path)
    assert not isinstance(caught.value, CorruptIndexError)


def test_a_feature_unknown_to_this_version_is_refused_by_name(published: Path, tmp_path: Path) -> None:
    rewrite(published, lambda plain: plain.update(features=["tombstones", "shards"]))
    with pytest.raises(StoreError, match=r"needs shards, tombstones, unknown to this version.*upgrade") as caught:
        load_manifest(tmp_path)
    assert not isinstance(caught.value, CorruptIndexError)


def test_a_path_without_an_index_is_told_apart(tmp_path: Path) -> None:
    empty, unfinished, file = tmp_path / "empty", tmp_path / "unfinished", tmp_path / "file"
    empty.mkdir()
    (unfinished / layout.PARTS / "00000").mkdir(parents=True)
    file.write_text("text")
    for path, message in [
        (tmp_path / "absent", "no such index. Build one with: build_index"),
        (empty, r"not an index \(it has no manifest\)\. Build one with: build_index"),
        (file, r"not an index .*To build one from these files: build_index\(read_corpus\("),
        (unfinished.parent, r"not an index .*Fix: name the folder of an index\. To build one from these files: "),
        (unfinished, "an unfinished build.*call build_index again"),
    ]:
        with pytest.raises(NotAnIndexError, match=f"{path}: {message}"):
            load_manifest(path)
        assert list_generations(path) == []
    (tmp_path / "cacm" / layout.MANIFESTS).mkdir(parents=True)
    with pytest.raises(NotAnIndexError, match=f'no such index; did you mean "{tmp_path / "cacm"}"'):
        load_manifest(tmp_path / "cacn")
    with pytest.raises(NotAnIndexError, match=f'not an index, but it contains one; did you mean "{tmp_path / "cacm"}"'):
        load_manifest(tmp_path)


def test_publishing_refuses_a_generation_that_is_there(published: Path, tmp_path: Path) -> None:
    data = published.read_bytes()
    with pytest.raises(StoreError, match=r"00000001\.json.*File exists"):
        publish(tmp_path, msgspec.structs.replace(SMALL, documents=4))
    assert published.read_bytes() == data
    assert [path.name for path in published.parent.iterdir()] == ["00000001.json"]
