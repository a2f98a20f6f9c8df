"""The write side of Isotrope: from text to an index directory.

`__init__.pyi` lists the names. Each is imported at its first use, so that `import indexer` loads no numerical library.
"""

from indexer.lazy_imports import stub_exports

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = stub_exports(__name__, __file__)
