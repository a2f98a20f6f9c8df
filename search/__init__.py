"""The read side of Isotrope: questions to an index directory.

Names are handed on lazily, so that `import search` loads no numerical library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from search.engine import Hit as Hit
    from search.engine import SearchEngine as SearchEngine
    from search.verification import Verification as Verification
    from search.verification import verify_index as verify_index

_HOME = {
    "Hit": "search.engine",
    "SearchEngine": "search.engine",
    "Verification": "search.verification",
    "verify_index": "search.verification",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'search' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
