"""An index to serve: nine documents, and a tiny BERT in float32."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from indexer import BuildConfig, build_index
from indexer.recipe.config import EncoderConfig
from indexer.recipe.index_config import StoreConfig
from search.server.settings import ServerSettings
from tests.agents import build_library
from tests.documents import DOCUMENTS
from tests.servers import live_server

Serve = Callable[..., str]


@pytest.fixture(scope="session")
def served_folder(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built index. Copy it before changing it."""
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=32, precision="float32")
    folder = tmp_path_factory.mktemp("served") / "index"
    build_index(DOCUMENTS, folder, BuildConfig(encoder=encoder, store=StoreConfig(part_documents=4)))
    return folder


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of five documents for agents, one of them hostile. Copy it before changing it."""
    return build_library(tmp_path_factory.mktemp("agents"))


@pytest.fixture(scope="module")
def serve() -> Iterator[Serve]:
    """Serve indexes and return their URLs: `serve(index, name="docs", limits=...)`, until the end of the module.

    What is named are fields of ServerSettings; the name is "index" unless given.
    """
    with contextlib.ExitStack() as stack:

        def start(index: Path, name: str = "index", **settings: Any) -> str:
            return stack.enter_context(live_server(index, ServerSettings(name, port=0, **settings))).url

        yield start
