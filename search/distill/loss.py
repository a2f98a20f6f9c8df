"""The loss of an index whose questions a query encoder encodes, not its own encoder.

drawn     pieces of documents that the table was not fitted to: the reciprocal rank of the document, and the share
          of the first ten hits that both encoders find
judged    the queries of a BEIR folder: nDCG@10, also of hybrid search
similar   STS pairs: Spearman's correlation
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from indexer.arrays import Float64Array
from indexer.progress import Progress
from search.engine import SearchEngine
from search.evaluation.bootstrap import Difference, Interval, draw_counts, mean_difference, mean_interval
from search.evaluation.retrieval.beir import JudgedQueries
from search.evaluation.retrieval.metrics import measure
from search.evaluation.sts.data import Task
from search.evaluation.sts.fit import task_texts
from search.evaluation.sts.score import cosines, task_estimates
from search.evaluation.tune.unlabelled import DrawnPair
from search.ranking.options import SearchOptions

OWN, TABLE = "own encoder", "table"
_DEPTH, _FIRST = 100, 10
_TIMED = 50  # questions, one by one


@dataclass
class Losses:
    """Rows of a result, one for each set of questions and encoder, and the paired differences."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    pairs: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(
        self, task: str, name: str, values: Mapping[str, Float64Array], more: Mapping[str, Any] | None = None
    ) -> None:
        """Add a measure of two encoders, by label, with its value for each question."""
        first, second = values.values()
        counts = draw_counts(len(first), f"distill {task}")
        figures = {label: mean_interval(each, counts) for label, each in values.items()}
        self.add_figures(task, name, figures, mean_difference(first, second, counts), len(first), more or {})

    def add_figures(
        self,
        task: str,
        name: str,
        figures: Mapping[str, Interval],
        difference: Difference,
        questions: int,
        more: Mapping[str, Any],
    ) -> None:
        """Add the figures of two encoders, by label, and their difference."""
        before, after = figures
        for label, figure in figures.items():
            row = {"task": task, "setting": label, "measure": {name: figure.to_dict()}, "queries": questions}
            self.rows.append(row | {key: of[label] for key, of in more.items() if label in of})
        pair = {"task": task, "setting": after, "against": before, "measure": {name: difference.to_dict()}}
        self.pairs.append(pair)


Engines = Mapping[str, SearchEngine]
"""The engines by the index's own encoder and by the query encoder, by label."""


def measure_drawn(engines: Engines, pairs: Sequence[DrawnPair], losses: Losses) -> None:
    """Measure drawn questions, and the time of a question."""
    texts, found, milliseconds = [pair.query for pair in pairs], {}, {}
    for label, engine in engines.items():
        ranked = engine.rank(texts, _DEPTH)
        ids = engine.index.documents.ids
        found[label] = [ids([hit.document for hit in answer]) for answer in ranked]
        milliseconds[label] = _milliseconds(engine, texts[:_TIMED])
    ranks = {
        label: np.array([_reciprocal(pair.id, ids) for pair, ids in zip(pairs, every, strict=True)])
        for label, every in found.items()
    }
    shared = [len({*first[:_FIRST]} & {*second[:_FIRST]}) for first, second in zip(*found.values(), strict=True)]
    possible = [max(1, len(first[:_FIRST])) for first in found[OWN]]
    share = float(np.mean(np.array(shared) / possible))
    losses.add("drawn questions", "MRR", ranks, {"ms": milliseconds, "shared": {TABLE: share}})


def _reciprocal(document: str, ids: Sequence[str]) -> float:
    return 1 / (1 + ids.index(document)) if document in ids else 0.0


def _milliseconds(engine: SearchEngine, texts: Sequence[str]) -> float:
    """Return the median time to encode a question."""
    seconds = []
    for text in texts:
        started = perf_counter()
        engine.embed([text])
        seconds.append(perf_counter() - started)
    return 1000 * median(seconds)


def measure_judged(engines: Engines, judged: JudgedQueries, hybrid: bool, losses: Losses, progress: Progress) -> None:
    """Measure judged queries, without and with BM25. Raises EvaluationError for other ids than those of the index."""
    engine = next(iter(engines.values()))
    names = engine.index.ids.find({name for of in judged.judgements.values() for name in of})
    losses.notes += judged.match(names.keys())
    losses.files |= judged.files
    for kind, options in (
        ("", SearchOptions(k=_FIRST)),
        *[(", hybrid", SearchOptions(k=_FIRST, hybrid=True))] * hybrid,
    ):
        progress.phase(f"{judged.name}{kind}", None)
        values = {}
        for label, each in engines.items():
            ranked = each.rank(list(judged.queries.values()), options)
            found = [each.index.documents.ids([hit.document for hit in answer]) for answer in ranked]
            runs = dict(zip(judged.queries, found, strict=True))
            values[label] = measure(judged.judgements, runs, (_FIRST,))[f"nDCG@{_FIRST}"]
        losses.add(f"{judged.name}{kind}", f"nDCG@{_FIRST}", values)


def measure_similar(engines: Engines, task: Task, losses: Losses, progress: Progress) -> None:
    """Measure the pairs of an STS task; both sentences are queries."""
    progress.phase(task.name, None)
    texts = list(dict.fromkeys(task_texts(task)))
    places = {text: place for place, text in enumerate(texts)}
    sides = [
        [np.array([places[text] for text in side]) for side in (subset.first, subset.second)] for subset in task.subsets
    ]
    vectors = [np.asarray(engine.embed(texts), np.float64) for engine in engines.values()]
    by_label = [[cosines(rows, *both) for both in sides] for rows in vectors]
    estimates = task_estimates(task, by_label, list(engines), ["all"])["all"]
    losses.files |= task.files
    figures = {label: estimate.interval for label, estimate in zip(engines, estimates, strict=True)}
    questions = sum(len(subset.scores) for subset in task.subsets)
    losses.add_figures(task.name, "Spearman", figures, estimates[1].less(estimates[0]), questions, {})
