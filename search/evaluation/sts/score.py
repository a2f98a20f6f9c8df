"""Cosines of sentence pairs and their Spearman correlation with human scores.

Papers report a task in three ways, which are not comparable:

mean   unweighted mean of the subsets' correlations: WhiteningBERT and the tables it quotes
wmean  their mean weighted by pairs
all    one correlation over all pairs of the task

For a task of one subset all three are equal. Resamples are stratified by subset and named by task and subset, so all
settings share them and pair, and tasks are resampled independently.

Both sentences are documents: they have the document prefix and are centred by the documents' mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from indexer.arrays import Float64Array
from indexer.errors import EvaluationError, set_to
from indexer.lazy_imports import require_extra
from indexer.transforms import Normalisation, Transform, Whitening
from search.evaluation.bootstrap import (
    Difference,
    Interval,
    difference,
    draw_counts,
    interval,
    mean_of,
    resampled_ranks,
    resampled_spearman,
)
from search.evaluation.embeddings import TextEmbeddings
from search.evaluation.sts.data import Task
from search.evaluation.sts.fit import Fit, task_texts
from search.evaluation.sweep import Setting
from search.formatting import counted

Positions = npt.NDArray[np.intp]


def cosines(vectors: Float64Array, first: Positions, second: Positions) -> Float64Array:
    """Return the cosines of the rows `first[i]` and `second[i]` of `vectors` (n, k), float64.

    A row of zeros has cosine 0 with every row, as in an index.
    """
    # In float32, as vectors are stored, pairs that differ by less than 6e-8 would tie or swap; in float64 equal pairs
    # still tie. Equal texts share a row, sqrt(x * x) is x in binary floating point, and products commute: so equal
    # sentences have a cosine of exactly 1, and (a, b) has the cosine of (b, a).
    with np.errstate(invalid="ignore", over="ignore"):  # the caller rejects values that are not finite
        squares = (vectors * vectors).sum(axis=1)
        products = (vectors[first] * vectors[second]).sum(axis=1)
        norms = np.sqrt(squares[first] * squares[second])
        cosine: Float64Array = np.divide(products, norms, out=np.zeros_like(products), where=norms != 0)
    return cosine


def all_alike(values: Float64Array, what: str = "cosines") -> str:
    """Return the reason if `values` (n,) are all equal, so that they have no correlation; else ""."""
    if not len(values) or (values != values[0]).any():
        return ""
    return f"all {len(values):,} {what} are {values[0]:g}, so the correlation is undefined"


def spearman(predicted: Float64Array, human: Float64Array, where: str) -> float:
    """Return Spearman's rank correlation with two or more different human scores, ties averaged.

    `where` names the pairs and the setting in errors. Raises EvaluationError if `predicted` leaves it undefined, and
    MachineError without SciPy.
    """
    stats: Any = require_extra("scipy.stats", "eval")
    if not np.isfinite(predicted).all():
        raise EvaluationError(
            f"{where}: {np.count_nonzero(~np.isfinite(predicted)):,} of {len(predicted):,} scores are NaN or infinite. "
            f"The model overflows or is damaged. Fix: try {set_to('encoder.precision', 'float32')}, or another model."
        )
    if reason := all_alike(predicted):
        raise EvaluationError(f"{where}: {reason}. Fix: leave out this setting or the set.")
    return float(stats.spearmanr(predicted, human).statistic)


Protocol = Literal["mean", "wmean", "all"]


@dataclass(frozen=True)
class Estimate:
    """A correlation and its values in the resamples, (resamples,)."""

    value: float
    resampled: Float64Array

    @property
    def interval(self) -> Interval:
        return interval(self.value, self.resampled)

    @property
    def figures(self) -> dict[str, float | None]:
        """The correlation and its interval, JSON types."""
        return self.interval.to_dict("spearman")

    def less(self, other: "Estimate") -> Difference:
        """Return the paired difference from another estimate."""
        return difference(other.value, self.value, other.resampled, self.resampled)


def average(estimates: Sequence[Estimate], weights: Sequence[float] | None = None) -> Estimate:
    """Return the mean of independently resampled estimates, such as the subsets of a task or the tasks."""
    value = float(np.average([estimate.value for estimate in estimates], weights=weights))
    return Estimate(value, mean_of([estimate.resampled for estimate in estimates], weights))


def task_estimates(
    task: Task, cosines: Sequence[Sequence[Float64Array]], labels: Sequence[str], protocols: Sequence[Protocol]
) -> dict[Protocol, list[Estimate]]:
    """Return an estimate for each setting by protocol. `cosines[setting][subset]` (pairs,); `labels` name the settings.

    Raises EvaluationError with task, subset and setting if a correlation is undefined.
    """
    counts = [draw_counts(len(subset.scores), f"sts {task.name} {subset.name}") for subset in task.subsets]
    single = len(task.subsets) == 1
    estimates: dict[Protocol, list[Estimate]] = {}
    if single or set(protocols) & {"mean", "wmean"}:
        subsets = [
            _estimates(subset.scores, drawn, [setting[number] for setting in cosines], where)
            for number, (subset, drawn) in enumerate(zip(task.subsets, counts, strict=True))
            for where in [[f'{task.name}, subset "{subset.name}", setting "{label}"' for label in labels]]
        ]
        sizes = [len(subset.scores) for subset in task.subsets]
        estimates["mean"] = [average(of_setting) for of_setting in zip(*subsets, strict=True)]
        estimates["wmean"] = [average(of_setting, sizes) for of_setting in zip(*subsets, strict=True)]
    if single:
        estimates["all"] = estimates["mean"]
    elif "all" in protocols:
        where = [f'{task.name}, all subsets together, setting "{label}"' for label in labels]
        scores = np.concatenate([subset.scores for subset in task.subsets])
        joined = [np.concatenate(setting) for setting in cosines]
        estimates["all"] = _estimates(scores, np.hstack(counts), joined, where)
    return {protocol: estimates[protocol] for protocol in protocols}


def why_undefined(task: Task, cosines: Sequence[Float64Array], label: str, protocols: Sequence[Protocol]) -> str:
    """Return why a setting has no correlation under these protocols, or "". `cosines[subset]` (pairs,)."""
    for subset, predicted in zip(task.subsets, cosines, strict=True):
        if (len(task.subsets) == 1 or set(protocols) & {"mean", "wmean"}) and (reason := all_alike(predicted)):
            return f'{task.name}, subset "{subset.name}", setting "{label}": {reason}'
    reason = all_alike(np.concatenate(list(cosines))) if "all" in protocols else ""
    return f'{task.name}, all subsets together, setting "{label}": {reason}' if reason else ""


def _estimates(
    scores: Float64Array, counts: Float64Array, cosines: Sequence[Float64Array], where: Sequence[str]
) -> list[Estimate]:
    """Return an estimate for each setting over the same pairs and resamples."""
    values = [spearman(predicted, scores, name) for predicted, name in zip(cosines, where, strict=True)]
    human = resampled_ranks(scores, counts)
    return [
        Estimate(value, resampled_spearman(resampled_ranks(predicted, counts), human, counts))
        for value, predicted in zip(values, cosines, strict=True)
    ]


def fit_transforms(task: Task, states: TextEmbeddings, settings: Sequence[Setting], fit: Fit) -> list[Transform]:
    """Return the transform of each setting for this task; "none" is unit length with every fit."""
    fitted = fit.of(task, states)
    return [
        Normalisation(states.rows[setting.key].shape[1]) if setting.raw else fitted(setting) for setting in settings
    ]


def score_pairs(
    task: Task, states: TextEmbeddings, settings: Sequence[Setting], transforms: Sequence[Transform]
) -> list[list[Float64Array]]:
    """Return cosines (pairs,) of every subset under every setting: `[setting][subset]`."""
    rows, pairs = _pairs(task, states)
    scores = []
    for setting, transform in zip(settings, transforms, strict=True):
        # Each distinct sentence is projected once, because a matrix product may round equal rows differently.
        vectors = transform.project(states.rows[setting.key][rows], "document")
        scores.append([cosines(vectors, first, second) for first, second in pairs])
    return scores


def noise_notes(task: Task, settings: Sequence[Setting], transforms: Sequence[Transform], fit: str) -> list[str]:
    """Return notes on settings whose vectors differ by rounding only.

    n sentences span n - 1 directions. Fully whitened on the same sentences they are the corners of a regular simplex:
    all pairs have cosine -1 / (n - 1), except those of repeated sentences.
    """
    count = len(set(task_texts(task)))
    return [
        f'{task.name}, "{setting.label}": the figure is noise: {count:,} distinct sentences span only {count - 1:,} '
        "directions, and full whitening makes all of them equally far apart. Fix: more sentences, less strength, "
        "some shrinkage or fewer dimensions"
        for setting, transform in zip(settings, transforms, strict=True)
        if fit == "task" and isinstance(transform, Whitening) and transform.dim >= count - 1
        and setting.whitening.strength == 1 and setting.whitening.shrinkage == 0
    ]  # fmt: skip


def cut_notes(truncated: int) -> list[str]:
    """Return a note if the encoder truncated any texts."""
    texts = counted(truncated, "text was", "texts were")
    return [f"{texts} longer than encoder.max_length and truncated"] * bool(truncated)


def _pairs(task: Task, states: TextEmbeddings) -> tuple[Positions, list[tuple[Positions, Positions]]]:
    """Return the rows of the task's distinct sentences, and the positions of each subset's two sides in them."""
    rows = np.unique([states.positions[text] for text in task_texts(task)])

    def places(texts: Sequence[str]) -> Positions:
        return np.searchsorted(rows, [states.positions[text] for text in texts])

    return rows, [(places(subset.first), places(subset.second)) for subset in task.subsets]
