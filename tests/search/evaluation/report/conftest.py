"""Indexes shared by the tests of reports."""

from collections.abc import Callable
from pathlib import Path

import pytest

from indexer import BuildConfig, Document, build_index
from indexer.recipe.config import EncoderConfig
from indexer.recipe.index_config import StoreConfig
from tests.documents import DOCUMENTS
from tests.search.evaluation.report.pages import Built


@pytest.fixture(scope="module")
def built(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Built:
    """An index of some documents (by default the nine) with some settings, built once per module."""
    made: dict[str, Path] = {}
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=32)
    config = BuildConfig(encoder=encoder, store=StoreConfig(part_documents=4))

    def build(*recipe: str, documents: list[Document] = DOCUMENTS) -> Path:
        key = repr((recipe, documents))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("report") / "index"
            build_index(documents, made[key], config.with_overrides(recipe))
        return made[key]

    return build
