"""The file of kept documents: `isotrope dedup --kept FILE`.

If the corpus is given and FILE has its format, rows are copied: lines byte for byte (JSON Lines, CSV, TSV, plain text),
rows with all columns and types (Parquet, Arrow). Otherwise, and if files of the corpus have different columns, the
documents of the index are written (`search.dedup.corpus_writing`).
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from indexer.arrays import RowIds
from indexer.corpus.columns import RowMapper
from indexer.corpus.corpus import Corpus
from indexer.corpus.document import Document
from indexer.corpus.row import Header, Row
from indexer.corpus.schema import schema_from_json
from indexer.corpus.sources import COMPRESSIONS, FORMATS, format_of, paths_of
from indexer.errors import ConfigError, CorpusError, as_argument
from indexer.store.files import FileDigest
from indexer.system.output_files import is_stream, open_output
from search.dedup.corpus_writing import (
    CompressedWriter,
    CorpusColumns,
    TableWriter,
    check_types,
    choose_columns,
    has_dictionaries,
    write_documents,
)
from search.index import Index
from search.result_files import check_outputs

MarkedRows = Iterator[tuple[Row, bool]]  # every row of the corpus, and whether it is kept
_FETCHED = 1024  # documents


class MixedColumns(Exception):  # noqa: N818 - a reason to convert, not an error
    """The files of the corpus have different columns, or columns of different types."""


def check_kept(path: Path, index: Index | None = None, corpus: Corpus | None = None, force: bool = False) -> None:
    """Raise the errors of `write_kept` before hours of work, as far as the given arguments allow.

    Raises ConfigError for a path that cannot be written, is part of the corpus or is inside an index, for an unknown
    format or one that cannot store the metadata, and for a corpus that cannot be read again; ExistsError for an
    existing file without `force`.
    """
    files = corpus.files if corpus else ()
    if any(file.is_stdin for file in files):
        raise ConfigError(
            f"{as_argument('kept')} reads the corpus twice, which stdin does not allow. Fix: save it to a file."
        )
    check_outputs({as_argument("kept"): path}, [read for file in files for read in paths_of(file)], force)
    file_format = _format(path)
    if _is_of(corpus, file_format):
        return
    if file_format == "text":
        raise ConfigError(
            f"{as_argument('kept')} {path}: plain text cannot store ids, titles and metadata; it needs a corpus of "
            "plain text as the source. Fix: name a .jsonl or .parquet file."
        )
    if index and _has_vectors(index) and file_format not in ("jsonl", "parquet", "arrow"):
        raise ConfigError(
            f"{as_argument('kept')} {path}: this format cannot store the embeddings of the corpus. Fix: name a "
            ".parquet or .jsonl file."
        )
    if index:
        check_types(f"{as_argument('kept')} {path}", file_format, schema_from_json(index.manifest.schema))


def write_kept(path: Path, index: Index, kept: RowIds, corpus: Corpus | None = None, force: bool = False) -> FileDigest:
    """Write the documents numbered `kept` (m,), ascending, atomically; `corpus` is the indexed corpus.

    Raises what `check_kept` raises, CorpusError for a corpus that differs from the indexed one, StoreError.
    """
    check_kept(path, index, corpus, force)
    file_format = _format(path)
    if corpus is not None and _is_of(corpus, file_format):
        try:
            return _write(path, lambda sink: _copy_rows(sink, index, kept, corpus, file_format), force)
        except MixedColumns:
            check_types(f"{as_argument('kept')} {path}", file_format, schema_from_json(index.manifest.schema))
    columns = _columns(index, corpus)
    return _write(path, lambda sink: write_documents(sink, _documents(index, kept), file_format, columns), force)


def _format(path: Path) -> str:
    """Return the format by suffix; JSON Lines for a stream such as /dev/stdout."""
    file_format, _ = format_of(path)
    if not file_format and is_stream(path):
        return "jsonl"
    if not file_format:
        known = f"{' '.join(FORMATS)} (each also with {' '.join(COMPRESSIONS)})"
        raise ConfigError(f"{as_argument('kept')} {path}: unknown type of file; expected one of {known}.")
    return file_format


def _is_of(corpus: Corpus | None, file_format: str) -> bool:
    return corpus is not None and all(file.format == file_format for file in corpus.files)


def _write(path: Path, fill: Callable[[CompressedWriter], None], force: bool) -> FileDigest:
    _, compression = format_of(path)
    with open_output(path, as_argument("kept"), force) as file, CompressedWriter(file, compression) as sink:
        fill(sink)
    return file.digest


def _copy_rows(sink: CompressedWriter, index: Index, kept: RowIds, corpus: Corpus, file_format: str) -> None:
    rows = _marked_rows(index, kept, corpus)
    if file_format in ("parquet", "arrow"):
        write_batches(sink, rows, file_format, len(corpus.files))
    else:
        write_lines(sink, rows)


def _marked_rows(index: Index, kept: RowIds, corpus: Corpus) -> Iterator[tuple[Row, bool]]:
    is_kept = np.zeros(index.manifest.documents, bool)
    is_kept[kept] = True
    ids = index.documents.all_ids()
    with closing(corpus.rows()) as rows:
        for number, (document, row, file) in enumerate(rows):
            if document.id != (known := next(ids, None)):
                raise _changed(f'{file.display_name}:{row.line}: the id is "{document.id}"', known)
            yield row, bool(is_kept[number])
    if (known := next(ids, None)) is not None:
        raise _changed("the corpus ends", known)


def _changed(found: str, known: str | None) -> CorpusError:
    expected = "the indexed corpus had ended" if known is None else f'the indexed corpus has "{known}" here'
    return CorpusError(f"{found}, but {expected}: the corpus changed meanwhile. Fix: run the command again.")


def _columns(index: Index, corpus: Corpus | None) -> CorpusColumns:
    config, schema = index.config.corpus, schema_from_json(index.manifest.schema)
    if corpus is None:
        return choose_columns(schema, config, None)
    with closing(corpus.rows()) as rows:
        first = next(rows, None)
    if first is None:
        raise _changed("the corpus has no documents", next(index.documents.all_ids(), None))
    return choose_columns(schema, corpus.config, RowMapper(corpus.config).roles(first[1].values))


def _documents(index: Index, kept: RowIds) -> Iterator[Document]:
    for start in range(0, len(kept), _FETCHED):
        numbers = kept[start : start + _FETCHED]
        documents = index.documents.fetch(numbers.tolist())
        if _has_vectors(index):  # one row each, because documents with vectors have no windows
            vectors = index.embeddings(numbers).astype(np.float32, copy=False)
            documents = [replace(document, vector=row) for document, row in zip(documents, vectors, strict=True)]
        yield from documents


def _has_vectors(index: Index) -> bool:
    return not index.config.encoder.traits.encodes_texts


def write_lines(sink: CompressedWriter, rows: MarkedRows) -> None:
    """Write the first header, if any, and the lines of kept rows, each with a line end. Raises MixedColumns."""
    header: Header | None = None
    for row, is_kept in rows:
        if row.header is not header and row.header is not None:
            if header is None:
                sink.write(_ended(row.header.raw))
            elif row.header.columns != header.columns:
                raise MixedColumns
            header = row.header
        if is_kept:
            sink.write(_ended(row.raw))


def write_batches(sink: CompressedWriter, rows: MarkedRows, file_format: str, files: int) -> None:
    """Write the kept rows of Parquet or Arrow `files` with all columns. Raises MixedColumns."""
    first = next(rows, None)
    if first is None or first[0].header is None:
        return
    header = first[0].header
    # An Arrow file has one dictionary a column, but several files may have different dictionaries.
    stream = header.stream or (files > 1 and has_dictionaries(header.schema))
    with TableWriter(sink, file_format, header.schema, stream) as table:
        for batch in _kept_batches(first, rows):
            table.write(batch)


def _kept_batches(first: tuple[Row, bool], rows: MarkedRows) -> Iterator[pa.RecordBatch]:
    header, batch, places = first[0].header, first[0].batch, [first[0].place] * first[1]
    for row, is_kept in rows:
        if row.header is not header:
            if not (row.header and header and row.header.schema.equals(header.schema, check_metadata=False)):
                raise MixedColumns
            header = row.header
        if row.batch is not batch:
            yield from _selected(batch, places)
            batch, places = row.batch, []
        if is_kept:
            places.append(row.place)
    yield from _selected(batch, places)


def _selected(batch: pa.RecordBatch, places: list[int]) -> Iterator[pa.RecordBatch]:
    if not places:
        return
    try:
        yield batch.take(pa.array(places, pa.int64()))
    except pa.ArrowNotImplementedError:  # for example, of string views
        yield pa.concat_batches([batch.slice(place, 1) for place in places])


def _ended(line: bytes) -> bytes:
    return line if line.endswith(b"\n") else line + b"\n"
