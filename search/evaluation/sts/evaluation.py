"""STS: how well the cosine of two sentences ranks pairs as people do, for many settings from one forward pass.

Both sentences are documents: they take the document prefix and are centred by the documents' mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.errors import EvaluationError
from indexer.pipeline.progress import Progress, Silent
from search.evaluation.extras import require_extra
from search.evaluation.fits import check_dimensions
from search.evaluation.provenance import Clock, how_built
from search.evaluation.resampling import LEVEL, RESAMPLES
from search.evaluation.settings import Setting
from search.evaluation.states import States
from search.evaluation.sts.data import Task
from search.evaluation.sts.fits import Fit, choose_fit, task_texts
from search.evaluation.sts.pair_scores import fit_transforms, score_pairs
from search.evaluation.sts.protocols import Protocol, task_estimates
from search.evaluation.sts.results import Scored, comparisons, notes_on, result_rows
from search.evaluation.subject import Subject

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

    Correlations are Spearman's times 100 with 95 % bootstrap intervals.
    Raises ConfigError, EvaluationError for a correlation that is not defined, and what encoding raises.
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
    progress, settings, wanted = progress or Silent(), list(plan.settings), list(dict.fromkeys(plan.protocols))
    check_dimensions(settings, subject.spec)
    source = subject.states(settings, cache, progress)
    chosen = choose_fit(plan.fit, subject, source)
    states = source.encode([text for task in tasks for text in task_texts(task)])
    progress.phase("correlations", sum(len(subset.scores) for task in tasks for subset in task.subsets))
    scored = []
    for task in tasks:
        scored.append(_score(task, states, settings, chosen, wanted))
        progress.advance(scored[-1].pairs)
    encoders = [source.fingerprint(setting.key) for setting in settings]
    return Measured(
        [row for name in wanted for row in result_rows(scored, settings, encoders, name, chosen.name)],
        [row for name in wanted for row in comparisons(scored, settings, name, chosen.name)],
        [*chosen.notes, *notes_on(scored, chosen.name, source.log.truncated)],
        chosen,
        len(states.positions),
        source.log.truncated,
        source.blocks,
    )


def _score(task: Task, states: States, settings: Sequence[Setting], fit: Fit, protocols: Sequence[Protocol]) -> Scored:
    transforms = fit_transforms(task, states, settings, fit)
    scores = score_pairs(task, states, settings, transforms)
    labels = [setting.label for setting in settings]
    return Scored(task, transforms, task_estimates(task, scores, labels, protocols))
