"""An index as one file that FAISS alone can read and search, and a file that says which document each row is."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from indexer import ann
from indexer.ann.factory import with_query_transform
from indexer.arrays import Vectors
from indexer.errors import ConfigError
from indexer.hashing import bottom_k
from indexer.output_files import open_output
from indexer.settings import named_path
from indexer.transforms import AffineLayer, Transform
from search.export import ExportReport
from search.export.parquet import BLOCK_ROWS, write_ids
from search.files import check_outputs
from search.index import Index

KIND = "faiss"
_AS_STORED = "as stored"
_IDS = "-o, with the ids in"
TRAINING_ROWS = 262_144  # more than any common factory string looks at


def export_faiss(index: str | Path, path: str | Path, force: bool = False) -> ExportReport:
    """Write `path`, for `faiss.read_index`, and `path`.ids.parquet: row, id, and with windows start and end.

    The file takes raw embeddings of queries (pooled, not normalised): its first layers are the affine map of the
    query's role and the normalisation. The type of the index is kept: its one segment as it is, or, where there are
    several or deleted rows, made again of the live rows; flat where those are too few to train it. Files that are there
    already are overwritten with `force` only. Raises ConfigError for a path that cannot be written, ExistsError,
    CorruptIndexError and StoreError.
    """
    target = Path(path)
    names = Path(f"{target}.ids.parquet")
    check_outputs({"-o": target, _IDS: names}, [named_path(index, "the index")], force, whole=["-o", _IDS])
    opened = Index.open(index)
    layers = _layers(opened.transform)
    found, factory, made = _index(opened)
    portable = with_query_transform(found, layers)
    with open_output(target, force=force) as file, open_output(names, _IDS, force) as rows:
        write_ids(rows, opened)
        ann.save_index(portable, file)  # type: ignore[arg-type]
        if made == _AS_STORED:
            opened.segments[0].require_sound(wait=True)
    facts = {
        "documents": opened.manifest.documents,
        "rows": opened.numbering.rows,
        "embedding_dimensions": opened.manifest.encoder["dim"],
        "dimensions": opened.transform.dim,
        "factory": factory,
        "index": made,
        "search_parameters": ann.search_parameters(found),
        "model": opened.manifest.encoder["model"],
        "query_prefix": opened.encoder.query_prefix,
    }
    sizes = {target.name: file.digest.bytes, names.name: rows.digest.bytes}
    return ExportReport(KIND, target, sizes, facts, tuple(_notes(facts)))


def _layers(transform: Transform) -> list[AffineLayer]:
    layers = transform.affine_layers("query")
    if layers is None:
        raise ConfigError(
            f'whitening.kind is "{transform.kind}", for which FAISS has no layer, so the file could not take '
            "embeddings of queries. --to parquet exports the vectors; refit with another kind to export to FAISS."
        )
    return layers


def _index(index: Index) -> tuple[Any, str, str]:
    """The index of the live rows, its factory string, and in words where it comes from."""
    entries, dim = index.manifest.segments, index.transform.dim
    if len(entries) == 1 and index.numbering.live_rows is None:
        return index.segments[0].index, entries[0].factory, _AS_STORED
    largest = max(entries, key=lambda entry: entry.rows)
    made, factory, how = ann.make_index(largest.factory, dim), largest.factory, "made again of the live rows"
    if not made.is_trained:
        try:
            ann.train_index(made, _training(index))
        except ConfigError:
            made, factory, how = ann.make_index("Flat", dim), "Flat", f"{how}, too few to train {factory}"
    for vectors in _blocks(index):
        ann.add_vectors(made, vectors)
    if factory == largest.factory:
        ann.set_search_parameters(made, largest.search_parameters)
    return made, factory, how


def _blocks(index: Index) -> Iterator[Vectors]:
    rows = index.numbering.rows
    for start in range(0, rows, BLOCK_ROWS):
        yield index.vectors(np.arange(start, min(start + BLOCK_ROWS, rows)))


def _training(index: Index) -> Vectors:
    """Vectors of the documents with the smallest id hashes."""
    rows = index.numbering.rows_of(bottom_k(index.ids.hashes, TRAINING_ROWS))
    return index.vectors(rows[:TRAINING_ROWS])


def _notes(facts: dict[str, Any]) -> list[str]:
    notes = ["search it with pooled embeddings of queries, not normalised; scores are inner products, higher is closer"]
    if facts["query_prefix"]:
        notes.append(f'put "{facts["query_prefix"]}" before each query')
    if facts["index"] != _AS_STORED:
        notes.append(f"the index ({facts['factory']}) was {facts['index']}")
    if "k_factor" in facts["search_parameters"]:
        notes.append(
            "its candidates are a multiple (k_factor) of the hits asked for, measured for ten: ask FAISS for ten or "
            "more, and take the first"
        )
    return notes
