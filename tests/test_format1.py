"""A small index of format 1 from the time of its definition: every later version opens it with the same answers."""

import json
import shutil
from pathlib import Path

import pytest

from search import SearchEngine, verify_index

DATA = Path(__file__).parent / "data" / "format1"


def test_the_first_index_is_still_in_order() -> None:
    assert verify_index(DATA / "index").passed


def test_the_first_index_still_gives_the_same_answers() -> None:
    with SearchEngine(DATA / "index", model=DATA / "model") as engine:
        for query, expected in json.loads((DATA / "answers.json").read_text()).items():
            hits = engine.search(query, k=3)
            assert [hit.id for hit in hits] == [name for name, _ in expected]
            assert [hit.score for hit in hits] == pytest.approx([score for _, score in expected], abs=1e-3)


def test_the_folder_is_what_the_readme_specifies(tmp_path: Path) -> None:
    """Names of files and the keys of the two JSON files define the format."""
    index = Path(shutil.copytree(DATA / "index", tmp_path / "index"))
    part = {"documents.parquet", "windows.parquet", "embeddings.npy", "moments.npz", "part.json"}
    names = {str(path.relative_to(index)) for path in index.rglob("*") if path.is_file()}
    assert names == {
        "manifests/00000001.json",
        "transforms/0001.safetensors",
        "segments/0001-00.faiss",
        *(f"parts/{number:05d}/{name}" for number in (0, 1) for name in part),
    }
    manifest = json.loads((index / "manifests/00000001.json").read_text())
    assert " ".join(sorted(manifest)) == (
        "checksum config created deleted documents encoder features files fingerprint format generation parts "
        "quality rows schema segments transform versions"
    )
    assert set(manifest["files"]) == names - {"manifests/00000001.json"}
    assert set(manifest["segments"][0]) == {"file", "first_row", "rows", "factory", "search_parameters"}
    assert set(manifest["parts"][0]) == {"name", "documents", "rows", "document_key", "embedding_key"}
