"""LangChain's own test suites for the vector store, the retriever and the embeddings, and what they leave open."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langchain_tests.integration_tests import (
    EmbeddingsIntegrationTests,
    RetrieversIntegrationTests,
    VectorStoreIntegrationTests,
)
from langchain_tests.unit_tests import EmbeddingsUnitTests

from indexer import BuildConfig, ConfigError, CorpusError, ExistsError, MismatchError, NotAnIndexError
from indexer.recipe.config import without_auto
from indexer.recipe.corpus_config import ChunkConfig
from search import SearchEngine
from search.integrations.langchain import IsotropeEmbeddings, IsotropeRetriever, IsotropeVectorStore
from search.ranking.options import SEARCH_OPTIONS
from tests.documents import DOCUMENTS

pytestmark = pytest.mark.check

FAKE = DeterministicFakeEmbedding(size=16)


class Named(DeterministicFakeEmbedding):
    """Embeddings with the name of a model."""

    model: str


class Cached(DeterministicFakeEmbedding):
    """Embeddings behind a cache, as LangChain's are."""

    underlying_embeddings: Any


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def engine(tiny_config: BuildConfig, tmp_path: Path) -> SearchEngine:
    return SearchEngine.from_texts(DOCUMENTS, tmp_path / "index", tiny_config)


@pytest.fixture
def store(tmp_path: Path) -> IsotropeVectorStore:
    """A store of given vectors in a folder."""
    return IsotropeVectorStore(tmp_path / "vectors", FAKE)


# --- LangChain's suites


@pytest.mark.anyio
class TestStoreOfGivenVectors(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self) -> VectorStore:
        return IsotropeVectorStore(embedding=self.get_embeddings())


@pytest.mark.anyio
class TestStoreWithItsOwnEncoder(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tiny_config: BuildConfig) -> VectorStore:
        return IsotropeVectorStore(SearchEngine.from_texts([], config=tiny_config))


@pytest.mark.anyio
class TestRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _opened(self, engine: SearchEngine) -> None:
        self.engine = engine

    @property
    def retriever_constructor(self) -> type[IsotropeRetriever]:
        return IsotropeRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"index": self.engine}

    @property
    def retriever_query_example(self) -> str:
        return "whales that sing"


class OfAnIndex:
    """The parameters of the suites of embeddings."""

    engine: SearchEngine

    @pytest.fixture(autouse=True)
    def _opened(self, engine: SearchEngine) -> None:
        self.engine = engine

    @property
    def embeddings_class(self) -> type[IsotropeEmbeddings]:
        return IsotropeEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"index": self.engine}


@pytest.mark.anyio
class TestEmbeddings(OfAnIndex, EmbeddingsIntegrationTests):
    pass


class TestEmbeddingsUnit(OfAnIndex, EmbeddingsUnitTests):
    pass


# --- the vector store


TEXTS = [document.text for document in DOCUMENTS]
METADATAS = [{**document.metadata, "title": document.title, "even": number % 2 == 0}
             for number, document in enumerate(DOCUMENTS)]  # fmt: skip


def generation(store: IsotropeVectorStore) -> int:
    return store.engine.index.manifest.generation


def contents(documents: list[Document]) -> list[str]:
    return [document.page_content for document in documents]


def test_scores_and_diverse_results_are_those_of_langchains_store_in_memory(store: IsotropeVectorStore) -> None:
    expected = InMemoryVectorStore(FAKE)
    for each in (store, expected):
        each.add_texts(TEXTS, METADATAS, ids=[str(number) for number in range(len(TEXTS))])
    for query in ("whales", *TEXTS):
        hits, others = store.similarity_search_with_score(query, k=5), expected.similarity_search_with_score(query, k=5)
        assert [document for document, _ in hits] == [document for document, _ in others]
        np.testing.assert_allclose([score for _, score in hits], [score for _, score in others], atol=1e-6)
        assert store.similarity_search_by_vector(FAKE.embed_query(query), k=5) == [hit for hit, _ in hits]
        diverse: dict[str, Any] = {"k": 3, "fetch_k": 6, "lambda_mult": 0.2}
        assert store.max_marginal_relevance_search(query, **diverse) == expected.max_marginal_relevance_search(
            query, **diverse
        )


def test_the_index_is_found_again_and_answers_as_the_engine_does(store: IsotropeVectorStore) -> None:
    store.add_texts(TEXTS, METADATAS)
    again = IsotropeVectorStore(store.engine.index.path, FAKE)
    ((document, score), *_) = again.similarity_search_with_score(TEXTS[3])
    assert (document.page_content, document.metadata) == (TEXTS[3], METADATAS[3])
    assert score == pytest.approx(1)
    (hits,) = SearchEngine(store.engine.index.path).search_vectors(FAKE.embed_query("whales"), k=4)
    assert [hit.id for hit in hits] == [found.id for found in again.similarity_search("whales")]


def test_an_index_with_an_encoder_gives_the_answers_of_its_engine(engine: SearchEngine) -> None:
    store = IsotropeVectorStore(engine)
    query, hits = "whales that sing", engine.search("whales that sing", k=4)
    assert [(found.id, score) for found, score in store.similarity_search_with_score(query)] == [
        (hit.id, hit.score) for hit in hits
    ]
    by_vector = store.similarity_search_by_vector(store.embeddings.embed_query(query))
    assert [found.id for found in by_vector] == [hit.id for hit in hits]
    diverse = store.max_marginal_relevance_search(query, k=3, fetch_k=9, lambda_mult=1.0)
    assert [found.id for found in diverse] == [hit.id for hit in hits[:3]]
    assert IsotropeVectorStore(engine, IsotropeEmbeddings(engine.index.path)).similarity_search(query) == by_vector
    vectors = np.array(store.embeddings.embed_documents(TEXTS[:2]))
    np.testing.assert_allclose(vectors, engine.embed(TEXTS[:2], "document"))


def test_many_texts_are_one_generation(store: IsotropeVectorStore) -> None:
    before = generation(store)
    store.add_texts([f"text {number}" for number in range(1000)])
    assert (generation(store), len(store.engine)) == (before + 1, 1000)


def test_a_text_without_an_id_is_stored_once(store: IsotropeVectorStore) -> None:
    first, second, repeated = store.add_texts(["a", "b", "a"])
    assert first == repeated != second
    before = generation(store)
    assert store.add_texts(["a"], [{}]) == [first]
    assert generation(store) == before
    assert store.add_texts(["a", "b"], [{"year": 1}, {}]) != [first, second]
    assert len(store.engine) == 3
    assert store.add_texts(["old", "new"], ids=["x", "x"]) == ["x", "x"]
    assert contents(store.get_by_ids(["x"])) == ["new"]
    assert store.add_texts([]) == []


def test_metadata_keep_their_names_and_filters_know_them(store: IsotropeVectorStore) -> None:
    metadata: list[dict[str, Any]] = [
        {"id": 1, "text": "t", "metadata_id": "m", "title": "A"},
        {"id": 2, "metadata_metadata_text": True},
    ]
    store.add_texts(["first", "second"], metadata, ids=["a", "b"])
    assert [found.metadata for found in store.get_by_ids(["a", "b"])] == metadata
    for condition in ({"id": 1}, {"text": "t"}, {"metadata_id": "m"}, {"title": {"$in": ["A", "B"]}}, "id = 'a'"):
        assert contents(store.similarity_search("x", filter=condition)) == ["first"], condition
    assert store.engine.document("a").title == "A"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"year": {"$eq": 1993}}, "year = 1993"),
        ({"year": {"$gte": 1992, "$lt": 1995}}, "year >= 1992 AND year < 1995"),
        ({"$or": [{"even": True}, {"year": {"$gt": 1996}}]}, "even OR year > 1996"),
        ({"$and": [{"year": {"$nin": [1990, 1991]}}, {"$not": {"even": True}}]}, "year > 1991 AND NOT even"),
        ({"title": {"$like": "B%"}, "year": {"$ne": 1991}}, "title LIKE 'B%' AND year <> 1991"),
        ({"year": {"<=": 1992}}, "year <= 1992"),
        (None, None),
    ],
)
def test_filters_are_written_as_langchain_programs_write_them(
    given: dict[str, Any] | None, meant: str | None, store: IsotropeVectorStore
) -> None:
    store.add_texts(TEXTS, METADATAS)
    found = store.similarity_search("whales", k=9, filter=given)
    assert found == store.similarity_search("whales", k=9, filter=meant) != []
    if given:
        assert len(found) < len(TEXTS)
    assert sorted(contents(store.max_marginal_relevance_search("whales", k=9, filter=given))) == sorted(contents(found))


def test_options_of_the_engine_are_options_of_a_search(store: IsotropeVectorStore) -> None:
    store.add_texts(TEXTS, METADATAS)
    (found,) = store.similarity_search("pendulum", k=1, hybrid=True, hybrid_weight=0.0)
    assert found.metadata["title"] == "Clocks"
    assert store.as_retriever(search_kwargs={"k": 1, "hybrid": True, "hybrid_weight": 0.0}).invoke("pendulum") == [
        found
    ]
    with pytest.raises(ConfigError, match='no option "hybrd"; did you mean "hybrid"'):
        store.similarity_search("pendulum", hybrd=True)


def test_relevance_is_between_0_and_1(store: IsotropeVectorStore) -> None:
    store.add_texts(TEXTS)
    (*_, (_, last)) = scored = store.similarity_search_with_relevance_scores(TEXTS[0], k=9)
    assert len(scored) == 9
    assert scored[0][1] == pytest.approx(1)
    assert 0 <= last < 0.5  # a negative cosine
    threshold = {"k": 9, "score_threshold": 0.99}
    retriever = store.as_retriever(search_type="similarity_score_threshold", search_kwargs=threshold)
    assert contents(retriever.invoke(TEXTS[0])) == [TEXTS[0]]


def test_delete_without_ids_deletes_all_and_the_store_can_be_filled_again(store: IsotropeVectorStore) -> None:
    store.add_texts(TEXTS)
    assert store.delete()
    assert (len(store.engine), store.similarity_search("whales")) == (0, [])
    assert store.max_marginal_relevance_search("whales") == []
    store.add_texts(TEXTS[:1])
    assert contents(store.similarity_search("whales")) == TEXTS[:1]


def test_concurrent_additions_are_all_stored(store: IsotropeVectorStore) -> None:
    async def add() -> None:
        await asyncio.gather(*(store.aadd_texts([text]) for text in TEXTS))

    asyncio.run(add())
    assert len(store.engine) == len(TEXTS)


def test_langchains_index_keeps_a_store_in_step_with_its_sources(store: IsotropeVectorStore) -> None:
    records = InMemoryRecordManager("test")
    records.create_schema()
    documents = [Document(text, metadata={"source": f"s{number}"}) for number, text in enumerate(TEXTS)]
    options: dict[str, Any] = {"cleanup": "full", "source_id_key": "source", "key_encoder": "sha256"}
    assert index(documents, records, store, **options)["num_added"] == 9
    assert index(documents[:7], records, store, **options)["num_deleted"] == 2
    assert sorted(contents(store.similarity_search("whales", k=9))) == sorted(TEXTS[:7])


def test_an_unknown_field_of_a_retriever_is_refused(tmp_path: Path) -> None:
    SearchEngine.from_texts(TEXTS, tmp_path / "index")
    with pytest.raises(ValueError, match="filter"):
        IsotropeRetriever(index=tmp_path / "index", filter={"year": 1970})  # type: ignore[call-arg]


def test_documents_need_no_embedding(tmp_path: Path) -> None:
    documents = [Document("Whales sing.", id="w", metadata={"year": 1970}), Document("Bees dance.")]
    store = IsotropeVectorStore.from_documents(documents, index=tmp_path / "index")
    assert [found.page_content for found in store.similarity_search("song of whales", k=1)] == ["Whales sing."]
    assert store.get_by_ids(["w"]) == documents[:1]


def test_from_texts_builds_an_index_with_an_encoder_or_of_given_vectors(
    tiny_config: BuildConfig, tmp_path: Path
) -> None:
    store = IsotropeVectorStore.from_texts(TEXTS, metadatas=METADATAS, index=tmp_path / "index", config=tiny_config)
    assert store.engine.index.config == without_auto(tiny_config)
    assert [found.page_content for found in store.similarity_search(TEXTS[4], k=1)] == [TEXTS[4]]
    with pytest.raises(ExistsError, match="other documents"):
        IsotropeVectorStore.from_texts(["other"], index=tmp_path / "index", config=tiny_config)
    IsotropeVectorStore.from_texts(["other"], index=store.engine)
    assert len(store.engine) == 10
    given = IsotropeVectorStore.from_documents([Document("a", id="x"), Document("b")], FAKE, index=tmp_path / "given")
    IsotropeVectorStore.from_texts(["c"], FAKE, index=tmp_path / "given")
    assert len(SearchEngine(given.engine.index.path)) == 3
    with pytest.raises(ConfigError, match="config: these apply only to a new index with its own encoder"):
        IsotropeVectorStore.from_texts(["c"], FAKE, config=tiny_config)


# --- whose vectors an index holds


def test_an_index_records_the_class_and_the_model_of_its_embeddings(tmp_path: Path) -> None:
    small, large = Named(size=4, model="small"), Named(size=4, model="large")
    store = IsotropeVectorStore(tmp_path / "index", small)
    assert store.engine.index.config.encoder.model == "Named small"
    IsotropeVectorStore(tmp_path / "index", Cached(size=4, underlying_embeddings=small))
    for other in (large, FAKE):
        with pytest.raises(
            MismatchError, match=r'contains vectors of "Named small"; expected .* not "(Named large|Det)'
        ):
            IsotropeVectorStore(tmp_path / "index", other)
    with pytest.raises(ConfigError, match='contains vectors of "Named small"; expected the embedding'):
        IsotropeVectorStore(tmp_path / "index")


@pytest.mark.parametrize("name", ["", "small"])
def test_vectors_that_came_from_elsewhere_are_known_by_the_model_alone(name: str, tmp_path: Path) -> None:
    SearchEngine.from_texts(["a"], tmp_path / "index", vectors=np.eye(1, 4), model=name)
    IsotropeVectorStore(tmp_path / "index", Named(size=4, model="small"))
    if name:
        with pytest.raises(MismatchError):
            IsotropeVectorStore(tmp_path / "index", Named(size=4, model="large"))


def test_an_index_with_an_encoder_takes_no_other_embeddings(
    engine: SearchEngine, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"with its own model, .*; expected no embedding, not DeterministicFake"):
        IsotropeVectorStore(engine, FAKE)
    other = IsotropeEmbeddings(SearchEngine.from_texts(TEXTS[:5], config=tiny_config))  # another transform
    with pytest.raises(ConfigError, match="expected no embedding, not IsotropeEmbeddings"):
        IsotropeVectorStore(engine, other)
    store = IsotropeVectorStore(tmp_path / "vectors", other)  # the vectors of one index in another
    store.add_texts(TEXTS)
    assert contents(store.similarity_search(TEXTS[2], k=1)) == [TEXTS[2]]


def test_a_wrong_path_is_an_error_and_makes_no_index(tmp_path: Path) -> None:
    for opened in (IsotropeVectorStore, IsotropeEmbeddings, lambda path: IsotropeRetriever(index=path)):
        with pytest.raises(NotAnIndexError):
            opened(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("texts", "fields", "error", "message"),
    [
        (["a", "b"], {"metadatas": [{}]}, ConfigError, "1 metadatas for 2 texts; expected one for each"),
        (["a", "b"], {"ids": ["x"]}, ConfigError, "1 ids for 2 texts; expected one for each"),
        (["a"], {"metadatas": [{1: "x"}]}, CorpusError, "document 1 .*: it has the key 1; expected column names"),
        (["a", "b"], {"metadatas": [{"x": 1}, {"x": "y"}]}, CorpusError, 'document 2.*column "x"'),
    ],
)
def test_faults_are_named_and_nothing_is_stored(
    texts: list[str], fields: dict[str, Any], error: type[Exception], message: str, store: IsotropeVectorStore
) -> None:
    with pytest.raises(error, match=message):
        store.add_texts(texts, **fields)
    assert len(store.engine) == 0


# --- the retriever


def test_every_search_option_is_a_field_of_the_retriever(engine: SearchEngine) -> None:
    retriever = IsotropeRetriever(index=engine)
    for option in SEARCH_OPTIONS:
        assert getattr(retriever, option.name) == (4 if option.name == "k" else option.default)
    found = IsotropeRetriever(index=engine.index.path, k=3, where={"year": {">": 1992}}, hybrid=True)
    hits = engine.search("sand and glass", k=3, where="year > 1992", hybrid=True)
    assert [document.id for document in found.invoke("sand and glass")] == [hit.id for hit in hits]
    first = asyncio.run(found.ainvoke("sand and glass", k=1, where=None))
    assert [document.id for document in first] == [hit.id for hit in engine.search("sand and glass", 1, hybrid=True)]


def test_windows_replace_long_documents(tiny_config: BuildConfig) -> None:
    chunked = replace(tiny_config, chunk=ChunkConfig(tokens=12, overlap=0))
    engine = SearchEngine.from_texts([{"id": "a", "text": " ".join(TEXTS)}], config=chunked)
    (whole,) = IsotropeRetriever(index=engine).invoke("whales")
    (window,) = IsotropeRetriever(index=engine, windows=True).invoke("whales")
    assert whole.page_content == " ".join(TEXTS)
    assert window.page_content in whole.page_content
    assert len(window.page_content) < 100
    assert window.id == whole.id
