"""`read_corpus` and the `Corpus` it returns: any mix of sources as one stream of Documents.

`indexer.corpus.records` reads what a program passes in, by the same rules.
"""

import json
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import pyarrow as pa

from indexer.corpus.columns import ID_COLUMNS, RowMapper, require_id
from indexer.corpus.document import Document
from indexer.corpus.files.folder import find_documents
from indexer.corpus.files.rows import file_rows
from indexer.corpus.ids import Position, UniqueIds
from indexer.corpus.readers.arrow import read_arrow
from indexer.corpus.readers.npy import read_npy, read_numbered
from indexer.corpus.readers.text import read_csv, read_jsonl, read_text, read_tsv
from indexer.corpus.row import BadRow, BlankLine, BrokenFile, Header, RejectsFile, Row, RowStream, place_in
from indexer.corpus.schema import SchemaBuilder
from indexer.corpus.sources import SourceFile, find_sources, id_list_beside, paths_of
from indexer.corpus.validation import DimensionCheck
from indexer.errors import ConfigError, CorpusError, as_argument
from indexer.recipe.corpus_config import CorpusConfig
from indexer.typed_arguments import checked

OnError = Literal["fail", "skip"]
LocatedDocument = tuple[Document, Row, SourceFile]


@dataclass
class CorpusReport:
    """Counts and notes of one pass over the corpus; complete when the pass ends."""

    documents: int = 0
    blank_lines: int = 0
    made_ids: int = 0  # documents whose id is a hash of their content
    repeated: int = 0  # documents among them with the content of an earlier one
    numbered: int = 0  # rows of arrays without a list of ids: their ids are their numbers from 0
    unlisted: list[str] = field(default_factory=list)  # those arrays
    rejected: Counter[str] = field(default_factory=Counter)  # reason -> rows
    files: int = 0  # that are documents, with corpus.documents = "files"
    left_out: Counter[str] = field(default_factory=Counter)  # reason -> files and folders, of documents that are files
    ignored_files: list[str] = field(default_factory=list)  # of unknown type, in folders and globs
    rejects_file: str | None = None  # lists the rejected rows
    older_rejects_file: str | None = None  # new name of the list of an earlier run
    unused_columns: list[str] = field(default_factory=list)  # in the settings, but in no row


class Corpus:
    """Documents from files, folders or stdin; iterate as often as needed (stdin: once).

    Reads as a stream: memory holds one line or one batch of rows, and about 26 bytes per document to check ids.
    Iterating raises CorpusError (see `read_corpus`).
    """

    def __init__(
        self,
        files: list[SourceFile],
        ignored_files: list[str],
        config: CorpusConfig,
        on_error: OnError,
        rejects: RejectsFile | None,
        left_out: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.config, self.on_error = config, on_error
        self.files = tuple(files)  # in reading order
        self._ignored_files, self._rejects, self._left_out = ignored_files, rejects, left_out
        self._stdin_spent = False
        self.report = self._new_report()

    def __iter__(self) -> Iterator[Document]:
        return self.documents()

    @checked
    def documents(self, known: pa.Schema | None = None) -> Iterator[Document]:
        """Return the documents; `known` is the metadata schema of the index that they are added to.

        CSV and TSV cells are then converted to the types of the index, and a value that does not fit is a bad row.
        """
        self._spend_stdin()
        self.report = self._new_report()
        return _documents(_Pass(self, self.report, self._rejects, known).rows())

    def rows(self) -> Generator[LocatedDocument]:
        """Return the documents, each with its row and its file.

        For a second pass over the corpus: `report` and the file of rejected rows do not change.
        """
        self._spend_stdin()
        return _Pass(self, self._new_report(), None).rows()

    def _spend_stdin(self) -> None:
        if self._stdin_spent:
            raise CorpusError("stdin can be read only once. Fix: write it to a file and read the file.")
        self._stdin_spent = any(file.is_stdin for file in self.files)

    def _new_report(self) -> CorpusReport:
        files = len(self.files) if self.config.documents == "files" else 0
        return CorpusReport(files=files, left_out=Counter(self._left_out), ignored_files=list(self._ignored_files))

    def limited_to(self, files: Sequence[SourceFile]) -> "Corpus":
        """Return the same corpus with fewer files."""
        return Corpus(list(files), self._ignored_files, self.config, self.on_error, self._rejects, self._left_out)


@checked
def read_corpus(
    *sources: str | Path,
    config: CorpusConfig = CorpusConfig(),  # noqa: B008 - frozen
    format: str = "",  # noqa: A002 - the word the user knows
    on_error: OnError | None = None,
    rejects: str | Path | None = None,
    force: bool = False,
) -> Corpus:
    """Return a corpus of files, quoted globs, folders, or "-" for stdin (which needs `format`).

    The extension decides the format unless `format` (jsonl, csv, tsv, parquet, arrow, text) is given: JSON Lines, CSV,
    TSV, Parquet, Arrow IPC and plain text with one document a line, each also with .gz, .bz2 or .zst. A folder with a
    corpus.jsonl (BEIR) means that file, any other folder all files in it of a known format. With
    `config.vector_column` documents bring embeddings, text is optional, and X.npy is read as well, with or without a
    list of ids (see `indexer.corpus.readers.npy`).

    With `config.documents = "files"` each file is a document (see `indexer.corpus.files`): sources are folders, globs
    and files, also in object storage, and `Corpus.report` counts what is left out. `on_error` then
    defaults to "skip", otherwise to "fail".

    A row or file that cannot become a document raises CorpusError while iterating, with file, line, id and the fix.
    With on_error="skip" it is skipped, counted in `Corpus.report`, and listed in the file `rejects` (JSON Lines). The
    list of an earlier run is kept under another name, and any other file is overwritten only with `force`. Raises
    ConfigError for settings, CorpusError for sources that cannot be found, and ExistsError.
    """
    on_error = on_error or config.usual_on_error
    if rejects is not None and on_error == "fail":
        raise ConfigError('rejects is a file for skipped rows, but on_error is "fail"; expected "skip".')
    RowMapper(config)  # raises for wrong settings
    reasons: Mapping[str, int] = {}
    if config.documents == "files":
        if format:
            raise ConfigError(f"{as_argument('format')} is for tables, but each file is a document. Fix: leave it out.")
        files, left_out = find_documents(sources)
        ignored, reasons = left_out.unknown, left_out.reasons
    else:
        files, ignored = find_sources(sources, format, bool(config.vector_column))
    if rejects is not None and any(_is_same(Path(rejects), path) for file in files for path in paths_of(file)):
        raise ConfigError(f"{rejects}: is part of the corpus; {as_argument('rejects')} needs another file.")
    listed = None if rejects is None else RejectsFile(Path(rejects), force)
    return Corpus(files, ignored, config, on_error, listed, reasons)


def _is_same(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except OSError:  # one of the files does not exist
        return False


def _documents(rows: Generator[LocatedDocument]) -> Iterator[Document]:
    with closing(rows):
        yield from (document for document, _, _ in rows)


class _Pass:
    """The state of one iteration; `known` is the schema of the index that the documents are added to."""

    def __init__(
        self, corpus: Corpus, report: CorpusReport, rejects: RejectsFile | None, known: pa.Schema | None = None
    ) -> None:
        self._config, self._files, self._skip = corpus.config, corpus.files, corpus.on_error == "skip"
        self._report, self._rejects = report, rejects
        self._mapper, self._types = RowMapper(corpus.config, known), SchemaBuilder(known)
        self._ids, self._size = UniqueIds(self._place), DimensionCheck()
        self._needs_id: bool | None = None  # whether the first row of the current file has an id

    def _place(self, position: Position) -> str:
        return place_in(self._files[position.file].display_name, position.line)

    def rows(self) -> Generator[LocatedDocument]:
        complete = False
        try:
            if self._config.documents == "files":
                yield from self._rows_of_files()
            else:
                for number in range(len(self._files)):
                    yield from self._file_rows(number)
            self._mapper.check_title_met()
            self._report.unused_columns = self._mapper.unused_columns()
            complete = True
        finally:
            # also after an error or if the caller stops early: the rows rejected so far are then listed
            if (rejects := self._rejects) is not None:
                if rejects.close(complete):
                    self._report.rejects_file = str(rejects.path)
                if rejects.moved_to:
                    self._report.older_rejects_file = str(rejects.moved_to)

    def _rows_of_files(self) -> Iterator[LocatedDocument]:
        with closing(file_rows(self._files)) as items:
            for number, item in enumerate(items):
                try:
                    located = self._take(item, number)
                except BadRow as bad:
                    self._reject(self._files[number], bad)
                else:
                    if located is not None:
                        yield located

    def _file_rows(self, number: int) -> Iterator[LocatedDocument]:
        file = self._files[number]
        self._needs_id = None
        ids = id_list_beside(file) if file.format == "npy" else None
        is_numbered = file.format == "npy" and ids is None
        self._report.unlisted += [str(file.path)] * is_numbered
        items = _read(file, self._config, ids, self._report.numbered)
        while True:
            try:
                item = next(items, None)
                if item is None:
                    return
                self._report.numbered += is_numbered
                located = self._take(item, number)
            except BadRow as bad:
                self._reject(file, bad)
                if isinstance(bad, BrokenFile):
                    return
            else:
                if located is not None:
                    yield located

    def _take(self, item: Row | Header | BadRow | BlankLine, number: int) -> LocatedDocument | None:
        if isinstance(item, Row):
            try:
                return self._document(item, number), item, self._files[number]
            except BadRow as bad:
                bad.line = item.line
                bad.raw = item.raw or json.dumps(item.values, default=str, ensure_ascii=False)
                raise
        if isinstance(item, BadRow):
            raise item
        if isinstance(item, BlankLine):
            self._report.blank_lines += 1
        else:
            self._mapper.check_header(item.columns, self._files[number].display_name)
        return None

    def _document(self, row: Row, number: int) -> Document:
        has_id = self._mapper.has_id(row)
        if self._needs_id is None:
            self._needs_id = has_id
        require_id(has_id, self._needs_id)
        document = self._mapper.document(row)
        try:
            distinct = self._ids.distinct(document, made=not has_id)
            self._remember(distinct, Position(number, row.line, made=not has_id))
        except BadRow as bad:
            bad.id = document.id if has_id else None
            raise
        self._report.documents += 1
        self._report.made_ids += not has_id
        self._report.repeated += distinct is not document
        return distinct

    def _remember(self, document: Document, position: Position) -> None:
        """Record id, types and size only if all of them are accepted: a rejected row must not affect later rows."""
        if document.metadata or document.vector is not None:
            self._size.check(document.vector)
            place = self._ids.place(position)
            self._types.observe(document.metadata, place)
            self._size.take(document.vector, place)
        self._ids.add(document.id, position)

    def _reject(self, file: SourceFile, bad: BadRow) -> None:
        bad.way_out = self._mapper.way_out(bad.way_out)
        if not self._skip:
            raise CorpusError(bad.message(file.display_name)) from bad
        self._report.rejected[bad.reason] += 1
        if self._rejects is not None:
            self._rejects.write(file.display_name, bad)


def _read(file: SourceFile, config: CorpusConfig, ids: SourceFile | None = None, first: int = 0) -> RowStream:
    """Return the rows of a file. An array has a list of `ids`, or its rows are numbered from `first` on."""
    if file.format == "text":
        return read_text(file, config.text_column or "text")
    if file.format == "npy":
        id_column = config.id_column or ID_COLUMNS[0]
        if ids is None:
            return read_numbered(file, config.vector_column, id_column, first)
        listed = read_text(ids, id_column) if ids.format == "text" else _read(ids, config)
        return read_npy(file, config.vector_column, ids, listed)
    if reader := {"jsonl": read_jsonl, "csv": read_csv, "tsv": read_tsv}.get(file.format):
        return reader(file)
    return read_arrow(file, config.columns, config.vector_column)
