"""The vectors of an index as a Parquet file."""

from pathlib import Path

from search.export.exported import Exported
from search.export.live_rows import write_vectors
from search.files import open_output
from search.opened import OpenIndex

KIND = "parquet"


def export_parquet(index: str | Path, path: str | Path) -> Exported:
    """Write id and vector (fixed-size list of float32) of every row; with windows their start and end too.

    Vectors are those of documents, of unit length: the inner product of two is the score. Raises ConfigError for a
    path that cannot be written, CorruptIndexError and StoreError.
    """
    opened, target = OpenIndex.open(index), Path(path)
    with open_output(target) as file:
        write_vectors(file, opened)
    facts = {"documents": opened.manifest.documents, "rows": opened.numbering.rows, "dimensions": opened.transform.dim}
    return Exported(KIND, target, {target.name: file.stamp.bytes}, facts)
