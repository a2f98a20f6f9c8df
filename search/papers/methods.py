"""Every method of the papers on the STS tasks in comparison: pooling, whitening, SIF, flows, Latte-Mix.

A random method is measured with several seeds: rows have the mean over the seeds and their spread.
"""

import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from indexer.corpus.corpus import read_corpus
from indexer.corpus.sources import find_sources
from indexer.encoders.fitted_state import fit_state
from indexer.encoders.token_embeddings import TokenEmbeddings
from indexer.errors import EvaluationError
from indexer.lazy_imports import require_extra
from indexer.models.model_files import file_sha256
from indexer.models.resolution import resolve_layers, resolve_spec, with_fitted_state
from indexer.pipeline.train import sampled_texts
from indexer.progress import NoProgress, Progress
from search.evaluation.result import Clock, Result, how_built
from search.evaluation.sts.data import Task, files_of
from search.evaluation.sts.fit import task_texts
from search.evaluation.sts.score import (
    Estimate,
    Protocol,
    average,
    fit_transforms,
    noise_notes,
    score_pairs,
    task_estimates,
    why_undefined,
)
from search.evaluation.sts.sts import AVERAGE, BOOTSTRAP, Encoded
from search.evaluation.sweep import Setting
from search.evaluation.target import Target
from search.papers.method_settings import (
    TRAINED,
    MethodsOptions,
    flow_settings,
    plain_settings,
    sif_settings,
)
from search.papers.mixtures import (
    MethodScores,
    Mixtures,
    SentenceTokens,
    TrainingTokens,
)
from search.papers.whiteningbert import published_figures, published_tables
from search.result_files import source_hashes

NOT_RUN = "not implemented: trains the encoder"


def evaluate_methods(
    subject: Target,
    tasks: Sequence[Task],
    plan: MethodsOptions,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """Return a row for each label, protocol and task, and for their average; "published" has the published rows.

    Correlations are Spearman's with 95 % bootstrap intervals; of random methods the mean over seeds with its standard
    deviation. Raises EvaluationError, and the errors of encoding and training.
    """
    clock, progress = Clock(), progress or NoProgress()
    require_extra("scipy.stats", "eval")  # fail now, not after hours of training
    notes: list[str] = []
    run = _Run(tasks, plan, cache, progress, notes)
    variants = [*_affine(subject, run), *_mixtures(subject, run)]
    rows = method_rows(variants, tasks, plan.protocols, plan.fit or "task", notes)
    provenance = clock.provenance(
        subject.spec,
        files_of(tasks) | source_hashes(find_sources([plan.corpus])[0] if plan.corpus else ()),
        protocol=list(plan.protocols),
        fit={"name": plan.fit or "task"},
        seeds=plan.seeds,
        train={"path": str(plan.corpus or ""), "documents": plan.documents},
        bootstrap=BOOTSTRAP,
        **how_built(subject.config),
    )
    notes += [note for task in tasks for note in task.notes]
    return Result("methods", provenance, rows, None, list(dict.fromkeys(notes)), {"published": _published()})


@dataclass(frozen=True)
class _Run:
    """The measurement, and the list that collects its notes."""

    tasks: Sequence[Task]
    plan: MethodsOptions
    cache: Path | None
    progress: Progress
    notes: list[str]

    @property
    def sentences(self) -> list[str]:
        return [text for task in self.tasks for text in task_texts(task)]


def _affine(subject: Target, run: _Run) -> Iterator[MethodScores]:
    """Yield the methods that consist of a pooling and a transform."""
    plan = run.plan
    whitening, blocks = subject.config.whitening, subject.states([subject.own]).blocks
    plain = plain_settings(plan, blocks, whitening)
    flows = (
        {seed: flow_settings(blocks, subject.config, seed) for seed in range(plan.seeds)} if plan.wants("flow") else {}
    )
    every = [*plain, *(setting for settings in flows.values() for setting in settings)]
    scores = _scored(subject, every, run)
    yield from (MethodScores(setting.label, _method(setting), None, scores[setting]) for setting in plain)
    for seed, settings in flows.items():
        yield from (MethodScores(setting.label, "flow", seed, scores[setting]) for setting in settings)
    if plan.wants("sif"):
        with _counted(subject, run) as counted:
            settings = sif_settings(blocks, whitening)
            scores = _scored(counted, settings, run)
            counted_in = "the training corpus" if plan.corpus else "the tasks' sentences"
            run.notes.append(f"sif: tokens are counted in {counted_in}")
            facts = {"counted_in": counted_in}
            yield from (MethodScores(setting.label, "sif", None, scores[setting], facts) for setting in settings)


def _scored(subject: Target, settings: list[Setting], run: _Run) -> dict[Setting, dict[str, list[Any]]]:
    """Return the similarities of all pairs under each setting, from one forward pass per sentence."""
    source = subject.states(settings, run.cache, run.progress)
    encoded = Encoded.of(subject, run.tasks, source, run.plan.fit, settings)
    states, fit = encoded.states, encoded.fit
    similarities: dict[Setting, dict[str, list[Any]]] = {setting: {} for setting in settings}
    for task in run.tasks:
        transforms = fit_transforms(task, states, settings, fit)
        for setting, scores in zip(settings, score_pairs(task, states, settings, transforms), strict=True):
            similarities[setting][task.name] = scores
        run.notes.extend(f"{task.name}: {transform.note}" for transform in transforms if transform.note)
        run.notes.extend(noise_notes(task, settings, transforms, fit.name))
    run.notes.extend(fit.notes)
    return similarities


def _mixtures(subject: Target, run: _Run) -> Iterator[MethodScores]:
    """Yield Latte-Mix and its controls, on the last layer and on layer 1 of a transformer."""
    plan, progress = run.plan, run.progress
    if plan.corpus is None or not plan.wants(*TRAINED):
        return
    corpus = _training_texts(subject, plan)
    layered = subject.spec.traits.has_layers
    blocks = subject.states([subject.own]).blocks
    for choice in [(-1,), (1,)] if layered else [()]:
        layers = resolve_layers(choice, blocks) if layered else []
        encoder = dataclasses.replace(subject.config.encoder, pooling="mean", fitted="")
        if choice:
            encoder = dataclasses.replace(encoder, layers=choice)
        outputs = TokenEmbeddings(resolve_spec(encoder, subject.spec.folder), subject.options)
        with tempfile.TemporaryDirectory(prefix="isotrope-") as temporary:
            folder = run.cache or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            training = TrainingTokens.write(outputs, corpus, layers, folder, progress)
            progress.phase("encoding sentences", None)
            tokens = SentenceTokens.of(outputs, run.sentences, layers)
            named = ",".join(map(str, choice))
            mixtures = Mixtures(named, tokens, training, run.tasks, progress)
            yield from mixtures.measured(plan, subject.config.paper("latte_mix"))


def _training_texts(subject: Target, plan: MethodsOptions) -> list[str]:
    """Return the texts of the training corpus, in order: all, or the documents with the smallest id hashes."""
    corpus = read_corpus(str(plan.corpus), config=subject.config.corpus)
    return sampled_texts(corpus, subject.config, plan.documents)


@contextmanager
def _counted(subject: Target, run: _Run) -> Iterator[Target]:
    """Yield the subject with pooling "sif". Counts tokens in the training corpus, or else in the tasks' sentences."""
    texts = _training_texts(subject, run.plan) if run.plan.corpus else run.sentences

    def blocks() -> Iterator[list[str]]:
        return (texts[start : start + 4096] for start in range(0, len(texts), 4096))

    encoder = dataclasses.replace(subject.config.encoder, pooling="sif", layers=(-1,), fitted="")
    config = dataclasses.replace(subject.config, encoder=encoder)
    spec = resolve_spec(config, subject.spec.folder)
    with tempfile.TemporaryDirectory(prefix="isotrope-") as folder:
        fit_state(spec, blocks, Path(folder), subject.options)
        state = {path.name: file_sha256(path) for path in sorted(Path(folder).iterdir())}
        yield Target(config, with_fitted_state(spec, folder, state), None, subject.options)


def _method(setting: Setting) -> str:
    if setting.pooling != "mean":
        return setting.pooling
    if not setting.raw:
        return "whitening"
    return "mean" if setting.layers in ((-1,), ()) else "layers"


def _published() -> list[dict[str, Any]]:
    """Return the rows of methods in WhiteningBERT's Table 1; IS-BERT cannot be run here."""
    return [
        {
            "method": row["method"],
            "figures": published_figures(row["figures"]),
            "status": NOT_RUN if row["method"].startswith("IS-BERT") else "published",
        }
        for row in published_tables()["baselines"]
    ]


CONTROL = "mean"


def method_rows(
    variants: Sequence[MethodScores], tasks: Sequence[Task], protocols: Sequence[Protocol], fit: str, notes: list[str]
) -> list[dict[str, Any]]:
    """Return for each label and protocol one row per task, and a row for their average.

    The average has its difference from mean pooling, and for a trained method from the untrained control. Intervals
    are over pairs and over seeds if there are several. A label without a correlation on some task is left out, with a
    note.
    """
    kept = _defined(variants, tasks, protocols, notes)
    control = next((variant.label for variant in kept if variant.method == CONTROL), None)
    if control is None:
        raise EvaluationError(f"mean pooling, the control of all methods, has no correlation: {'; '.join(notes)}.")
    labels = [variant.label for variant in kept]
    by_task = [
        task_estimates(task, [variant.scores[task.name] for variant in kept], labels, protocols) for task in tasks
    ]
    seeds = {label: [number for number, other in enumerate(labels) if other == label] for label in labels}
    rows = []
    for protocol in protocols:
        averages = [average(of_variant) for of_variant in zip(*(of[protocol] for of in by_task), strict=True)]
        means = {label: _mean_of([averages[number] for number in members]) for label, members in seeds.items()}
        for label, members in seeds.items():
            variant = kept[members[0]]
            about = {
                "method": variant.method,
                "setting": label,
                "protocol": protocol,
                "fit": fit,
                "seeds": [] if variant.seed is None else [kept[number].seed for number in members],
                **variant.facts,
            }
            for task, of_task in zip(tasks, by_task, strict=True):
                rows.append(about | {"task": task.name} | _figures([of_task[protocol][number] for number in members]))
            untrained = means.get(variant.untrained)
            row = about | {"task": AVERAGE} | _figures([averages[number] for number in members])
            row["against_mean"] = means[label].less(means[control]).to_dict() if label != control else None
            row["against_untrained"] = means[label].less(untrained).to_dict() if untrained else None
            rows.append(row)
    return rows


def _mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean over seeds. Resamples draw pairs and seeds, equal for every method with as many seeds."""
    value = float(np.mean([estimate.value for estimate in estimates]))
    resampled = np.stack([estimate.resampled for estimate in estimates])
    if len(estimates) == 1:
        return Estimate(value, resampled[0])
    seeds, resamples = resampled.shape
    drawn = np.random.default_rng(seeds).integers(0, seeds, (seeds, resamples))
    return Estimate(value, np.take_along_axis(resampled, drawn, axis=0).mean(axis=0))


def _figures(estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Return the mean over seeds with its interval, the values of the seeds, and their standard deviation."""
    values = [estimate.value for estimate in estimates]
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    by_seed = values if len(values) > 1 else None
    return {**_mean_of(estimates).figures, "standard_deviation": spread, "by_seed": by_seed}


def _defined(
    variants: Sequence[MethodScores], tasks: Sequence[Task], protocols: Sequence[Protocol], notes: list[str]
) -> list[MethodScores]:
    left_out = set()
    for variant in variants:
        for task in tasks:
            if reason := why_undefined(task, variant.scores[task.name], variant.label, protocols):
                notes.append(f"{reason}; this method is left out")
                left_out.add(variant.label)
    return [variant for variant in variants if variant.label not in left_out]
