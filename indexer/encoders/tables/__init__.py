"""Static tables: a vector for each word or token, whatever the text around it.

Three kinds are read: files of word vectors (`word_files`), folders of model2vec, and of sentence-transformers'
StaticEmbedding (`token_tables`). Names are handed on lazily, so that importing this package does not load numpy.
"""

from typing import TYPE_CHECKING

from indexer.lazy import lazy_exports

if TYPE_CHECKING:
    from indexer.encoders.tables.files import TableFiles as TableFiles
    from indexer.encoders.tables.files import hash_table as hash_table
    from indexer.encoders.tables.files import is_word_file as is_word_file
    from indexer.encoders.tables.files import table_files as table_files
    from indexer.encoders.tables.loading import load_table as load_table
    from indexer.encoders.tables.table import Table as Table

_HOME = {
    "Table": "indexer.encoders.tables.table",
    "TableFiles": "indexer.encoders.tables.files",
    "hash_table": "indexer.encoders.tables.files",
    "is_word_file": "indexer.encoders.tables.files",
    "load_table": "indexer.encoders.tables.loading",
    "table_files": "indexer.encoders.tables.files",
}
__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy_exports(__name__, _HOME)
