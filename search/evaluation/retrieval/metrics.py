"""Retrieval measures by trec_eval's definitions and code, and paired comparisons of them.

nDCG@k   gain is the judgement, discount log2(rank + 1), ideal over all judged documents (Jarvelin and Kekalainen, ACM
         TOIS 20(4), 2002)
MAP      mean over queries of average precision, over the whole ranking
R@k      share of all relevant documents among the first k
MRR      mean of 1 / rank of the first relevant document, over the whole ranking

Documents without a judgement and documents with a score of 0 or below are not relevant.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from indexer.arrays import Float64Array, SearchResult
from indexer.lazy_imports import require_extra
from search.evaluation.bootstrap import draw_counts, mean_difference, mean_interval
from search.evaluation.sweep import Setting

MAP, MRR = "MAP", "MRR"


def measure_names(cutoffs: Sequence[int]) -> list[str]:
    """Return the measures of `measure` for these k, in order: nDCG at each, MAP, recall at each, MRR."""
    return [*(f"nDCG@{k}" for k in cutoffs), MAP, *(f"R@{k}" for k in cutoffs), MRR]


def measure(
    judgements: Mapping[str, Mapping[str, int]], ranked: Mapping[str, Sequence[str]], cutoffs: Sequence[int]
) -> dict[str, Float64Array]:
    """Return each measure with its value for each query, (queries,), 0 to 1, in the order of `judgements`.

    `ranked` maps query ids to document ids, best first; a missing query counts 0. Raises MachineError if ir_measures
    is not installed.
    """
    ir_measures = require_extra("ir_measures", "eval")
    require_extra("pytrec_eval", "eval")
    at = [[kind @ k for k in cutoffs] for kind in (ir_measures.nDCG, ir_measures.R)]
    names = dict(zip([*at[0], ir_measures.AP, *at[1], ir_measures.RR], measure_names(cutoffs), strict=True))
    evaluator = ir_measures.pytrec_eval.evaluator(list(names), {query: dict(of) for query, of in judgements.items()})
    places = {query: place for place, query in enumerate(judgements)}
    values = {name: np.zeros(len(places)) for name in names.values()}
    # Scores by rank, because trec_eval sorts ties by descending id, but the engine by ascending id.
    runs = {query: {name: float(len(ids) - rank) for rank, name in enumerate(ids)} for query, ids in ranked.items()}
    for figure in evaluator.iter_calc(runs):
        values[names[figure.measure]][places[figure.query_id]] = figure.value
    return values


def ranked_ids(
    queries: Iterable[str], found: Sequence[SearchResult], ids: Sequence[str], depth: int | None = None
) -> dict[str, list[str]]:
    """Return the ids of the first `depth` documents of each query (None: all), by the query's id."""
    return {query: [ids[row] for row in rows[:depth].tolist()] for query, (_, rows) in zip(queries, found, strict=True)}


@dataclass(frozen=True)
class MeasuredRun:
    """A setting, or a baseline without one, with a value for each measure and query, `values[measure]` (queries,)."""

    label: str
    setting: Setting | None
    values: Mapping[str, Float64Array]
    facts: dict[str, Any]  # further keys of its result, JSON types
    hybrid: str = ""  # name of the fusion with BM25
    reranks: str = ""  # label of the run whose first documents were reranked


def compare(measured: Sequence[MeasuredRun]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a row for each run, with every measure and its interval, and paired differences (see `baselines`).

    Both are JSON types. All runs over one set of queries share the same resamples, so that they pair.
    """
    counts = draw_counts(len(next(iter(measured[0].values.values()))), "retrieval")

    def difference(before: Float64Array, after: Float64Array) -> dict[str, Any]:
        outcomes = {"won": after > before, "tied": after == before, "lost": after < before}
        numbers = {name: int(np.count_nonzero(which)) for name, which in outcomes.items()}
        return mean_difference(before, after, counts).to_dict() | numbers

    rows = [
        {
            "setting": run.label,
            **(run.setting.to_dict() if run.setting else dict.fromkeys(_SETTINGS)),
            "measure": {name: mean_interval(values, counts).to_dict() for name, values in run.values.items()},
            **run.facts,
        }
        for run in measured
    ]
    pairs = [
        {
            "setting": run.label,
            "against": other.label,
            "measure": {name: difference(other.values[name], values) for name, values in run.values.items()},
        }
        for run in measured
        for other in baselines(run, measured)
    ]
    return rows, pairs


def baselines(run: MeasuredRun, measured: Sequence[MeasuredRun]) -> Iterator[MeasuredRun]:
    """Yield the runs that a run is compared with.

    For vectors: the raw embeddings of the same layers and pooling, else the first raw ones, else the first setting;
    then, for centre "role", the same setting with other centres. For a hybrid: its vectors, their reciprocal ranks,
    and the raw embeddings of the same layers and pooling. For a reranked run: the run before reranking. For all: runs
    without a setting, such as BM25.
    """
    if run.setting is None:
        return
    if run.reranks:
        yield from (other for other in measured if other.label == run.reranks or other.setting is None)
        return
    measured = [other for other in measured if not other.reranks]
    vectors = [other for other in measured if not other.hybrid]
    if run.hybrid:
        others = [other for other in measured if other.setting == run.setting and other.hybrid in ("", "rrf")]
        others += _raw(run.setting, vectors)
    else:
        others = [_reference(run.setting, vectors), *_other_centres(run.setting, vectors)]
    yield from {other.label: other for other in others if other.label != run.label}.values()
    yield from (other for other in measured if other.setting is None)


def _reference(setting: Setting, measured: Sequence[MeasuredRun]) -> MeasuredRun:
    settings = [run for run in measured if run.setting]
    raw = [run for run in settings if run.setting and run.setting.raw]
    return (raw if setting.raw else _raw(setting, raw) or raw or settings)[0]


def _raw(setting: Setting, measured: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Return the raw embeddings of the layers and pooling of a setting, if they were measured."""
    return [run for run in measured if run.setting and run.setting.raw and run.setting.key == setting.key]


def _other_centres(setting: Setting, measured: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    if setting.raw or setting.whitening.centre != "role":
        return []
    others = [
        dataclasses.replace(setting, whitening=dataclasses.replace(setting.whitening, centre=centre))
        for centre in ("common", "none")
    ]
    return [run for run in measured if run.setting in others]


_SETTINGS = ("pooling", "layers", "strength", "dim", "shrinkage", "centre")
