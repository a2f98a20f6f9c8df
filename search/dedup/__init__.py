"""Near-duplicates: pairs above a threshold, the documents to keep, and a proof of the result."""

from indexer.lazy_imports import stub_exports

__getattr__, __dir__, __all__ = stub_exports(__name__, __file__)
