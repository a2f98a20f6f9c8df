"""A corpus that a program passes in: texts, dicts, `Document`s, Arrow tables, pandas and polars frames.

Dicts and rows of tables become documents by the column rules of a recipe, as rows of files do. A text, or a row without
an id, gets the hash of its content as its id.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from indexer.corpus.columns import STORED_NAMES, RowMapper, require_id
from indexer.corpus.corpus import Corpus, read_corpus
from indexer.corpus.document import Document, is_blank
from indexer.corpus.ids import Position, UniqueIds, content_id
from indexer.corpus.readers.arrow import table_rows
from indexer.corpus.row import BadRow, Header, Row
from indexer.corpus.schema import SchemaBuilder, drop_nulls
from indexer.corpus.validation import DimensionCheck, check_string, check_value, to_vector
from indexer.errors import ConfigError, CorpusError
from indexer.recipe.corpus_config import CorpusConfig

_PLAIN = {str, int, float, bool, type(None)}


class ArrowStream(Protocol):
    """A table that Arrow can read: of pyarrow, pandas, polars, DuckDB and others."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the table by Arrow's PyCapsule interface."""


Record: TypeAlias = str | Mapping[str, Any] | Document | ArrowStream
Records: TypeAlias = Corpus | ArrowStream | Iterable[Record] | str | Path
"""The corpora that `build_index` and `add_documents` accept; a string or Path names a file, as in `read_corpus`."""


def documents_of(
    records: Records,
    config: CorpusConfig,
    vectors: npt.ArrayLike | None = None,
    known: pa.Schema | None = None,
) -> Iterable[Document]:
    """Return documents with canonical metadata; `known` is the schema of the index that they are added to.

    `vectors` (n, d) are the embeddings of the n documents, in order. Raises ConfigError for another type, and
    CorpusError with the number of the document (from 1) for content that no reader would accept: an id that is not text
    or not unique, a blank text, characters that cannot be stored, a type that does not fit; and with a vector column
    for a missing vector, or a vector of another length.
    """
    records = opened_corpus(records, config)
    if isinstance(records, Corpus):
        if vectors is not None:
            raise ConfigError("vectors belong to documents in memory, but the corpus is read from files.")
        require_same_rules(records, config)
        return records if known is None else records.documents(known)
    if (not isinstance(records, Iterable) and not _is_table(records)) or isinstance(records, bytes | Mapping):
        raise ConfigError(
            f"the corpus is of type {type(records).__name__}; expected a list of texts, dicts or Documents, an Arrow "
            "table or a data frame."
        )
    return _Reading(config, known).documents(records, None if vectors is None else _matrix(vectors))


def opened_corpus(records: Records, config: CorpusConfig) -> Records:
    """Return the corpus of a path, and other records as they are."""
    return read_corpus(records, config=config) if isinstance(records, str | Path) else records


def require_same_rules(corpus: Corpus, config: CorpusConfig) -> None:
    """Raise ConfigError for a corpus that was read with other column rules."""
    if corpus.config != config:
        raise ConfigError(
            "the corpus was read with other column rules than the recipe's. Fix: pass "
            "read_corpus(..., config=recipe.corpus)."
        )


class _Reading:
    """The state of one pass over records."""

    def __init__(self, config: CorpusConfig, known: pa.Schema | None) -> None:
        self._config, self._mapper = config, RowMapper(config, known)
        self._types, self._size = SchemaBuilder(known), DimensionCheck()
        self._ids = UniqueIds(lambda position: f"document {position.line}")
        self._needs_id: bool | None = None  # whether the first row has an id

    def documents(self, records: Any, vectors: npt.NDArray[Any] | None) -> Iterator[Document]:
        number = 0
        for number, item in enumerate(self._items(records), start=1):
            if vectors is not None and number > len(vectors):
                raise CorpusError(f"{len(vectors):,} vectors for {number:,} or more documents; expected one for each.")
            try:
                yield self._accepted(number, item, None if vectors is None else vectors[number - 1])
            except BadRow as bad:
                whose = f' (id "{bad.id}")' if bad.id else ""
                fix = self._mapper.way_out(bad.way_out)
                raise CorpusError(f"document {number}{whose}: {bad.what}. Fix: {fix}.") from bad
        if vectors is not None and number < len(vectors):
            raise CorpusError(f"{len(vectors):,} vectors for {number:,} documents; expected one for each.")
        self._mapper.check_title_met()

    def _items(self, records: Any) -> Iterator[Any]:
        """Yield the rows of tables one by one, and everything else as it is."""
        for item in [records] if _is_table(records) else records:
            if _is_table(item):
                yield from self._rows(item)
            else:
                yield item

    def _document(self, number: int, item: Any, vector: Any) -> tuple[Document, bool]:
        """Return the document of an item, and whether its id is the hash of its content."""
        if isinstance(item, BadRow):
            raise item
        if isinstance(item, str):
            document = _checked(Document("none", item, vector=vector), self._config)
            return replace(document, id=content_id(document)), True
        if isinstance(item, Document):
            try:
                return _checked(item if vector is None else replace(item, vector=vector), self._config), False
            except BadRow as bad:
                bad.id = item.id
                raise
        column = self._config.vector_column
        if isinstance(item, Mapping):
            _require_names(item)
            values = {name: value if name == column else _plain(value) for name, value in item.items()}
            item = Row(number, values)
        if not isinstance(item, Row):
            raise CorpusError(
                f"document {number} is of type {type(item).__name__}; expected a text, a dict, an indexer.Document or "
                "an Arrow table."
            )
        if vector is not None:
            item.values[column] = vector
        has_id = self._mapper.has_id(item)
        self._needs_id = has_id if self._needs_id is None else self._needs_id
        require_id(has_id, self._needs_id)
        return self._mapper.document(item), not has_id

    def _rows(self, table: Any) -> Iterator[Row | BadRow]:
        try:
            if type(table).__module__.partition(".")[0] == "pandas":
                table = pa.Table.from_pandas(table, preserve_index=False)
            table = pa.table(table)
        except (TypeError, ValueError, pa.ArrowException) as error:
            raise CorpusError(f"the {type(table).__name__} cannot be read as an Arrow table: {error}.") from error
        header = Header(table.schema.names, schema=table.schema)
        items = table_rows("the table", header, table.to_batches(), self._config.columns, self._config.vector_column)
        for item in items:
            if isinstance(item, Row | BadRow):
                yield item

    def _accepted(self, number: int, item: Any, vector: Any) -> Document:
        """Return the document of an item with its id, unique in the corpus. Raises BadRow."""
        document, made = self._document(number, item, vector)
        try:
            self._size.check(document.vector)
            document = self._ids.distinct(document, made)
            self._types.observe(document.metadata, f"document {number}")
        except BadRow as bad:
            bad.id = document.id
            raise
        self._ids.add(document.id, Position(0, number, made))
        self._size.take(document.vector, f"document {number}")
        return document


def _checked(document: Document, config: CorpusConfig) -> Document:
    """Return a program's document with canonical metadata, and its vector if the recipe takes vectors."""
    for name in ("id", "title", "text"):
        value = getattr(document, name)
        if not isinstance(value, str) and not (name == "title" and value is None):
            raise BadRow(name, f"its {name} is of type {type(value).__name__}; expected text")
        check_string(value or "", name)
    if not document.id:
        raise BadRow("id", "its id is empty")
    metadata = {name: _plain(value) for name, value in document.metadata.items()}
    _require_names(metadata)
    for name, value in metadata.items():
        if name in STORED_NAMES:
            raise BadRow(name, f'its metadata has a column "{name}", a reserved name', "rename the column")
        check_string(name, name)
        check_value(value, name)
    return replace(document, metadata=drop_nulls(metadata), vector=_vector(document, config))


def _require_names(columns: Mapping[Any, Any]) -> None:
    if odd := [name for name in columns if not isinstance(name, str)]:
        raise BadRow("column", f"it has the key {odd[0]!r}; expected column names as text")


def _vector(document: Document, config: CorpusConfig) -> "npt.NDArray[np.float32] | None":
    if config.vector_column:
        return to_vector(document.vector, "vector")
    if document.vector is not None:
        what = "it has a vector, but the encoder of the recipe computes the vectors"
        raise BadRow("vector", what, 'set encoder.kind = "vectors", or leave the vector out')
    if is_blank(document, config.text):
        raise BadRow("blank", f"nothing to encode: {', '.join(config.text)} are blank")
    return None


def _is_table(item: Any) -> bool:
    is_series = hasattr(item, "to_frame")  # one column of pandas or polars: its values are texts
    return (hasattr(item, "__arrow_c_stream__") and not is_series) or isinstance(item, pa.RecordBatch)


def _matrix(vectors: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        matrix = np.asarray(vectors)
    except ValueError as error:
        raise ConfigError("vectors have different lengths; expected an array (n, d).") from error
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiu":
        raise ConfigError(f"vectors are an array of {matrix.dtype}, {matrix.shape}; expected numbers, (n, d).")
    return matrix


def _plain(value: Any) -> Any:
    """Return numbers of numpy, times of pandas and tuples as types of Python."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return value.to_pydatetime() if hasattr(value, "to_pydatetime") else value
