"""STS: how well the cosine of two sentences ranks pairs as people do, for many settings from one forward pass.

Both sentences are documents: they take the document prefix and are centred by the documents' mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.errors import EvaluationError
from indexer.progress import NoProgress, Progress
from indexer.transforms import Transform
from search.evaluation.fits import check_dimensions
from search.evaluation.resampling import LEVEL, RESAMPLES
from search.evaluation.settings import Setting
from search.evaluation.states import States
from search.evaluation.sts.correlation import Array
from search.evaluation.sts.data import Task
from search.evaluation.sts.fits import Fit, choose_fit, task_texts
from search.evaluation.sts.pair_scores import fit_transforms, noise_notes, score_pairs
from search.evaluation.sts.protocols import Protocol, task_estimates, why_undefined
from search.evaluation.sts.results import Scored, comparisons, notes_on, result_rows
from search.evaluation.subject import Subject
from search.extras import require_extra
from search.provenance import Clock, how_built

BOOTSTRAP = {"resamples": RESAMPLES, "level": LEVEL, "resampled": "pairs, stratified by subset, tasks independently"}


@dataclass(frozen=True)
class StsPlan:
    """What is measured: every setting under every protocol, with one fit (`choose_fit` says how it is named)."""

    settings: Sequence[Setting]
    protocols: Sequence[Protocol] = ("mean",)
    fit: str = ""


@dataclass(frozen=True)
class Measured:
    """What a run over one encoder found: rows of results and comparisons as JSON types, and for provenance the rest."""

    results: list[dict[str, Any]]
    comparisons: list[dict[str, Any]]
    notes: list[str]
    fit: Fit
    texts: int  # distinct sentences
    truncated: int  # texts cut at the encoder's max_length, a corpus to fit on included
    blocks: int  # of the model


def evaluate_sts(
    subject: Subject,
    tasks: Sequence[Task],
    plan: StsPlan,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The result file of `isotrope evaluate sts`, JSON types: "provenance", "results", "comparisons", "notes".

    Correlations are Spearman's times 100 with 95 % bootstrap intervals. A setting without one is left out and noted.
    Raises ConfigError, EvaluationError where no setting has a correlation, and what encoding raises.
    """
    clock = Clock()
    measured = measure_sts(subject, tasks, plan, cache, progress)
    provenance = clock.provenance(
        subject.spec,
        {name: digest for task in tasks for name, digest in task.files.items()} | measured.fit.files,
        protocol=list(dict.fromkeys(plan.protocols)),
        fit={"name": measured.fit.name, **measured.fit.about},
        texts=measured.texts,
        truncated=measured.truncated,
        bootstrap=BOOTSTRAP,
        **how_built(subject.config, subject.opened),
    )
    return {
        "provenance": provenance,
        "results": measured.results,
        "comparisons": measured.comparisons,
        "notes": measured.notes,
    }


def measure_sts(
    subject: Subject,
    tasks: Sequence[Task],
    plan: StsPlan,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Measured:
    """`evaluate_sts` without provenance. Each distinct sentence passes through the encoder once."""
    require_extra("scipy.stats", "eval")  # now, not after minutes of encoding
    if not tasks or not plan.settings or not plan.protocols:
        raise EvaluationError("nothing to measure; expected at least one task, one setting and one protocol.")
    progress, settings, wanted = progress or NoProgress(), list(plan.settings), list(dict.fromkeys(plan.protocols))
    check_dimensions(settings, subject.spec)
    source = subject.states(settings, cache, progress)
    chosen = choose_fit(plan.fit, subject, source)
    states = source.encode([text for task in tasks for text in task_texts(task)])
    fitted = [_fitted(task, states, settings, chosen) for task in tasks]
    kept, left_out = _defined(fitted, settings, wanted)
    fitted, settings = [one.only(kept) for one in fitted], [settings[number] for number in kept]
    noise = [note for one in fitted for note in noise_notes(one.task, settings, one.transforms, chosen.name)]
    progress.phase("correlations", sum(len(subset.scores) for task in tasks for subset in task.subsets))
    scored = []
    for one in fitted:
        estimates = task_estimates(one.task, one.cosines, [setting.label for setting in settings], wanted)
        scored.append(Scored(one.task, one.transforms, estimates))
        progress.advance(scored[-1].pairs)
    encoders = [source.fingerprint(setting.key) for setting in settings]
    return Measured(
        [row for name in wanted for row in result_rows(scored, settings, encoders, name, chosen.name)],
        [row for name in wanted for row in comparisons(scored, settings, name, chosen.name)],
        [*chosen.notes, *left_out, *notes_on(scored, chosen.name, source.log.truncated), *noise],
        chosen,
        len(states.positions),
        source.log.truncated,
        source.blocks,
    )


@dataclass(frozen=True)
class _Fitted:
    """A task under every setting: transforms, and cosines (pairs,) as `[setting][subset]`."""

    task: Task
    transforms: Sequence[Transform]
    cosines: Sequence[Sequence[Array]]

    def only(self, kept: Sequence[int]) -> "_Fitted":
        return _Fitted(
            self.task, [self.transforms[number] for number in kept], [self.cosines[number] for number in kept]
        )


def _fitted(task: Task, states: States, settings: Sequence[Setting], fit: Fit) -> _Fitted:
    transforms = fit_transforms(task, states, settings, fit)
    return _Fitted(task, transforms, score_pairs(task, states, settings, transforms))


def _defined(
    fitted: Sequence[_Fitted], settings: Sequence[Setting], protocols: Sequence[Protocol]
) -> tuple[list[int], list[str]]:
    """Numbers of the settings with a correlation on every task, and why others have none; all, where none has."""
    reasons: dict[int, str] = {}
    for number, setting in enumerate(settings):
        for one in fitted:
            if said := why_undefined(one.task, one.cosines[number], setting.label, protocols):
                reasons.setdefault(number, f"{said}; this setting is left out")
    if len(reasons) == len(settings):
        return list(range(len(settings))), []  # the first is then refused by its task, with a way out
    return [number for number in range(len(settings)) if number not in reasons], list(reasons.values())
