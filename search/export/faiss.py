"""Export to a FAISS file that needs no Isotrope to be searched, and a Parquet file with the document id of each row."""

from pathlib import Path
from typing import Any

import numpy as np

from indexer import ann
from indexer.ann.factory import with_query_transform
from indexer.arrays import Vectors
from indexer.errors import ConfigError, spelled
from indexer.hashing import bottom_k
from indexer.recipe.loading import named_path
from indexer.store.manifest import SegmentEntry
from indexer.system.output_files import open_output, output_name
from indexer.transforms import AffineLayer, Transform
from indexer.typed_arguments import checked
from search.export.parquet import BLOCK_ROWS, write_ids
from search.export.report import ExportReport
from search.index import Index
from search.result_files import check_outputs

KIND = "faiss"
_AS_STORED = "as stored"
TRAINING_ROWS = 262_144  # more than any common factory string uses


@checked
def export_faiss(index: str | Path, path: str | Path, force: bool = False) -> ExportReport:
    """Write `path`, for `faiss.read_index`, and `path`.ids.parquet: row, id, and with windows start and end.

    The FAISS index accepts raw embeddings of queries (pooled, not normalised): its first layers are the affine map for
    queries and the normalisation. A single segment without deleted rows is exported as stored. Otherwise an index of
    the same type is built from the live rows, or a flat index if there are too few rows to train it. Existing files are
    overwritten only with `force`. Raises ConfigError for a path that cannot be written, ExistsError, CorruptIndexError
    and StoreError.
    """
    target = Path(path)
    names = Path(f"{target}.ids.parquet")
    of_ids = f"{output_name()}, with the ids in"
    check_outputs(
        {output_name(): target, of_ids: names}, [named_path(index, "the index")], force, whole=[output_name(), of_ids]
    )
    opened = Index.open(index)
    layers = _layers(opened.transform)
    faiss_index, factory, origin = _index(opened)
    ann.prepare_for_faiss_alone(faiss_index)
    portable = with_query_transform(faiss_index, layers)
    with open_output(target, force=force) as file, open_output(names, of_ids, force) as rows:
        write_ids(rows, opened)
        ann.save_index(portable, file)  # type: ignore[arg-type]
        if origin == _AS_STORED:
            opened.segments[0].require_sound(wait=True)
    facts = {
        "documents": opened.manifest.documents,
        "rows": opened.numbering.rows,
        "embedding_dimensions": opened.manifest.encoder["dim"],
        "dimensions": opened.transform.dim,
        "factory": factory,
        "index": origin,
        "search_parameters": ann.search_parameters(faiss_index),
        "model": opened.manifest.encoder["model"],
        "query_prefix": opened.encoder.query_prefix,
    }
    sizes = {target.name: file.digest.bytes, names.name: rows.digest.bytes}
    return ExportReport(KIND, target, sizes, facts, tuple(_notes(facts)))


def _layers(transform: Transform) -> list[AffineLayer]:
    layers = transform.affine_layers("query")
    if layers is None:
        raise ConfigError(
            f'whitening.kind is "{transform.kind}", for which FAISS has no layer, so the file could not transform '
            f"embeddings of queries. Fix: export the vectors with {spelled('export_parquet', '--to parquet')}, or "
            "refit with another whitening.kind."
        )
    return layers


def _index(index: Index) -> tuple[Any, str, str]:
    """Return a FAISS index of the live rows, its factory string, and its origin in words."""
    entries, dim = index.manifest.segments, index.transform.dim
    if len(entries) == 1 and index.numbering.live_rows is None:
        return index.segments[0].index, entries[0].factory, _AS_STORED
    if not dim:
        raise ConfigError(
            f"{index.path}: has no documents, and its first vectors decide the dimensions of the FAISS index. Fix: add "
            "documents first."
        )
    largest = max(entries, key=lambda entry: entry.rows, default=SegmentEntry("", 0, 0, "Flat"))
    rebuilt, factory, origin = ann.make_index(largest.factory, dim), largest.factory, "rebuilt from the live rows"
    if not rebuilt.is_trained:
        try:
            ann.IndexTrainer(_training(index)).train(rebuilt)
        except ConfigError:
            rebuilt, factory, origin = ann.make_index("Flat", dim), "Flat", f"{origin}, too few to train {factory}"
    ann.reserve_rows(rebuilt, index.numbering.rows)
    for start in range(0, index.numbering.rows, BLOCK_ROWS):
        rows = np.arange(start, min(start + BLOCK_ROWS, index.numbering.rows))
        ann.add_vectors(rebuilt, index.vectors(rows))
    if factory == largest.factory:
        ann.set_search_parameters(rebuilt, largest.search_parameters)
    return rebuilt, factory, origin


def _training(index: Index) -> Vectors:
    """Return vectors of the documents with the smallest id hashes."""
    rows = index.numbering.rows_of(bottom_k(index.ids.hashes, TRAINING_ROWS))
    return index.vectors(rows[:TRAINING_ROWS])


def _notes(facts: dict[str, Any]) -> list[str]:
    notes = ["search it with pooled query embeddings, not normalised; scores are inner products: higher is closer"]
    if facts["query_prefix"]:
        notes.append(f'put "{facts["query_prefix"]}" before each query')
    if facts["index"] != _AS_STORED:
        notes.append(f"the index ({facts['factory']}) was {facts['index']}")
    if "k_factor" in facts["search_parameters"]:
        notes.append(
            "it scores k_factor times k candidates, and k_factor was measured for k = 10: search with k of 10 or more "
            "and keep the first hits"
        )
    return notes
