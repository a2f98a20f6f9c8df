"""The objects of an index in object storage, compared with an index on a disk."""

from pathlib import Path
from typing import Any

from indexer import BuildConfig, Document, RunOptions
from indexer.recipe.loading import named_path
from indexer.store import layout
from indexer.store.bucket import open_bucket
from indexer.store.manifest import load_manifest
from search import SearchEngine, verify_index
from tests.documents import DOCUMENTS
from tests.fitted import fit_and_build

PARTS = -(-len(DOCUMENTS) // 4)  # of an index of the documents by the tiny recipe


def names(url: str, ending: str = "") -> list[str]:
    return sorted(name for name in open_bucket(url).list() if name.endswith(ending))


def embeddings(place: str | Path) -> list[bytes]:
    """Return the bytes of the embeddings of all parts, in order."""
    index = named_path(place, "the index")
    files = [f"{part.name}/{layout.EMBEDDINGS}" for part in load_manifest(index).parts]
    remote = str(place).startswith("s3:")
    return [open_bucket(str(place)).read(file) if remote else (index / file).read_bytes() for file in files]


def answers(place: str | Path, **options: Any) -> list[tuple[str, float]]:
    with SearchEngine(place, **options) as engine:
        return [(hit.id, hit.score) for hit in engine.search("the river in winter", k=5)]


def require_same(url: str, config: BuildConfig, tmp_path: Path, documents: list[Document] = DOCUMENTS) -> None:
    """Check that the index equals one built on a disk, and that the store contains nothing else."""
    fit_and_build(documents, tmp_path / "alone", config, RunOptions(overwrite=True))
    assert embeddings(url) == embeddings(tmp_path / "alone")
    assert answers(url) == answers(tmp_path / "alone")
    assert verify_index(url).passed
