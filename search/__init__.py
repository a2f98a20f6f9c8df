"""The read side of Isotrope: questions to an index directory, and measurements.

`__init__.pyi` lists the names. Each is imported when it is first used, so that `import search` loads no numerical
library.
"""

from indexer.lazy_imports import stub_exports

__getattr__, __dir__, __all__ = stub_exports(__name__, __file__)
