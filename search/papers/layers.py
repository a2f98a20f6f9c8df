"""Which layers to average: every combination of them on the STS tasks, from one forward pass a sentence.

After WhiteningBERT (Huang et al., Findings of EMNLP 2021): its Figure 1 is the grid of two layers, its Figure 2 the
best combination of n. Mean and cls pooling are linear, so that a combination is the average of its layers' pooled
states and is made when it is needed. Max pooling is not linear, and is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Any

import numpy as np

from indexer.arrays import Float32Array
from indexer.errors import ConfigError, EvaluationError
from indexer.lazy import require_extra
from indexer.models.identity import PoolingKey
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import PoolingMode
from search.evaluation.embeddings import EmbeddingSource, TextEmbeddings
from search.evaluation.result import Clock, Result, how_built
from search.evaluation.settings import Setting, Strength, Sweep, check_dimensions, transform_hash
from search.evaluation.sts.data import Task, files_of
from search.evaluation.sts.fit import Fit, choose_fit, task_texts
from search.evaluation.sts.score import (
    Estimate,
    Protocol,
    average,
    cut_notes,
    fit_transforms,
    noise_notes,
    score_pairs,
    task_estimates,
)
from search.evaluation.sts.sts import AVERAGE, BOOTSTRAP
from search.evaluation.target import Subject, Target

_FIT = "task"
_FEW_BLOCKS, _UP_TO = 6, 3  # models up to so many blocks are tried in all combinations, others up to so many layers
_BATCH = 16  # combinations whose transforms are in memory together
Layers = tuple[int, ...]


@dataclass(frozen=True)
class LayersOptions:
    """What is tried: combinations of up to `up_to` layers (0: all for small models, else 3), fitted on each task.

    `pooling` None is the recipe's.
    """

    pooling: PoolingMode | None = None
    strength: Strength = "none"
    protocol: Protocol = "mean"
    up_to: int = 0


class AveragedLayers(Mapping[PoolingKey, Float32Array]):
    """Rows of any combination of layers, averaged from those of single layers when asked for."""

    def __init__(self, single: Mapping[PoolingKey, Float32Array]) -> None:
        self._single = single

    def __getitem__(self, key: PoolingKey) -> Float32Array:
        layers, pooling = key
        total = self._single[layers[:1], pooling]
        for layer in layers[1:]:
            total = total + self._single[(layer,), pooling]
        return total / np.float32(len(layers)) if len(layers) > 1 else total

    def __iter__(self) -> Iterator[PoolingKey]:
        return iter(self._single)

    def __len__(self) -> int:
        return len(self._single)


@dataclass(frozen=True)
class _Found:
    """A combination: its average over the tasks, and each task's figure."""

    setting: Setting
    average: Estimate
    tasks: dict[str, float]
    transforms: dict[str, str] | None  # sha256 by task; None without a transform

    @property
    def layers(self) -> Layers:
        return self.setting.layers


@dataclass(frozen=True)
class _OfTask:
    """One task: an estimate and the transform's sha256 a combination, and what fitting had to say."""

    name: str
    estimates: Sequence[Estimate]
    hashes: Sequence[str]
    notes: Sequence[str]


def evaluate_layers(
    subject: Subject,
    tasks: Sequence[Task],
    plan: LayersOptions,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """The result of `isotrope evaluate layers`.

    "results" has a row for each combination, the average over the tasks with its 95 % interval and the tasks' own
    figures under "tasks". Added are "best", the best one of each size, "layers", what was combined, and "paper", the
    row of the paper's choice, block 1 and the last. Layers count from 0, the embedding output. Raises ConfigError,
    EvaluationError for an undefined correlation, and what encoding raises.
    """
    clock, subject, progress = Clock(), Target.of(subject), progress or NoProgress()
    require_extra("scipy.stats", "eval")  # now, not after minutes of encoding
    if not tasks:
        raise EvaluationError("nothing to measure; expected at least one task.")
    single, tried, notes = _settings(subject, plan)
    check_dimensions(tried, subject.spec)
    source = subject.states(single, cache, progress)
    fit = choose_fit(_FIT, subject, source)
    states = source.encode([text for task in tasks for text in task_texts(task)])
    progress.phase("combinations", len(tried) * len(tasks))
    by_task = [_estimates(task, _of_task(task, states), tried, fit, plan.protocol, progress) for task in tasks]
    found = _found(tried, by_task)
    notes += [note for of_task in by_task for note in of_task.notes]
    best, paper = _best_of_each_size(found), _paper_choice(found, source.blocks)
    provenance = clock.provenance(
        subject.spec,
        files_of(tasks),
        protocol=[plan.protocol],
        fit={"name": fit.name, **fit.about},
        texts=len(states.positions),
        truncated=source.log.truncated,
        bootstrap=BOOTSTRAP,
        **how_built(subject.config, subject.index),
    )
    rows = {one.layers: _row(one, tasks, plan.protocol, source) for one in found}
    return Result(
        "layers",
        provenance,
        list(rows.values()),
        [_comparison(one, paper) for one in best if one is not paper],
        _notes(tasks, notes, source.log.truncated),
        {
            "layers": [setting.layers[0] for setting in single],
            "best": [{"size": len(one.layers)} | rows[one.layers] for one in best],
            "paper": rows[paper.layers],
        },
    )


def _settings(subject: Target, plan: LayersOptions) -> tuple[list[Setting], list[Setting], list[str]]:
    """Single layers, all combinations by size, and what should be said about the choice of them."""
    pooling = plan.pooling or subject.own.pooling
    if pooling == "max":
        raise ConfigError(
            "pooling max is not linear: the pooled average of layers is not the average of pooled layers, so that "
            "combinations cannot be made from single ones. Way out: --pooling mean or cls, or `isotrope evaluate sts` "
            "with each combination as --layers."
        )
    blocks = subject.states([subject.own]).blocks
    notes = []
    first = 0
    if pooling == "cls":
        first = 1
        notes.append("layer 0 is left out: there the first token's state is the same for every sentence")
    layers = range(first, blocks + 1)
    least = min(2, len(layers))
    if plan.up_to != 0 and not least <= plan.up_to <= len(layers):
        raise ConfigError(f"--up-to is {plan.up_to}; expected {least} to {len(layers)}, the layers there are.")
    size = plan.up_to or (len(layers) if blocks <= _FEW_BLOCKS else _UP_TO)
    chosen = [combination for count in range(1, size + 1) for combination in combinations(layers, count)]
    notes.append(_said(size, len(layers), len(chosen)))
    sweep = Sweep((pooling,), tuple(chosen), (plan.strength,))
    tried = subject.settings(sweep)
    return tried[: len(layers)], tried, notes


def _said(size: int, layers: int, tried: int) -> str:
    if size == layers:
        return f"all {tried:,} combinations of the {layers} layers were tried"
    everything = sum(comb(layers, count) for count in range(1, layers + 1))
    return (
        f"{tried:,} combinations of up to {size} of the {layers} layers were tried; --up-to {layers} tries "
        f"all {everything:,}"
    )


def _of_task(task: Task, states: TextEmbeddings) -> TextEmbeddings:
    """The states of one task's sentences, whose combinations are then small enough to be made again and again."""
    texts = list(dict.fromkeys(task_texts(task)))
    single = {key: states.of(texts, key) for key in states.rows}
    return TextEmbeddings({text: row for row, text in enumerate(texts)}, AveragedLayers(single))


def _estimates(
    task: Task, states: TextEmbeddings, settings: Sequence[Setting], fit: Fit, protocol: Protocol, progress: Progress
) -> _OfTask:
    cosines, notes, hashes = [], [], []
    for start in range(0, len(settings), _BATCH):
        batch = settings[start : start + _BATCH]
        transforms = fit_transforms(task, states, batch, fit)
        cosines += score_pairs(task, states, batch, transforms)
        hashes += [transform_hash(transform) for transform in transforms]
        notes += [f"{task.name}: {note}" for transform in transforms if (note := transform.settings()["note"])]
        notes += noise_notes(task, batch, transforms, fit.name)
        progress.advance(len(batch))
    estimates = task_estimates(task, cosines, [setting.label for setting in settings], [protocol])[protocol]
    return _OfTask(task.name, estimates, hashes, notes)


def _found(tried: Sequence[Setting], by_task: Sequence[_OfTask]) -> list[_Found]:
    return [
        _Found(
            setting,
            average([of_task.estimates[number] for of_task in by_task]),
            {of_task.name: of_task.estimates[number].value for of_task in by_task},
            None if setting.raw else {of_task.name: of_task.hashes[number] for of_task in by_task},
        )
        for number, setting in enumerate(tried)
    ]


def _best_of_each_size(found: Sequence[_Found]) -> list[_Found]:
    sizes = sorted({len(one.layers) for one in found})
    return [max((one for one in found if len(one.layers) == size), key=lambda one: one.average.value) for size in sizes]


def _paper_choice(found: Sequence[_Found], blocks: int) -> _Found:
    """Block 1 and the last."""
    return next(one for one in found if one.layers == tuple(dict.fromkeys((1, blocks))))


def _row(one: _Found, tasks: Sequence[Task], protocol: Protocol, source: EmbeddingSource) -> dict[str, Any]:
    return {
        "setting": one.setting.label,
        **one.setting.to_dict(),
        "protocol": protocol,
        "fit": _FIT,
        "task": AVERAGE,
        **one.average.figures,
        "pairs": sum(len(subset.scores) for task in tasks for subset in task.subsets),
        "tasks": one.tasks,
        "transform": one.transforms,
        "encoder": source.fingerprint(one.setting.key),
    }


def _comparison(one: _Found, paper: _Found) -> dict[str, Any]:
    return {
        "setting": one.setting.label,
        "against": paper.setting.label,
        "task": AVERAGE,
        **one.average.less(paper.average).to_dict("difference"),
    }


def _notes(tasks: Sequence[Task], made: Sequence[str], truncated: int) -> list[str]:
    notes = [note for task in tasks for note in task.notes] + list(made)
    notes.append("the best of many combinations is chosen on the pairs it is measured on, which flatters it")
    return list(dict.fromkeys([*notes, *cut_notes(truncated)]))
