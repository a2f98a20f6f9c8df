"""The shared part of stores of frameworks: an index of given vectors, search by words, asynchronous methods."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from indexer.errors import NotAnIndexError
from indexer.recipe.config import BuildConfig, EncoderConfig
from search.engine import SearchEngine
from search.hits import Answer, Hit

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def open_or_create(index: str | Path | None, model: str = "") -> SearchEngine:
    """Return an engine of an index. A path without one becomes an index of given vectors, without documents.

    Without a path it lies in a temporary folder. `model` names the embeddings of a new index. Raises the errors of
    `SearchEngine`.
    """
    if index is not None:
        try:
            return SearchEngine(index)
        except NotAnIndexError:
            pass
    return SearchEngine.from_texts([], index, BuildConfig(encoder=EncoderConfig(kind="vectors", model=model)))


def search_by_words(engine: SearchEngine, query: str, **options: Any) -> Answer[Hit]:
    """Return the documents that contain words of a query, ranked by BM25 alone, which needs no encoder."""
    ignored = np.ones((1, max(1, engine.index.manifest.encoder["dim"])), np.float32)  # as its text has no known tokens
    (hits,) = engine.search_vectors(ignored, texts=[query], lengths=[0], hybrid=True, **options)
    return hits


def in_thread(method: Callable[Arguments, Result]) -> Callable[Arguments, Coroutine[Any, Any, Result]]:
    """Return the asynchronous variant of a method, which runs in a thread."""

    @wraps(method)
    async def call(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        return await asyncio.to_thread(method, *arguments, **options)

    return call
