"""The fourth step: a segment of every row, of the kind the recipe asks for or the one that measuring chooses."""

from pathlib import Path
from typing import Any

from indexer import ann
from indexer.ann import flat_file
from indexer.config import IndexConfig, RunOptions
from indexer.corpus.query_file import query_file_sha256
from indexer.errors import ConfigError
from indexer.parallel import part_threads
from indexer.pipeline.approximate import Made, Order, make_best, make_named, too_large
from indexer.pipeline.recall_queries import Encode
from indexer.pipeline.segment import Filled as Filled
from indexer.pipeline.segment import SegmentSource as SegmentSource
from indexer.pipeline.segment import VectorBlocks
from indexer.progress import Progress
from indexer.store.files import FileDigest, atomic_write


def fill_segment(
    source: SegmentSource,
    config: IndexConfig,
    path: Path,
    options: RunOptions,
    progress: Progress,
    encode_queries: Encode | None = None,
    small: bool = False,
) -> Filled:
    """Write an index of every row to `path`; `small`: an exact one, whatever the recipe says.

    Raises ConfigError for an index.type or index.memory that does not fit, and QualityError, with nothing written,
    where index.recall is not reached, unless `options.allow_low_recall`.
    """
    order = Order(source, config, options, progress, encode_queries)
    made = _exact("few rows beside a larger index") if small else _make(order)
    queries = query_file_sha256(config.queries, "index.queries")
    filled = _write_exact(order, path, made) if made.index is None else _write_made(order, path, made)
    filled.figures["index"] |= {"factory": made.factory} | ({"queries_sha256": queries} if queries else {})
    return filled


def _make(order: Order) -> Made:
    wanted, factory = order.wanted, ann.factory_of(order.config.type)
    if order.config.type == "auto":
        small = "a query reads all of it in less time than it takes to encode"
        return _exact(small) if wanted.is_small else make_best(order)
    if not ann.is_exact(factory):
        return make_named(order, factory)
    if not wanted.fits(4 * wanted.dim):
        raise ConfigError(too_large(order, "an exact index", 4 * wanted.dim))
    return _exact("asked for by index.type")


def _exact(why: str) -> Made:
    return Made("Flat", figures={"index": {"why": why}})


def _write_exact(order: Order, path: Path, made: Made) -> Filled:
    """An exact index, written block by block where the file is known, so that it is never in memory."""
    dim, blocks = order.wanted.dim, VectorBlocks(order.source, part_threads(order.options.threads), order.progress)
    if flat_file.is_known(dim):
        with atomic_write(path) as file:
            file.write(flat_file.header(dim, order.source.rows))
            for _, vectors in blocks:
                file.write(ann.require_finite(vectors))
        stamp, rows = file.stamp, blocks.count
    else:
        index = ann.make_index("Flat", dim)
        for _, vectors in blocks:
            ann.add_vectors(index, vectors)
        stamp, rows = _write_index(path, index), index.ntotal
    exact = {"recall_at_10": 1.0, "queries": 0, "bytes_per_vector": 4.0 * dim}
    return Filled(path, stamp, "Flat", dim, rows, blocks.zero, figures={"index": exact | made.figures["index"]})


def _write_made(order: Order, path: Path, made: Made) -> Filled:
    parameters = ann.search_parameters(made.index)
    stamp = _write_index(path, made.index)
    return Filled(
        path,
        stamp,
        made.factory,
        order.wanted.dim,
        made.index.ntotal,
        made.zero,
        made.index,
        made.recall,
        parameters,
        made.figures,
        made.notes,
    )


def _write_index(path: Path, index: Any) -> FileDigest:
    """Store the index through our own writer: FAISS neither hashes nor syncs, and can miss a full disk."""
    with atomic_write(path) as file:
        ann.save_index(index, file)  # type: ignore[arg-type]
    return file.stamp
