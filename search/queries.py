"""The only reader of query files: plain text, a BEIR folder or its queries.jsonl, .npy; and embeddings by query id.

    questions.txt        one query per line, UTF-8; the ids are "1", "2", ... and blank lines are not counted
    queries.jsonl        {"_id": ..., "text": ...}, optionally with a "title"; also .ndjson, and compressed
    folder/              a BEIR folder: its queries.jsonl
    vectors.npy          raw embeddings (n, d) of the encoder; the ids are "1", "2", ...

`indexer.corpus.query_file` reads the queries of a build (`index.queries`, `whitening.query_sample`).
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from indexer.arrays import Embeddings, Float32Array, RowIds
from indexer.corpus.query_file import is_npy, read_query_file, read_query_vectors
from indexer.corpus.readers.text import read_jsonl
from indexer.corpus.row import BadRow, Row
from indexer.corpus.sources import COMPRESSIONS, SourceFile
from indexer.errors import EvaluationError
from indexer.recipe.config import VECTOR_COLUMN
from indexer.recipe.corpus_config import CorpusConfig
from search.formatting import counted
from search.result_files import file_hash

QUERIES = "queries.jsonl"
_JSON_LINES = (".jsonl", ".ndjson")
_SHOWN = 3  # ids named in a message
Item = TypeVar("Item")


@dataclass(frozen=True)
class QuerySet:
    """Queries: `texts`, or raw `embeddings` (n, d).

    `drawn_from` (n,) are the numbers of the documents that the queries were drawn from, -1 for none. `origin` is
    "titles", "sentences", "halves", "documents" (stored documents), or "file". `notes` list what was left out.
    """

    ids: tuple[str, ...]
    drawn_from: RowIds
    texts: tuple[str, ...] = ()
    embeddings: Embeddings | None = None
    origin: str = "file"
    files: dict[str, str] = field(default_factory=dict)  # name -> sha256
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def keep(self, positions: RowIds, note: str) -> "QuerySet":
        """Return only the queries at these positions, with a note on the reason."""
        chosen = positions.tolist()
        return dataclasses.replace(
            self,
            ids=tuple(self.ids[position] for position in chosen),
            drawn_from=self.drawn_from[positions],
            texts=tuple(self.texts[position] for position in chosen if self.texts),
            embeddings=None if self.embeddings is None else self.embeddings[positions],
            notes=(*self.notes, note),
        )


def read_queries(path: str | Path, dim: int) -> QuerySet:
    """Return the queries of a file or a BEIR folder in the formats above. Embeddings must have `dim` numbers.

    Raises EvaluationError with file and line for an unreadable or empty file and an invalid query.
    """
    path = Path(path)
    if path.is_dir():
        path = find_beir_file(path, QUERIES)
    elif not path.exists():
        raise EvaluationError(f"{path}: cannot be read: no such file or folder.")
    if is_npy(path):
        digest, embeddings = file_hash(path), read_query_vectors(path, dim, EvaluationError)
        return _from_file(path, digest, numbered(len(embeddings)), embeddings=embeddings)
    compression = path.suffix if path.suffix in COMPRESSIONS else ""
    if path.name.removesuffix(compression).lower().endswith(_JSON_LINES):
        return _of_json_lines(path)
    if compression:
        raise EvaluationError(f"{path}: is compressed; only {QUERIES}{compression} can be. Fix: unpack it.")
    return _of_lines(path)


def numbered(count: int) -> tuple[str, ...]:
    """Return "1", "2", ... as ids of queries without ids."""
    return tuple(str(number) for number in range(1, count + 1))


def _of_json_lines(path: Path) -> QuerySet:
    digest, texts = file_hash(path), read_beir_queries(path)
    if not texts:
        raise EvaluationError(f"{path}: contains no queries; expected one JSON object per line.")
    return _from_file(path, digest, tuple(texts), texts=tuple(texts.values()))


def _of_lines(path: Path) -> QuerySet:
    digest, lines = file_hash(path), read_query_file(path, EvaluationError)
    notes = (f"{counted(lines.blank, 'blank line')} of {path.name} left out",) if lines.blank else ()
    return _from_file(path, digest, numbered(len(lines.texts)), texts=tuple(lines.texts), notes=notes)


def _from_file(path: Path, digest: str, ids: tuple[str, ...], **fields: Any) -> QuerySet:
    return QuerySet(ids, np.full(len(ids), -1, np.int64), files={path.name: digest}, **fields)


def find_beir_file(folder: Path, name: str) -> Path:
    """Return the path of a file of a BEIR folder, plain or compressed. Raises EvaluationError if it is missing."""
    for ending in ("", *COMPRESSIONS):
        if (path := folder / f"{name}{ending}").is_file():
            return path
    what = "the file is missing" if folder.is_dir() else "there is no such folder"
    raise EvaluationError(
        f"{folder}: expected a BEIR folder with {name}, but {what}. A BEIR folder contains corpus.jsonl, {QUERIES} "
        "and qrels/test.tsv."
    )


def read_beir_queries(path: Path) -> dict[str, str]:
    """Return query id -> text of a queries.jsonl, with the title before the text. Raises EvaluationError."""
    texts: dict[str, str] = {}
    for row in read_items(path, read_jsonl):
        if not isinstance(row, Row):
            continue
        identity = row.values.get("_id", row.values.get("id"))
        if isinstance(identity, bool) or not isinstance(identity, str | int) or not str(identity).strip():
            raise EvaluationError(f'{path}:{row.line}: the query has no "_id"; expected text or an integer.')
        name = str(identity)
        if name in texts:
            raise EvaluationError(f'{path}:{row.line}: the query id "{name}" is used twice; expected unique ids.')
        texts[name] = _text(row.values, f'{path}:{row.line}: query "{name}"')
    return texts


def _text(values: dict[str, Any], where: str) -> str:
    parts = {"title": values.get("title") or "", "text": values.get("text")}
    for name, part in parts.items():
        if not isinstance(part, str):
            fault = "missing or null" if part is None else f"of type {type(part).__name__}"
            raise EvaluationError(f'{where}: "{name}" is {fault}; expected text.')
    text = " ".join(stripped for part in parts.values() if (stripped := str(part).strip()))
    if not text:
        raise EvaluationError(f"{where} is blank; expected text. Fix: correct or remove the line.")
    return text


def read_items(path: Path, reader: Callable[[SourceFile], Iterator[Item | BadRow]]) -> Iterator[Item]:
    """Yield the items of a file by a reader of `indexer.corpus`. Raises EvaluationError for a bad row."""
    file = SourceFile(path, str(path), path.name, "", COMPRESSIONS.get(path.suffix, ""))
    try:
        for item in reader(file):
            if isinstance(item, BadRow):
                raise item
            yield item
    except BadRow as bad:
        raise EvaluationError(f"{path}:{bad.line}: {bad.what}. Fix: {bad.way_out}.") from bad


def read_query_embeddings(path: Path, ids: Sequence[str], dim: int) -> Float32Array:
    """Return raw embeddings (n, dim) of the queries with these ids, in their order.

    The file has a corpus format with a vector per row: FILE.npy with a list of ids, or Parquet or JSON Lines with an id
    and a "vector". Raises CorpusError for a bad row, and EvaluationError for vectors of another length and for queries
    without a vector.
    """
    from indexer.corpus.corpus import read_corpus

    given = {row.id: row.vector for row in read_corpus(path, config=CorpusConfig(vector_column=VECTOR_COLUMN))}
    if missing := [query for query in ids if query not in given]:
        shown = ", ".join(f'"{query}"' for query in missing[:_SHOWN])
        raise EvaluationError(
            f"{path}: has no vector for {len(missing):,} of {counted(len(ids), 'judged query', 'judged queries')} "
            f"({shown}{', ...' if len(missing) > _SHOWN else ''}); expected the ids of {QUERIES}."
        )
    embeddings: Float32Array = np.stack([vector for query in ids if (vector := given[query]) is not None])
    if embeddings.shape[1] != dim:
        raise EvaluationError(
            f"{path}: the vectors have {embeddings.shape[1]:,} numbers, the embeddings of the index {dim:,}. "
            "Fix: encode the queries with the same model."
        )
    return embeddings
