"""Exports of an index to the formats of other programs: FAISS, sentence-transformers, Parquet, TREC runs.

Each function opens the newest generation, writes its live rows and returns an `ExportReport`. Outputs are written
atomically, and their bytes depend only on the index.
"""

from indexer.lazy_imports import stub_exports

__getattr__, __dir__, __all__ = stub_exports(__name__, __file__)
