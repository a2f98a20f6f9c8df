"""The value of a metadata column for each document, as numbers: what `group_by` compares."""

import difflib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from indexer.errors import ConfigError
from search.opened import OpenIndex

Codes = npt.NDArray[np.int64]
UNGROUPED = -1


def group_codes(opened: OpenIndex, column: str) -> Codes:
    """A number for each document's value in `column`, (documents,); `UNGROUPED` where it has none.

    Raises ConfigError for a column that the index does not have, or whose values cannot be compared.
    """
    schema = opened.documents.schema
    if column not in schema.names:
        close = difflib.get_close_matches(column, schema.names, n=1)
        hint = f'did you mean "{close[0]}"?' if close else f"it has {', '.join(schema.names)}."
        raise ConfigError(f'group by "{column}": the index has no such column; {hint}')
    if pa.types.is_nested(schema.field(column).type):
        raise ConfigError(
            f'group by "{column}": the column holds {schema.field(column).type}; expected one plain value a document.'
        )
    parts = (opened.documents.columns(part, [(column,)])[0] for part in range(len(opened.manifest.parts)))
    values = [chunk for part in parts for chunk in part.chunks]
    encoded = pc.dictionary_encode(pa.chunked_array(values, type=schema.field(column).type))
    chunks = [chunk.indices.fill_null(UNGROUPED).to_numpy() for chunk in encoded.chunks]
    return np.concatenate([np.zeros(0, np.int64), *chunks]).astype(np.int64)
