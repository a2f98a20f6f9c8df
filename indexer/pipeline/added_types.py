"""Whether the metadata of new documents goes together with that of an index."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from indexer.corpus.columns import way_out_of
from indexer.corpus.row import BadRow
from indexer.corpus.schema import merge_schemas, schema_from_json
from indexer.errors import CorpusError
from indexer.pipeline.change import Change
from indexer.pipeline.ingest import PendingPart
from indexer.store.documents import loses_precision, read_column

_CLASH = "the new documents' metadata does not fit the index's: "


def require_same_types(opened: Change, slots: Sequence[PendingPart]) -> None:
    """Raises CorpusError for a column whose types in the index and in new parts have no type in common.

    A column of whole numbers becomes one of floats where the other has fractions, as within one build, unless some of
    the whole numbers would be rounded by that.
    """
    known, arriving = (
        schema_from_json(opened.published.schema),
        [schema_from_json(slot.written.schema) for slot in slots],
    )
    try:
        merged = merge_schemas([known, *arriving])
    except BadRow as bad:
        way_out = way_out_of(bad.way_out, for_index=True)
        raise CorpusError(f"{_CLASH}{bad.what}. Way out: {way_out}.") from bad
    for part in opened.published.parts:
        _require_digits(opened.index / part.name, known, merged)
    for slot, schema in zip(slots, arriving, strict=True):
        _require_digits(opened.index / slot.name, schema, merged)


def _require_digits(folder: Path, schema: pa.Schema, merged: pa.Schema) -> None:
    for column in schema:
        kind = merged.field(column.name).type
        if column.type == kind:
            continue
        values = read_column(folder, column.name)
        if values is not None and loses_precision(values, kind):
            raise CorpusError(
                f'{_CLASH}together they make column "{column.name}" {kind}, which would round whole numbers beyond '
                "2**53 that are there. Give the new documents such numbers as the index has them."
            )
