"""The document store and the retrievers in Haystack: Haystack's own test suites, and what they leave out."""

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.check
pytest.importorskip("haystack", reason="needs the extra haystack")
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from haystack import Document, Pipeline
from haystack.dataclasses import ByteStream, SparseEmbedding
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError
from haystack.testing import document_store as suite
from haystack.testing import document_store_async as async_suite

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
    # The suite's embeddings have 64 bits, and an index stores 32. The suite names this override for such differences.
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

    def test_write_documents(self, document_store: IsotropeDocumentStore) -> None:
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
