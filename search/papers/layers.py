"""Every combination of layers on the STS tasks, from one forward pass per sentence.

After WhiteningBERT (Huang et al., Findings of EMNLP 2021): its Figure 1 is the grid of two layers, its Figure 2 the
best combination of n. Mean and cls pooling are linear, so a combination is the average of its layers' pooled states,
computed when needed. Max pooling is not linear, and is rejected.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from pathlib import Path

import numpy as np

from indexer.arrays import Float32Array
from indexer.errors import ConfigError, EvaluationError, as_argument, spelled
from indexer.lazy_imports import require_extra
from indexer.models.identity import PoolingKey
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import PoolingMode
from indexer.typed_arguments import checked
from search.evaluation.embeddings import TextEmbeddings
from search.evaluation.result import Clock, Result, how_built
from search.evaluation.sts.data import Task, files_of
from search.evaluation.sts.fit import task_texts
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
from search.evaluation.sts.sts import AVERAGE, BOOTSTRAP, Encoded
from search.evaluation.sweep import Setting, Strength, Sweep, transform_hash
from search.evaluation.target import Subject, Target

_FIT = "task"
_FEW_BLOCKS, _UP_TO = 6, 3  # most blocks for all combinations; most layers of a combination for other models
_BATCH = 16  # combinations with transforms in memory together


@checked
@dataclass(frozen=True)
class LayersOptions:
    """The combinations to try: up to `up_to` layers (0: all for small models, otherwise 3), fitted on each task.

    `pooling` None is the recipe's.
    """

    pooling: PoolingMode | None = None
    strength: Strength = "none"
    protocol: Protocol = "mean"
    up_to: int = 0


class AveragedLayers(Mapping[PoolingKey, Float32Array]):
    """Rows of any combination of layers, averaged from the rows of single layers on access."""

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
class _OfTask:
    """One task: an estimate and the transform's sha256 per combination, and notes of the fits."""

    name: str
    estimates: Sequence[Estimate]
    hashes: Sequence[str]
    notes: Sequence[str]


@checked
def evaluate_layers(
    subject: Subject,
    tasks: Sequence[Task],
    plan: LayersOptions,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """Return the result of `isotrope evaluate layers`.

    "results" has a row for each combination: the average over the tasks with its 95 % interval, and the figures of the
    tasks under "tasks". Further keys are "best", the best combination of each size, "layers", the combined layers, and
    "paper", the row of the paper's choice: block 1 and the last. Layers count from 0, the embedding output. Raises
    ConfigError, EvaluationError for an undefined correlation, and the errors of encoding.
    """
    clock, subject, progress = Clock(), Target.of(subject), progress or NoProgress()
    require_extra("scipy.stats", "eval")  # fail now, not after minutes of encoding
    if not tasks:
        raise EvaluationError("nothing to measure; expected at least one task.")
    single, tried, notes = _settings(subject, plan)
    encoded = Encoded.of(subject, tasks, subject.states(single, cache, progress), _FIT, tried)
    source = encoded.source
    progress.phase("combinations", len(tried) * len(tasks))
    by_task = [_measured(task, encoded, tried, plan.protocol, progress) for task in tasks]
    notes += [note for of_task in by_task for note in of_task.notes]
    averages = {
        setting.layers: average([of_task.estimates[number] for of_task in by_task])
        for number, setting in enumerate(tried)
    }
    rows = {
        setting.layers: {
            "setting": setting.label,
            **setting.to_dict(),
            "protocol": plan.protocol,
            "fit": _FIT,
            "task": AVERAGE,
            **averages[setting.layers].figures,
            "pairs": sum(len(subset.scores) for task in tasks for subset in task.subsets),
            "tasks": {of_task.name: of_task.estimates[number].value for of_task in by_task},
            "transform": None if setting.raw else {of_task.name: of_task.hashes[number] for of_task in by_task},
            "encoder": source.fingerprint(setting.key),
        }
        for number, setting in enumerate(tried)
    }
    best = [max(group, key=lambda layers: averages[layers].value) for _, group in groupby(rows, key=len)]
    paper = tuple(dict.fromkeys((1, source.blocks)))
    provenance = clock.provenance(
        subject.spec,
        files_of(tasks),
        protocol=[plan.protocol],
        **encoded.facts,
        bootstrap=BOOTSTRAP,
        **how_built(subject.config, subject.index),
    )
    comparisons = [
        {"setting": rows[layers]["setting"], "against": rows[paper]["setting"], "task": AVERAGE}
        | averages[layers].less(averages[paper]).to_dict("difference")
        for layers in best
        if layers != paper
    ]
    added = {
        "layers": [setting.layers[0] for setting in single],
        "best": [{"size": len(layers)} | rows[layers] for layers in best],
        "paper": rows[paper],
    }
    return Result(
        "layers", provenance, list(rows.values()), comparisons, _notes(tasks, notes, source.log.truncated), added
    )


def _settings(subject: Target, plan: LayersOptions) -> tuple[list[Setting], list[Setting], list[str]]:
    """Return the settings of single layers, of all combinations by size, and notes."""
    pooling = plan.pooling or subject.own.pooling
    if pooling == "max":
        raise ConfigError(
            "pooling max is not linear: the pooled average of layers is not the average of pooled layers. Fix: "
            + spelled(
                'pooling="mean" or "cls", or evaluate_sts with each combination as layers.',
                "--pooling mean or cls, or `isotrope evaluate sts` with each combination as --layers.",
            )
        )
    blocks, notes = subject.states([subject.own]).blocks, []
    if pooling == "cls":
        notes.append("layer 0 is left out, because its state of the first token is the same for every sentence")
    layers = range(1 if pooling == "cls" else 0, blocks + 1)
    least = min(2, len(layers))
    if plan.up_to != 0 and not least <= plan.up_to <= len(layers):
        raise ConfigError(
            f"{as_argument('up_to')} is {plan.up_to}; expected {least} to {len(layers)}, the number of layers."
        )
    size = plan.up_to or (len(layers) if blocks <= _FEW_BLOCKS else _UP_TO)
    chosen = [combination for count in range(1, size + 1) for combination in combinations(layers, count)]
    note = f"all {len(chosen):,} combinations of the {size} layers were tried"
    if size < (count := len(layers)):
        note = (
            f"{len(chosen):,} combinations of up to {size} of the {count} layers were tried; "
            f"{as_argument('up_to', count)} tries all {2**count - 1:,}"
        )
    tried = subject.settings(Sweep((pooling,), tuple(chosen), (plan.strength,)))
    return tried[: len(layers)], tried, [*notes, note]


def _of_task(task: Task, states: TextEmbeddings) -> TextEmbeddings:
    """Return the states of one task's sentences, few enough to average layers on every access."""
    texts = list(dict.fromkeys(task_texts(task)))
    single = {key: states.of(texts, key) for key in states.rows}
    return TextEmbeddings({text: row for row, text in enumerate(texts)}, AveragedLayers(single))


def _measured(
    task: Task, encoded: Encoded, settings: Sequence[Setting], protocol: Protocol, progress: Progress
) -> _OfTask:
    states, fit = _of_task(task, encoded.states), encoded.fit
    cosines, notes, hashes = [], [], []
    for start in range(0, len(settings), _BATCH):
        batch = settings[start : start + _BATCH]
        transforms = fit_transforms(task, states, batch, fit)
        cosines += score_pairs(task, states, batch, transforms)
        hashes += [transform_hash(transform) for transform in transforms]
        notes += [f"{task.name}: {transform.note}" for transform in transforms if transform.note]
        notes += noise_notes(task, batch, transforms, fit.name)
        progress.advance(len(batch))
    estimates = task_estimates(task, cosines, [setting.label for setting in settings], [protocol])[protocol]
    return _OfTask(task.name, estimates, hashes, notes)


def _notes(tasks: Sequence[Task], notes: Sequence[str], truncated: int) -> list[str]:
    flattered = "the figures of the best combinations are optimistic: they were chosen on the measured pairs"
    of_tasks = [note for task in tasks for note in task.notes]
    return list(dict.fromkeys([*of_tasks, *notes, flattered, *cut_notes(truncated)]))
