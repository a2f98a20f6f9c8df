"""Unit vectors from the engine are never mistaken for raw embeddings of the same length."""

import copy
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from indexer import BuildConfig, Document, build_index, refit_index
from indexer.errors import ConfigError
from indexer.recipe.config import EncoderConfig
from search import SearchEngine
from search.unit_vectors import UnitVectors
from tests.documents import DOCUMENTS

QUERIES = ["how do whales sing", "bread", "a map of the stars"]


@pytest.fixture(scope="module")
def engine(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> SearchEngine:
    """An index whose vectors have the length of its embeddings."""
    more = [Document(f"m{number}", f"{number} {number * 7919} and {number % 9}") for number in range(60)]
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=32, precision="float32", pooling="max")
    folder = tmp_path_factory.mktemp("unit") / "index"
    build_index([*DOCUMENTS, *more], folder, BuildConfig(encoder=encoder))
    index = SearchEngine(folder)
    assert index.index.transform.dim == index.index.manifest.encoder["dim"]
    return index


def test_query_vectors_of_embed_are_searched_unchanged(engine: SearchEngine) -> None:
    vectors, expected = engine.embed(QUERIES), engine.search_many(QUERIES, 5)
    assert engine.search_vectors(vectors, 5) == expected
    assert engine.search_vectors(engine.encoder.encode(QUERIES, "query"), 5) == expected
    assert engine.search_vectors(vectors[1:], 5) == expected[1:]
    assert engine.search_vectors(vectors[[2, 0]], 5) == [expected[2], expected[0]]
    assert engine.search_vectors(copy.deepcopy(vectors), 5) == expected
    assert SearchEngine(engine.index.path).search_vectors(vectors, 5) == expected  # opened once more


def test_vectors_of_documents_and_of_other_indexes_are_refused(engine: SearchEngine, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r'have the role "document"; expected raw embeddings.*embed\(texts, "query"\)'
    ):
        engine.search_vectors(engine.embed(QUERIES, "document"))
    before, refitted = engine.embed(QUERIES), shutil.copytree(engine.index.path, tmp_path / "index")
    refit_index(refitted, ["whitening.strength=1.0"])
    with pytest.raises(ConfigError, match="come from another encoder or transform"):
        SearchEngine(refitted).search_vectors(before)
    with pytest.raises(ConfigError, match=r'similarity "js" compares raw embeddings'):
        engine.search_vectors(before, similarity="js")


@pytest.mark.parametrize(
    "derive",
    [
        lambda vectors: vectors * 2,
        lambda vectors: -vectors,
        lambda vectors: vectors - vectors.mean(axis=0),
        lambda vectors: np.concatenate([vectors, vectors]),
        lambda vectors: np.stack(list(vectors)),
        lambda vectors: pickle.loads(pickle.dumps(vectors)),  # noqa: S301
        lambda vectors: vectors @ np.eye(vectors.shape[1], dtype=np.float32),
    ],
)
def test_derived_vectors_are_refused(derive: Callable[[UnitVectors], UnitVectors], engine: SearchEngine) -> None:
    with pytest.raises(ConfigError, match="were calculated or joined from results of embed; expected raw embeddings"):
        engine.search_vectors(derive(engine.embed(QUERIES)))


def test_unit_vectors_behave_like_arrays(engine: SearchEngine) -> None:
    vectors = engine.embed(QUERIES)
    plain = np.asarray(vectors)
    assert type(plain) is np.ndarray
    assert vectors.dtype == np.float32
    assert vectors.shape == (3, engine.index.transform.dim)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    scores = vectors @ vectors.T
    assert type(scores) is np.ndarray
    np.testing.assert_array_equal(scores, plain @ plain.T)
    assert type(vectors.sum()) is np.float32
    assert type(vectors[0, 0]) is np.float32
    assert vectors.tolist() == plain.tolist()
    assert engine.embed([]).shape == (0, engine.index.transform.dim)


def test_one_vector_is_one_query(engine: SearchEngine) -> None:
    raw = engine.encoder.encode(["a red fish"], "query")
    marked = engine.embed(["a red fish"])
    expected = engine.search_vectors(raw)
    assert engine.search_vectors(raw[0]) == expected
    assert engine.search_vectors(marked[0]) == expected
    assert engine.search_vectors(raw[0].tolist()) == expected


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([[1.0, 2.0], [1.0]], "have different lengths"),
        ("text", "are an array of <U4; expected"),
        (None, "are an array of object; expected"),
        (np.array([["a"]]), "are an array of <U1; expected"),
        (np.ones(31, np.float32), r"have shape \(1, 31\); expected \(n, 32\)"),
        (np.ones((1, 1, 32), np.float32), r"have shape \(1, 1, 32\); expected \(n, 32\)"),
        (np.full((1, 32), np.inf), "query vector 1 is not finite"),
    ],
)
def test_other_arrays_are_refused(wrong: object, message: str, engine: SearchEngine) -> None:
    with pytest.raises(ConfigError, match=message):
        engine.search_vectors(wrong)  # type: ignore[arg-type]
