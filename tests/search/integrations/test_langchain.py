"""LangChain's own test suites for the vector store, the retriever and the embeddings, and what they leave open."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance
from langchain_tests.integration_tests import (
    EmbeddingsIntegrationTests,
    RetrieversIntegrationTests,
    VectorStoreIntegrationTests,
)
from langchain_tests.unit_tests import EmbeddingsUnitTests

from indexer import BuildConfig, ConfigError, CorpusError, ExistsError, MismatchError, NotAnIndexError
from indexer import Document as IsotropeDocument
from search import SearchEngine, SearchOptions
from search.integrations.langchain import IsotropeEmbeddings, IsotropeRetriever, IsotropeVectorStore
from tests.documents import DOCUMENTS

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
@pytest.mark.check
class TestStoreOfGivenVectors(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self) -> VectorStore:
        return IsotropeVectorStore(embedding=self.get_embeddings())


@pytest.mark.anyio
@pytest.mark.check
class TestStoreWithItsOwnEncoder(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tiny_config: BuildConfig) -> VectorStore:
        return IsotropeVectorStore(SearchEngine.from_texts([], config=tiny_config))


@pytest.mark.anyio
@pytest.mark.check
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
@pytest.mark.check
class TestEmbeddings(OfAnIndex, EmbeddingsIntegrationTests):
    pass


@pytest.mark.check
class TestEmbeddingsUnit(OfAnIndex, EmbeddingsUnitTests):
    pass
