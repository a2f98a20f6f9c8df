"""A table from a path: a file of word vectors, or a folder."""

from pathlib import Path

from indexer.encoders.tables.files import table_files
from indexer.encoders.tables.table import Table
from indexer.encoders.tables.token_tables import load_token_table
from indexer.encoders.tables.word_tables import load_word_table


def load_table(path: Path) -> Table:
    """The table of a file or folder. A word file is read once and kept in the cache (`indexer.cache`).

    Raises ModelError for what is no table or a damaged one, MachineError where the cache is full.
    """
    files = table_files(path)
    return load_word_table(path) if files.kind == "words" else load_token_table(files)
