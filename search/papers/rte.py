"""Recognising textual entailment by one number: "entailment" if the cosine of two sentences reaches a threshold.

After WhiteningBERT (Huang et al., Findings of EMNLP 2021, Table 3). A threshold chosen on the measured pairs flatters;
a threshold chosen on other pairs gives the unbiased figure. The baseline is the accuracy of always answering with the
more common label.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.arrays import Float64Array
from indexer.corpus.readers.text import parse_json
from indexer.errors import ConfigError, EvaluationError
from indexer.progress import Progress
from indexer.transforms import Transform
from search.evaluation.bootstrap import LEVEL, RESAMPLES, draw_counts, mean_difference, mean_interval
from search.evaluation.result import Clock, Result, how_built
from search.evaluation.sts.data import Task
from search.evaluation.sts.readers import Subset, find_column, read_lines
from search.evaluation.sts.score import cut_notes, fit_transforms, noise_notes, score_pairs
from search.evaluation.sts.sts import Encoded
from search.evaluation.sweep import Setting, Sweep, transform_hash
from search.evaluation.target import Target
from search.formatting import counted

_LABELS = {"entailment": True, "not_entailment": False}
_FIRST, _SECOND = ("sentence1", "premise"), ("sentence2", "hypothesis")
_FORMS = "a .tsv of GLUE (index, sentence1, sentence2, label) or a .jsonl of SuperGLUE (premise, hypothesis, label)"
_Pair = tuple[str, object, object, object]  # "file:line", first, second, label


@dataclass(frozen=True)
class EntailmentPairs:
    """Labelled pairs; `entailed` (n,) is true where the second sentence follows from the first."""

    path: Path
    sha256: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    entailed: npt.NDArray[np.bool_]

    @property
    def majority(self) -> float:
        """Accuracy of always answering with the more common label."""
        share = float(self.entailed.mean())
        return max(share, 1 - share)


def read_rte(path: str | Path) -> EntailmentPairs:
    """Read GLUE's RTE as .tsv with its header, or SuperGLUE's as .jsonl, also with .gz. Quotes in a .tsv are literal.

    Raises EvaluationError with file and line for unreadable lines, a file without labels (such as GLUE's test set), an
    unknown label, and a file with only one of the two labels.
    """
    path = Path(path)
    name = path.name.lower().removesuffix(".gz")
    if not name.endswith((".tsv", ".jsonl", ".ndjson")):
        raise EvaluationError(f"{path}: unknown type of file; expected {_FORMS}.")
    lines, sha256 = read_lines(path)
    while lines and not lines[-1].strip():
        lines.pop()
    rows = _tsv(path, lines) if name.endswith(".tsv") else _jsonl(path, lines)
    first, second, entailed = [], [], []
    for where, a, b, label in rows:
        first.append(_sentence(where, a, "first"))
        second.append(_sentence(where, b, "second"))
        entailed.append(_label(where, label))
    if not entailed:
        raise EvaluationError(f"{path}: no pair in this file; expected {_FORMS}.")
    if len(set(entailed)) == 1:
        label = next(label for label, value in _LABELS.items() if value == entailed[0])
        count = "its one pair is" if len(entailed) == 1 else f"all {len(entailed):,} pairs are"
        raise EvaluationError(f'{path}: {count} labelled "{label}"; expected pairs of both labels.')
    return EntailmentPairs(path, sha256, tuple(first), tuple(second), np.array(entailed))


def _tsv(path: Path, lines: Sequence[str]) -> Iterator[_Pair]:
    names = [cell.strip().lower() for cell in lines[0].split("\t")] if lines else []
    columns = [_column(path, names, wanted) for wanted in (_FIRST, _SECOND, ("label",))] if lines else []
    for number, line in enumerate(lines[1:], 2):
        cells = line.split("\t")
        if len(cells) != len(names):
            raise EvaluationError(f"{path}:{number}: {counted(len(cells), 'column')}; expected {len(names)}, like the "
                                  "header, separated by tabs.")  # fmt: skip
        first, second, label = (cells[column] for column in columns)
        yield f"{path}:{number}", first, second, label


def _column(path: Path, names: Sequence[str], wanted: Sequence[str]) -> int:
    if wanted == ("label",) and "label" not in names:
        raise _unlabelled(f"{path}:1")
    return find_column(f"{path}:1", names, wanted, f"expected {_FORMS}")


def _jsonl(path: Path, lines: Sequence[str]) -> Iterator[_Pair]:
    for number, line in enumerate(lines, 1):
        where = f"{path}:{number}"
        try:
            row = parse_json(line)
        except (ValueError, RecursionError) as error:
            raise EvaluationError(f"{where}: not a JSON object on one line: {error}.") from error
        if not isinstance(row, dict):
            raise EvaluationError(
                f"{where}: not a JSON object; expected one per line, with premise, hypothesis, label."
            )
        if "label" not in row:
            raise _unlabelled(where)
        yield where, _value(where, row, _FIRST), _value(where, row, _SECOND), row["label"]


def _value(where: str, row: dict[str, Any], wanted: Sequence[str]) -> object:
    for name in wanted:
        if name in row:
            return row[name]
    raise EvaluationError(f"{where}: no {' or '.join(wanted)}; expected premise, hypothesis and label.")


def _unlabelled(where: str) -> EvaluationError:
    return EvaluationError(
        f"{where}: no label; accuracy needs labelled pairs. The published test sets have none. Fix: use the "
        "development set (GLUE's dev.tsv, SuperGLUE's val.jsonl)."
    )


def _sentence(where: str, value: object, which: str) -> str:
    if not isinstance(value, str) or not value.strip():
        problem = "blank" if isinstance(value, str) else "not a text"
        raise EvaluationError(f"{where}: the {which} sentence is {problem}; expected a sentence.")
    return value


def _label(where: str, value: object) -> bool:
    label = value.strip().lower() if isinstance(value, str) else ""
    if label not in _LABELS:
        raise EvaluationError(f'{where}: the label is {value!r}; expected "entailment" or "not_entailment".')
    return _LABELS[label]


TASK = "RTE"
THRESHOLDS = tuple(number / 10 for number in range(10))
PROTOCOL = "entailment where the cosine is at least the threshold; accuracy from 0 to 1"
BOOTSTRAP = {"resamples": RESAMPLES, "level": LEVEL, "resampled": "pairs, the threshold held fixed"}
_ON_THE_SAME = "the same pairs (optimistic)"
Labels = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RteOptions:
    """The measurement: every setting at every threshold, with one fit, named as for `choose_fit`."""

    settings: Sequence[Setting]
    thresholds: Sequence[float] = THRESHOLDS
    fit: str = ""

    def __post_init__(self) -> None:
        for threshold in self.thresholds:
            if not -1 <= threshold <= 1:
                raise ConfigError(f"--threshold is {threshold:g}; expected a cosine, -1 to 1.")


@dataclass(frozen=True)
class _Answers:
    """A threshold and its answers: 1 for each pair that it answers right, else 0."""

    threshold: float
    chosen_on: str
    right: Float64Array

    @classmethod
    def at(cls, threshold: float, cosines: Float64Array, entailed: Labels, chosen_on: str = "") -> "_Answers":
        return cls(threshold, chosen_on, ((cosines >= threshold) == entailed).astype(np.float64))

    def to_dict(self, counts: Float64Array) -> dict[str, Any]:
        figures = mean_interval(self.right, counts).to_dict("accuracy")
        return {"threshold": self.threshold, **figures, "chosen_on": self.chosen_on}


@dataclass(frozen=True)
class _Measured:
    """One setting: its transform and cosines, and the answers of the chosen thresholds. `honest` needs other pairs."""

    setting: Setting
    transform: Transform
    cosines: Float64Array
    best: _Answers
    honest: _Answers | None

    @property
    def headline(self) -> _Answers:
        return self.honest or self.best


def rte_sweep(sweep: Sweep) -> Sweep:
    """Return the sweep; an empty one becomes no transform and full whitening, at the recipe's pooling and layers."""
    return Sweep(strengths=("none", 1.0)) if sweep.is_empty else sweep


def evaluate_rte(
    subject: Target,
    data: tuple[EntailmentPairs, EntailmentPairs | None],
    plan: RteOptions,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """Return the result of `isotrope evaluate rte`.

    `data` are the pairs to measure, and other pairs to choose the threshold on, if any. Both share one transform,
    because a threshold is valid for one transform only. Fit "task" uses the sentences of both: a fit on one of them
    would follow its noise and change the scale of the other's cosines.
    Raises ConfigError, EvaluationError for embeddings that are not finite, and the errors of encoding.
    """
    clock = Clock()
    pairs, train = data
    shared = _shared(pairs, train) if train else 0
    sets = [pairs_set for pairs_set in data if pairs_set]
    tasks = [_as_task(pairs_set) for pairs_set in sets]
    settings = list(plan.settings)
    encoded = Encoded.of(subject, tasks, subject.states(settings, cache, progress), plan.fit, settings)
    source, fit, states = encoded.source, encoded.fit, encoded.states
    together = Task(TASK, tuple(subset for task in tasks for subset in task.subsets))
    transforms = fit_transforms(together, states, settings, fit)
    scores = [score_pairs(task, states, settings, transforms) for task in tasks]
    measured = list(_measure(settings, transforms, scores, data))
    counts = draw_counts(len(pairs.entailed), TASK)
    provenance = clock.provenance(
        subject.spec,
        {str(pairs_set.path): pairs_set.sha256 for pairs_set in sets} | fit.files,
        protocol=PROTOCOL,
        **encoded.facts,
        train=str(train.path) if train else None,
        bootstrap=BOOTSTRAP,
        **how_built(subject.config, subject.index),
    )
    rows = [
        {
            **_row(result, pairs, plan, counts),
            "fit": fit.name,
            "encoder": source.fingerprint(result.setting.key),
        }
        for result in measured
    ]
    notes = [
        *fit.notes,
        *noise_notes(together, settings, transforms, fit.name),
        *_notes(measured, train is not None, shared, source.log.truncated),
    ]
    comparisons = [_comparison(measured[0], result, counts) for result in measured[1:]]
    return Result("rte", provenance, rows, comparisons, notes)


def best_threshold(cosines: Float64Array, entailed: Labels) -> float:
    """Return the threshold with the most right answers, halfway between two neighbouring cosines; the lowest if tied.

    The lowest cosine itself always answers "entailment", the next number above the highest cosine never.
    """
    values, group = np.unique(cosines, return_inverse=True)
    positives = np.bincount(group, weights=entailed)
    negatives = np.bincount(group, weights=~entailed)
    # right[i]: right answers if values[i:] count as entailment
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
    """Return the number of measured pairs that are also in `train`. Raises ConfigError if all are."""
    known = set(zip(train.first, train.second, strict=True))
    shared = sum(pair in known for pair in zip(pairs.first, pairs.second, strict=True))
    if shared == len(pairs.entailed):
        raise ConfigError(
            f"--threshold-from {train.path} contains every pair of {pairs.path}, so accuracy would be optimistic. Fix: "
            "name a file of other pairs, such as RTE's train.tsv, or leave --threshold-from out."
        )
    return shared


def _measure(
    settings: Sequence[Setting],
    transforms: Sequence[Transform],
    scores: Sequence[list[list[Float64Array]]],
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


def _row(measured: _Measured, pairs: EntailmentPairs, plan: RteOptions, counts: Float64Array) -> dict[str, Any]:
    answers = [_Answers.at(threshold, measured.cosines, pairs.entailed) for threshold in plan.thresholds]
    return {
        "task": TASK,
        "setting": measured.setting.label,
        **measured.setting.to_dict(),
        "pairs": len(pairs.entailed),
        "majority": pairs.majority,
        "best": measured.best.to_dict(counts),
        "train": measured.honest.to_dict(counts) if measured.honest else None,
        "thresholds": [{"threshold": each.threshold, "accuracy": float(each.right.mean())} for each in answers],
        "transform": None if measured.setting.raw else transform_hash(measured.transform),
    }


def _comparison(first: _Measured, second: _Measured, counts: Float64Array) -> dict[str, Any]:
    """Return second minus first, paired, each at its headline threshold."""
    difference = mean_difference(first.headline.right, second.headline.right, counts).to_dict("difference")
    names = {"setting": second.setting.label, "against": first.setting.label}
    return names | {"chosen_on": second.headline.chosen_on} | difference


def _notes(measured: Sequence[_Measured], trained: bool, shared: int, truncated: int) -> list[str]:
    notes = [result.transform.note for result in measured if result.transform.note]
    if not trained:
        notes.append(
            "best thresholds are optimistic: they were chosen on the measured pairs. Fix: pass --threshold-from FILE"
        )
    if shared:
        notes.append(f"the threshold was also chosen on {counted(shared, 'measured pair', 'measured pairs')}")
    return list(dict.fromkeys([*notes, *cut_notes(truncated)]))
