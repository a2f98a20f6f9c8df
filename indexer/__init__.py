"""The write side of Isotrope: from text to an index directory.

Names are handed on lazily, so that `import indexer` loads no numerical library.
"""

from typing import TYPE_CHECKING

from indexer.lazy import hand_on

if TYPE_CHECKING:
    from indexer.config import BuildConfig as BuildConfig
    from indexer.config import RunOptions as RunOptions
    from indexer.corpus import Corpus as Corpus
    from indexer.corpus import Document as Document
    from indexer.corpus import read_corpus as read_corpus
    from indexer.errors import IsotropeError as IsotropeError
    from indexer.pipeline import BuildReport as BuildReport
    from indexer.pipeline import build_index as build_index

_HOME = {
    "BuildConfig": "indexer.config",
    "BuildReport": "indexer.pipeline",
    "Corpus": "indexer.corpus",
    "Document": "indexer.corpus",
    "IsotropeError": "indexer.errors",
    "RunOptions": "indexer.config",
    "build_index": "indexer.pipeline",
    "read_corpus": "indexer.corpus",
}
__all__ = sorted(_HOME)
__version__ = "0.1.0"
__getattr__, __dir__ = hand_on(__name__, _HOME)
