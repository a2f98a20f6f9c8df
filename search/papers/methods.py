"""Every method of the papers on the STS tasks, one beside the other: pooling, whitening, SIF, flows, Latte-Mix.

A method that draws numbers is measured with several seeds: rows give the mean over them and their spread.
"""

import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from indexer.corpus.corpus import read_corpus
from indexer.encoders.fitted_state import fit_state
from indexer.encoders.token_embeddings import TokenEmbeddings
from indexer.errors import ConfigError, EvaluationError
from indexer.lazy import require_extra
from indexer.models.model_files import file_sha256
from indexer.models.resolution import resolve_layers, resolve_spec, with_fitted_state
from indexer.pipeline.train import sampled_texts
from indexer.progress import NoProgress, Progress
from search.evaluation.result import Clock, Result, how_built
from search.evaluation.settings import Setting
from search.evaluation.sts.data import Task, files_of
from search.evaluation.sts.fit import choose_fit, task_texts
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
from search.evaluation.sts.sts import AVERAGE, BOOTSTRAP
from search.evaluation.target import Target
from search.files import file_hash
from search.papers.method_settings import (
    TRAINED,
    MethodsOptions,
    flow_settings,
    plain_settings,
    sif_settings,
)
from search.papers.mixtures import (
    MethodScores,
    SentenceTokens,
    TrainingTokens,
    mixture_variants,
    train_and_score,
)
from search.papers.whiteningbert import published_figures, published_tables

NOT_RUN = "not implemented: trains the encoder"


def evaluate_methods(
    subject: Target,
    tasks: Sequence[Task],
    plan: MethodsOptions,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """A row for each label, protocol and task, and for their average; "published" is added: the published rows.

    Correlations are Spearman's with 95 % bootstrap intervals; where seeds are drawn, the mean over them with their
    standard deviation.

    Raises ConfigError for an index, EvaluationError, and what encoding and training raise.
    """
    clock, progress = Clock(), progress or NoProgress()
    require_extra("scipy.stats", "eval")  # now, not after hours of training
    if subject.index is not None:
        raise ConfigError("methods compares the ways of one encoder; give a recipe (--config, --set), not an index.")
    notes: list[str] = []
    run = _Run(tasks, plan, cache, progress, notes)
    variants = [*_affine(subject, run), *_mixtures(subject, run)]
    rows = method_rows(variants, tasks, plan.protocols, plan.fit or "task", notes)
    provenance = clock.provenance(
        subject.spec,
        files_of(tasks) | _hash_of(plan.corpus),
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
    """What is measured, and by what; `notes` grow on the way."""

    tasks: Sequence[Task]
    plan: MethodsOptions
    cache: Path | None
    progress: Progress
    notes: list[str]

    @property
    def sentences(self) -> list[str]:
        return [text for task in self.tasks for text in task_texts(task)]


def _affine(subject: Target, run: _Run) -> Iterator[MethodScores]:
    """The methods that are a pooling and a transform."""
    plan = run.plan
    whitening, blocks = subject.config.whitening, subject.states([subject.own]).blocks
    plain = plain_settings(plan, blocks, whitening)
    flows = (
        {seed: flow_settings(blocks, subject.config, seed) for seed in range(plan.seeds)} if plan.wants("flow") else {}
    )
    every = [*plain, *(setting for settings in flows.values() for setting in settings)]
    found = _scored(subject, every, run)
    yield from (MethodScores(setting.label, _method(setting), None, found[setting]) for setting in plain)
    for seed, settings in flows.items():
        yield from (MethodScores(setting.label, "flow", seed, found[setting]) for setting in settings)
    if plan.wants("sif"):
        with _counted(subject, run) as counted:
            settings = sif_settings(blocks, whitening)
            found = _scored(counted, settings, run)
            counted_in = "the training corpus" if plan.corpus else "the tasks' sentences"
            run.notes.append(f"sif: tokens are counted in {counted_in}")
            facts = {"counted_in": counted_in}
            yield from (MethodScores(setting.label, "sif", None, found[setting], facts) for setting in settings)


def _scored(subject: Target, settings: list[Setting], run: _Run) -> dict[Setting, dict[str, list[Any]]]:
    """Similarities of all pairs under each setting, from one forward pass a sentence."""
    source = subject.states(settings, run.cache, run.progress)
    chosen = choose_fit(run.plan.fit, subject, source)
    states = source.encode(run.sentences)
    found: dict[Setting, dict[str, list[Any]]] = {setting: {} for setting in settings}
    for task in run.tasks:
        transforms = fit_transforms(task, states, settings, chosen)
        for setting, scores in zip(settings, score_pairs(task, states, settings, transforms), strict=True):
            found[setting][task.name] = scores
        said = [transform.settings()["note"] for transform in transforms]
        run.notes.extend(f"{task.name}: {note}" for note in said if note)
        run.notes.extend(noise_notes(task, settings, transforms, chosen.name))
    run.notes.extend(chosen.notes)
    return found


def _mixtures(subject: Target, run: _Run) -> Iterator[MethodScores]:
    """Latte-Mix and its controls, on the last layer and on layer 1 of a transformer."""
    plan, progress = run.plan, run.progress
    if plan.corpus is None or not plan.wants(*TRAINED):
        return
    corpus = _training_texts(subject, plan)
    layered = subject.spec.traits.has_layers
    blocks = subject.states([subject.own]).blocks
    for choice in [(-1,), (1,)] if layered else [()]:
        layers = resolve_layers(choice, blocks) if layered else []
        outputs = TokenEmbeddings(_for_layers(subject, choice), subject.options)
        with _folder(run.cache) as folder:
            training = TrainingTokens.write(outputs, corpus, layers, folder, progress)
            progress.phase("encoding sentences", None)
            tokens = SentenceTokens.of(outputs, run.sentences, layers)
            named = ",".join(map(str, choice))
            for trained in mixture_variants(plan, subject.config.paper("latte_mix"), named, tokens, training):
                yield from train_and_score(trained, run.tasks, progress)


def _for_layers(subject: Target, layers: Sequence[int]) -> Any:
    encoder = dataclasses.replace(subject.config.encoder, pooling="mean", fitted="")
    if layers:
        encoder = dataclasses.replace(encoder, layers=tuple(layers))
    return resolve_spec(encoder, subject.spec.folder)


def _training_texts(subject: Target, plan: MethodsOptions) -> list[str]:
    """Texts of the training corpus, in its order: all, or the documents of smallest id hash."""
    corpus = read_corpus(str(plan.corpus), config=subject.config.corpus)
    return sampled_texts(corpus, subject.config, plan.documents)


@contextmanager
def _counted(subject: Target, run: _Run) -> Iterator[Target]:
    """The subject with pooling "sif", its tokens counted in the training corpus, or else in the tasks' sentences."""
    texts = _training_texts(subject, run.plan) if run.plan.corpus else run.sentences

    def blocks() -> Iterator[list[str]]:
        remaining = iter(texts)
        while block := list(islice(remaining, 4096)):
            yield block

    layers = (-1,)
    encoder = dataclasses.replace(subject.config.encoder, pooling="sif", layers=layers, fitted="")
    config = dataclasses.replace(subject.config, encoder=encoder)
    spec = resolve_spec(config, subject.spec.folder)
    with tempfile.TemporaryDirectory(prefix="isotrope-") as folder:
        fit_state(spec, blocks, Path(folder), subject.options)
        state = {path.name: file_sha256(path) for path in sorted(Path(folder).iterdir())}
        yield Target(config, with_fitted_state(spec, folder, state), None, subject.options)


@contextmanager
def _folder(cache: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="isotrope-") as beside:
        folder = cache or Path(beside)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def _method(setting: Setting) -> str:
    if setting.pooling != "mean":
        return setting.pooling
    if not setting.raw:
        return "whitening"
    return "mean" if setting.layers in ((-1,), ()) else "layers"


def _hash_of(train: Path | None) -> dict[str, str]:
    """Hashes of the training corpus's files."""
    if train is None:
        return {}
    files = sorted(path for path in train.rglob("*") if path.is_file()) if train.is_dir() else [train]
    return {str(path.relative_to(train)) if train.is_dir() else path.name: file_hash(path) for path in files}


def _published() -> list[dict[str, Any]]:
    """Published rows of methods, as WhiteningBERT's Table 1 gives them; one of them cannot be run here."""
    tables = published_tables()
    return [
        {
            "method": row["method"],
            "figures": published_figures(row["figures"]),
            "status": NOT_RUN if row["method"].startswith("IS-BERT") else "published",
        }
        for row in tables["baselines"]
    ]


CONTROL = "mean"
Estimates = dict[Protocol, dict[str, list[Estimate]]]
"""By protocol and task, one a variant."""


def method_rows(
    variants: Sequence[MethodScores], tasks: Sequence[Task], protocols: Sequence[Protocol], fit: str, notes: list[str]
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
            row["against_mean"] = mean.less(against).to_dict() if label != control else None
            row["against_untrained"] = mean.less(_mean_of(untrained)).to_dict() if untrained else None
            rows.append(row)
    return rows


def _about(
    label: str, kept: Sequence[MethodScores], members: Sequence[int], protocol: Protocol, fit: str
) -> dict[str, Any]:
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
    label: str, kept: Sequence[MethodScores], estimates: dict[str, list[Estimate]], tasks: Sequence[Task]
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
    return {
        **mean.figures,
        "standard_deviation": spread,
        "by_seed": values if len(values) > 1 else None,
    }


def _estimates(kept: Sequence[MethodScores], tasks: Sequence[Task], protocols: Sequence[Protocol]) -> Estimates:
    labels = [variant.label for variant in kept]
    found: Estimates = {protocol: {} for protocol in protocols}
    for task in tasks:
        by_protocol = task_estimates(task, [variant.scores[task.name] for variant in kept], labels, protocols)
        for protocol, estimates in by_protocol.items():
            found[protocol][task.name] = estimates
    return found


def _defined(
    variants: Sequence[MethodScores], tasks: Sequence[Task], protocols: Sequence[Protocol], notes: list[str]
) -> list[MethodScores]:
    left_out = set()
    for variant in variants:
        for task in tasks:
            if said := why_undefined(task, variant.scores[task.name], variant.label, protocols):
                notes.append(f"{said}; this method is left out")
                left_out.add(variant.label)
    return [variant for variant in variants if variant.label not in left_out]
