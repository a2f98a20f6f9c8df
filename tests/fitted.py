"""Builds with encoders that are fitted to the corpus first, as the command line does."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from indexer import BuildConfig, BuildReport, Document, RunOptions, build_index
from indexer.pipeline.train import train_for_index


def fit_and_build(
    corpus: Iterable[Document],
    index: str | Path,
    config: BuildConfig,
    options: RunOptions | None = None,
    transform_from: Path | None = None,
) -> BuildReport:
    """Fit the recipe's encoder to the corpus, unless a state exists or is reused, and build."""
    documents = list(corpus)
    if transform_from is None:
        train_for_index(documents, index, config, options)
    return build_index(documents, index, config, options, transform_from=transform_from)


def papers(**settings: Any) -> dict[str, dict[str, Any]]:
    """Return the sections of [papers], given the dataclass of each."""
    return {name: asdict(value) for name, value in settings.items()}
