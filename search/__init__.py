"""The read side of Isotrope: questions to an index directory.

Names are handed on lazily, so that `import search` loads no numerical library.
"""

from typing import TYPE_CHECKING

from indexer.lazy import hand_on

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
__getattr__, __dir__ = hand_on(__name__, _HOME)
