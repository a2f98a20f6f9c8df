"""The reference names what exists: recipes, and the files of an index."""

import asyncio
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from fastapi.testclient import TestClient
from mcp import Client, StdioServerParameters

from indexer.recipe.config import BuildConfig
from indexer.transforms import whitening
from search.cli import LazyGroup
from tests.docs.pages import COMMANDS, DOCS, ROOT, SERVED_AT, block, blocks, examples, page
from tests.hubs import FakeHub
from tests.search.cli.test_cli import ISOTROPE, Done, isotrope
from tests.servers import server_process
from tests.tiny_models import make_tiny_cross_encoder


def test_every_recipe_loads_by_its_name_and_is_on_the_page() -> None:
    for path in sorted((ROOT / "configs").glob("*.toml")):
        assert BuildConfig.load(path.stem) == BuildConfig.load(path)
        assert f"`configs/{path.name}`" in page("reference/recipe")


def test_the_format_page_names_every_file_of_an_index() -> None:
    from indexer.store import layout

    for name in (layout.DOCUMENTS, layout.WINDOWS, layout.EMBEDDINGS, layout.MOMENTS, layout.PART, layout.LOCK):
        assert name in page("reference/format")
    for name in (layout.manifest_name(1), layout.part_name(0), layout.transform_name(1), layout.segment_name(1, 0)):
        assert name in page("reference/format")
