"""From what each variant says of the pairs to rows of figures: mean and spread over seeds, intervals by bootstrap."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from indexer.errors import EvaluationError
from search.evaluation.resampling import difference
from search.evaluation.sts.data import Task
from search.evaluation.sts.methods.mixtures import Variant
from search.evaluation.sts.protocols import Estimate, Protocol, average, task_estimates, why_undefined
from search.evaluation.sts.results import AVERAGE

CONTROL = "mean"
Estimates = dict[Protocol, dict[str, list[Estimate]]]
"""By protocol and task, one a variant."""


def method_rows(
    variants: Sequence[Variant], tasks: Sequence[Task], protocols: Sequence[Protocol], fit: str, notes: list[str]
) -> list[dict[str, Any]]:
    """For each label and protocol a row a task and one for their average, with its difference from mean pooling and, of
    what is trained, from the untrained control. Intervals are over pairs and, where there are several, seeds.

    A label with a variant that has no correlation on some task is left out and noted.
    """
    kept = _defined(variants, tasks, protocols, notes)
    estimates = _estimates(kept, tasks, protocols)
    labels = list(dict.fromkeys(variant.label for variant in kept))
    control = next((variant.label for variant in kept if variant.method == CONTROL), None)
    if control is None:
        raise EvaluationError(f"mean pooling, which all are compared with, has no correlation: {'; '.join(notes)}.")
    rows = []
    for protocol in protocols:
        averages = {label: _averages(label, kept, estimates[protocol], tasks) for label in labels}
        against = _mean_of(averages[control])
        for label in labels:
            members = [number for number, variant in enumerate(kept) if variant.label == label]
            about = _about(label, kept, members, protocol, fit)
            for task in tasks:
                found = [estimates[protocol][task.name][number] for number in members]
                rows.append(about | {"task": task.name} | _figures(found))
            mean = _mean_of(averages[label])
            untrained = averages.get(kept[members[0]].untrained)
            row = about | {"task": AVERAGE} | _figures(averages[label])
            row["against_mean"] = _less(mean, against) if label != control else None
            row["against_untrained"] = _less(mean, _mean_of(untrained)) if untrained else None
            rows.append(row)
    return rows


def _less(one: Estimate, other: Estimate) -> dict[str, Any]:
    """The paired difference, JSON types."""
    return difference(other.value, one.value, other.resampled, one.resampled).to_dict()


def _about(label: str, kept: Sequence[Variant], members: Sequence[int], protocol: Protocol, fit: str) -> dict[str, Any]:
    first = kept[members[0]]
    seeds = [kept[number].seed for number in members]
    return {
        "method": first.method,
        "setting": label,
        "protocol": protocol,
        "fit": fit,
        "seeds": [] if seeds == [None] else seeds,
        **first.facts,
    }


def _averages(
    label: str, kept: Sequence[Variant], estimates: dict[str, list[Estimate]], tasks: Sequence[Task]
) -> list[Estimate]:
    """The average over the tasks, one a seed."""
    members = [number for number, variant in enumerate(kept) if variant.label == label]
    return [average([estimates[task.name][number] for task in tasks]) for number in members]


def _mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """The mean over seeds. A resample draws seeds as well as pairs: the same ones for every method of as many."""
    value, resampled = float(np.mean([one.value for one in estimates])), np.stack([one.resampled for one in estimates])
    if len(estimates) == 1:
        return Estimate(value, resampled[0])
    seeds, resamples = resampled.shape
    drawn = np.random.default_rng(seeds).integers(0, seeds, (seeds, resamples))
    return Estimate(value, np.take_along_axis(resampled, drawn, axis=0).mean(axis=0))


def _figures(estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Mean over seeds with its interval over pairs, the seeds' own values, and their standard deviation."""
    mean = _mean_of(estimates)
    values = [estimate.value for estimate in estimates]
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    ends = mean.interval
    return {
        "spearman": mean.value,
        "low": ends.low,
        "high": ends.high,
        "standard_deviation": spread,
        "by_seed": values if len(values) > 1 else None,
    }


def _estimates(kept: Sequence[Variant], tasks: Sequence[Task], protocols: Sequence[Protocol]) -> Estimates:
    labels = [variant.label for variant in kept]
    found: Estimates = {protocol: {} for protocol in protocols}
    for task in tasks:
        by_protocol = task_estimates(task, [variant.scores[task.name] for variant in kept], labels, protocols)
        for protocol, estimates in by_protocol.items():
            found[protocol][task.name] = estimates
    return found


def _defined(
    variants: Sequence[Variant], tasks: Sequence[Task], protocols: Sequence[Protocol], notes: list[str]
) -> list[Variant]:
    left_out = set()
    for variant in variants:
        for task in tasks:
            if said := why_undefined(task, variant.scores[task.name], variant.label, protocols):
                notes.append(f"{said}; this method is left out")
                left_out.add(variant.label)
    return [variant for variant in variants if variant.label not in left_out]
