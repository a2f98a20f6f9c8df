"""Deleting documents by a condition on their metadata."""

from pathlib import Path

from indexer.pipeline.delete import DeleteReport, delete_numbers
from search.filters import Filters
from search.opened import OpenIndex


def delete_where(index: str | Path, where: str) -> DeleteReport:
    """Take the documents that a condition matches out of an index; none is no error.

    Raises ConfigError for a condition that cannot be used, and what `indexer.delete_documents` raises.
    """
    opened = OpenIndex.open(index)
    return delete_numbers(index, Filters(opened).documents(where), opened.manifest.generation)
