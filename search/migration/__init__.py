"""Another encoder for an index: the price, a measured comparison on a sample, and the change itself."""

from indexer.lazy_imports import stub_exports

__getattr__, __dir__, __all__ = stub_exports(__name__, __file__)
