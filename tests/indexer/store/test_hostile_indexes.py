"""A hostile index: nothing outside it is read, written or removed, and nothing hangs.

Its checksums may be right, because its author can recompute them.
"""

import json
import os
import shutil
import socket
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import faiss
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from indexer import (
    BuildConfig,
    Document,
    RunOptions,
    add_documents,
    build_index,
    compact_index,
    delete_documents,
    refit_index,
)
from indexer.errors import CorruptIndexError, IsotropeError, StoreError
from indexer.hashing import canonical_sha256
from indexer.recipe.corpus_config import ChunkConfig
from indexer.recipe.index_config import IndexConfig
from indexer.store.files import digest_file
from indexer.store.manifest import load_manifest
from search import SearchEngine, verify_index
from search.index import Index, LiveRows
from tests.documents import DOCUMENTS

NEW = Document("new", "A lighthouse warns ships of the rocks.", "Lighthouses", {"year": 1990})
VERBS: dict[str, Callable[[Path, BuildConfig], object]] = {
    "build": lambda index, config: build_index(DOCUMENTS, index, config, RunOptions(overwrite=True)),
    "add": lambda index, config: add_documents([NEW], index),
    "delete": lambda index, config: delete_documents(index, ["d3"]),
    "refit": lambda index, config: refit_index(index, ["whitening.strength=0.5"]),
    "compact": lambda index, config: compact_index(index, keep=1, grace=0),
}


@pytest.fixture(scope="module")
def config(tiny_model: Callable[[str], Path]) -> BuildConfig:
    from indexer.recipe.config import EncoderConfig
    from indexer.recipe.index_config import StoreConfig

    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=32, precision="float32")
    return BuildConfig(encoder=encoder, store=StoreConfig(part_documents=4))


@pytest.fixture(scope="module")
def pristine(config: BuildConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_history(tmp_path_factory.mktemp("pristine") / "index", config)


def with_history(index: Path, config: BuildConfig) -> Path:
    """An index of four parts and two segments with a deleted document."""
    build_index(DOCUMENTS, index, config)
    add_documents([Document("more", "Lamps light the street at night.")], index)
    delete_documents(index, ["d1"])
    return index


@pytest.fixture
def index(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "index"))


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A user's folder with names that an index might sweep."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    for name in ("letter.txt", "0007.npy", "0009-00.faiss", "00000009.json", "x.1.tmp", "part.json"):
        (folder / name).write_text(f"my {name}")
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def reseal(index: Path, name: str, change: Callable[[dict[str, Any]], None] = lambda plain: None) -> None:
    """Put the current checksum of a file into the newest manifest, with a right checksum of its own."""
    path = max((index / "manifests").iterdir())
    plain = json.loads(path.read_bytes())
    del plain["checksum"]
    if name:
        plain["files"][name] = msgspec.to_builtins(digest_file(index / name))
    change(plain)
    plain["checksum"] = canonical_sha256(plain)
    path.write_bytes(json.dumps(plain, sort_keys=True, indent=1, ensure_ascii=False).encode() + b"\n")


PLACES = [
    "parts/00099",
    "encoder/0123456789abcdef",
    "deleted",
    "segments",
    "parts",
    "manifests",
    "transforms",
    "lock",
    "segments/0009-00.faiss",
    "transforms/0009.safetensors.1.tmp",
    "segments/anything",
]


@pytest.mark.parametrize("verb", VERBS)
def test_a_link_anywhere_in_an_index_stops_every_change_by_name(
    verb: str, index: Path, theirs: Path, config: BuildConfig
) -> None:
    before = contents(theirs)
    for place in PLACES:
        path, aside = index / place, index.with_name("aside")
        if path.exists():
            path.rename(aside)
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(theirs)
        with pytest.raises(StoreError) as caught:
            VERBS[verb](index, config)
        assert f"{index / place}: " in str(caught.value)
        assert "link" in str(caught.value)
        assert contents(theirs) == before
        path.unlink()
        if aside.exists():
            aside.rename(path)
        elif place.startswith("encoder"):
            path.parent.rmdir()
    VERBS[verb](index, config)  # nothing was harmed
    assert verify_index(index).passed
    assert contents(theirs) == before


def test_a_new_build_does_not_write_through_a_link(theirs: Path, tmp_path: Path, config: BuildConfig) -> None:
    before = contents(theirs)
    for place in ("parts", "manifests", "lock", "transforms"):
        index = tmp_path / f"new-{place}"
        index.mkdir()
        (index / place).symlink_to(theirs / "new" if place == "lock" else theirs)
        with pytest.raises(StoreError, match="link"):
            build_index(DOCUMENTS, index, config)
    assert contents(theirs) == before


def _as_link(path: Path, elsewhere: Path) -> None:
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def _as_hard_link(path: Path, elsewhere: Path) -> None:
    path.rename(elsewhere)
    path.hardlink_to(elsewhere)


def _as_pipe(path: Path, elsewhere: Path) -> None:
    path.rename(elsewhere)
    os.mkfifo(path)


def _as_socket(path: Path, elsewhere: Path) -> None:
    path.rename(elsewhere)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(path))


def _as_device(path: Path, elsewhere: Path) -> None:
    path.rename(elsewhere)
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("replace", [_as_link, _as_hard_link, _as_pipe, _as_socket, _as_device])
def test_readers_open_only_regular_files_of_the_index_alone(
    replace: Callable[[Path, Path], None], index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even with the same bytes: links in an archive must not make a user's files part of an index."""
    monkeypatch.chdir(tmp_path)  # the path of a socket has to be short
    names = ["lock", *sorted(load_manifest(index).files)]
    for name in names:
        replace(index / name, tmp_path / "elsewhere")
        if name != "lock":
            with pytest.raises(StoreError, match=name):
                SearchEngine(index)
            with pytest.raises(StoreError, match=name):
                verify_index(index)
        elif replace is not _as_hard_link:
            with pytest.raises(StoreError, match="lock"):
                delete_documents(index, ["d2"])
        (index / name).unlink()
        (tmp_path / "elsewhere").rename(index / name)
    assert verify_index(index).passed


def test_a_damaged_file_of_moments_is_an_error_and_no_traceback(index: Path) -> None:
    """`add` measures drift with the moments of earlier added parts."""
    path = index / "parts/00003/moments.npz"
    data = path.read_bytes()
    for position in range(0, len(data), 431):
        flipped = bytearray(data)
        flipped[position] ^= 0x41
        path.write_bytes(flipped)
        with pytest.raises(CorruptIndexError, match=r"moments\.npz"):
            add_documents([NEW], index)
    path.write_bytes(data)
    assert add_documents([NEW], index).added == 1


def _moments(**arrays: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, **arrays)

    return write


def _bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("count", "mean", "scatter"):
            archive.writestr(f"{name}.npy", bytes(1 << 24))


@pytest.mark.parametrize(
    "write",
    [
        _moments(count=np.int64(1)),
        _moments(count=np.int64(1), mean=np.zeros(3), scatter=np.zeros((2, 2))),
        _moments(count=np.array(["x"]), mean=np.zeros(32), scatter=np.zeros((32, 32))),
        _moments(count=np.int64(1), mean=np.array([object()]), scatter=np.zeros((1, 1))),
        _bomb,
        lambda path: path.write_bytes(b"PK\x05\x06"),
        lambda path: path.write_bytes(b""),
    ],
)
def test_moments_that_are_sealed_and_wrong_are_refused(write: Callable[[Path], None], index: Path) -> None:
    name = "parts/00003/moments.npz"
    write(index / name)
    reseal(index, name)
    with pytest.raises(CorruptIndexError, match=r"moments\.npz: not the moments of a part"):
        add_documents([NEW], index)


def _table(**columns: Any) -> pa.Table:
    return pa.table(columns)


@pytest.mark.parametrize(
    "table",
    [
        _table(id=["a"] * 4, title=["t"] * 4, text=["x"] * 4),  # ids may be null, by the schema
        _table(id=[1, 2, 3, 4], title=["t"] * 4, text=["x"] * 4),
        _table(text=["x"] * 4),
        _table(id=["a"] * 9, title=["t"] * 9, text=["x"] * 9),
    ],
)
def test_documents_that_are_sealed_and_wrong_are_refused(table: pa.Table, index: Path) -> None:
    name = "parts/00000/documents.parquet"
    pq.write_table(table, index / name)
    reseal(index, name)
    with pytest.raises(CorruptIndexError, match=r"00000/documents\.parquet"):
        SearchEngine(index).search("whales", k=9)
    assert not verify_index(index).passed


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" * 50, b"not parquet at all"])
@pytest.mark.parametrize("file", ["documents.parquet", "windows.parquet", "embeddings.npy"])
def test_any_file_of_a_part_may_be_sealed_rubbish(file: str, data: bytes, index: Path, config: BuildConfig) -> None:
    name = f"parts/00000/{file}"
    (index / name).write_bytes(data)
    reseal(index, name)
    for verb in ("refit", "compact", "add"):
        with suppress(IsotropeError):  # or it was not looked at
            VERBS[verb](index, config)


def test_embeddings_that_promise_more_than_they_hold_are_refused(index: Path) -> None:
    name = "parts/00000/embeddings.npy"
    data = (index / name).read_bytes()
    (index / name).write_bytes(data.replace(b"(4, 32)", b"(9, 99)"))
    reseal(index, name)
    with pytest.raises(CorruptIndexError, match=r"embeddings\.npy: not an array of embeddings"):
        refit_index(index, ["whitening.strength=0.5"])


def test_windows_out_of_order_are_refused(config: BuildConfig, tmp_path: Path) -> None:
    from dataclasses import replace

    index, name = tmp_path / "chunked", "parts/00000/windows.parquet"
    build_index(DOCUMENTS, index, replace(config, chunk=ChunkConfig(tokens=8, overlap=2)))
    table = pq.read_table(index / name)
    for column, values in (
        ("document", [7] * len(table)),
        ("document", [0] * len(table)),
        ("start", [-1] * len(table)),
        ("end", [0] * (len(table) - 1) + [-5]),
    ):
        place = table.schema.get_field_index(column)
        pq.write_table(table.set_column(place, table.schema.field(place), pa.array(values, pa.int32())), index / name)
        reseal(index, name)
        with pytest.raises(CorruptIndexError, match=r"windows\.parquet: its windows are not those of"):
            SearchEngine(index).search("whales", k=9)


def test_a_file_of_no_index_at_all_is_refused(index: Path) -> None:
    (index / "segments/0001-00.faiss").write_bytes(b"null")  # FAISS reads it as None
    reseal(index, "segments/0001-00.faiss")
    with pytest.raises(CorruptIndexError, match=r"0001-00\.faiss: contains no index"):
        SearchEngine(index).search("whales")


@pytest.mark.parametrize("kind", [pa.null(), pa.binary(8), pa.int32()])
def test_text_hashes_of_another_type_are_refused(kind: pa.DataType, index: Path) -> None:
    name = "parts/00000/windows.parquet"
    table = pq.read_table(index / name)
    rows = pa.nulls(len(table), kind)
    pq.write_table(table.set_column(0, "text_hash", rows), index / name)
    reseal(index, name)
    with pytest.raises(CorruptIndexError, match=r"windows\.parquet: .*text_hash is"):
        list(LiveRows(Index.open(index)).hash_blocks())


def test_a_transform_of_other_dimensions_is_refused(index: Path) -> None:
    reseal(index, "", lambda plain: plain["transform"].update(dim=plain["transform"]["dim"] - 1))
    with pytest.raises(CorruptIndexError, match=r"transforms/0001\.safetensors"):
        SearchEngine(index).search("whales")


def test_an_index_file_that_would_search_for_ever_is_refused(config: BuildConfig, tmp_path: Path) -> None:
    """FAISS checks the counts of a graph when loading, but not that a search advances."""
    from dataclasses import replace

    path = tmp_path / "graph"
    build_index(DOCUMENTS, path, replace(config, index=IndexConfig(type="HNSW8", recall=0.1)))
    name = load_manifest(path).segments[0].file
    graph: Any = faiss.read_index(str(path / name))
    graph.hnsw.efSearch = 0
    faiss.write_index(graph, str(path / name))
    reseal(path, name, lambda plain: plain["segments"][0].update(search_parameters={}))
    with pytest.raises(CorruptIndexError, match=r'faiss: .*"efSearch" is 0'):
        SearchEngine(path).search("whales")


def test_parameters_of_a_manifest_that_no_search_takes_are_refused(index: Path) -> None:
    reseal(index, "", lambda plain: plain["segments"][0].update(search_parameters={"nprobe": 2}))
    with pytest.raises(CorruptIndexError, match=r"0001-00\.faiss: .*nprobe"):
        SearchEngine(index).search("whales")
