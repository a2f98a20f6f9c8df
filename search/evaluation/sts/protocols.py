"""From the cosines of pairs to one figure a task: the three ways that papers report, which are not comparable.

mean   unweighted mean of the subsets' correlations: WhiteningBERT and the tables it quotes
wmean  their mean weighted by pairs
all    one correlation over all pairs of the task, whatever subset they are in

A task of one subset is the same in all three. Resamples are stratified by subset and named by task and subset: every
setting meets the same ones, so that settings pair, and tasks are resampled independently of one another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from search.evaluation.resampling import (
    Interval,
    draw_counts,
    interval,
    mean_of,
    resampled_ranks,
    resampled_spearman,
)
from search.evaluation.sts.correlation import Array, all_alike, spearman
from search.evaluation.sts.data import Task

Protocol = Literal["mean", "wmean", "all"]


@dataclass(frozen=True)
class Estimate:
    """A correlation times 100, and its values in the resamples, (resamples,)."""

    value: float
    resampled: Array

    @property
    def interval(self) -> Interval:
        return interval(self.value, self.resampled)


def average(estimates: Sequence[Estimate], weights: Sequence[float] | None = None) -> Estimate:
    """Mean of estimates that were resampled independently, such as the subsets of a task or the tasks."""
    value = float(np.average([estimate.value for estimate in estimates], weights=weights))
    return Estimate(value, mean_of([estimate.resampled for estimate in estimates], weights))


def task_estimates(
    task: Task, cosines: Sequence[Sequence[Array]], labels: Sequence[str], protocols: Sequence[Protocol]
) -> dict[Protocol, list[Estimate]]:
    """One estimate a setting under each protocol. `cosines[setting][subset]` (pairs,); `labels` name the settings.

    Raises EvaluationError naming task, subset and setting where a correlation is undefined.
    """
    counts = [draw_counts(len(subset.scores), f"sts {task.name} {subset.name}") for subset in task.subsets]
    single = len(task.subsets) == 1
    found: dict[Protocol, list[Estimate]] = {}
    if single or set(protocols) & {"mean", "wmean"}:
        subsets = [
            _estimates(subset.scores, drawn, [setting[number] for setting in cosines], where)
            for number, (subset, drawn) in enumerate(zip(task.subsets, counts, strict=True))
            for where in [[f'{task.name}, subset "{subset.name}", setting "{label}"' for label in labels]]
        ]
        sizes = [len(subset.scores) for subset in task.subsets]
        found["mean"] = [average(of_setting) for of_setting in zip(*subsets, strict=True)]
        found["wmean"] = [average(of_setting, sizes) for of_setting in zip(*subsets, strict=True)]
    if single:
        found["all"] = found["mean"]
    elif "all" in protocols:
        where = [f'{task.name}, all subsets together, setting "{label}"' for label in labels]
        scores = np.concatenate([subset.scores for subset in task.subsets])
        found["all"] = _estimates(scores, np.hstack(counts), [np.concatenate(setting) for setting in cosines], where)
    return {protocol: found[protocol] for protocol in protocols}


def why_undefined(task: Task, cosines: Sequence[Array], label: str, protocols: Sequence[Protocol]) -> str:
    """Where and why one setting has no correlation under these protocols; "" where it has one.

    `cosines[subset]` (pairs,) are the setting's own.
    """
    for subset, predicted in zip(task.subsets, cosines, strict=True):
        if (len(task.subsets) == 1 or set(protocols) & {"mean", "wmean"}) and (said := all_alike(predicted)):
            return f'{task.name}, subset "{subset.name}", setting "{label}": {said}'
    said = all_alike(np.concatenate(list(cosines))) if "all" in protocols else ""
    return f'{task.name}, all subsets together, setting "{label}": {said}' if said else ""


def _estimates(scores: Array, counts: Array, cosines: Sequence[Array], where: Sequence[str]) -> list[Estimate]:
    """One estimate a setting over the same pairs and resamples; the human scores are ranked once."""
    values = [spearman(predicted, scores, name) for predicted, name in zip(cosines, where, strict=True)]
    human = resampled_ranks(scores, counts)
    return [
        Estimate(value, 100 * resampled_spearman(resampled_ranks(predicted, counts), human, counts))
        for value, predicted in zip(values, cosines, strict=True)
    ]
