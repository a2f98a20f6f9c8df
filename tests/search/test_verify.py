"""`isotrope verify`: files with correct checksums and wrong contents, found by counts and transforms."""

import shutil
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from indexer import BuildConfig
from indexer.recipe.config import EncoderConfig
from indexer.recipe.index_config import StoreConfig
from search import verify_index
from tests.indexer.store.test_hostile_indexes import reseal, with_history

SEGMENT, PART = "segments/0001-00.faiss", "parts/00000"


@pytest.fixture(scope="module")
def pristine(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=32, precision="float32")
    config = BuildConfig(encoder=encoder, store=StoreConfig(part_documents=4))
    return with_history(tmp_path_factory.mktemp("verified") / "index", config)


@pytest.fixture
def index(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "index"))


def test_a_whole_index_passes_with_what_was_looked_at(index: Path) -> None:
    found = verify_index(index)
    assert (found.problems, found.passed, found.vectors_compared, found.self_hits) == ([], True, 10, 1.0)


def test_duplicate_ids_are_reported(index: Path) -> None:
    path = index / PART / "documents.parquet"
    table = pq.read_table(path)
    ids = pa.array(["d0", "d1", "d0", "d3"], pa.string())
    pq.write_table(table.set_column(0, table.schema.field("id"), ids), path, use_dictionary=False)
    reseal(index, f"{PART}/documents.parquet")
    assert "documents: 1 ids occur more than once" in verify_index(index).problems


def test_vectors_that_differ_from_the_embeddings_are_reported(index: Path) -> None:
    stored = faiss.read_index(str(index / SEGMENT))
    vectors = stored.reconstruct_n(0, stored.ntotal)
    swapped = faiss.IndexFlatIP(stored.d)
    swapped.add(np.concatenate([vectors[[2, 1, 0]], vectors[3:]]))
    faiss.write_index(swapped, str(index / SEGMENT))
    reseal(index, SEGMENT)
    (problem,) = verify_index(index).problems
    assert problem.startswith(f"{SEGMENT}: vectors differ from the transformed embeddings by ")


def test_vectors_that_do_not_find_themselves_are_reported(index: Path) -> None:
    stored = faiss.read_index(str(index / SEGMENT))
    other = faiss.IndexFlatIP(stored.d)
    other.add(-stored.reconstruct_n(0, stored.ntotal))
    faiss.write_index(other, str(index / SEGMENT))
    reseal(index, SEGMENT)
    assert "self-hit: 0.1111 of the sampled rows find themselves, expected 1.0" in verify_index(index).problems


def test_a_wrong_number_of_embeddings_is_reported(index: Path) -> None:
    name = f"{PART}/embeddings.npy"
    np.save(index / name, np.load(index / name)[:3])
    reseal(index, name)
    assert [problem for problem in verify_index(index).problems if f"{name}: 3 rows instead of 4" in problem]
