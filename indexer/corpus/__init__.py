"""Reading the corpus: files, folders or stdin in, `Document`s out, one at a time.

Names are handed on lazily, so that `import indexer.corpus` loads neither numpy nor pyarrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from indexer.corpus.document import Document as Document
    from indexer.corpus.document import joined_text as joined_text
    from indexer.corpus.reading import Corpus as Corpus
    from indexer.corpus.reading import CorpusReport as CorpusReport
    from indexer.corpus.reading import read_corpus as read_corpus

_HOME = {
    "Corpus": "indexer.corpus.reading",
    "CorpusReport": "indexer.corpus.reading",
    "Document": "indexer.corpus.document",
    "joined_text": "indexer.corpus.document",
    "read_corpus": "indexer.corpus.reading",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'indexer.corpus' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
