"""Reading the corpus: files, folders or stdin in, `Document`s out, one at a time.

Names are handed on lazily, so that `import indexer.corpus` loads neither numpy nor pyarrow.
"""

from typing import TYPE_CHECKING

from indexer.lazy import lazy_exports

if TYPE_CHECKING:
    from indexer.corpus.corpus import Corpus as Corpus
    from indexer.corpus.corpus import CorpusReport as CorpusReport
    from indexer.corpus.corpus import read_corpus as read_corpus
    from indexer.corpus.document import Document as Document
    from indexer.corpus.document import joined_text as joined_text

_HOME = {
    "Corpus": "indexer.corpus.corpus",
    "CorpusReport": "indexer.corpus.corpus",
    "Document": "indexer.corpus.document",
    "joined_text": "indexer.corpus.document",
    "read_corpus": "indexer.corpus.corpus",
}
__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy_exports(__name__, _HOME)
