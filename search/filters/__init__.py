"""Filters: a condition on documents, in SQL, and the documents that meet it.

source       the text of a filter and its words and signs; what is refused, and where
operands     what is compared: a column, literal or result of a function, and of which kind its values are
functions    the functions a filter may use
columns      the columns a filter names, in an index's schema
translation  the grammar: a filter is read once, and SQL is written anew from what was understood
values       what those columns hold
execution    DuckDB, with nothing but a table in memory, a second at most
filters      from an index and a filter to the numbers of documents
"""

from typing import TYPE_CHECKING

from indexer.lazy import lazy_exports

if TYPE_CHECKING:
    from search.filters.filters import Filters as Filters

_HOME = {"Filters": "search.filters.filters"}
__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy_exports(__name__, _HOME)
