"""The recall of a search by Jensen-Shannon divergence, compared with the divergence of every row."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.errors import ConfigError, EvaluationError
from indexer.papers.latte_mix.divergence import js_similarities
from indexer.progress import NoProgress, Progress
from search.engine import SearchEngine
from search.evaluation.bootstrap import draw_counts, mean_interval
from search.evaluation.recall.drawn_queries import SAMPLE, DrawnFrom, draw_queries
from search.evaluation.result import Clock, Result, how_built
from search.index import Index, LiveRows
from search.papers.divergence import first_reach, rank, require_index, require_queries
from search.queries import QuerySet, read_queries

_TIED = 1e-6  # float32 scores this close are equal
_PROTOCOL = "answers of the default search against the divergence of every row; a query's own document counts"
Mixtures = npt.NDArray[np.floating]


def evaluate_divergence(
    engine: SearchEngine,
    k: int = 10,
    file: Path | None = None,
    origin: DrawnFrom | None = None,
    sample: int = SAMPLE,
    progress: Progress | None = None,
) -> Result:
    """Return the result of `isotrope evaluate recall --similarity js`.

    "recall" is the share of the best k rows that the default search finds, "proven" the share of queries whose answer
    was proved without reading other rows; rows as good as the k-th count as right. Raises ConfigError for an index
    without distributions, and the errors of drawing queries.
    """
    clock, index, progress = Clock(), engine.index, progress or NoProgress()
    require_index(index)
    if k < 1:
        raise ConfigError(f"k is {k}; expected at least 1.")
    if index.numbering.rows <= k:
        raise EvaluationError(f"{index.path}: has {index.numbering.rows:,} rows; expected more than {k}.")
    dim = index.manifest.encoder["dim"]
    queries = read_queries(file, dim) if file else draw_queries(LiveRows(index), origin, sample)
    mixtures = _mixtures(engine, queries, progress)
    require_queries(index, mixtures)
    best = _kth_best(index, mixtures, k, progress)
    progress.phase("searching", len(mixtures))
    shares, proven = [], []
    for mixture, least in zip(mixtures, best.tolist(), strict=True):
        (ranked,) = rank(index, mixture[None], first_reach(k))
        shares.append(np.count_nonzero(ranked.scores[:k] >= least - _TIED) / k)
        proven.append(ranked.proven(k))
        progress.advance(1)
    provenance = clock.provenance(
        engine.encoder.spec, queries.files, measure="js", protocol=_PROTOCOL, **how_built(index.config, index)
    )
    return Result("divergence", provenance, [_row(shares, proven, k, queries, index)], None, queries.notes)


def _row(shares: Sequence[float], proven: Sequence[bool], k: int, queries: QuerySet, index: Index) -> dict[str, Any]:
    return {
        "k": k,
        **mean_interval(np.array(shares), draw_counts(len(shares), "divergence")).to_dict("recall"),
        "proven": float(np.mean(proven)),
        "candidates": first_reach(k),
        "queries": len(shares),
        "origin": queries.origin,
        "rows": index.numbering.rows,
        "transform": index.transform.kind,
    }


def _mixtures(engine: SearchEngine, queries: QuerySet, progress: Progress) -> Mixtures:
    """Return the distributions of the queries (n, d)."""
    if queries.embeddings is not None:
        return queries.embeddings
    progress.phase("encoding queries", None)
    return engine.encoder.encode(list(queries.texts), "query")


def _kth_best(index: Index, mixtures: Mixtures, k: int, progress: Progress) -> npt.NDArray[np.float64]:
    """Return the k-th largest similarity of all live rows for each query (n,). Reads every block once."""
    progress.phase("comparing with all", index.numbering.rows)
    live, best = index.numbering.live_rows, np.full((len(mixtures), k), -np.inf)
    for first, embeddings in index.stored_embeddings.blocks():
        kept = embeddings if live is None else embeddings[live[first : first + len(embeddings)]]
        scores = js_similarities(mixtures, kept, index.config.paper("latte_mix").dims)
        best = np.sort(np.hstack([best, scores]), axis=1)[:, -k:]
        progress.advance(len(kept))
    least: npt.NDArray[np.float64] = best[:, 0]
    return least
