"""`isotrope tune`: try settings on a corpus, choose one, measure the cost of fewer dimensions, and write the recipe."""

import dataclasses
import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from indexer.corpus.corpus import OnError, read_corpus
from indexer.corpus.document import Document
from indexer.corpus.files.folder import joint_digest
from indexer.corpus.query_file import query_file_sha256
from indexer.encoders.precomputed import cannot_encode
from indexer.errors import ConfigError, MachineError, as_argument, as_shown, spelled
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import BuildConfig
from indexer.recipe.ranking import QueriesConfig
from indexer.typed_arguments import checked
from search.evaluation.bootstrap import LEVEL, RESAMPLES, mean_interval
from search.evaluation.result import Clock, Result, check_keys, how_built
from search.evaluation.sweep import Centre, Setting, Strength, Sweep, state_keys
from search.evaluation.target import Subject, Target
from search.evaluation.tune.choice import SIGNIFICANT, Choice, MeasuredSetting, choose
from search.evaluation.tune.judged import QrelsJudge
from search.evaluation.tune.rerank_depth import advise, advised_recipe
from search.evaluation.tune.unlabelled import LEAST_PAIRS, Objective, UnlabelledJudge
from search.evaluation.tune.weight import choose_weight, weighed
from search.ranking.reranker import RerankerChoice, open_reranker
from search.ranking.terms import require_packages
from search.result_files import check_cache, source_hashes, write_output

DEFAULT_STRENGTHS: tuple[Strength, ...] = ("none", 0.0, 0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
DEFAULT_CENTRES: tuple[Centre, ...] = ("role", "common", "none")
DEFAULT_SHRINKAGES = (0.0, 0.5)
Judge = UnlabelledJudge | QrelsJudge
"""Scores settings on questions drawn from the documents, or on the user's judged queries."""
_KEPT_SHARES = (0.75, 0.5, 1 / 3, 0.25, 1 / 6, 0.125)  # of the dimensions, on the frontier
_SHOWN = ("strength", "dim", "shrinkage", "centre")  # settings of whitening in every command


@dataclass(frozen=True)
class Tuned:
    """The measured settings and the choice."""

    choice: Choice
    measured: tuple[MeasuredSetting, ...]
    narrower: tuple[MeasuredSetting, ...]  # the chosen transform (for raw: the best one) with fewer dimensions

    @property
    def frontier(self) -> list[MeasuredSetting]:
        """Settings by size of their vectors, each better than every smaller one."""
        best: list[MeasuredSetting] = []
        for entry in sorted([*self.measured, *self.narrower], key=lambda entry: (entry.bytes, -entry.score)):
            if not best or entry.score > best[-1].score:
                best.append(entry)
        return best

    @property
    def enough(self) -> MeasuredSetting | None:
        """The smallest vectors that are not significantly worse than the chosen ones; None if all are."""
        taken = self.choice.taken
        fine = (
            entry for entry in self.narrower if entry.bytes < taken.bytes and not self.choice.significant(entry, taken)
        )
        return min(fine, key=lambda entry: entry.bytes, default=None)

    def result(self, entry: MeasuredSetting) -> dict[str, Any]:
        """Return a setting with its score and interval, JSON types."""
        return {
            **entry.setting.to_dict(),
            **mean_interval(entry.values, self.choice.counts).to_dict(),
            "dimensions": entry.dim,
            "bytes": entry.bytes,
            "transform": entry.transform,
            "present": entry is self.choice.own,
            "tied": any(entry is tied for tied in self.choice.tied),
            "taken": entry is self.choice.taken,
        }


def tune(judge: Judge, subject: Target, sweep: Sweep, max_bytes: int = 0) -> Tuned:
    """Try the settings of a sweep (see `full_sweep`), choose one, then try it with fewer dimensions.

    All dimensions are kept unless `sweep.dims` requests fewer, or a float32 vector of all exceeds `max_bytes` (0: no
    limit). Raises EvaluationError and ConfigError.
    """
    # At strength 0 nothing is scaled, so shrinkage has no effect.
    tried = full_sweep(sweep).settings(subject.own)
    tried = [entry for entry in tried if entry.whitening.strength != 0.0 or not entry.whitening.shrinkage]
    if not (sweep.strengths or sweep.centres or sweep.shrinkages):
        own = subject.own
        comparable = own.whitening.kind == "whitening" and not own.whitening.dim
        if comparable and own.key in {entry.key for entry in tried}:  # of embeddings that others need too
            tried = list(dict.fromkeys([*tried, own]))
    settings = with_raw(tried)
    judge.prepare(settings)
    measured = tuple(judge.measure(list(dict.fromkeys(settings))))
    choice = choose(measured, subject.own, judge.centre_margin)
    wide = choice.taken
    if wide.setting.raw:
        wide = max((entry for entry in choice.candidates if not entry.setting.raw), key=lambda entry: entry.score)
    narrower = tuple(judge.measure([_narrowed(wide.setting, dim) for dim in _dims(sweep, wide.dim, max_bytes)]))
    if max_bytes:
        choice = _within(choice, [*measured, *narrower], max_bytes)
    elif any(sweep.dims):
        requested = [*narrower, wide] if {0, wide.dim} & set(sweep.dims) else narrower
        best = max(requested, key=lambda entry: entry.score)
        choice = choice.instead(best, "it scored highest with the requested dimensions")
    return Tuned(choice, measured, narrower)


def tuned_recipe(setting: Setting, subject: Target, weight: float | None = None) -> BuildConfig:
    """Return the subject's recipe with another setting, and another weight of the vectors in hybrids.

    `pooling = "auto"` is kept if it resolves to the setting's pooling.
    """
    encoder = subject.config.encoder
    if setting.pooling != subject.own.pooling:
        encoder = dataclasses.replace(encoder, pooling=setting.pooling)
    encoder = dataclasses.replace(encoder, layers=setting.layers or encoder.layers)  # a table has none
    if subject.spec.local and not Path(encoder.model).is_dir():  # moved since the index was built
        encoder = dataclasses.replace(encoder, model=subject.spec.folder)
    hybrid = subject.config.hybrid
    if weight is not None:
        hybrid = dataclasses.replace(hybrid, weight=weight)
    queries = QueriesConfig()  # a query encoder fits the present vectors only
    return dataclasses.replace(
        subject.config, encoder=encoder, whitening=setting.whitening, queries=queries, hybrid=hybrid
    )


def with_raw(settings: Sequence[Setting]) -> list[Setting]:
    """Return the settings with raw embeddings of every layers and pooling (SIF with strength "none" is not raw)."""
    complete = list(settings)
    for key in state_keys(settings):
        group = [setting for setting in settings if setting.key == key]
        if not any(setting.raw for setting in group):
            raw: dict[str, Any] = {"strength": "none", "dim": 0, "shrinkage": 0.0, "centre": "none", "remove": 0}
            complete.append(dataclasses.replace(group[0], whitening=dataclasses.replace(group[0].whitening, **raw)))
    return complete


def full_sweep(sweep: Sweep) -> Sweep:
    """Return a sweep with defaults for missing values; it always includes the controls, raw and strength 0.

    Raises ConfigError for transforms other than whitening, which have no strengths.
    """
    if set(sweep.kinds) - {"whitening"}:
        raise ConfigError(
            f"tune chooses settings of whitening only. Fix: leave out {spelled('kinds', '--transform')}, or "
            f"compare transforms with {spelled('evaluate_retrieval', 'isotrope evaluate')}."
        )
    strengths = sweep.strengths or DEFAULT_STRENGTHS
    controls: tuple[Strength, ...] = tuple(control for control in DEFAULT_STRENGTHS[:2] if control not in strengths)
    return dataclasses.replace(
        sweep,
        strengths=(*controls, *strengths),
        centres=sweep.centres or DEFAULT_CENTRES,
        shrinkages=sweep.shrinkages or DEFAULT_SHRINKAGES,
        kinds=("whitening",),
        dims=(0,),
    )


def _dims(sweep: Sweep, dim: int, max_bytes: int) -> list[int]:
    if unusable := [value for value in sweep.dims if not 0 <= value <= dim]:
        raise ConfigError(
            f"{spelled('dims', '--dim')} is {unusable[0]}; expected 0 (all) to {dim}, the dimensions of the vectors."
        )
    dims = sweep.dims or tuple(round(share * dim / 8) * 8 for share in _KEPT_SHARES)
    if max_bytes:
        dims = (*dims, max_bytes // 4)
    return sorted({value for value in dims if 0 < value < dim}, reverse=True)


def _narrowed(setting: Setting, dim: int) -> Setting:
    return dataclasses.replace(setting, whitening=dataclasses.replace(setting.whitening, dim=dim))


def _within(choice: Choice, measured: Sequence[MeasuredSetting], max_bytes: int) -> Choice:
    if choice.taken.bytes <= max_bytes:
        return choice
    fitting = [entry for entry in measured if entry.bytes <= max_bytes]
    if not fitting:
        raise ConfigError(f"{as_argument('max_bytes', max_bytes)} leaves no dimension; a dimension takes 4 bytes.")
    reason = f"it scored highest within {max_bytes:,} bytes per vector (raw embeddings: {choice.raw.bytes:,})"
    return choice.instead(max(fitting, key=lambda entry: entry.score), reason)


@checked
@dataclass(frozen=True)
class TuneOptions:
    """The objective, the questions and the corpus of a tuning; no corpus for an index."""

    sources: tuple[str, ...] = ()
    objective: Objective = "retrieval"
    sample: int = 1500
    beir: Path | None = None  # the folder of judged queries
    split: str = "test"
    max_bytes: int = 0
    format: str = ""
    on_error: OnError | None = None  # "skip": leave out rows that cannot be documents; None: the corpus's usual choice
    rerank: RerankerChoice | None = None  # reranker to try as well
    recipe_file: Path | None = None  # the recipe's file, for the command that uses it

    def __post_init__(self) -> None:
        if self.sample < LEAST_PAIRS:
            raise ConfigError(f"{as_argument('sample')} is {self.sample}; expected at least {LEAST_PAIRS} documents.")
        if self.max_bytes < 0:
            raise ConfigError(f"{as_argument('max_bytes')} is {self.max_bytes}; expected 0 (no limit) or more.")
        sts = as_argument("objective", "sts")
        if self.beir and self.objective == "sts":
            raise ConfigError(f"{as_argument('beir')} measures retrieval. Fix: leave out {sts}.")
        if self.rerank is not None and self.objective == "sts":
            raise ConfigError(f"{as_argument('rerank')} reranks answers to questions. Fix: leave out {sts}.")


@checked
def run_tune(
    subject: Subject,
    task: TuneOptions = TuneOptions(),
    sweep: Sweep = Sweep(),  # noqa: B008 - frozen
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """Return the result with the keys "frontier", "choice" and "recipe"; `cache` defaults to the user's cache.

    Raises ConfigError, CorpusError, EvaluationError, and what `Target` raises.
    """
    clock, subject = Clock(), Target.of(subject)
    if not subject.spec.traits.encodes_texts:
        raise ConfigError(
            f"{cannot_encode(subject.spec)} Tuning must encode questions. Fix: compare settings with embeddings of "
            "judged queries: "
            + spelled(
                "evaluate_retrieval(INDEX, RetrievalOptions(BEIR_FOLDER, query_vectors=FILE.npy), "
                'Sweep(strengths=("none", 0.25)))',
                "isotrope evaluate retrieval BEIR_FOLDER --index INDEX --query-vectors FILE.npy --strength none "
                "--strength 0.25",
            )
        )
    _require_one_corpus(task, subject)
    data = _data(task, subject)
    judge = _judge(task, subject, cache or default_cache(), progress or NoProgress())
    reranker = None if task.rerank is None else open_reranker(task.rerank, subject.config.rerank, subject.options)
    tuned = tune(judge, subject, sweep, task.max_bytes)
    limits = {"told": SIGNIFICANT, "resamples": RESAMPLES, "level": LEVEL}
    protocol = {"objective": task.objective, **judge.protocol, **limits}
    about = how_built(subject.config, subject.index) | {"protocol": protocol}
    setting = tuned.choice.taken.setting
    hybrid, why_not = _weight(judge, task, setting, subject)
    recipe = tuned_recipe(setting, subject, hybrid["weight"] if hybrid else None)
    advice: dict[str, Any] | None = None
    if reranker is not None and task.rerank is not None:
        advice = advise(judge.first_hits(setting), reranker, str(judge.protocol["measure"]), judge.progress)
        recipe = advised_recipe(recipe, advice, task.rerank)

    fit_notes = (f"while tuning: {entry.note}" for entry in (tuned.choice.taken, *tuned.measured) if entry.note)

    def row(entry: MeasuredSetting) -> dict[str, Any]:
        return tuned.result(entry) | {"encoder": judge.source.fingerprint(entry.setting.key)}

    return Result(
        "tune",
        clock.provenance(subject.spec, judge.data | data, **about),
        [row(entry) for entry in (*tuned.measured, *tuned.narrower)],
        None,
        [
            *judge.notes,
            *dict.fromkeys(fit_notes),
            *_centre_notes(tuned, judge.centre_margin),
            *why_not,
            *_query_notes(subject),
        ],
        {
            "as_is": _as_is(tuned, subject.own),
            "hybrid": hybrid,
            "rerank": advice,
            "frontier": [row(entry) for entry in tuned.frontier],
            "choice": _choice(tuned, recipe, subject, task.recipe_file),
            "recipe": recipe.to_dict(),
        },
    )


def _query_notes(subject: Target) -> Iterator[str]:
    if encoder := subject.config.queries.encoder:
        yield f"measured with the index's own encoder; the recipe leaves out the query encoder, {encoder}"


def _weight(
    judge: Judge, task: TuneOptions, setting: Setting, subject: Target
) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the weight for hybrids, or None with notes on the reason."""
    config = subject.config.hybrid
    if task.objective != "retrieval":
        return None, []
    if config.fusion != "convex":
        return None, [f'no weight was chosen for hybrids: the recipe\'s fusion "{config.fusion}" has no weight']
    try:
        require_packages("hybrid")
    except MachineError as error:
        return None, [f"no weight was chosen for hybrids: {error}"]
    return choose_weight(np.stack(judge.weigh(setting, weighed(config)))), []


@checked
def write_recipe(path: Path, result: Mapping[str, Any], force: bool = False) -> None:
    """Write the chosen recipe with its provenance as comments; overwrite a file only with `force`.

    Raises EvaluationError for a result of another function than `run_tune`, and the errors of `write_output`.
    """
    check_keys(result, "run_tune", "choice", "provenance", "recipe")
    choice, provenance = result["choice"], result["provenance"]
    protocol = provenance["protocol"]
    remarks = [
        f"Found by: {provenance['command']}",
        f"Chosen: {choice['setting']}, because {choice['reason']}.",
        f"{protocol['measure']} {100 * choice['value']:.2f} on {protocol['questions']:,} {protocol['kind']}; raw "
        f"embeddings {100 * choice['raw']['value']:.2f}.",
    ]
    recipe = BuildConfig.from_dict(result["recipe"]).to_toml(remarks, whole=["whitening"])
    write_output(path, recipe.encode(), force=force)


def default_cache() -> Path | None:
    """Return the folder that caches embeddings of questions; None if it cannot be written."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isotrope" / "states"
    try:
        check_cache(cache)
    except ConfigError:
        return None
    return cache


def _judge(task: TuneOptions, subject: Target, cache: Path | None, progress: Progress) -> Judge:
    if task.beir:
        return QrelsJudge(subject, task.beir, task.split, cache, progress, task.on_error or "fail")

    return UnlabelledJudge(
        subject, lambda: tuned_documents(task, subject), task.objective, task.sample, cache, progress
    )


def tuned_documents(task: TuneOptions, subject: Target) -> Iterable[Document]:
    """Return the documents of the index or the corpus."""
    if subject.index:
        return subject.index.documents.all_documents()
    return read_corpus(*task.sources, config=subject.config.corpus, format=task.format, on_error=task.on_error)


def _data(task: TuneOptions, subject: Target) -> dict[str, str]:
    """Return the hashes of the corpus's files, unless an index or the judge holds them, and of the file of queries."""
    queries = query_file_sha256(subject.config.whitening.query_sample, "whitening.query_sample")
    hashes = {subject.config.whitening.query_sample: queries} if queries else {}
    if subject.index or task.beir:
        return hashes
    corpus = read_corpus(*task.sources, config=subject.config.corpus, format=task.format)
    if corpus.config.documents == "files":
        return hashes | {"files": joint_digest(corpus.files)}
    return hashes | source_hashes(corpus.files)


def _require_one_corpus(task: TuneOptions, subject: Target) -> None:
    if task.beir and not subject.index and [Path(source).resolve() for source in task.sources] != [task.beir.resolve()]:
        raise ConfigError(
            f"{as_argument('beir')} {task.beir} contains judgements of its own corpus. Fix: name the folder "
            f"itself, or an index of it, instead of {', '.join(task.sources)}."
        )


def _centre_notes(tuned: Tuned, margin: float) -> list[str]:
    """Return a note if a setting with another centre scored highest, but not by the margin."""
    best, candidates = max(tuned.measured, key=lambda entry: entry.score), tuned.choice.candidates
    if any(entry is best for entry in candidates):
        return []
    return [
        f"{best.setting.label} scored highest ({100 * best.score:.2f}), but its centre is not the recipe's. Drawn "
        f"questions favour some centres, so another centre is chosen only if its gain is above {100 * margin:g} with "
        f"95 % confidence. To decide, judge some queries and pass them with {as_argument('beir')}."
    ]


def _as_is(tuned: Tuned, own: Setting) -> dict[str, Any] | None:
    """Return the recipe's setting compared with raw embeddings of its layers and pooling; None if either is missing."""
    choice = tuned.choice
    raw = next((entry for entry in tuned.measured if entry.setting.raw and entry.setting.key == own.key), None)
    if raw is None or choice.own is None or choice.own.setting.raw:
        return None
    sides = {"raw": raw, "recipe": choice.own}
    shown = {
        name: {"setting": side.setting.label, **mean_interval(side.values, choice.counts).to_dict()}
        for name, side in sides.items()
    }
    return {**shown, "difference": choice.beyond(raw, choice.own).to_dict()}


def _choice(tuned: Tuned, recipe: BuildConfig, subject: Target, file: Path | None) -> dict[str, Any]:
    choice, smallest = tuned.choice, tuned.enough
    enough: dict[str, Any] | None = None
    if smallest:
        strength = smallest.setting.whitening.strength
        other = None if strength == choice.taken.setting.whitening.strength else strength
        enough = {"dim": smallest.dim, "bytes": smallest.bytes, "value": smallest.score, "strength": other}
    return {
        "setting": choice.taken.setting.label,
        "reason": choice.reason,
        "value": choice.taken.score,
        "tied": len(choice.tied),
        "best": {"setting": choice.best.setting.label, "value": choice.best.score},
        "raw": {"setting": choice.raw.setting.label, "value": choice.raw.score},
        "gain": choice.gain.to_dict(),
        "over_present": choice.beyond(choice.own, choice.taken).to_dict() if choice.own else None,
        "enough": enough,
        "command": _command(tuned, recipe, subject, file),
    }


def _command(tuned: Tuned, recipe: BuildConfig, subject: Target, file: Path | None) -> str:
    """Return the command that applies the recipe: a refit, or a build if texts must be encoded again."""
    verb, base = "isotrope build CORPUS INDEX", BuildConfig()
    if subject.index is not None and tuned.choice.taken.setting.key == subject.own.key:
        verb, base = f"isotrope refit {shlex.quote(as_shown(str(subject.index.path)))}", subject.config
        recipe = dataclasses.replace(recipe, encoder=base.encoder)  # the path of a moved model is not a change
    elif subject.index is not None:
        verb = "isotrope build CORPUS NEW_INDEX"
    return " ".join([verb, *([f"--config {shlex.quote(str(file))}"] if file else _options(recipe, base))])


def _options(recipe: BuildConfig, base: BuildConfig) -> list[str]:
    """Return the options that change `base` into `recipe`; they always include the whitening."""
    defaults = base.to_dict()
    changed = [
        f"{section}.{key}={value if isinstance(value, str) else _toml(value)}"
        for section, settings in recipe.to_dict().items()
        for key, value in settings.items()
        if value != defaults.get(section, {}).get(key) or (section == "whitening" and key in _SHOWN)
    ]
    return [f"--set {shlex.quote(setting)}" for setting in changed]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)
