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
from indexer.corpus.corpus import OnError
from indexer.corpus.query_file import query_file_sha256
from indexer.corpus.sources import find_sources
from indexer.encoders.precomputed import cannot_encode
from indexer.errors import ConfigError
from indexer.progress import NoProgress, Progress
from search.evaluation.resampling import LEVEL, RESAMPLES
from search.evaluation.settings import Sweep
from search.evaluation.subject import Subject
from search.evaluation.tune.choice import TOLD
from search.evaluation.tune.label_free import LabelFree, Objective
from search.evaluation.tune.labelled import Labelled
from search.evaluation.tune.objective import Measured
from search.evaluation.tune.pairs import LEAST_PAIRS
from search.evaluation.tune.tuning import Tuned, tune, tuned_recipe
from search.files import check_cache, file_hash, write_output
from search.provenance import Clock, how_built


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
    on_error: OnError = "fail"  # or "skip": rows of the corpus that cannot be documents

    def __post_init__(self) -> None:
        if self.sample < LEAST_PAIRS:
            raise ConfigError(f"--sample is {self.sample}; expected at least {LEAST_PAIRS} documents.")
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
    if not subject.spec.traits.encodes_texts:
        raise ConfigError(
            f"{cannot_encode(subject.spec)} Tuning asks with texts. Settings can be compared on judged queries whose "
            "embeddings are at hand: isotrope evaluate retrieval BEIR_FOLDER INDEX --query-vectors FILE.npy "
            "--strength none --strength 0.25"
        )
    _require_one_corpus(task, subject)
    data = _data(task, subject)
    judge = _judge(task, subject, cache or _usable(default_cache()), progress or NoProgress())
    tuned = tune(judge, subject, sweep, task.most_bytes)
    protocol = {"objective": task.objective, **judge.protocol, "told": TOLD, "resamples": RESAMPLES, "level": LEVEL}
    about = how_built(subject.config, subject.opened) | {"protocol": protocol}
    recipe = tuned_recipe(tuned.choice.taken.setting, subject)

    def row(one: Measured) -> dict[str, Any]:
        return tuned.result(one) | {"encoder": judge.source.fingerprint(one.setting.key)}

    return {
        "provenance": clock.provenance(subject.spec, judge.data | data, **about),
        "results": [row(one) for one in (*tuned.measured, *tuned.narrower)],
        "frontier": [row(one) for one in tuned.frontier],
        "choice": _choice(tuned, recipe),
        "recipe": recipe.to_dict(),
        "notes": [*judge.notes, *_fit_notes(tuned)],
    }


def write_recipe(path: Path, result: dict[str, Any], force: bool = False) -> None:
    """The recipe that was taken, with how it was found above it; over another file only with `force`."""
    choice, provenance = result["choice"], result["provenance"]
    protocol = provenance["protocol"]
    remarks = [
        f"Found by: {provenance['command']}",
        f"Taken: {choice['setting']}, because {choice['reason']}.",
        f"{protocol['measure']} {100 * choice['value']:.2f} on {protocol['questions']:,} {protocol['kind']}; raw "
        f"embeddings {100 * choice['raw']['value']:.2f}.",
    ]
    write_output(path, BuildConfig.from_dict(result["recipe"]).to_toml(remarks).encode(), force=force)


def default_cache() -> Path:
    """Where embeddings of questions are kept from run to run."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isotrope" / "states"


def _usable(cache: Path) -> Path | None:
    """The folder nobody asked for, if it can be written; else the embeddings are simply not kept."""
    try:
        check_cache(cache)
    except ConfigError:
        return None
    return cache


def _judge(task: TuneTask, subject: Subject, cache: Path | None, progress: Progress) -> LabelFree | Labelled:
    if task.qrels:
        return Labelled(subject, task.qrels, task.split, cache, progress, task.on_error)
    return LabelFree(subject, lambda: _documents(task, subject), task.objective, task.sample, cache, progress)


def _documents(task: TuneTask, subject: Subject) -> Iterable[Document]:
    if subject.opened:
        return subject.opened.documents.all_documents()
    return read_corpus(*task.sources, config=subject.config.corpus, format=task.format, on_error=task.on_error)


def _data(task: TuneTask, subject: Subject) -> dict[str, str]:
    """Hashes of the files that were read, the user's queries among them."""
    queries = query_file_sha256(subject.config.whitening.query_sample, "whitening.query_sample")
    found = {subject.config.whitening.query_sample: queries} if queries else {}
    if subject.opened or task.qrels:  # then the judge names its files
        return found
    files, _ = find_sources(task.sources, task.format)
    return found | {file.label: file_hash(file.path) for file in files if file.path}


def _require_one_corpus(task: TuneTask, subject: Subject) -> None:
    """Judgements are for one corpus: the BEIR folder's own, or an index."""
    if (
        task.qrels
        and not subject.opened
        and [Path(source).resolve() for source in task.sources] != [task.qrels.resolve()]
    ):
        raise ConfigError(
            f"--qrels {task.qrels} judges that folder's own corpus; name the folder itself, or an index of it, instead "
            f"of {', '.join(task.sources)}."
        )


def _fit_notes(tuned: Tuned) -> list[str]:
    """What fits could not do as asked, each once; what was taken speaks for all that say the same."""
    notes = (f"while tuning: {one.note}" for one in (tuned.choice.taken, *tuned.measured) if one.note)
    return list(dict.fromkeys(notes))


def _choice(tuned: Tuned, recipe: BuildConfig) -> dict[str, Any]:
    choice, enough = tuned.choice, tuned.enough
    return {
        "setting": choice.taken.setting.label,
        "reason": choice.reason,
        "value": choice.taken.score,
        "tied": len(choice.tied),
        "best": {"setting": choice.best.setting.label, "value": choice.best.score},
        "raw": {"setting": choice.raw.setting.label, "value": choice.raw.score},
        "gain": choice.gain.to_dict(),
        "enough": {"dim": enough.dim, "bytes": enough.bytes, "value": enough.score} if enough else None,
        "options": " ".join(_options(recipe)),
    }


def _options(recipe: BuildConfig) -> list[str]:
    """What makes the default recipe this one, on the command line; the whitening in any case, to be read."""
    ours, defaults = recipe.to_dict(), BuildConfig().to_dict()
    changed = [
        f"{section}.{key}={value if isinstance(value, str) else _toml(value)}"
        for section, settings in ours.items()
        for key, value in settings.items()
        if value != defaults[section][key] or (section == "whitening" and key in _SHOWN)
    ]
    return [f"--set {shlex.quote(setting)}" for setting in changed]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


_SHOWN = ("strength", "dim", "shrinkage", "centre")
