"""Damage to a published file is reported at open or by verify, with the file, and never gives wrong answers."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from indexer import BuildConfig, build_index
from indexer.errors import CorruptIndexError, IsotropeError
from search import Hit, SearchEngine, verify_index
from tests.documents import DOCUMENTS

QUERY = "how do whales sing"
# Read by search; all other files are hashed by `verify`.
SEARCHED = ("documents.parquet", ".faiss", ".safetensors", "manifests/00000001.json")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    from indexer.recipe.config import EncoderConfig
    from indexer.recipe.index_config import StoreConfig

    model = request.getfixturevalue("tiny_model")("bert")
    index = tmp_path_factory.mktemp("pristine") / "index"
    encoder = EncoderConfig(model=str(model), max_length=32)
    build_index(DOCUMENTS, index, BuildConfig(encoder=encoder, store=StoreConfig(part_documents=5)))
    return index


@pytest.fixture
def index(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "index"))


def published_files(index: Path) -> Iterator[Path]:
    yield from sorted(path for path in index.rglob("*") if path.is_file() and path.name != "lock")


def answers(index: Path) -> list[Hit]:
    with SearchEngine(index) as engine:
        return list(engine.search(QUERY, k=5))


def assert_refused(index: Path, name: str, expected: list[Hit]) -> None:
    """Verify names the file; search rejects it too, or does not need it and answers as before."""
    problems = _problems(index)
    assert any(name in problem for problem in problems), (name, problems)
    hits, refusal = _answers_or_refusal(index)
    if name.endswith(SEARCHED) or hits is None:
        assert name in refusal
    else:
        assert hits == expected


def _answers_or_refusal(index: Path) -> tuple[list[Hit] | None, str]:
    try:
        return answers(index), ""
    except CorruptIndexError as error:
        return None, str(error)


def _problems(index: Path) -> list[str]:
    try:
        return verify_index(index).problems
    except CorruptIndexError as error:
        return [str(error)]


def test_an_untouched_index_passes(pristine: Path) -> None:
    found = verify_index(pristine)
    assert found.passed
    assert found.files == len(list(published_files(pristine))) - 1  # the manifest does not list itself
    assert (found.documents, found.vectors_compared, found.self_hits) == (len(DOCUMENTS), len(DOCUMENTS), 1.0)


def test_a_flipped_bit_anywhere_in_any_file_is_refused(pristine: Path, index: Path) -> None:
    expected = answers(pristine)
    for path in published_files(index):
        data = path.read_bytes()
        for position in {0, len(data) // 2, len(data) - 1}:
            flipped = bytearray(data)
            flipped[position] ^= 1 << (position % 8)
            path.write_bytes(flipped)
            assert_refused(index, str(path.relative_to(index)), expected)
        path.write_bytes(data)
    assert answers(index) == expected


@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
def test_a_file_cut_short_or_grown_or_gone_is_refused(keep: float, pristine: Path, index: Path) -> None:
    expected = answers(pristine)
    for path in published_files(index):
        data = path.read_bytes()
        path.write_bytes(data[: int(keep * len(data))] if keep < 1 else data + b"\n")
        assert_refused(index, str(path.relative_to(index)), expected)
        if "manifests" not in str(path):
            path.unlink()
            assert_refused(index, str(path.relative_to(index)), expected)
        path.write_bytes(data)


def test_swapped_files_are_refused(pristine: Path, index: Path) -> None:
    """Both files are valid but differ from the manifest."""
    first, second = index / "parts/00000/embeddings.npy", index / "parts/00001/embeddings.npy"
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    assert_refused(index, "parts/00000/embeddings.npy", answers(pristine))


def test_large_files_are_checked_as_they_are_read(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above 256 MB nothing is hashed at open; reading still rejects the damaged file."""
    from indexer.store import integrity

    monkeypatch.setattr(integrity, "OPEN_HASH_BYTES", 0)
    assert answers(index)
    for name in ("segments/0001-00.faiss", "parts/00001/documents.parquet"):
        path = index / name
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
        with pytest.raises(CorruptIndexError, match=path.name), SearchEngine(index) as engine:
            engine.search(QUERY, k=len(DOCUMENTS))
        data[len(data) // 2] ^= 4
        path.write_bytes(data)


def test_a_damaged_part_of_an_unfinished_build_is_encoded_again(
    tiny_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    report = build_index(DOCUMENTS, index, tiny_config)
    (index / "manifests/00000001.json").unlink()
    path = index / "parts/00001/embeddings.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    again = build_index(DOCUMENTS, index, tiny_config)
    assert (again.parts_encoded, again.parts_kept) == (1, 2)
    assert again.documents == report.documents
    assert verify_index(index).passed


def test_errors_are_of_our_own_kind(index: Path) -> None:
    (index / "manifests/00000001.json").write_bytes(b"")
    with pytest.raises(IsotropeError):
        SearchEngine(index)
