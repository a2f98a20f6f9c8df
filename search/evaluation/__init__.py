"""Measurement of STS and retrieval quality and of an index's recall, and tuning of settings.

target      the recipe or index that is measured
sweep       the compared settings and their transforms
embeddings  embeddings for all settings from one forward pass per text
bootstrap   confidence intervals
result      results and their files, shown by `tables`
"""

from indexer.lazy_imports import stub_exports

__getattr__, __dir__, __all__ = stub_exports(__name__, __file__)
