"""Deleting documents by a condition on their metadata."""

from pathlib import Path

from indexer.pipeline.delete import DeleteReport, delete_numbers
from search.filters import Filters
from search.index import Index
from search.ranking.ranker import require_condition


def delete_where(index: str | Path, where: str) -> DeleteReport:
    """Take the documents that a condition matches out of an index; none is no error.

    Raises ConfigError for a condition that is blank or cannot be used, and what `indexer.delete_documents` raises.
    """
    require_condition("where", where or "", "a condition on the documents to delete")
    opened = Index.open(index)
    return delete_numbers(index, Filters(opened).documents(where), opened.manifest.generation)
