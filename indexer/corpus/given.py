"""Documents that a program hands over, held to the same rules as those read from files."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from indexer.config import CorpusConfig
from indexer.corpus.characters import check_string, check_value
from indexer.corpus.columns import way_out_of
from indexer.corpus.document import Document, is_blank
from indexer.corpus.rejection import BadRow
from indexer.corpus.schema import MetadataTypes, canonical
from indexer.corpus.seen_ids import SeenIds
from indexer.corpus.vector_values import Vector, VectorSize, vector_of
from indexer.errors import CorpusError

_STORED = {"id", "title", "text"}


def checked_documents(
    documents: Iterable[Document], config: CorpusConfig, known: pa.Schema | None = None
) -> Iterator[Document]:
    """The same documents, one by one, their metadata in canonical form; `known` are the types of an index they are for.

    Raises CorpusError naming the document by its place (1 is the first) for what no reader would let through: ids
    that are not text or not unique, a blank text, characters that cannot be stored, types that do not fit; and where
    documents come with vectors, one without, or with one that is not as the others.
    """
    seen, types, size = SeenIds(), MetadataTypes(known), VectorSize()
    for number, document in enumerate(documents, start=1):
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
        yield replace(document, metadata=canonical(document.metadata), vector=vector)


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
        if name in _STORED:
            raise BadRow(name, f'its metadata has a column "{name}", which is the document\'s own', "rename the column")
        check_string(name, name)
        check_value(value, name)
    if config.vector_column:
        return vector_of(document.vector, "vector")
    if document.vector is not None:
        what = "it comes with a vector, but the recipe's encoder makes its own"
        raise BadRow("vector", what, 'set encoder.kind = "vectors", or leave the vector out')
    if is_blank(document, config.text):
        raise BadRow("blank", f"nothing to encode: {', '.join(config.text)} are blank")
    return None
