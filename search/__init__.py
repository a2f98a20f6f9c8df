"""The read side of Isotrope: questions to an index directory, and measurements.

`__init__.pyi` lists the names that most programs need; `search.dedup`, `search.evaluation` and `search.export` have
theirs. Each is imported when it is first used, so that `import search` loads no numerical library.
"""

from indexer import __version__ as __version__
from indexer.lazy_imports import stub_exports

__getattr__, __dir__, __all__ = stub_exports(__name__, __file__)
