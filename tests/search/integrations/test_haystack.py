"""The document store and the retrievers in Haystack: Haystack's own test suites, and what they leave out."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import indexer
from indexer import ConfigError, CorpusError
from search import SearchEngine

pytestmark = pytest.mark.check
pytest.importorskip("haystack", reason="needs the extra isotrope[haystack]")
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from haystack import Document, Pipeline
from haystack.dataclasses import ByteStream, SparseEmbedding
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy, FilterPolicy
from haystack.errors import FilterError
from haystack.testing import document_store as suite
from haystack.testing import document_store_async as async_suite
from haystack.utils.filters import document_matches_filter

from search.integrations.haystack import (
    IsotropeBM25Retriever,
    IsotropeDocumentStore,
    IsotropeEmbeddingRetriever,
    IsotropeHybridRetriever,
)


@pytest.fixture
def document_store() -> IsotropeDocumentStore:
    return IsotropeDocumentStore()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def single(documents: list[Document]) -> list[Document]:
    """Return documents with their embeddings rounded to float32, as every index stores them."""
    return [
        replace(each, embedding=each.embedding and np.asarray(each.embedding, np.float32).tolist())
        for each in documents
    ]


class _Equality:
    # The suite's embeddings have 64 bits, and an index stores 32. The suite provides this method for such differences.
    @staticmethod
    def assert_documents_are_equal(received: list[Document], expected: list[Document]) -> None:
        assert received == single(expected)


class TestDocumentStore(
    _Equality,
    suite.DocumentStoreBaseExtendedTests,
    suite.CountDocumentsByFilterTest,
    suite.CountUniqueMetadataByFilterTest,
    suite.GetMetadataFieldsInfoTest,
    suite.GetMetadataFieldMinMaxTest,
    suite.GetMetadataFieldUniqueValuesTest,
):
    @pytest.fixture
    def document_store(self) -> IsotropeDocumentStore:
        return IsotropeDocumentStore()

    def test_write_documents(self, document_store: Any) -> None:
        """Without a policy, a known id is an error, and nothing is written."""
        document = Document(content="test doc")
        assert document_store.write_documents([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents([Document(content="another"), document])
        self.assert_documents_are_equal(document_store.filter_documents(), [document])


@pytest.mark.anyio
class TestAsyncDocumentStore(
    _Equality,
    async_suite.CountDocumentsAsyncTest,
    async_suite.CountDocumentsByFilterAsyncTest,
    async_suite.CountUniqueMetadataByFilterAsyncTest,
    async_suite.DeleteAllAsyncTest,
    async_suite.DeleteByFilterAsyncTest,
    async_suite.DeleteDocumentsAsyncTest,
    async_suite.FilterDocumentsAsyncTest,
    async_suite.GetMetadataFieldMinMaxAsyncTest,
    async_suite.GetMetadataFieldsInfoAsyncTest,
    async_suite.GetMetadataFieldUniqueValuesAsyncTest,
    async_suite.UpdateByFilterAsyncTest,
    async_suite.WriteDocumentsAsyncTest,
):
    async def test_write_documents_async(self, document_store: IsotropeDocumentStore) -> None:
        document = Document(content="test doc")
        assert await document_store.write_documents_async([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            await document_store.write_documents_async([document])


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "number": st.one_of(st.integers(-2, 2), st.sampled_from([-0.5, 1.5])),
    "text": st.sampled_from(["a", "b", "it's", "100%", ""]),
    "truth": st.booleans(),
    "date": st.sampled_from(["1999-12-31", "2020-02-03T04:05:06", "2021-01-01T00:00:00+02:00"]),
    "mixed": st.one_of(st.integers(0, 1), st.sampled_from(["0", "1"])),
    "deep.key": st.sampled_from(["x", "y"]),
    "id": st.sampled_from(["x", "y"]),
    "title": st.sampled_from(["x", "y"]),
}
ORDERED = ("number", "date")


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    deep = {"deep": {"key": flat["deep.key"]}} if "deep.key" in flat else {}
    return {key: value for key, value in flat.items() if key != "deep.key"} | deep


METAS = st.fixed_dictionaries({}, optional={key: st.none() | value for key, value in VALUES.items()}).map(nested)


def comparisons(key: str) -> st.SearchStrategy[dict[str, Any]]:
    one, several = st.none() | VALUES[key], st.lists(st.none() | VALUES[key], max_size=3)
    pairs = [(sign, one) for sign in ("==", "!=")] + [(sign, several) for sign in ("in", "not in")]
    pairs += [(sign, one) for sign in (">", ">=", "<", "<=") if key in ORDERED]
    made = [st.fixed_dictionaries({"operator": st.just(sign), "value": value}) for sign, value in pairs]
    return st.one_of(made).map(lambda filters: {"field": f"meta.{key}", **filters})


FILTERS = st.recursive(
    st.sampled_from(list(VALUES)).flatmap(comparisons),
    lambda inner: st.fixed_dictionaries(
        {"operator": st.sampled_from(["AND", "OR", "NOT"]), "conditions": st.lists(inner, min_size=1, max_size=3)}
    ),
    max_leaves=6,
)


# Each store is an index on disk, so that shrinking would take minutes.
@settings(max_examples=10, phases=[Phase.explicit, Phase.generate])
@given(st.lists(METAS, min_size=1, max_size=8), st.lists(FILTERS, min_size=20, max_size=20))
def test_filters_select_what_haystack_itself_selects(
    metas: list[dict[str, Any]], filters: list[dict[str, Any]]
) -> None:
    store, documents = IsotropeDocumentStore(), [Document(id=str(n), meta=meta) for n, meta in enumerate(metas)]
    store.write_documents(documents)
    assert store.filter_documents() == documents
    for each in filters:
        expected = [document.id for document in documents if document_matches_filter(each, document)]
        assert [document.id for document in store.filter_documents(each)] == expected, each
        assert store.count_documents_by_filter(each) == len(expected)


def test_every_field_comes_back(document_store: IsotropeDocumentStore, tmp_path: Path) -> None:
    documents = [
        Document(
            id="1", content="text", embedding=[0.5, -2.0], score=0.25, blob=ByteStream(b"\0\xff", {"a": 1}, "a/b"),
            meta={"id": "x", "text": 1, "content": None, "title": "T", "none": None, "list": [1, "a", None],
                  "tags": ["a"], "haystack": 1, "a.b": 1, "a": {"b": [], "c": {}}, "Year": 1, "year": 1.0},
        ),
        Document(id="2", sparse_embedding=SparseEmbedding([1, 7], [0.1, 0.2]), meta={"year": "MM", "title": 5}),
        Document(id="3", content=""),
    ]  # fmt: skip
    document_store.write_documents(documents)
    assert document_store.filter_documents() == documents
    assert [type(each.meta.get("year")) for each in document_store.filter_documents()] == [float, str, type(None)]
    document_store.update_by_filter({"field": "id", "operator": "==", "value": "1"}, {"none": [2]})
    (changed,) = document_store.filter_documents({"field": "content", "operator": "==", "value": "text"})
    assert changed == replace(documents[0], meta=documents[0].meta | {"none": [2]})
    with pytest.raises(ValueError, match="its meta is not JSON"):
        document_store.write_documents([Document(id="4", meta={"a": {1, 2}})])


def test_an_embedding_must_have_the_length_of_the_others(document_store: IsotropeDocumentStore) -> None:
    document_store.write_documents([Document(content="no embedding")])
    with pytest.raises(ConfigError, match="embedding_dim=2"):
        document_store.write_documents([Document(content="one", embedding=[1.0, 0.0])])
    reserved = IsotropeDocumentStore(embedding_dim=2)
    reserved.write_documents([Document(content="no embedding")])
    reserved.write_documents([Document(content="one", embedding=[1.0, 0.0])])
    with pytest.raises(CorpusError, match="its vector has 3 numbers"):
        reserved.write_documents([Document(content="one", embedding=[1.0, 0.0, 0.0])])
    reserved.delete_all_documents()
    assert reserved.write_documents([Document(content="one", embedding=[1.0, 0.0, 0.0])]) == 1


@pytest.mark.parametrize("policy", DuplicatePolicy)
def test_a_policy_holds_within_one_call(policy: DuplicatePolicy, document_store: IsotropeDocumentStore) -> None:
    twice = [Document(id="1", content="first"), Document(id="1", content="second")]
    if policy in (DuplicatePolicy.NONE, DuplicatePolicy.FAIL):
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents(twice, policy)
        assert document_store.count_documents() == 0
        return
    assert document_store.write_documents(twice, policy) == (2 if policy == DuplicatePolicy.OVERWRITE else 1)
    (kept,) = document_store.filter_documents()
    assert kept.content == ("second" if policy == DuplicatePolicy.OVERWRITE else "first")


@pytest.mark.parametrize(
    "filters",
    [
        {"field": "meta.a", "operator": "~", "value": 1},
        {"operator": "XOR", "conditions": []},
        {"field": "meta.tags", "operator": "==", "value": ["a"]},
        {"field": "meta.a", "operator": "==", "value": float("nan")},
    ],
)
def test_a_filter_without_a_meaning_is_an_error(filters: dict[str, Any], document_store: IsotropeDocumentStore) -> None:
    document_store.write_documents([Document(meta={"a": 1.5, "tags": ["a"]})])
    with pytest.raises(FilterError):
        document_store.filter_documents(filters)


RNG = np.random.default_rng(0)
CORPUS = [
    Document(id=f"{n}", content=text, embedding=RNG.normal(size=8).tolist(), meta={"page": n})
    for n, text in enumerate(["whales sing", "a whale dives deep", "birds sing at dawn", "stones", "deep stones"])
]
LATE = {"field": "meta.page", "operator": ">=", "value": 2}


@pytest.fixture
def filled() -> IsotropeDocumentStore:
    store = IsotropeDocumentStore()
    store.write_documents([*CORPUS, Document(id="bare", content="whales and stones without an embedding")])
    return store


def cosines(query: list[float]) -> dict[str, float]:
    vectors = np.array([each.embedding for each in CORPUS])
    scores = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    return {CORPUS[place].id: scores[place] for place in np.argsort(-scores)}


def test_the_embedding_retriever_ranks_by_cosine(filled: IsotropeDocumentStore) -> None:
    query = RNG.normal(size=8).tolist()
    expected = cosines(query)
    found = IsotropeEmbeddingRetriever(filled).run(query_embedding=query)["documents"]
    assert [each.id for each in found] == list(expected)
    assert [each.score for each in found] == pytest.approx(list(expected.values()), abs=1e-6)
    assert all(each.embedding is None for each in found)
    retriever = IsotropeEmbeddingRetriever(filled, LATE, top_k=2, return_embedding=True)
    found = retriever.run(query_embedding=query)["documents"]
    assert [each.id for each in found] == [identity for identity in expected if int(identity) >= 2][:2]
    assert single([each for each in CORPUS if each.id == found[0].id])[0].embedding == found[0].embedding


def test_the_word_retriever_finds_documents_without_embeddings(filled: IsotropeDocumentStore) -> None:
    found = IsotropeBM25Retriever(filled).run(query="whales")["documents"]
    assert {each.id for each in found} == {"0", "1", "bare"}
    scores = [each.score or 0 for each in found]
    assert scores == sorted(scores, reverse=True)
    assert min(scores) > 0
    filtered = IsotropeBM25Retriever(filled, filters=LATE).run(query="deep stones", top_k=1)["documents"]
    assert [each.id for each in filtered] == ["4"]


def test_the_hybrid_retriever_fuses_both(filled: IsotropeDocumentStore) -> None:
    query = RNG.normal(size=8).tolist()
    alone = IsotropeHybridRetriever(filled, weight=1.0).run(query="stones", query_embedding=query)["documents"]
    assert [each.id for each in alone] == list(cosines(query))
    words = IsotropeHybridRetriever(filled, weight=0.0).run(query="stones", query_embedding=query)["documents"]
    assert {each.id for each in words} == {"3", "4"}
    both = IsotropeHybridRetriever(filled).run(query="stones", query_embedding=query)["documents"]
    assert {each.id for each in both} == {each.id for each in CORPUS}


def test_retrievers_of_an_empty_store_find_nothing(document_store: IsotropeDocumentStore) -> None:
    assert IsotropeEmbeddingRetriever(document_store).run(query_embedding=[1.0, 2.0]) == {"documents": []}
    assert IsotropeBM25Retriever(document_store).run(query="whales") == {"documents": []}
    assert IsotropeHybridRetriever(document_store).run(query="whales", query_embedding=[1.0]) == {"documents": []}


def test_a_pipeline_survives_its_serialisation(tmp_path: Path) -> None:
    IsotropeDocumentStore(str(tmp_path / "index")).write_documents(CORPUS)
    pipeline = Pipeline()
    store = IsotropeDocumentStore(str(tmp_path / "index"))
    pipeline.add_component("words", IsotropeBM25Retriever(store, filters=LATE, filter_policy=FilterPolicy.MERGE))
    pipeline.add_component("both", IsotropeHybridRetriever(store, top_k=3, weight=0.3))
    pipeline.add_component("vectors", IsotropeEmbeddingRetriever(store, return_embedding=True))
    query = RNG.normal(size=8).tolist()
    inputs: dict[str, Any] = {
        "words": {"query": "deep", "filters": {"field": "id", "operator": "!=", "value": "4"}},
        "both": {"query": "deep", "query_embedding": query},
        "vectors": {"query_embedding": query},
    }
    copy = Pipeline.loads(pipeline.dumps(), allowed_modules=["search.integrations.haystack"])
    answers = pipeline.run(inputs)
    assert copy.to_dict() == pipeline.to_dict()
    assert copy.run(inputs) == answers
    assert asyncio.run(copy.run_async(inputs)) == answers
    assert answers["words"]["documents"] == []
    assert len(answers["both"]["documents"]) == 3


def test_an_index_with_an_encoder_embeds_documents_and_queries(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    documents = [indexer.Document(f"{n}", each.content or "", "title", {"page": n}) for n, each in enumerate(CORPUS)]
    engine = SearchEngine.from_texts(documents, tmp_path / "index", model=tiny_model("bert"))
    store = IsotropeDocumentStore(str(tmp_path / "index"))
    assert store.filter_documents(LATE)[0] == Document(
        id="2", content="birds sing at dawn", meta={"title": "title", "page": 2}
    )
    new = [Document(id="new", content="deep sea", meta={"page": 9}, embedding=[1.0])]
    store.write_documents([*new, Document(id="bare", content="whales", meta={"page": 9})])
    found = IsotropeHybridRetriever(store, weight=1.0, top_k=3).run(query="whales", filters=LATE)["documents"]
    hits = engine.newest().search("whales", k=3, where="page >= 2", hybrid=True, hybrid_weight=1.0)
    assert [(each.id, each.score) for each in found] == [(hit.id, hit.score) for hit in hits]


def test_a_retriever_needs_a_store_of_its_kind() -> None:
    path: Any = "index"
    with pytest.raises(ValueError, match="expected an IsotropeDocumentStore"):
        IsotropeBM25Retriever(path)
