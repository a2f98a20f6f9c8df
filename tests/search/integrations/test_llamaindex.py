"""The vector store in LlamaIndex, compared with LlamaIndex's own `SimpleVectorStore` and its filter function."""

import asyncio
from collections.abc import Callable
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
pytest.importorskip("llama_index.core", reason="needs the extra isotrope[llamaindex]")

from llama_index.core import MockEmbedding, StorageContext, VectorStoreIndex
from llama_index.core.schema import (
    BaseNode,
    ImageNode,
    IndexNode,
    MediaResource,
    Node,
    NodeRelationship,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

from search.integrations.llamaindex import IsotropeVectorStore

DIM = 6
RNG = np.random.default_rng(0)


def vector(dim: int = DIM) -> list[float]:
    """Return a random vector, exact in float32."""
    return [float(value) for value in RNG.normal(size=dim).astype(np.float32)]


def node(name: str, source: str, text: str = "", embedding: list[float] | None = None, **metadata: Any) -> TextNode:
    return TextNode(
        id_=name, text=text, embedding=embedding or vector(), metadata=metadata,
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=source)},
    )  # fmt: skip


NODES = [
    node("whale", "sea", "whales sing in the deep", year=2019, rank="a", tags=["sea", "song"]),
    node("diver", "sea", "a diver sees deep water", year=2021.5, rank="b", tags=["sea"], note=""),
    node("bird", "air", "birds sing at dawn", year=2023, rank="b", tags=["song", "air"], author={"name": "Ada"}),
    node("stone", "land", "stones are silent", rank="c", tags=[]),
    node("title", "land", "stones", title="The Stone", year="MMXX", doc_id="mine", none=None, mixed=[1, "a"]),
]


@pytest.fixture(scope="module")
def filled() -> IsotropeVectorStore:
    store = IsotropeVectorStore()
    assert store.add(NODES) == [each.node_id for each in NODES]
    return store


@pytest.fixture
def store() -> IsotropeVectorStore:
    store = IsotropeVectorStore()
    store.add(NODES)
    return store


def only(key: str, operator: str, value: Any) -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key=key, operator=FilterOperator(operator), value=value)])


def names(nodes: Any) -> list[str]:
    return [each.node_id for each in nodes]


# --- nodes


def test_nodes_come_back_as_they_were(filled: IsotropeVectorStore) -> None:
    assert filled.get_nodes() == NODES
    assert filled.get_nodes(["bird", "unknown"]) == [NODES[2]]
    assert filled.get_nodes(["bird", "stone"], only("rank", "==", "c")) == [NODES[3]]
    assert filled.get_nodes([]) == []


def test_nodes_of_every_class_come_back() -> None:
    nodes: list[BaseNode] = [
        IndexNode(id_="index", text="see", index_id="other", embedding=vector()),
        ImageNode(id_="image", image="aGk=", embedding=vector()),
        Node(id_="node", image_resource=MediaResource(data=b"aGk="), embedding=vector()),
        Node(id_="words", text_resource=MediaResource(text="words"), embedding=vector()),
    ]
    store = IsotropeVectorStore()
    store.add(nodes)
    assert [(type(each), each.to_dict()) for each in store.get_nodes()] == [(type(n), n.to_dict()) for n in nodes]


def test_a_known_id_replaces_its_node(store: IsotropeVectorStore) -> None:
    changed, twice = node("bird", "air", "an owl", year=1), [node("new", "air", "x"), node("new", "air", "y")]
    assert store.add([changed, *twice]) == ["bird", "new", "new"]
    assert store.get_nodes(["bird", "new"]) == [changed, twice[1]]
    assert store.add([]) == []


def test_a_node_needs_an_embedding_of_the_right_length(store: IsotropeVectorStore) -> None:
    with pytest.raises(ValueError, match="embedding not set"):
        store.add([TextNode(text="none")])
    with pytest.raises(CorpusError, match="its vector has 2 numbers"):
        store.add([node("short", "air", embedding=[1.0, 2.0])])


def test_nodes_are_deleted_by_source_id_or_filter(store: IsotropeVectorStore) -> None:
    store.delete("unknown")
    store.delete("sea")
    assert names(store.get_nodes()) == ["bird", "stone", "title"]
    store.delete_nodes(["stone", "unknown"])
    store.delete_nodes(["bird"], only("rank", "==", "c"))
    assert names(store.get_nodes()) == ["bird", "title"]
    store.delete_nodes(filters=only("year", ">", 2000))
    assert names(store.get_nodes()) == ["title"]
    store.clear()
    assert (len(store.client), store.get_nodes()) == (0, [])
    assert store.query(VectorStoreQuery(vector(), 2, filters=only("rank", "==", "c"))).ids == []
    store.add([node("other", "air", embedding=[1.0, 2.0])])
    assert names(store.get_nodes()) == ["other"]


# --- filters

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "number": st.one_of(st.integers(-2, 2), st.sampled_from([-0.5, 1.5])),
    "text": st.sampled_from(["a", "ab", "B", "it's 100%", ""]),
    "tags": st.lists(st.sampled_from(["a", "b", "c"]), max_size=3),
    "counts": st.lists(st.integers(0, 2), max_size=2),
    "id": st.sampled_from(["x", "y"]),
    "title": st.sampled_from(["x", "y"]),
}
METADATA = st.fixed_dictionaries({}, optional={key: st.none() | value for key, value in VALUES.items()})
ELEMENTS = {"tags": st.sampled_from(["a", "b", "c"]), "counts": st.integers(0, 2)}
SIGNS: dict[str, list[str]] = {
    "number": ["==", "!=", ">", ">=", "<", "<=", "is_empty"],
    "text": ["==", "!=", ">", ">=", "<", "<=", "text_match", "text_match_insensitive", "contains", "is_empty"],
    "tags": ["contains", "is_empty"], "counts": ["contains", "is_empty"], "id": ["==", "!="], "title": ["==", "!="],
}  # fmt: skip
OF_LISTS = {"number": ["in", "nin"], "text": ["in", "nin"], "tags": ["any", "all"], "counts": ["any", "all"],
            "id": ["in"], "title": ["nin"]}  # fmt: skip


def comparisons(key: str) -> st.SearchStrategy[MetadataFilter]:
    one = ELEMENTS.get(key, VALUES[key])
    several = st.lists(one, min_size=1, max_size=3).filter(lambda values: len({type(value) for value in values}) == 1)
    pairs = [(sign, one) for sign in SIGNS[key]] + [(sign, several) for sign in OF_LISTS[key]]
    return st.one_of(
        [st.builds(MetadataFilter, key=st.just(key), operator=st.just(FilterOperator(sign)), value=value)
         for sign, value in pairs]
    )  # fmt: skip


FLAT = st.builds(
    MetadataFilters, filters=st.lists(st.sampled_from(list(VALUES)).flatmap(comparisons), min_size=1, max_size=3),
    condition=st.none() | st.sampled_from(FilterCondition),
)  # fmt: skip


# Each store is an index on disk, so that shrinking would take minutes.
@settings(max_examples=10, phases=[Phase.explicit, Phase.generate])
@given(st.lists(METADATA, min_size=1, max_size=8), st.lists(FLAT, min_size=20, max_size=20))
def test_filters_select_the_nodes_of_llamaindex(metadata: list[dict[str, Any]], filters: list[MetadataFilters]) -> None:
    store, by_id = IsotropeVectorStore(), {str(number): each for number, each in enumerate(metadata)}
    store.add([TextNode(id_=name, embedding=[1.0], metadata=each) for name, each in by_id.items()])
    for each in filters:
        expected = list(filter(build_metadata_filter_fn(by_id.__getitem__, each), by_id))
        assert names(store.get_nodes(filters=each)) == expected, each


@pytest.mark.parametrize(
    ("key", "operator", "value", "expected"),
    [
        ("ref_doc_id", "==", "sea", ["whale", "diver"]),
        ("author.name", "==", "Ada", ["bird"]),
        ("year", "==", "MMXX", ["title"]),
        ("year", "!=", 2023, ["whale", "diver", "stone", "title"]),
        ("year", "is_empty", None, ["stone"]),
        ("tags", "is_empty", None, ["stone", "title"]),
        ("note", "is_empty", None, ["whale", "diver", "bird", "stone", "title"]),
        ("mixed", "is_empty", None, ["whale", "diver", "bird", "stone"]),
        ("none", "==", None, ["whale", "diver", "bird", "stone", "title"]),
        ("rank", "!=", None, ["whale", "diver", "bird", "stone"]),
        ("rank", ">", 1, []),
    ],
)
def test_a_filter_reads_sources_fields_and_types(
    key: str, operator: str, value: Any, expected: list[str], filled: IsotropeVectorStore
) -> None:
    assert names(filled.get_nodes(filters=only(key, operator, value))) == expected


def test_filters_may_be_nested(filled: IsotropeVectorStore) -> None:
    either = MetadataFilters(filters=[*only("rank", "==", "a").filters, *only("rank", "==", "c").filters],
                             condition=FilterCondition.OR)  # fmt: skip
    neither = MetadataFilters(filters=[either], condition=FilterCondition.NOT)
    assert names(filled.get_nodes(filters=either)) == ["whale", "stone"]
    assert names(filled.get_nodes(filters=neither)) == ["diver", "bird", "title"]
    both = MetadataFilters(filters=[either, *only("year", ">", 2000).filters])
    assert names(filled.get_nodes(filters=both)) == ["whale"]
    assert len(filled.get_nodes(filters=MetadataFilters(filters=[]))) == len(NODES)


@pytest.mark.parametrize(("operator", "value"), [("in", "a"), ("any", "a"), ("==", ["a"])])
def test_a_filter_without_a_meaning_is_an_error(operator: str, value: Any, filled: IsotropeVectorStore) -> None:
    with pytest.raises(ConfigError, match="rank"):
        filled.get_nodes(filters=only("rank", operator, value))


# --- queries


@pytest.mark.parametrize("mode", [VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.MMR])
@pytest.mark.parametrize(
    "limits",
    [{}, {"similarity_top_k": 1}, {"node_ids": ["bird", "stone"]}, {"filters": only("rank", "in", ["b", "c"])},
     {"filters": only("unknown", "==", 1)}, {"node_ids": ["bird"], "filters": only("rank", "==", "c")}],
)  # fmt: skip
def test_answers_are_those_of_the_simple_store(
    mode: VectorStoreQueryMode, limits: dict[str, Any], filled: IsotropeVectorStore
) -> None:
    simple = SimpleVectorStore()
    simple.add(NODES)
    options: dict[str, Any] = {"similarity_top_k": 4, "mode": mode} | limits
    query = VectorStoreQuery(vector(), **options)
    found, expected = filled.query(query), simple.query(query)
    assert found.ids == expected.ids
    assert found.similarities == pytest.approx(expected.similarities, abs=1e-6)
    assert names(found.nodes) == found.ids


@pytest.mark.parametrize(("of_query", "named", "expected"), [
    (0.0, {}, ["a", "c"]), (1.0, {}, ["a", "b"]), (1.0, {"mmr_threshold": 0.0}, ["a", "c"]), (None, {}, ["a", "b"]),
])  # fmt: skip
def test_mmr_takes_its_threshold_by_name_or_of_the_query(
    of_query: float | None, named: dict[str, float], expected: list[str]
) -> None:
    store = IsotropeVectorStore()
    vectors = {"a": [1.0, 0.0], "b": [1.0, 0.0], "c": [0.0, 1.0]}
    store.add([node(name, "source", embedding=each) for name, each in vectors.items()])
    query = VectorStoreQuery([1.0, 0.0], 2, mode=VectorStoreQueryMode.MMR, mmr_threshold=of_query)
    assert store.query(query, **named).ids == expected
    assert store.query(query, mmr_prefetch_k=2, **named).ids == ["a", "b"]


@pytest.mark.parametrize("doc_ids", [None, [], ["unknown"], ["sea"], ["sea", "air"]])
def test_a_query_keeps_to_source_documents(doc_ids: list[str] | None, filled: IsotropeVectorStore) -> None:
    found = filled.query(VectorStoreQuery(vector(), 9, doc_ids=doc_ids)).ids
    assert sorted(found or []) == sorted(
        each.node_id for each in NODES if doc_ids is None or each.ref_doc_id in doc_ids
    )


def test_words_are_found_without_an_embedding(filled: IsotropeVectorStore) -> None:
    for mode in (VectorStoreQueryMode.SPARSE, VectorStoreQueryMode.TEXT_SEARCH):
        found = filled.query(VectorStoreQuery(query_str="who sings?", similarity_top_k=9, mode=mode))
        assert set(found.ids or []) == {"whale", "bird"}
        assert found.similarities == sorted(found.similarities or [], reverse=True)
        assert min(found.similarities) > 0
    few = VectorStoreQuery(query_str="sing", sparse_top_k=1, similarity_top_k=9, mode=VectorStoreQueryMode.SPARSE,
                           filters=only("rank", "==", "b"))  # fmt: skip
    assert filled.query(few).ids == ["bird"]


def test_hybrid_weighs_words_and_vectors(filled: IsotropeVectorStore) -> None:
    def found(alpha: float | None, **limits: Any) -> list[str]:
        mode = VectorStoreQueryMode.HYBRID
        query = VectorStoreQuery(query_embedding, 5, query_str="sing", mode=mode, alpha=alpha, **limits)
        return list(filled.query(query).ids or [])

    query_embedding = vector()
    assert found(1.0) == filled.query(VectorStoreQuery(query_embedding, 5)).ids
    assert set(found(0.0)) == {"whale", "bird"}
    assert len(found(None)) == len(NODES)
    assert len(found(0.5, hybrid_top_k=2)) == 2


def test_a_query_that_cannot_be_answered_is_an_error(filled: IsotropeVectorStore) -> None:
    with pytest.raises(ValueError, match="the query mode svm is unknown"):
        filled.query(VectorStoreQuery(vector(), mode=VectorStoreQueryMode.SVM))
    with pytest.raises(ConfigError, match="no query_embedding"):
        filled.query(VectorStoreQuery(query_str="text"))


def test_an_empty_store_answers_every_mode() -> None:
    for mode in ("default", "sparse", "hybrid", "mmr"):
        query = VectorStoreQuery(vector(), 2, query_str="text", mode=VectorStoreQueryMode(mode))
        assert IsotropeVectorStore().query(query).ids == []


# --- LlamaIndex


def test_a_vector_store_index_lives_on_disk(tmp_path: Path) -> None:
    store, embedding = IsotropeVectorStore(str(tmp_path / "index")), MockEmbedding(embed_dim=DIM)
    context = StorageContext.from_defaults(vector_store=store)
    VectorStoreIndex(NODES, storage_context=context, embed_model=embedding)
    copy = IsotropeVectorStore.from_dict(store.to_dict())
    index = VectorStoreIndex.from_vector_store(copy, embed_model=embedding)
    found = index.as_retriever(similarity_top_k=2).retrieve(QueryBundle("sing", embedding=NODES[2].embedding))
    assert found[0].node.get_content() == "birds sing at dawn"
    assert found[0].score == pytest.approx(1.0)
    words = index.as_retriever(vector_store_query_mode="sparse", similarity_top_k=9).retrieve("stones")
    assert {each.node.node_id for each in words} == {"stone", "title"}
    index.delete_ref_doc("land")
    index.insert_nodes([node("new", "space", "stars")])
    assert names(IsotropeVectorStore(str(tmp_path / "index")).get_nodes()) == ["whale", "diver", "bird", "new"]


def test_asynchronous_methods_do_the_same() -> None:
    async def run() -> tuple[Any, ...]:
        store = IsotropeVectorStore()
        added = await store.async_add(NODES)
        await store.adelete("land")
        await store.adelete_nodes(["bird"])
        nodes, found = await store.aget_nodes(), await store.aquery(VectorStoreQuery(NODES[0].embedding, 1))
        await store.aclear()
        return added, nodes, found.ids, len(store.client)

    assert asyncio.run(run()) == (names(NODES), NODES[:2], ["whale"], 0)


def test_an_index_of_another_program_has_text_nodes(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    documents = [indexer.Document("d", "text", metadata={"year": 2019, "author": {"name": "Ada"}})]
    engine = SearchEngine.from_texts(documents, tmp_path / "index", model=tiny_model("bert"))
    store = IsotropeVectorStore(str(tmp_path / "index"))
    (found,) = store.get_nodes(filters=only("author.name", "==", "Ada"))
    assert (found.node_id, found.get_content(), found.metadata) == ("d", "text", documents[0].metadata)
    query = engine.encoder.encode(["text"], "query")[0].tolist()
    assert store.query(VectorStoreQuery(query, 1, doc_ids=["any"])).ids == []
    assert store.query(VectorStoreQuery(query, 1)).similarities == [engine.search("text")[0].score]
