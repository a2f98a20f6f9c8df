"""BM25 over an open index. Postings are made once for each part, from its documents, and kept in the user's cache.

An `add` costs the postings of the parts it writes, a `delete` nothing: what depends on all documents is counted when a
question comes.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from indexer.corpus import schema
from indexer.corpus.document import joined_text
from indexer.encoders.cache import kept
from indexer.pipeline.progress import Progress, Silent
from indexer.store import layout
from indexer.store.documents import DocumentReader
from search.hybrid.bm25 import Bm25, Mask, Ranking
from search.hybrid.postings import Postings, Text
from search.hybrid.postings_file import map_postings, write_postings
from search.hybrid.terms import require_terms, terms_key, terms_of
from search.opened import OpenIndex

RULES = 1  # bump when the same documents would give other postings
_EXTRA = "hybrid"
_FILE = "postings.safetensors"
_BLOCK = 1024  # documents read at a time


class Lexical:
    """The documents of an open index as BM25 ranks them, by the texts that were encoded.

    Postings that the cache does not hold are made now, which `progress` is told. Raises MachineError when bm25s or
    PyStemmer is not installed, CorruptIndexError and StoreError.
    """

    def __init__(self, opened: OpenIndex, progress: Progress | None = None) -> None:
        require_terms(_EXTRA)
        parts = list(_Parts(opened, progress or Silent()).postings())
        self._bm25 = Bm25(parts, opened.numbering.live_documents)

    def search(self, queries: Sequence[str], k: int, allowed: Mask | None = None) -> list[Ranking]:
        """For each query scores (m,) and document numbers (m,) of the best k documents that share a term with it.

        Best first, ties in ascending order of id; often fewer than k, or none. `allowed` (documents,) says which may
        be found. Scores are BM25's: above 0, and to be compared only within one answer.
        """
        return [self._bm25.search(terms, k, allowed) for terms in terms_of(queries, _EXTRA)]

    def ids(self, numbers: Sequence[int]) -> list[str]:
        """The ids of some documents, in the order given, without reading documents."""
        return self._bm25.ids(numbers)


class _Parts:
    """The postings of an index's parts, deleted documents included."""

    def __init__(self, opened: OpenIndex, progress: Progress) -> None:
        self._opened, self._progress = opened, progress
        self._columns = opened.config.corpus.text
        self._told = False

    def postings(self) -> Iterator[Postings]:
        """Of each part, in order."""
        manifest, first, terms = self._opened.manifest, 0, terms_key()
        for part in manifest.parts:
            documents = manifest.files[f"{part.name}/{layout.DOCUMENTS}"].sha256
            key = {"rules": RULES, "documents": documents, "columns": list(self._columns), "terms": terms}
            folder = kept("bm25", key, partial(self._make, range(first, first + part.documents)))
            yield map_postings(folder / _FILE)
            first += part.documents
            if self._told:
                self._progress.advance(part.documents)

    def _make(self, numbers: range, folder: Path) -> None:
        if not self._told:
            self._progress.phase("BM25", self._opened.manifest.stored_documents - numbers.start)
            self._told = True
        write_postings(folder / _FILE, Postings.of(self._texts(numbers), _EXTRA))

    def _texts(self, numbers: range) -> Iterator[Text]:
        opened = self._opened
        by_stored_number = DocumentReader(opened.path, opened.manifest, schema.parse(opened.manifest.schema))
        with closing(by_stored_number) as reader:
            for start in range(0, len(numbers), _BLOCK):
                for document in reader.fetch(numbers[start : start + _BLOCK]):
                    yield document.id, joined_text(document, self._columns)
