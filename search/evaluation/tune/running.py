"""One run of `tune`, from sources to a result and a recipe."""

import json
import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.config import BuildConfig
from indexer.corpus import Document, read_corpus
from indexer.corpus.sources import find_sources
from indexer.errors import ConfigError
from indexer.pipeline.progress import Progress, Silent
from indexer.recipes import recipe_toml
from indexer.store.files import make_folder, write_bytes
from indexer.store.manifest import canonical_hash
from search.evaluation.provenance import Clock, file_hash
from search.evaluation.resampling import LEVEL, RESAMPLES
from search.evaluation.settings import Sweep
from search.evaluation.subject import Subject
from search.evaluation.tune.label_free import LabelFree, Objective, indexed_documents
from search.evaluation.tune.labelled import Labelled
from search.evaluation.tune.tuning import Tuned, tune


@dataclass(frozen=True)
class TuneTask:
    """What is tuned: the corpus (or the index's folder), what for, and by what."""

    sources: tuple[str, ...]
    objective: Objective = "retrieval"
    sample: int = 1500
    qrels: Path | None = None  # a BEIR folder
    split: str = "test"
    most_bytes: int = 0
    format: str = ""

    def __post_init__(self) -> None:
        if self.sample < 1:
            raise ConfigError(f"--sample is {self.sample}; expected at least 50 documents.")
        if self.most_bytes < 0:
            raise ConfigError(f"--bytes is {self.most_bytes}; expected 0 (no limit) or more.")
        if self.qrels and self.objective == "sts":
            raise ConfigError("--qrels judges retrieval; leave out --objective sts.")


def run_tune(
    task: TuneTask, subject: Subject, sweep: Sweep = Sweep(),  # noqa: B008 - frozen
    cache: Path | None = None, progress: Progress | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The result as JSON types: provenance, results, frontier, choice, recipe, notes.

    `cache` defaults to `default_cache()`. Raises ConfigError, CorpusError, EvaluationError, and what `Subject` raises.
    """
    clock = Clock()
    judge = _judge(task, subject, cache or default_cache(), progress or Silent())
    tuned = tune(judge, subject, sweep, task.most_bytes)
    data = judge.data | _data(task, subject)
    protocol = {"objective": task.objective, **judge.protocol, "resamples": RESAMPLES, "level": LEVEL}
    return {
        "provenance": clock.provenance(subject.spec, data, protocol=protocol),
        "results": tuned.results(),
        "frontier": [tuned.result(one) for one in tuned.frontier],
        "choice": _choice(tuned, subject),
        "recipe": tuned.recipe(subject.config).to_dict(),
        "notes": judge.notes,
    }


def write_recipe(path: Path, result: dict[str, Any]) -> None:
    """The recipe that was taken, with how it was found above it."""
    choice, provenance = result["choice"], result["provenance"]
    protocol = provenance["protocol"]
    remarks = [
        f"Found by: {provenance['command']}",
        f"Taken: {choice['setting']}, because {choice['reason']}.",
        f"{protocol['measure']} {100 * choice['value']:.2f} on {protocol['questions']:,} {protocol['kind']}; raw "
        f"embeddings {100 * choice['raw']['value']:.2f}.",
    ]
    make_folder(path.parent)
    write_bytes(path, recipe_toml(BuildConfig.from_dict(result["recipe"]), remarks).encode())


def default_cache() -> Path:
    """Where embeddings of questions are kept from run to run."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isotrope" / "states"


def _judge(task: TuneTask, subject: Subject, cache: Path, progress: Progress) -> LabelFree | Labelled:
    if task.qrels:
        return Labelled(subject, task.qrels, task.split, cache, progress)
    return LabelFree(subject, lambda: _documents(task, subject), task.objective, task.sample, cache, progress)


def _documents(task: TuneTask, subject: Subject) -> Iterable[Document]:
    if subject.opened:
        return indexed_documents(subject.opened)
    return read_corpus(*task.sources, config=subject.config.corpus, format=task.format)


def _data(task: TuneTask, subject: Subject) -> dict[str, str]:
    """Hashes of what was tuned on: the index's manifest, or the files of the corpus."""
    if subject.opened:
        return {"manifest": canonical_hash(subject.opened.manifest.to_dict())}
    files, _ = find_sources(task.sources, task.format)
    return {file.label: file_hash(file.path) for file in files if file.path}


def _choice(tuned: Tuned, subject: Subject) -> dict[str, Any]:
    choice = tuned.choice
    return {
        "setting": tuned.taken.setting.label,
        "reason": choice.reason,
        "value": tuned.taken.score,
        "tied": len(choice.tied),
        "best": {"setting": choice.best.setting.label, "value": choice.best.score},
        "raw": {"setting": choice.raw.setting.label, "value": choice.raw.score},
        "gain": choice.gain.to_dict(),
        "options": " ".join(_options(tuned.recipe(subject.config), subject.config)),
    }


def _options(recipe: BuildConfig, before: BuildConfig) -> list[str]:
    """What the command line must add to the recipe tuned from; every whitening setting, so that it can be read."""
    changed = [f"whitening.{name}={getattr(recipe.whitening, name)}" for name in _WHITENING]
    if recipe.encoder.layers != before.encoder.layers:
        changed.append(f"encoder.layers={json.dumps(recipe.encoder.layers)}")
    if recipe.encoder.pooling != before.encoder.pooling:
        changed.append(f"encoder.pooling={recipe.encoder.pooling}")
    return [f"--set {shlex.quote(setting)}" for setting in changed]


_WHITENING = ("strength", "dim", "shrinkage", "centre")
