"""Filters: a condition on documents, in SQL, and the documents that meet it.

expressions  pieces of SQL, each with the kind of its values and what they may cost; comparing them
columns      the columns a filter names, and what they hold
functions    the functions and casts a filter may use: the allow-list
database     DuckDB, with nothing but tables in memory, a second at most: it parses, and works out
scanner      what is looked at before parsing; how a mistake is told
grammar      the syntax tree of a filter is walked once, and SQL is written anew from what was understood
facets       what a filter could ask of an index's metadata: values, counts, the least and the most
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
