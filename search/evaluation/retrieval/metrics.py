"""Retrieval measures with trec_eval's definitions, computed by trec_eval's own code, and paired comparisons of them.

nDCG@k   gain is the judgement itself, discount log2(rank + 1), ideal over all judged documents (Jarvelin and
         Kekalainen, ACM TOIS 20(4), 2002)
MAP      mean over queries of average precision, over the whole ranking given
R@k      relevant documents among the first k, of all relevant ones
MRR      mean of 1 / rank of the first relevant document, over the whole ranking given

Documents that nobody judged are not relevant, nor are those with a score of 0 or below.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from indexer.arrays import Float64Array, SearchResult
from indexer.lazy import require_extra
from search.evaluation.bootstrap import draw_counts, mean_difference, mean_interval
from search.evaluation.settings import Setting

MAP, MRR = "MAP", "MRR"


def measure_names(cutoffs: Sequence[int]) -> list[str]:
    """What `measure` gives for these k, in order: nDCG at each, MAP, recall at each, MRR."""
    return [*(f"nDCG@{k}" for k in cutoffs), MAP, *(f"R@{k}" for k in cutoffs), MRR]


def measure(
    judgements: Mapping[str, Mapping[str, int]], ranked: Mapping[str, Sequence[str]], cutoffs: Sequence[int]
) -> dict[str, Float64Array]:
    """Measure -> one value from 0 to 1 a query, (queries,), in the order of `judgements`.

    `ranked` maps query ids to document ids, best first; a query that is not in it found nothing and counts 0.
    Raises MachineError when ir_measures is not installed.
    """
    ir_measures = require_extra("ir_measures", "eval")
    require_extra("pytrec_eval", "eval")
    wanted = dict(zip(_trec_measures(cutoffs), measure_names(cutoffs), strict=True))
    evaluator = ir_measures.pytrec_eval.evaluator(list(wanted), {query: dict(of) for query, of in judgements.items()})
    places = {query: place for place, query in enumerate(judgements)}
    values = {name: np.zeros(len(places)) for name in wanted.values()}
    for found in evaluator.iter_calc({query: _falling_scores(ids) for query, ids in ranked.items()}):
        values[wanted[found.measure]][places[found.query_id]] = found.value
    return values


def ranked_ids(
    queries: Iterable[str], found: Sequence[SearchResult], ids: Sequence[str], depth: int | None = None
) -> dict[str, list[str]]:
    """Return the ids of the first `depth` documents of each query (None: all), by the query's id."""
    return {query: [ids[row] for row in rows[:depth].tolist()] for query, (_, rows) in zip(queries, found, strict=True)}


def _trec_measures(cutoffs: Sequence[int]) -> list[object]:
    from ir_measures import AP, RR, R, nDCG

    return [*(nDCG @ k for k in cutoffs), AP, *(R @ k for k in cutoffs), RR]


def _falling_scores(ids: Sequence[str]) -> dict[str, float]:
    """Scores by rank. trec_eval sorts by score again and puts ties in descending order of id, where the engine has
    them ascending: handed the engine's own scores it would judge another ranking than the one users see."""
    return {name: float(len(ids) - rank) for rank, name in enumerate(ids)}


@dataclass(frozen=True)
class MeasuredRun:
    """One setting, or a baseline without one: a value for each measure and query, `values[measure]` (queries,)."""

    label: str
    setting: Setting | None
    values: Mapping[str, Float64Array]
    facts: dict[str, Any]  # what else its result says, JSON types
    hybrid: str = ""  # how the setting's vectors were fused with BM25, in a word
    reranks: str = ""  # the label of the run whose first documents were reranked


@dataclass(frozen=True)
class PairedComparison:
    """Everything that was measured on one set of queries. All share the same resamples, so that they pair."""

    measured: Sequence[MeasuredRun]

    @cached_property
    def results(self) -> list[dict[str, Any]]:
        """One entry for each setting, JSON types: its settings and every measure with its interval."""
        return [self._result(one) for one in self.measured]

    @cached_property
    def pairs(self) -> list[dict[str, Any]]:
        """Differences of paired settings, JSON types; see `baselines`."""
        return [self._pair(one, other) for one in self.measured for other in baselines(one, self.measured)]

    @cached_property
    def _counts(self) -> Float64Array:
        return draw_counts(len(next(iter(self.measured[0].values.values()))), "retrieval")

    def _result(self, one: MeasuredRun) -> dict[str, Any]:
        found = {name: mean_interval(values, self._counts).to_dict() for name, values in one.values.items()}
        settings = one.setting.to_dict() if one.setting else dict.fromkeys(_SETTINGS)
        return {"setting": one.label, **settings, "measure": found, **one.facts}

    def _pair(self, one: MeasuredRun, other: MeasuredRun) -> dict[str, Any]:
        found = {name: self._difference(other.values[name], values) for name, values in one.values.items()}
        return {"setting": one.label, "against": other.label, "measure": found}

    def _difference(self, before: Float64Array, after: Float64Array) -> dict[str, Any]:
        found = mean_difference(before, after, self._counts)
        counts = {"won": after > before, "tied": after == before, "lost": after < before}
        return found.to_dict() | {name: int(np.count_nonzero(which)) for name, which in counts.items()}


def baselines(one: MeasuredRun, measured: Sequence[MeasuredRun]) -> Iterator[MeasuredRun]:
    """What a setting is compared with.

    The raw embeddings of the same layers and pooling, else the first raw ones, else the first setting; then, for
    centre "role", the same setting with other centres; a hybrid only with the vectors it is made of, and with their
    reciprocal ranks; what was reranked only with the same without. Then whatever is no setting, such as BM25.
    """
    if one.setting is None:
        return
    if one.reranks:
        yield from (other for other in measured if other.label == one.reranks or other.setting is None)
        return
    measured = [other for other in measured if not other.reranks]
    vectors = [other for other in measured if not other.hybrid]
    seen = {one.label}
    others = [_reference(one.setting, vectors), *_other_centres(one.setting, vectors)]
    own = [other for other in measured if other.setting == one.setting and other.hybrid in ("", "rrf")]
    for other in own if one.hybrid else others:
        if other.label not in seen:
            seen.add(other.label)
            yield other
    yield from (other for other in measured if other.setting is None)


def _reference(setting: Setting, measured: Sequence[MeasuredRun]) -> MeasuredRun:
    settings = [one for one in measured if one.setting]
    raw = [one for one in settings if one.setting and one.setting.raw]
    own = [one for one in raw if one.setting and one.setting.key == setting.key]
    is_raw = setting.raw
    return (raw if is_raw else own or raw or settings)[0]


def _other_centres(setting: Setting, measured: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    if setting.raw or setting.whitening.centre != "role":
        return []
    others = [
        dataclasses.replace(setting, whitening=dataclasses.replace(setting.whitening, centre=centre))
        for centre in ("common", "none")
    ]
    return [one for one in measured if one.setting in others]


_SETTINGS = ("pooling", "layers", "strength", "dim", "shrinkage", "centre")
