"""Filters: a condition on documents, in SQL, and the documents that meet it.

expressions  typed pieces of SQL, and the rules of comparing their values
columns      the columns that a filter names, and their values
functions    the functions, operators and types of filters: the allow-list
database     DuckDB with nothing but tables in memory: it parses conditions and evaluates them
scanner      checks before parsing; messages with the place of a mistake
grammar      one walk over the syntax tree of a filter, which writes the SQL anew
facets       values, counts and ranges of metadata columns, from which filters can be chosen
filters      from an index and a filter to the numbers of documents; deleting those
"""

from typing import TYPE_CHECKING

from indexer.lazy import lazy_exports

if TYPE_CHECKING:
    from search.filters.facets import ColumnFacet as ColumnFacet
    from search.filters.facets import column_facets as column_facets
    from search.filters.filters import MetadataFilter as MetadataFilter
    from search.filters.filters import delete_where as delete_where

_HOME = {
    "ColumnFacet": "search.filters.facets",
    "MetadataFilter": "search.filters.filters",
    "column_facets": "search.filters.facets",
    "delete_where": "search.filters.filters",
}
__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy_exports(__name__, _HOME)
