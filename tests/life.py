"""The life of an index in tests: every verb as a function of an index, and the expected documents."""

from collections.abc import Callable, Sequence
from pathlib import Path

from indexer import Document, add_documents, build_index, compact_index, delete_documents, refit_index, sync_index
from indexer.pipeline.erase import erase_from_index, finish, read_erasure
from indexer.recipe.config import BuildConfig
from indexer.store.manifest import load_manifest
from search import SearchEngine
from tests.documents import DOCUMENTS

QUERIES = ["whales in the sea", "how is bread made", "a map of stars", "dancing", "steel bridge sand"]
NEW = [
    Document("n0", "Owls turn their heads to see behind.", "Owls", {"year": 2001}),
    Document("n1", "Salt lowers the freezing point of water.", "Salt", {"year": 2002}),
    Document("d3", "A star ends as a white dwarf or a black hole.", "Stars", {"year": 1993}),  # replaces
    Document("d4", "Rivers carry sand and silt to the coast.", "Rivers", {"year": 1994}),  # unchanged
]


def expected_after_add(before: Sequence[Document], new: Sequence[Document]) -> list[Document]:
    """Return the documents in the order of their numbers: a replaced document moves to the end."""
    same = {document.id for document in new for old in before if old == document}
    changed = [document for document in new if document.id not in same]
    gone = {document.id for document in changed}
    return [document for document in before if document.id not in gone] + changed


def assert_equals_fresh_build(
    index: Path, documents: Sequence[Document], fresh: Path, config: BuildConfig, tolerance: float = 1e-6
) -> None:
    """Assert the same hits, ties by id, as a build of these documents with the index's own transform."""
    build_index(documents, fresh, config, transform_from=index)
    grown, built = SearchEngine(index), SearchEngine(fresh)
    assert len(grown) == len(built) == len(documents)
    assert list(grown.index.documents.all_documents()) == list(documents)
    for k in (1, 3, len(documents) + 5):
        for ours, theirs in zip(grown.search_many(QUERIES, k), built.search_many(QUERIES, k), strict=True):
            assert [hit.id for hit in ours] == [hit.id for hit in theirs]
            assert [(hit.title, hit.text, hit.metadata) for hit in ours] == [
                (hit.title, hit.text, hit.metadata) for hit in theirs
            ]
            gaps = [abs(one.score - other.score) for one, other in zip(ours, theirs, strict=True)]
            assert max(gaps) <= tolerance


def erased(index: Path) -> None:
    """Erase one live document, and one that is only stored."""
    if read_erasure(index) or load_manifest(index).deleted:  # else a run that died has removed everything
        erase_from_index(index, ["d1", "d0"], lambda *_: {})
        finish(index)


VERBS: dict[str, Callable[[Path], object]] = {
    "add": lambda index: add_documents(NEW, index),
    "delete": lambda index: delete_documents(index, ["d1", "d7"], ignore_missing=True),
    "sync": lambda index: sync_index(expected_after_add(DOCUMENTS[3:], NEW), index),
    "refit": lambda index: refit_index(index, ["whitening.strength=1"]),
    "erase": erased,
    "compact": lambda index: compact_index(index, keep=1, grace=0),
}


def grown(index: Path, config: BuildConfig) -> list[Document]:
    """Build an index, add to it and delete from it; return its documents."""
    build_index(DOCUMENTS, index, config)
    add_documents(NEW[:2], index)
    delete_documents(index, ["d0", "n1"])
    return [document for document in [*DOCUMENTS, *NEW[:2]] if document.id not in ("d0", "n1")]
