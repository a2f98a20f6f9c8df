"""Distillation: a static table that answers the questions of an index in place of its encoder."""

from indexer.lazy_imports import stub_exports

__getattr__, __dir__, __all__ = stub_exports(__name__, __file__)
