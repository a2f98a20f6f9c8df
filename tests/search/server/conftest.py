"""An index to serve: nine documents, and a tiny BERT in float32."""

from collections.abc import Callable
from pathlib import Path

import pytest

from indexer import BuildConfig, build_index
from indexer.config import EncoderConfig, StoreConfig
from tests.documents import DOCUMENTS


@pytest.fixture(scope="session")
def served_folder(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed: copy it."""
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=32, precision="float32")
    folder = tmp_path_factory.mktemp("served") / "index"
    build_index(DOCUMENTS, folder, BuildConfig(encoder=encoder, store=StoreConfig(part_documents=4)))
    return folder
