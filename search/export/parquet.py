"""Export of the live rows of an index to Parquet: ids, windows and vectors."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from indexer.arrays import RowIds
from indexer.recipe.loading import named_path
from indexer.system.output_files import OutputFile, open_output, output_name
from search.export.report import ExportReport
from search.index import Index
from search.result_files import check_outputs

KIND = "parquet"
BLOCK_ROWS = 8192  # rows of a row group
_SPAN = ("start", "end")


def export_parquet(index: str | Path, path: str | Path, force: bool = False) -> ExportReport:
    """Write id and vector (fixed-size list of float32) of every live row, and start and end of windows.

    Vectors are document vectors of unit length: the inner product of two is their score. An existing file is
    overwritten only with `force`. Raises ConfigError for a path that cannot be written, ExistsError, CorruptIndexError
    and StoreError.
    """
    target = Path(path)
    check_outputs({output_name(): target}, [named_path(index, "the index")], force)
    opened = Index.open(index)
    with open_output(target, force=force) as file:
        write_vectors(file, opened)
    facts = {"documents": opened.manifest.documents, "rows": opened.numbering.rows, "dimensions": opened.transform.dim}
    return ExportReport(KIND, target, {target.name: file.digest.bytes}, facts)


def row_ids(index: Index) -> Iterator[tuple[RowIds, list[str]]]:
    """Yield row numbers and the id of each row's document, in order, with one block of ids in memory at a time."""
    numbering, ids = index.numbering, index.documents.all_ids()
    document, name = -1, ""
    for start in range(0, numbering.rows, BLOCK_ROWS):
        rows, names = np.arange(start, min(start + BLOCK_ROWS, numbering.rows)), []
        for target in numbering.documents_of(rows).tolist():
            while document < target:
                document, name = document + 1, next(ids)
            names.append(name)
        yield rows, names


def write_ids(file: OutputFile, index: Index) -> None:
    """Write a Parquet file with one line a row: row, id, and start and end of windows."""
    fields = [pa.field("row", pa.int64(), nullable=False), pa.field("id", pa.string(), nullable=False)]
    with _writer(file, [*fields, *_span_fields(index)], {}) as writer:
        for rows, names in row_ids(index):
            writer.write_batch(_batch(writer, [pa.array(rows), pa.array(names), *_spans(index, rows)]))


def write_vectors(file: OutputFile, index: Index) -> None:
    """Write a Parquet file with one line a row: id, vector (fixed-size list of float32), start and end of windows.

    Rows are written one row group at a time. The metadata key "isotrope" identifies the encoder and the transform.
    """
    dim = index.transform.dim
    element = pa.field("element", pa.float32(), nullable=False)
    vector = pa.field("vector", pa.list_(element, dim), nullable=False)
    fields = [pa.field("id", pa.string(), nullable=False), vector]
    with _writer(file, [*fields, *_span_fields(index)], _origin(index)) as writer:
        for rows, names in row_ids(index):
            flat = pa.array(index.vectors(rows).ravel())
            vectors = pa.FixedSizeListArray.from_arrays(flat, type=vector.type)
            writer.write_batch(_batch(writer, [pa.array(names), vectors, *_spans(index, rows)]))


def _origin(index: Index) -> dict[str, Any]:
    transform = index.manifest.files[index.manifest.transform["file"]].sha256
    return {"encoder": index.manifest.fingerprint, "transform": transform, "role": "document", "normalised": True}


def _span_fields(index: Index) -> list[pa.Field]:
    if index.numbering.one_to_one:
        return []
    return [pa.field(name, pa.int64(), nullable=False) for name in _SPAN]


def _spans(index: Index, rows: RowIds) -> list[pa.Array]:
    if index.numbering.one_to_one:
        return []
    spans = index.numbering.spans(rows)
    return [pa.array(np.ascontiguousarray(spans[:, side])) for side in range(len(_SPAN))]


def _writer(file: OutputFile, fields: list[pa.Field], origin: dict[str, Any]) -> pq.ParquetWriter:
    metadata = {"isotrope": json.dumps(origin, sort_keys=True)} if origin else None
    options = {"compression": "zstd", "use_dictionary": False, "write_page_checksum": True}  # unique values
    return pq.ParquetWriter(pa.PythonFile(file, mode="w"), pa.schema(fields, metadata=metadata), **options)


def _batch(writer: pq.ParquetWriter, columns: list[pa.Array]) -> pa.RecordBatch:
    return pa.record_batch(columns, schema=writer.schema)
