"""From embeddings to cosines of sentence pairs, and to Spearman's correlation with what people say of them.

Papers report a task in three ways, which are not comparable:

mean   unweighted mean of the subsets' correlations: WhiteningBERT and the tables it quotes
wmean  their mean weighted by pairs
all    one correlation over all pairs of the task, whatever subset they are in

A task of one subset is the same in all three. Resamples are stratified by subset and named by task and subset: every
setting meets the same ones, so that settings pair, and tasks are resampled independently of one another.

Both sentences are documents: they take the document prefix and are centred by the documents' mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from indexer.arrays import Float64Array
from indexer.errors import EvaluationError
from indexer.lazy import require_extra
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
from search.evaluation.settings import Setting
from search.evaluation.sts.data import Task
from search.evaluation.sts.fit import Fit, task_texts
from search.text import counted

Positions = npt.NDArray[np.intp]


def cosines(vectors: Float64Array, first: Positions, second: Positions) -> Float64Array:
    """Cosine of the rows `first[i]` and `second[i]` of `vectors` (n, k), float64.

    A row of zeros has cosine 0 with every other, as in an index.
    """
    # float64 throughout: in float32, as vectors are stored, pairs that differ by less than 6e-8 would tie or swap.
    # Pairs that do tie must stay tied. Equal texts share a row, sqrt(x * x) is x in binary floating point and a
    # product does not depend on its order: so two equal sentences have exactly 1, and (a, b) what (b, a) has.
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite stays so, for the caller to refuse
        squares = (vectors * vectors).sum(axis=1)
        products = (vectors[first] * vectors[second]).sum(axis=1)
        norms = np.sqrt(squares[first] * squares[second])
        found: Float64Array = np.divide(products, norms, out=np.zeros_like(products), where=norms != 0)
    return found


def all_alike(values: Float64Array, what: str = "cosines") -> str:
    """Why `values` (n,) have no correlation with anything; "" where they differ."""
    if not len(values) or (values != values[0]).any():
        return ""
    return f"all {len(values):,} {what} are {values[0]:g}, so the correlation is undefined"


def spearman(predicted: Float64Array, human: Float64Array, where: str) -> float:
    """Spearman's rank correlation, ties averaged. `where` names the pairs and the setting in errors.

    Raises EvaluationError where it is not defined, and MachineError without SciPy.
    """
    stats: Any = require_extra("scipy.stats", "eval")
    if len(human) < 2:
        raise EvaluationError(f"{where}: {len(human)} pair; a rank correlation needs at least 2. Leave the set out.")
    if not np.isfinite(predicted).all():
        raise EvaluationError(
            f"{where}: {np.count_nonzero(~np.isfinite(predicted)):,} of {len(predicted):,} scores are NaN or infinite. "
            "The model overflows or is damaged: try --set encoder.precision=float32, or another model."
        )
    for values, what, way_out in (
        (human, "human scores", "Leave the set out, or take one with scores that differ."),
        (predicted, "cosines", "Under this setting the vectors tell no two pairs apart: leave it out, or the set."),
    ):
        if said := all_alike(values, what):
            raise EvaluationError(f"{where}: {said}. {way_out}")
    return float(stats.spearmanr(predicted, human).statistic)


Protocol = Literal["mean", "wmean", "all"]


@dataclass(frozen=True)
class Estimate:
    """A correlation, and its values in the resamples, (resamples,)."""

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
    """Mean of estimates that were resampled independently, such as the subsets of a task or the tasks."""
    value = float(np.average([estimate.value for estimate in estimates], weights=weights))
    return Estimate(value, mean_of([estimate.resampled for estimate in estimates], weights))


def task_estimates(
    task: Task, cosines: Sequence[Sequence[Float64Array]], labels: Sequence[str], protocols: Sequence[Protocol]
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


def why_undefined(task: Task, cosines: Sequence[Float64Array], label: str, protocols: Sequence[Protocol]) -> str:
    """Where and why one setting has no correlation under these protocols; "" where it has one.

    `cosines[subset]` (pairs,) are the setting's own.
    """
    for subset, predicted in zip(task.subsets, cosines, strict=True):
        if (len(task.subsets) == 1 or set(protocols) & {"mean", "wmean"}) and (said := all_alike(predicted)):
            return f'{task.name}, subset "{subset.name}", setting "{label}": {said}'
    said = all_alike(np.concatenate(list(cosines))) if "all" in protocols else ""
    return f'{task.name}, all subsets together, setting "{label}": {said}' if said else ""


def _estimates(
    scores: Float64Array, counts: Float64Array, cosines: Sequence[Float64Array], where: Sequence[str]
) -> list[Estimate]:
    """One estimate a setting over the same pairs and resamples; the human scores are ranked once."""
    values = [spearman(predicted, scores, name) for predicted, name in zip(cosines, where, strict=True)]
    human = resampled_ranks(scores, counts)
    return [
        Estimate(value, resampled_spearman(resampled_ranks(predicted, counts), human, counts))
        for value, predicted in zip(values, cosines, strict=True)
    ]


def fit_transforms(task: Task, states: TextEmbeddings, settings: Sequence[Setting], fit: Fit) -> list[Transform]:
    """The transform of each setting for this task; "none" is unit length whatever the fit."""
    fitted = fit.of(task, states)
    return [
        Normalisation(states.rows[setting.key].shape[1]) if setting.raw else fitted(setting) for setting in settings
    ]


def score_pairs(
    task: Task, states: TextEmbeddings, settings: Sequence[Setting], transforms: Sequence[Transform]
) -> list[list[Float64Array]]:
    """Cosines (pairs,) of every subset under every setting: `[setting][subset]`."""
    rows, pairs = _pairs(task, states)
    found = []
    for setting, transform in zip(settings, transforms, strict=True):
        # Each distinct sentence is projected once: a matrix product may round equal rows differently.
        vectors = transform.project(states.rows[setting.key][rows], "document")
        found.append([cosines(vectors, first, second) for first, second in pairs])
    return found


def noise_notes(task: Task, settings: Sequence[Setting], transforms: Sequence[Transform], fit: str) -> list[str]:
    """Settings that tell a task's sentences apart by rounding only.

    n sentences span n - 1 directions; whitened fully on these very sentences they are the corners of a regular
    simplex, and every pair has cosine -1 / (n - 1) (a sentence that occurs more often has another, whatever it says).
    """
    count = len(set(task_texts(task)))
    return [
        f'{task.name}, "{setting.label}": the figure is noise: {count:,} distinct sentences span only {count - 1:,} '
        "directions, and full whitening makes all of them equally far apart. Way out: more sentences, less strength, "
        "some shrinkage or fewer dimensions"
        for setting, transform in zip(settings, transforms, strict=True)
        if fit == "task" and isinstance(transform, Whitening) and _full(setting) and transform.dim >= count - 1
    ]


def cut_notes(truncated: int) -> list[str]:
    """Return a note on texts that the encoder cut, where there are some."""
    texts = counted(truncated, "text was", "texts were")
    return [f"{texts} longer than encoder.max_length and cut there"] * bool(truncated)


def _full(setting: Setting) -> bool:
    return setting.whitening.strength == 1 and setting.whitening.shrinkage == 0


def _pairs(task: Task, states: TextEmbeddings) -> tuple[Positions, list[tuple[Positions, Positions]]]:
    """Rows of the task's distinct sentences, and for each subset where among them its two sides are."""
    rows = np.unique([states.positions[text] for text in task_texts(task)])

    def places(texts: Sequence[str]) -> Positions:
        return np.searchsorted(rows, [states.positions[text] for text in texts])

    return rows, [(places(subset.first), places(subset.second)) for subset in task.subsets]
