"""The vectors of an index as a Parquet file."""

from pathlib import Path

from indexer.output_files import open_output
from search.export.exported import Exported
from search.export.live_rows import write_vectors
from search.files import check_outputs
from search.opened import OpenIndex

KIND = "parquet"


def export_parquet(index: str | Path, path: str | Path, force: bool = False) -> Exported:
    """Write id and vector (fixed-size list of float32) of every row; with windows their start and end too.

    Vectors are those of documents, of unit length: the inner product of two is the score. A file
    that is there already is overwritten with `force` only. Raises ConfigError for a path that cannot be written,
    ExistsError, CorruptIndexError and StoreError.
    """
    target = Path(path)
    check_outputs({"-o": target}, [Path(index)], force)
    opened = OpenIndex.open(index)
    with open_output(target, force=force) as file:
        write_vectors(file, opened)
    facts = {"documents": opened.manifest.documents, "rows": opened.numbering.rows, "dimensions": opened.transform.dim}
    return Exported(KIND, target, {target.name: file.digest.bytes}, facts)
