"""Queries that an index is measured with: the user's own, or drawn from its documents."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from indexer.arrays import RowIds
from indexer.corpus.document import Document, pseudo_query
from indexer.corpus.query_file import is_npy, read_query_file, read_query_vectors
from indexer.corpus.sources import COMPRESSIONS
from indexer.errors import ConfigError, EvaluationError
from search.evaluation.retrieval.beir import read_texts
from search.files import file_hash
from search.index import LiveRows
from search.text import counted

DrawnFrom = Literal["titles", "sentences", "halves"]
SAMPLE = 1000
_JSON_LINES = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class QuerySet:
    """Queries, and for each the document it was drawn from, -1 for none. `notes` say what was left out.

    `embeddings` (n, d) stand in the place of texts where those cannot be encoded, or need not be.
    """

    texts: tuple[str, ...]
    rows: RowIds
    origin: str  # "titles", "sentences", "halves", "file", or "documents" as they are stored
    notes: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)  # name -> sha256
    embeddings: npt.NDArray[np.floating] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def keep(self, wanted: RowIds, note: str) -> "QuerySet":
        """Only the queries at these positions, with a note why."""
        texts = tuple(self.texts[number] for number in wanted.tolist() if self.texts)
        kept = None if self.embeddings is None else self.embeddings[wanted]
        return dataclasses.replace(
            self, texts=texts, rows=self.rows[wanted], notes=(*self.notes, note), embeddings=kept
        )


def read_queries(path: Path, dim: int = 0) -> QuerySet:
    """Queries from a file, one a line, UTF-8, blank lines left out; or a BEIR queries.jsonl, compressed or not; or
    embeddings of `dim` numbers in a .npy file.

    Raises EvaluationError.
    """
    digest = file_hash(path)
    if is_npy(path):
        embeddings = read_query_vectors(path, dim, EvaluationError)
        none = np.full(len(embeddings), -1)
        return QuerySet((), none, "file", files={path.name: digest}, embeddings=embeddings)
    blank, compression = 0, path.suffix if path.suffix in COMPRESSIONS else ""
    if path.name.removesuffix(compression).lower().endswith(_JSON_LINES):
        texts = list(read_texts(path).values())
        if not texts:
            raise EvaluationError(f"{path}: holds no queries; expected one JSON object a line.")
    elif compression:
        raise EvaluationError(f"{path}: is compressed, which only a BEIR queries.jsonl{compression} may be. Unpack it.")
    else:
        found = read_query_file(path, EvaluationError)
        texts, blank = found.texts, found.blank
    notes = (f"{counted(blank, 'blank line', 'blank lines')} of {path} left out",) if blank else ()
    return QuerySet(tuple(texts), np.full(len(texts), -1), "file", notes, {path.name: digest})


def draw_queries(stored: LiveRows, origin: DrawnFrom | None = None, size: int = SAMPLE) -> QuerySet:
    """Queries drawn from the documents with the smallest id hash, `size` of them or as many as there are.

    "titles"; "sentences": the first sentence of the text, or its first words where that is long; "halves": the
    first half of the text's words. Without an origin: titles if at least half of the first `size` documents have
    one, else sentences. Documents that give no query are passed over and counted. Where embeddings came with the
    corpus, those of the documents are the queries.
    Raises ConfigError for a size below 1, and for an origin where no text can be encoded, and EvaluationError when no
    document gives a query.
    """
    if size < 1:
        raise ConfigError(f"the sample is {size}; expected at least 1 query.")
    if not stored.index.config.encoder.traits.encodes_texts:
        return _documents_themselves(stored, origin, size)
    order = np.argsort(stored.id_hashes, kind="stable")
    chosen = origin or _usual_origin(stored.index.documents.fetch(order[:size].tolist()))
    texts: list[str] = []
    rows: list[int] = []
    seen = 0
    for row, document in _documents(stored, order, size):
        seen += 1
        if text := _DRAW[chosen](document):
            texts.append(text)
            rows.append(row)
        if len(texts) == size:
            break
    if not texts:
        there = counted(stored.index.manifest.documents, "document", "documents")
        raise EvaluationError(
            f"{stored.index.path}: none of its {there} gives a query "
            f"({_NEED[chosen]}). Name another kind with --from, or a file of queries with --queries."
        )
    passed = seen - len(texts)
    notes = (
        (f"no query from {passed:,} of {counted(seen, 'sampled document', 'sampled documents')} ({_NEED[chosen]})",)
        if passed
        else ()
    )
    return QuerySet(tuple(texts), np.array(rows, np.int64), chosen, notes)


def _documents_themselves(stored: LiveRows, origin: DrawnFrom | None, size: int) -> QuerySet:
    if origin:
        raise ConfigError(
            f"{stored.index.path}: its embeddings came with the corpus, so no {origin} can be encoded. Leave out "
            "--from, and the documents themselves are the queries, or name a .npy file of query embeddings."
        )
    rows = np.sort(np.argsort(stored.id_hashes, kind="stable")[:size])
    return QuerySet((), rows, "documents", embeddings=stored.index.embeddings(rows))


def _usual_origin(documents: list[Document]) -> DrawnFrom:
    return "titles" if 2 * sum(bool(_title(document)) for document in documents) >= len(documents) else "sentences"


def _documents(stored: LiveRows, order: RowIds, batch: int) -> Iterator[tuple[int, Document]]:
    for start in range(0, len(order), batch):
        rows = order[start : start + batch].tolist()
        yield from zip(rows, stored.index.documents.fetch(rows), strict=True)


def _title(document: Document) -> str:
    return (document.title or "").strip()


def _sentence(document: Document) -> str:
    return pseudo_query(dataclasses.replace(document, title=None))


def _half(document: Document) -> str:
    words = document.text.split()
    return " ".join(words[: len(words) // 2])


_DRAW: dict[DrawnFrom, Callable[[Document], str]] = {"titles": _title, "sentences": _sentence, "halves": _half}
_NEED: dict[DrawnFrom, str] = {
    "titles": "no title",
    "sentences": "no text beside the title",
    "halves": "fewer than two words of text",
}
