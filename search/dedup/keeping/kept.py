"""The surviving corpus as a file: `isotrope dedup --kept FILE`.

Rows are written as they were where the corpus is at hand and FILE is of its format: lines byte for byte (JSON Lines,
CSV, TSV, plain text), rows with all their columns and types (Parquet, Arrow). Otherwise, and where files of the
corpus have different columns, the index's own documents are written (see `kept_documents`).
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.corpus.columns import RowMapper
from indexer.corpus.corpus import Corpus
from indexer.corpus.document import Document
from indexer.corpus.row import Row
from indexer.corpus.schema import schema_from_json
from indexer.corpus.sources import COMPRESSIONS, FORMATS, format_of, paths_of
from indexer.errors import ConfigError, CorpusError
from indexer.output_files import is_stream, open_output
from indexer.store.files import FileDigest
from search.dedup.keeping.kept_documents import Columns, check_types, choose_columns, write_documents
from search.dedup.keeping.kept_rows import MixedColumns, write_batches, write_lines
from search.dedup.keeping.packed import PackedFile, packed
from search.files import check_outputs
from search.opened import OpenIndex

Rows = npt.NDArray[np.int64]
_FETCHED = 1024  # documents at once
_OPTION = "--kept"


def check_kept(path: Path, opened: OpenIndex | None = None, corpus: Corpus | None = None, force: bool = False) -> None:
    """Raises ConfigError for a file that `write_kept` would refuse: now, not after hours. Tells most with both given.

    Those are a file that cannot be written, of no known format, of one that cannot hold the metadata, one of the
    corpus itself, and one inside an index; and a corpus that cannot be read again. ExistsError for a file that is there
    already, unless `force` is given.
    """
    files = corpus.files if corpus else ()
    if any(file.path is None for file in files):
        raise ConfigError(f"{_OPTION} reads the corpus again, which stdin does not allow; write it to a file.")
    check_outputs({_OPTION: path}, [read for file in files for read in paths_of(file)], force)
    file_format = _format(path)
    if _is_of(corpus, file_format):
        return
    if file_format == "text":
        raise ConfigError(
            f"{_OPTION} {path}: plain text holds no ids, titles and metadata, so it can be written only for a corpus "
            "of plain text that is named itself. Name a .jsonl or .parquet file."
        )
    if opened and _came_with_vectors(opened) and file_format not in ("jsonl", "parquet", "arrow"):
        raise ConfigError(
            f"{_OPTION} {path}: the documents came with embeddings, which this format cannot hold. Name a .parquet or "
            ".jsonl file."
        )
    if opened:
        check_types(path, file_format, schema_from_json(opened.manifest.schema))


def write_kept(
    path: Path, opened: OpenIndex, kept: Rows, corpus: Corpus | None = None, force: bool = False
) -> FileDigest:
    """Write the documents numbered `kept` (m,), ascending, whole or not at all; `corpus` is what was indexed.

    Raises what `check_kept` raises, CorpusError for a corpus that is not the indexed one any more, StoreError.
    """
    check_kept(path, opened, corpus, force)
    file_format = _format(path)
    if corpus is not None and _is_of(corpus, file_format):
        try:
            return _write(path, lambda sink: _as_they_were(sink, opened, kept, corpus, file_format), force)
        except MixedColumns:
            check_types(path, file_format, schema_from_json(opened.manifest.schema))
    columns = _columns(opened, corpus)
    return _write(path, lambda sink: write_documents(sink, _documents(opened, kept), file_format, columns), force)


def _format(path: Path) -> str:
    """What the name tells; JSON Lines for a stream such as /dev/stdout."""
    file_format, _ = format_of(path)
    if not file_format and is_stream(path):
        return "jsonl"
    if not file_format:
        known = f"{' '.join(FORMATS)} (each also with {' '.join(COMPRESSIONS)})"
        raise ConfigError(f"{_OPTION} {path}: unknown type of file; expected one of {known}.")
    return file_format


def _is_of(corpus: Corpus | None, file_format: str) -> bool:
    """Whether every file of the corpus is of the format."""
    return corpus is not None and all(file.format == file_format for file in corpus.files)


def _write(path: Path, fill: Callable[[PackedFile], None], force: bool) -> FileDigest:
    _, compression = format_of(path)
    with open_output(path, _OPTION, force) as file, packed(file, compression) as sink:
        fill(sink)
    return file.digest


def _as_they_were(sink: PackedFile, opened: OpenIndex, kept: Rows, corpus: Corpus, file_format: str) -> None:
    rows = _marked_rows(opened, kept, corpus)
    if file_format in ("parquet", "arrow"):
        write_batches(sink, rows, file_format, len(corpus.files))
    else:
        write_lines(sink, rows)


def _marked_rows(opened: OpenIndex, kept: Rows, corpus: Corpus) -> Iterator[tuple[Row, bool]]:
    """Every row of the corpus that is a document, and whether it is kept."""
    survives = np.zeros(opened.manifest.documents, bool)
    survives[kept] = True
    ids = opened.documents.all_ids()
    with closing(corpus.rows()) as rows:
        for number, (document, row, file) in enumerate(rows):
            if document.id != (known := next(ids, None)):
                raise _changed(f'{file.display_name}:{row.line}: the id is "{document.id}"', known)
            yield row, bool(survives[number])
    if (known := next(ids, None)) is not None:
        raise _changed("the corpus ends", known)


def _changed(found: str, known: str | None) -> CorpusError:
    expected = "the indexed corpus had ended" if known is None else f'the indexed corpus has "{known}" here'
    return CorpusError(f"{found}, but {expected}: it was changed meanwhile. Run the command again.")


def _columns(opened: OpenIndex, corpus: Corpus | None) -> Columns:
    config, schema = opened.config.corpus, schema_from_json(opened.manifest.schema)
    if corpus is None:
        return choose_columns(schema, config, None)
    with closing(corpus.rows()) as rows:
        first = next(rows, None)
    if first is None:
        raise _changed("the corpus holds no documents", next(opened.documents.all_ids(), None))
    return choose_columns(schema, corpus.config, RowMapper(corpus.config).roles(first[1].values))


def _documents(opened: OpenIndex, kept: Rows) -> Iterator[Document]:
    for start in range(0, len(kept), _FETCHED):
        numbers = kept[start : start + _FETCHED]
        documents = opened.documents.fetch(numbers.tolist())
        if _came_with_vectors(opened):  # a row each: documents with vectors have no windows
            vectors = opened.embeddings(numbers).astype(np.float32, copy=False)
            documents = [replace(document, vector=row) for document, row in zip(documents, vectors, strict=True)]
        yield from documents


def _came_with_vectors(opened: OpenIndex) -> bool:
    return not opened.config.encoder.traits.encodes_texts
