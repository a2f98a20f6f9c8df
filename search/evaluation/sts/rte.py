"""Recognising textual entailment by one number: "entailment" where the cosine of two sentences reaches a threshold.

After WhiteningBERT (Huang et al., Findings of EMNLP 2021, Table 3). The best threshold on the very pairs that are
measured flatters; one chosen on other pairs is the honest figure. Beside both stands the majority's: the accuracy of
always giving the commoner label.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.errors import ConfigError
from indexer.progress import Progress
from indexer.transforms import Transform
from search.evaluation.fits import check_dimensions, transform_hash
from search.evaluation.resampling import LEVEL, RESAMPLES, difference, draw_counts, interval, resampled_mean
from search.evaluation.settings import Setting, Sweep
from search.evaluation.sts.correlation import Array
from search.evaluation.sts.data import Subset, Task
from search.evaluation.sts.fits import choose_fit, task_texts
from search.evaluation.sts.pair_scores import fit_transforms, noise_notes, score_pairs
from search.evaluation.sts.rte_data import EntailmentPairs
from search.evaluation.subject import Subject
from search.printable import counted
from search.provenance import Clock, how_built

TASK = "RTE"
THRESHOLDS = tuple(number / 10 for number in range(10))
PROTOCOL = "entailment where the cosine is at least the threshold; accuracy in per cent"
BOOTSTRAP = {"resamples": RESAMPLES, "level": LEVEL, "resampled": "pairs, the threshold held fixed"}
_ON_THE_SAME = "the same pairs (optimistic)"
Labels = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RtePlan:
    """What is measured: every setting at every threshold, with one fit (`choose_fit` says how it is named)."""

    settings: Sequence[Setting]
    thresholds: Sequence[float] = THRESHOLDS
    fit: str = ""

    def __post_init__(self) -> None:
        for threshold in self.thresholds:
            if not -1 <= threshold <= 1:
                raise ConfigError(f"--threshold is {threshold:g}; expected a cosine, -1 to 1.")


@dataclass(frozen=True)
class _Answers:
    """What a threshold answers: per pair 100 where that is right, else 0."""

    threshold: float
    chosen_on: str
    right: Array

    @classmethod
    def at(cls, threshold: float, cosines: Array, entailed: Labels, chosen_on: str) -> "_Answers":
        return cls(threshold, chosen_on, 100.0 * ((cosines >= threshold) == entailed))

    @property
    def accuracy(self) -> float:
        return float(self.right.mean())

    def to_dict(self, counts: Array) -> dict[str, Any]:
        ends = interval(self.accuracy, resampled_mean(self.right, counts))
        figures = {"accuracy": ends.value, "low": ends.low, "high": ends.high}
        return {"threshold": self.threshold, **figures, "chosen_on": self.chosen_on}


@dataclass(frozen=True)
class _Measured:
    """One setting: its cosines, and what the chosen thresholds answer. `honest` needs other pairs."""

    setting: Setting
    transform: Transform
    cosines: Array
    best: _Answers
    honest: _Answers | None

    @property
    def headline(self) -> _Answers:
        return self.honest or self.best


def rte_sweep(sweep: Sweep) -> Sweep:
    """The sweep; an empty one becomes no transform and full whitening, at the recipe's own pooling and layers."""
    return Sweep(strengths=("none", 1.0)) if sweep.is_empty else sweep


def evaluate_rte(
    subject: Subject,
    data: tuple[EntailmentPairs, EntailmentPairs | None],
    plan: RtePlan,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The result file of `isotrope evaluate rte`, JSON types: "provenance", "results", "comparisons", "notes".

    `data` are the pairs to measure, and others to choose the threshold on, if any. One transform serves both, as a
    threshold means nothing under another one, and fit "task" is on the sentences of both: fitted on one of them it
    would follow that sample's noise, and the cosines of the other would be of another size.
    Raises ConfigError, EvaluationError for embeddings that are not finite, and what encoding raises.
    """
    clock = Clock()
    pairs, train = data
    shared = _shared(pairs, train) if train else 0
    given = [one for one in data if one]
    tasks = [_as_task(one) for one in given]
    check_dimensions(plan.settings, subject.spec)
    source = subject.states(list(plan.settings), cache, progress)
    fit = choose_fit(plan.fit, subject, source)
    states = source.encode([text for task in tasks for text in task_texts(task)])
    together = Task(TASK, tuple(subset for task in tasks for subset in task.subsets))
    transforms = fit_transforms(together, states, plan.settings, fit)
    scores = [score_pairs(task, states, plan.settings, transforms) for task in tasks]
    measured = list(_measure(plan.settings, transforms, scores, data))
    counts = draw_counts(len(pairs.entailed), TASK)
    provenance = clock.provenance(
        subject.spec,
        {str(one.path): one.sha256 for one in given} | fit.files,
        protocol=PROTOCOL,
        fit={"name": fit.name, **fit.about},
        train=str(train.path) if train else None,
        texts=len(states.positions),
        truncated=source.log.truncated,
        bootstrap=BOOTSTRAP,
        **how_built(subject.config, subject.opened),
    )
    encoders = [source.fingerprint(setting.key) for setting in plan.settings]
    return {
        "provenance": provenance,
        "results": [
            {**_row(one, pairs, plan, counts), "fit": fit.name, "encoder": encoder}
            for one, encoder in zip(measured, encoders, strict=True)
        ],
        "comparisons": [_comparison(measured[0], one, counts) for one in measured[1:]],
        "notes": [
            *fit.notes,
            *noise_notes(together, plan.settings, transforms, fit.name),
            *_notes(measured, train is not None, shared, source.log.truncated),
        ],
    }


def best_threshold(cosines: Array, entailed: Labels) -> float:
    """The threshold with the most right answers, halfway between two neighbouring cosines; the lowest of several.

    The lowest cosine itself answers "entailment" always, the next number above the highest one never.
    """
    values, group = np.unique(cosines, return_inverse=True)
    positives = np.bincount(group, weights=entailed)
    negatives = np.bincount(group, weights=~entailed)
    # right[i]: right answers when the values from number i on are called entailment
    right = np.append(positives[::-1].cumsum()[::-1], 0) + np.append(0, negatives.cumsum())
    cut = int(right.argmax())
    if cut == 0:
        return float(values[0])
    if cut == len(values):
        return float(np.nextafter(values[-1], np.inf))
    middle = (values[cut - 1] + values[cut]) / 2
    return float(middle if middle > values[cut - 1] else values[cut])


def _as_task(pairs: EntailmentPairs) -> Task:
    subset = Subset("all", pairs.entailed.astype(np.float64), pairs.first, pairs.second)
    return Task(TASK, (subset,))


def _shared(pairs: EntailmentPairs, train: EntailmentPairs) -> int:
    """Pairs that are measured and are in `train` too. Raises ConfigError where all are: nothing is then held out."""
    known = set(zip(train.first, train.second, strict=True))
    shared = sum(pair in known for pair in zip(pairs.first, pairs.second, strict=True))
    if shared == len(pairs.entailed):
        raise ConfigError(
            f"--train {train.path} holds every pair of {pairs.path}, so a threshold chosen on it flatters. Name a file "
            "of other pairs, such as RTE's train.tsv, or leave --train out."
        )
    return shared


def _measure(
    settings: Sequence[Setting],
    transforms: Sequence[Transform],
    scores: Sequence[list[list[Array]]],
    data: tuple[EntailmentPairs, EntailmentPairs | None],
) -> Iterator[_Measured]:
    pairs, train = data
    for number, (setting, transform) in enumerate(zip(settings, transforms, strict=True)):
        cosines = scores[0][number][0]
        best = _Answers.at(best_threshold(cosines, pairs.entailed), cosines, pairs.entailed, _ON_THE_SAME)
        honest = None
        if train:
            threshold = best_threshold(scores[1][number][0], train.entailed)
            honest = _Answers.at(threshold, cosines, pairs.entailed, str(train.path))
        yield _Measured(setting, transform, cosines, best, honest)


def _row(one: _Measured, pairs: EntailmentPairs, plan: RtePlan, counts: Array) -> dict[str, Any]:
    grid = [_Answers.at(threshold, one.cosines, pairs.entailed, "") for threshold in plan.thresholds]
    return {
        "task": TASK,
        "setting": one.setting.label,
        **one.setting.to_dict(),
        "pairs": len(pairs.entailed),
        "majority": pairs.majority,
        "best": one.best.to_dict(counts),
        "train": one.honest.to_dict(counts) if one.honest else None,
        "thresholds": [{"threshold": answers.threshold, "accuracy": answers.accuracy} for answers in grid],
        "transform": None if one.setting.raw else transform_hash(one.transform),
    }


def _comparison(first: _Measured, second: _Measured, counts: Array) -> dict[str, Any]:
    """Second less first, paired, each at its own threshold: from the other pairs where there are some."""
    one, two = first.headline, second.headline
    found = difference(one.accuracy, two.accuracy, resampled_mean(one.right, counts), resampled_mean(two.right, counts))
    return {
        "setting": second.setting.label,
        "against": first.setting.label,
        "chosen_on": two.chosen_on,
        **found.to_row(),
    }


def _notes(measured: Sequence[_Measured], trained: bool, shared: int, truncated: int) -> list[str]:
    notes = [note for one in measured if (note := one.transform.settings()["note"])]
    if not trained:
        notes.append("best thresholds were chosen on the pairs they are measured on, which flatters: pass --train FILE")
    if shared:
        notes.append(f"measured although the threshold was chosen on it too: {counted(shared, 'pair', 'pairs')}")
    if truncated:
        notes.append(f"{counted(truncated, 'text was', 'texts were')} longer than encoder.max_length and cut there")
    return list(dict.fromkeys(notes))
