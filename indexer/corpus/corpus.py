"""`read_corpus` and the `Corpus` it returns: any mix of sources as one stream of Documents.

Documents that a program hands over instead are held to the same rules by `validated_documents`.
"""

import json
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pyarrow as pa

from indexer.corpus.columns import ID_COLUMNS, STORED_NAMES, RowMapper, way_out_of
from indexer.corpus.document import Document, is_blank
from indexer.corpus.ids import Position, SeenIds, UniqueIds
from indexer.corpus.readers.arrow import read_arrow
from indexer.corpus.readers.npy import read_npy
from indexer.corpus.readers.text import read_csv, read_jsonl, read_text, read_tsv
from indexer.corpus.row import BadRow, BlankLine, BrokenFile, Header, RejectsFile, Row, RowStream
from indexer.corpus.schema import SchemaBuilder, drop_nulls
from indexer.corpus.sources import SourceFile, find_sources, id_list_beside, paths_of
from indexer.corpus.validation import DimensionCheck, Vector, check_string, check_value, to_vector
from indexer.errors import ConfigError, CorpusError
from indexer.recipe.config import CorpusConfig

OnError = Literal["fail", "skip"]
LocatedDocument = tuple[Document, Row, SourceFile]


@dataclass
class CorpusReport:
    """What one pass over the corpus found; complete when the pass is."""

    documents: int = 0
    blank_lines: int = 0
    made_ids: int = 0  # documents whose id is made of their content
    repeated: int = 0  # those of them whose content another had before
    rejected: Counter[str] = field(default_factory=Counter)  # reason -> rows
    ignored_files: list[str] = field(default_factory=list)  # of unknown type, in folders and globs
    rejects_file: str | None = None  # where the rejected rows are listed
    older_rejects_file: str | None = None  # what the list of an earlier run there is called now
    unused_columns: list[str] = field(default_factory=list)  # named in the settings, found in no row


class Corpus:
    """Documents from files, folders or stdin; iterate as often as needed (stdin: once).

    Streams: at most one line, or one batch of rows, is in memory beside about 26 bytes a document for the check of
    ids. Iterating raises CorpusError (see `read_corpus`).
    """

    def __init__(
        self,
        files: list[SourceFile],
        ignored_files: list[str],
        config: CorpusConfig,
        on_error: OnError,
        rejects: RejectsFile | None,
    ) -> None:
        self.config, self.on_error = config, on_error
        self.files = tuple(files)  # that are read, in order
        self._ignored_files, self._rejects = ignored_files, rejects
        self._stdin_spent = False
        self.report = self._new_report()

    def __iter__(self) -> Iterator[Document]:
        return self.documents()

    def documents(self, known: pa.Schema | None = None) -> Iterator[Document]:
        """Return the documents, as iterating gives them; `known` are the metadata types of the index they are for.

        Cells of CSV and TSV are then read as the type that the index has in their column, and a value that does not fit
        is a bad row.
        """
        self._spend_stdin()
        self.report = self._new_report()
        return _documents(_Pass(self, self.report, self._rejects, known).rows())

    def rows(self) -> Generator[LocatedDocument]:
        """Return the documents, each with the row it was made of and the file that holds it.

        A second pass over the corpus uses this: `report` and the file of rejected rows stay as they are.
        """
        self._spend_stdin()
        return _Pass(self, self._new_report(), None).rows()

    def _spend_stdin(self) -> None:
        if self._stdin_spent:
            raise CorpusError("stdin can be read only once. Way out: write it to a file and read that.")
        self._stdin_spent = any(file.is_stdin for file in self.files)

    def _new_report(self) -> CorpusReport:
        return CorpusReport(ignored_files=list(self._ignored_files))


def read_corpus(
    *sources: str | Path,
    config: CorpusConfig = CorpusConfig(),  # noqa: B008 - frozen
    format: str = "",  # noqa: A002 - the word the user knows
    on_error: OnError = "fail",
    rejects: str | Path | None = None,
    force: bool = False,
) -> Corpus:
    """Name a corpus: files, quoted globs, folders, or "-" for stdin (which needs `format`).

    Formats, told by the extension unless `format` (jsonl, csv, tsv, parquet, arrow, text) says otherwise: JSON
    Lines, CSV, TSV, Parquet, Arrow IPC and plain text of one document a line, each also with .gz, .bz2 or .zst.
    A folder with a corpus.jsonl (BEIR) means that file, any other folder all files in it of a known format. With
    `config.vector_column` documents come with embeddings and may be without text, and X.npy is read too, beside the
    list of its ids (see `indexer.corpus.readers.npy`).

    A row that cannot become a document raises CorpusError while iterating, naming file, line, id and the way out;
    with on_error="skip" it is left out, counted in `Corpus.report`, and listed in the file `rejects` (JSON Lines).
    There an earlier run's list is kept under another name, and any other file is overwritten only with `force`. Raises
    ConfigError for settings, CorpusError for sources that cannot be found, and ExistsError.
    """
    if on_error not in ("fail", "skip"):
        raise ConfigError(f'on_error is "{on_error}"; expected "fail" or "skip".')
    if rejects is not None and on_error == "fail":
        raise ConfigError('rejects names a file for the rows left out, but on_error is "fail"; expected "skip".')
    RowMapper(config)  # says now what is wrong with the settings
    files, ignored = find_sources(sources, format, bool(config.vector_column))
    if rejects is None:
        return Corpus(files, ignored, config, on_error, None)
    if any(_is_same(Path(rejects), path) for file in files for path in paths_of(file)):
        raise ConfigError(f"{rejects}: is part of the corpus; the rows left out need a file of their own (--rejects).")
    return Corpus(files, ignored, config, on_error, RejectsFile(Path(rejects), force))


def _is_same(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except OSError:  # one of them is not there
        return False


def _documents(rows: Generator[LocatedDocument]) -> Iterator[Document]:
    with closing(rows):
        for document, _, _ in rows:
            yield document


class _Pass:
    """The state of one iteration; `known` are the types of the index that it reads for."""

    def __init__(
        self, corpus: Corpus, report: CorpusReport, rejects: RejectsFile | None, known: pa.Schema | None = None
    ) -> None:
        self._config, self._files, self._skip = corpus.config, corpus.files, corpus.on_error == "skip"
        self._report, self._rejects = report, rejects
        self._mapper, self._types = RowMapper(corpus.config, known), SchemaBuilder(known)
        self._ids, self._size = UniqueIds(corpus.files), DimensionCheck()
        self._needs_id: bool | None = None  # whether the first row of the current file has an id

    def rows(self) -> Generator[LocatedDocument]:
        complete = False
        try:
            for number in range(len(self._files)):
                yield from self._file_rows(number)
            self._mapper.check_title_met()
            self._report.unused_columns = self._mapper.unused_columns()
            complete = True
        finally:
            # also after an error or when the caller stops early: what was rejected so far is then listed
            if self._rejects is not None:
                self._list_rejects(self._rejects, complete)

    def _list_rejects(self, rejects: RejectsFile, complete: bool) -> None:
        if rejects.close(complete):
            self._report.rejects_file = str(rejects.path)
        if rejects.moved_to:
            self._report.older_rejects_file = str(rejects.moved_to)

    def _file_rows(self, number: int) -> Iterator[LocatedDocument]:
        file = self._files[number]
        self._needs_id = None
        items = _read(file, self._config)
        while True:
            try:
                item = next(items, None)
                if item is None:
                    return
                found = self._take(item, number)
            except BadRow as bad:
                self._reject(file, bad)
                if isinstance(bad, BrokenFile):
                    return
            else:
                if found is not None:
                    yield found

    def _take(self, item: Row | Header | BadRow | BlankLine, number: int) -> LocatedDocument | None:
        """The item with its Document, if it makes one. Raises BadRow."""
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
        if self._needs_id and not has_id:
            way_out = "give every row an id, or none, or pass --id-column"
            raise BadRow("no-id", "the row has no id, but the first row of the file has one", way_out)
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
        """Note id, types and size, none when one of them is refused: a rejected row must not affect later ones."""
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


def _read(file: SourceFile, config: CorpusConfig) -> RowStream:
    match file.format:
        case "jsonl":
            return read_jsonl(file)
        case "csv":
            return read_csv(file)
        case "tsv":
            return read_tsv(file)
        case "text":
            return read_text(file, config.text_column or "text")
        case "npy":
            return read_npy(file, config.vector_column, *_id_list(file, config))
        case _:
            return read_arrow(file, config.columns, config.vector_column)


def _id_list(file: SourceFile, config: CorpusConfig) -> tuple[SourceFile, RowStream]:
    """The list of ids beside an array of embeddings, and its rows; plain text holds an id a line."""
    ids = id_list_beside(file)
    if ids.format == "text":
        return ids, read_text(ids, config.id_column or ID_COLUMNS[0])
    return ids, _read(ids, config)


def validated_documents(
    documents: Iterable[Document], config: CorpusConfig, known: pa.Schema | None = None
) -> Iterator[Document]:
    """The same documents, one by one, their metadata in canonical form; `known` are the types of an index they are for.

    Raises CorpusError naming the document by its place (1 is the first) for what no reader would let through: ids
    that are not text or not unique, a blank text, characters that cannot be stored, types that do not fit; and where
    documents come with vectors, one without, or with one that is not as the others.
    """
    seen, types, size = SeenIds(), SchemaBuilder(known), DimensionCheck()
    for number, document in enumerate(documents, start=1):
        if not isinstance(document, Document):
            raise CorpusError(
                f"document {number} is of type {type(document).__name__}; expected indexer.Document(id, text, title, "
                "metadata). Way out: read files with read_corpus(path), or make a Document of each."
            )
        try:
            vector = _check(document, config)
            size.check(vector)
            if seen.find(document.id) is not None:
                raise BadRow("duplicate-id", f"the id is that of document {seen.find(document.id)} too")
            types.observe(document.metadata, f"document {number}")
        except BadRow as bad:
            way_out = way_out_of(bad.way_out, known is not None)
            raise CorpusError(f'document {number} (id "{document.id}"): {bad.what}. Way out: {way_out}.') from bad
        seen.add(document.id, number)
        size.take(vector, f"document {number}")
        yield replace(document, metadata=drop_nulls(document.metadata), vector=vector)


def _check(document: Document, config: CorpusConfig) -> Vector | None:
    """The document's vector, if it has to have one."""
    for name in ("id", "title", "text"):
        value = getattr(document, name)
        if not isinstance(value, str) and not (name == "title" and value is None):
            raise BadRow(name, f"its {name} is {type(value).__name__}, expected text")
        check_string(value or "", name)
    if not document.id:
        raise BadRow("id", "its id is empty")
    for name, value in document.metadata.items():
        if name in STORED_NAMES:
            raise BadRow(name, f'its metadata has a column "{name}", which is the document\'s own', "rename the column")
        check_string(name, name)
        check_value(value, name)
    if config.vector_column:
        return to_vector(document.vector, "vector")
    if document.vector is not None:
        what = "it comes with a vector, but the recipe's encoder makes its own"
        raise BadRow("vector", what, 'set encoder.kind = "vectors", or leave the vector out')
    if is_blank(document, config.text):
        raise BadRow("blank", f"nothing to encode: {', '.join(config.text)} are blank")
    return None
