"""Erasure of documents: recognise their traces, search every file for them, and write the proof."""

from indexer.lazy_imports import stub_exports

__getattr__, __dir__, __all__ = stub_exports(__name__, __file__)
