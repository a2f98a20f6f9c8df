"""`isotrope tune`: try settings on a corpus, choose one, see what fewer dimensions would cost, and name the recipe."""

import dataclasses
import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.corpus.corpus import OnError, read_corpus
from indexer.corpus.document import Document
from indexer.corpus.query_file import query_file_sha256
from indexer.corpus.sources import find_sources
from indexer.encoders.precomputed import cannot_encode
from indexer.errors import ConfigError, MachineError
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import BuildConfig
from search.evaluation.bootstrap import LEVEL, RESAMPLES, mean_interval
from search.evaluation.result import Clock, Result, how_built
from search.evaluation.settings import Centre, Setting, Strength, Sweep, state_keys
from search.evaluation.target import Subject, Target
from search.evaluation.tune.choice import TOLD, Choice, MeasuredSetting, choose
from search.evaluation.tune.judged import QrelsJudge
from search.evaluation.tune.rerank_depth import advise, advised_recipe
from search.evaluation.tune.unlabelled import LEAST_PAIRS, Objective, UnlabelledJudge
from search.evaluation.tune.weight import WeightChoice, chosen, weighed
from search.files import check_cache, source_hashes, write_output
from search.ranking.reranker import RerankerChoice, open_reranker
from search.ranking.terms import require_packages

DEFAULT_STRENGTHS: tuple[Strength, ...] = ("none", 0.0, 0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
DEFAULT_CENTRES: tuple[Centre, ...] = ("role", "common", "none")
DEFAULT_SHRINKAGES = (0.0, 0.5)
Judge = UnlabelledJudge | QrelsJudge
"""Scores settings on the same questions: drawn from the documents, or with the user's judgements."""
_KEPT_SHARES = (0.75, 0.5, 1 / 3, 0.25, 1 / 6, 0.125)  # of the dimensions, on the frontier


@dataclass(frozen=True)
class Tuned:
    """What was tried and what was chosen."""

    choice: Choice
    measured: tuple[MeasuredSetting, ...]
    narrower: tuple[MeasuredSetting, ...]  # the transform taken (or the best one, if raw was), with fewer dimensions

    @property
    def frontier(self) -> list[MeasuredSetting]:
        """From the smallest vectors up, each better than every smaller one."""
        found: list[MeasuredSetting] = []
        for one in sorted([*self.measured, *self.narrower], key=lambda one: (one.bytes, -one.score)):
            if not found or one.score > found[-1].score:
                found.append(one)
        return found

    @property
    def enough(self) -> MeasuredSetting | None:
        """The smallest vectors that cannot be told to be worse than what was taken; None if all can."""
        fine = [one for one in self.narrower if one.bytes < self.choice.taken.bytes]
        fine = [one for one in fine if not self.choice.told(one, self.choice.taken)]
        return min(fine, key=lambda one: one.bytes, default=None)

    def result(self, one: MeasuredSetting) -> dict[str, Any]:
        """A setting with its score and interval, JSON types."""
        return {
            **one.setting.to_dict(),
            **mean_interval(one.values, self.choice.counts).to_dict(),
            "dimensions": one.dim,
            "bytes": one.bytes,
            "transform": one.transform,
            "present": one is self.choice.own,
            "tied": any(one is tied for tied in self.choice.tied),
            "taken": one is self.choice.taken,
        }


def tune(judge: Judge, subject: Target, sweep: Sweep, max_bytes: int = 0) -> Tuned:
    """Try the settings of a sweep (see `full_sweep`), choose one, then try it with fewer dimensions.

    All dimensions are kept unless `sweep.dims` asks for fewer, or a float32 vector of all would take more than
    `max_bytes` (0: no limit). Raises EvaluationError and ConfigError.
    """
    # At strength 0 nothing is scaled, so there is nothing for shrinkage to soften.
    tried = full_sweep(sweep).settings(subject.own)
    tried = [one for one in tried if one.whitening.strength != 0.0 or not one.whitening.shrinkage]
    settings = with_raw(tried if _is_narrowed(sweep) else list(dict.fromkeys([*tried, *_own(subject, tried)])))
    judge.prepare(settings)
    measured = tuple(judge.measure(list(dict.fromkeys(settings))))
    choice = choose(measured, subject.own, judge.centre_margin)
    wide = choice.taken
    if wide.setting.raw:
        wide = max((one for one in choice.candidates if not one.setting.raw), key=lambda one: one.score)
    narrower = tuple(judge.measure([_narrowed(wide.setting, dim) for dim in _dims(sweep, wide.dim, max_bytes)]))
    if max_bytes:
        choice = _within(choice, [*measured, *narrower], max_bytes)
    elif any(sweep.dims):
        asked = [*narrower, wide] if {0, wide.dim} & set(sweep.dims) else narrower
        choice = choice.instead(
            max(asked, key=lambda one: one.score), "it scored highest with the dimensions asked for"
        )
    return Tuned(choice, measured, narrower)


def tuned_recipe(setting: Setting, subject: Target, weight: WeightChoice | None = None) -> BuildConfig:
    """The subject's recipe with another setting, and another weight of the vectors in hybrids.

    `pooling = "auto"` stays where it is what the setting does; else what it stood for is written out.
    """
    encoder, identity = subject.config.encoder, subject.spec.identity
    if setting.pooling != subject.own.pooling and encoder.pooling == "auto":
        names = ("max_length", "query_prefix", "document_prefix")
        encoder = dataclasses.replace(encoder, **{name: getattr(identity, name) for name in names})
    if setting.pooling != subject.own.pooling:
        encoder = dataclasses.replace(encoder, pooling=setting.pooling)
    encoder = dataclasses.replace(encoder, layers=setting.layers or encoder.layers)  # a table has none
    if subject.spec.local and not Path(encoder.model).is_dir():  # it has moved since the index was built
        encoder = dataclasses.replace(encoder, model=subject.spec.folder)
    hybrid = subject.config.hybrid
    if weight is not None:
        hybrid = dataclasses.replace(hybrid, weight=weight.weight)
    return dataclasses.replace(subject.config, encoder=encoder, whitening=setting.whitening, hybrid=hybrid)


def with_raw(settings: Sequence[Setting]) -> list[Setting]:
    """The settings, and raw embeddings of each pooling and average of layers: SIF's control still loses a direction."""
    found = list(settings)
    for key in state_keys(settings):
        own = [setting for setting in settings if setting.key == key]
        if not any(setting.raw for setting in own):
            raw = dataclasses.replace(own[0].whitening, strength="none", dim=0, shrinkage=0.0, centre="none", remove=0)
            found.append(dataclasses.replace(own[0], whitening=raw))
    return found


def full_sweep(sweep: Sweep) -> Sweep:
    """A sweep with the defaults where it says nothing, and with raw and strength 0, the controls, in any case.

    Raises ConfigError for another kind of transform than whitening: it has no strengths to choose from.
    """
    if set(sweep.kinds) - {"whitening"}:
        raise ConfigError("tune chooses settings of a whitening; leave out --transform, or compare with evaluate.")
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


def _is_narrowed(sweep: Sweep) -> bool:
    """Whether some of the settings are ruled out."""
    return bool(sweep.strengths or sweep.centres or sweep.shrinkages)


def _own(subject: Target, tried: Sequence[Setting]) -> list[Setting]:
    """The recipe's setting, where it is a whitening of embeddings that are made in any case, in all its dimensions."""
    own = subject.own
    comparable = own.whitening.kind == "whitening" and not own.whitening.dim
    return [own] if comparable and own.key in {one.key for one in tried} else []


def _dims(sweep: Sweep, dim: int, max_bytes: int) -> list[int]:
    if unusable := [value for value in sweep.dims if not 0 <= value <= dim]:
        raise ConfigError(f"--dim {unusable[0]}; expected 0 (all) to {dim}, the dimensions there are.")
    asked = sweep.dims or tuple(round(share * dim / 8) * 8 for share in _KEPT_SHARES)
    if max_bytes:
        asked = (*asked, max_bytes // 4)
    return sorted({value for value in asked if 0 < value < dim}, reverse=True)


def _narrowed(setting: Setting, dim: int) -> Setting:
    return dataclasses.replace(setting, whitening=dataclasses.replace(setting.whitening, dim=dim))


def _within(choice: Choice, measured: Sequence[MeasuredSetting], max_bytes: int) -> Choice:
    if choice.taken.bytes <= max_bytes:
        return choice
    fitting = [one for one in measured if one.bytes <= max_bytes]
    if not fitting:
        raise ConfigError(f"--max-bytes {max_bytes} leaves no dimension; a dimension takes 4 bytes.")
    reason = f"it scored highest in at most {max_bytes:,} bytes a vector (raw embeddings take {choice.raw.bytes:,})"
    return choice.instead(max(fitting, key=lambda one: one.score), reason)


@dataclass(frozen=True)
class TuneOptions:
    """What is tuned: what for, by what, and the corpus; none for an index."""

    sources: tuple[str, ...] = ()
    objective: Objective = "retrieval"
    sample: int = 1500
    beir: Path | None = None  # the folder of judged queries
    split: str = "test"
    max_bytes: int = 0
    format: str = ""
    on_error: OnError = "fail"  # or "skip": rows of the corpus that cannot be documents
    rerank: RerankerChoice | None = None  # try reranking by it as well
    recipe_file: Path | None = None  # where the recipe will be written; the command then names it

    def __post_init__(self) -> None:
        if self.sample < LEAST_PAIRS:
            raise ConfigError(f"--sample is {self.sample}; expected at least {LEAST_PAIRS} documents.")
        if self.max_bytes < 0:
            raise ConfigError(f"--max-bytes is {self.max_bytes}; expected 0 (no limit) or more.")
        if self.beir and self.objective == "sts":
            raise ConfigError("--beir judges retrieval; leave out --objective sts.")
        if self.rerank is not None and self.objective == "sts":
            raise ConfigError("--rerank puts answers to questions in order; leave out --objective sts.")


def run_tune(
    subject: Subject,
    task: TuneOptions = TuneOptions(),
    sweep: Sweep = Sweep(),  # noqa: B008 - frozen
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """The result; added are "frontier", "choice" and "recipe".

    `cache` defaults to `default_cache()`. Raises ConfigError, CorpusError, EvaluationError, and what `Target` raises.
    """
    clock, subject = Clock(), Target.of(subject)
    if not subject.spec.traits.encodes_texts:
        raise ConfigError(
            f"{cannot_encode(subject.spec)} Tuning asks with texts. Settings can be compared on judged queries whose "
            "embeddings are at hand: isotrope evaluate retrieval BEIR_FOLDER --index INDEX --query-vectors FILE.npy "
            "--strength none --strength 0.25"
        )
    _require_one_corpus(task, subject)
    data = _data(task, subject)
    judge = _judge(task, subject, cache or _usable(default_cache()), progress or NoProgress())
    reranker = None if task.rerank is None else open_reranker(task.rerank, subject.config.rerank, subject.options)
    tuned = tune(judge, subject, sweep, task.max_bytes)
    protocol = {"objective": task.objective, **judge.protocol, "told": TOLD, "resamples": RESAMPLES, "level": LEVEL}
    about = how_built(subject.config, subject.index) | {"protocol": protocol}
    weight, why_not = _weight(judge, task, tuned.choice.taken.setting, subject)
    recipe, advice = tuned_recipe(tuned.choice.taken.setting, subject, weight), None
    if reranker is not None and task.rerank is not None:
        hits = judge.first_hits(tuned.choice.taken.setting)
        advice = advise(hits, reranker, str(judge.protocol["measure"]), judge.progress)
        recipe = advised_recipe(recipe, advice, task.rerank)

    def row(one: MeasuredSetting) -> dict[str, Any]:
        return tuned.result(one) | {"encoder": judge.source.fingerprint(one.setting.key)}

    return Result(
        "tune",
        clock.provenance(subject.spec, judge.data | data, **about),
        [row(one) for one in (*tuned.measured, *tuned.narrower)],
        None,
        [*judge.notes, *_fit_notes(tuned), *_centre_notes(tuned, judge.centre_margin), *why_not],
        {
            "hybrid": weight.to_dict() if weight else None,
            "rerank": advice.to_dict() if advice else None,
            "frontier": [row(one) for one in tuned.frontier],
            "choice": _choice(tuned, recipe, subject, task.recipe_file),
            "recipe": recipe.to_dict(),
        },
    )


def _weight(
    judge: Judge, task: TuneOptions, setting: Setting, subject: Target
) -> tuple[WeightChoice | None, list[str]]:
    """The weight for hybrids, if they are asked for and can be made, and why there is none."""
    config = subject.config.hybrid
    if task.objective != "retrieval":
        return None, []
    if config.fusion != "convex":
        return None, [f'no weight was chosen: the recipe fuses by "{config.fusion}", which has none']
    try:
        require_packages("hybrid")
    except MachineError as error:
        return None, [f"no weight was chosen for hybrids: {error}"]
    return chosen(judge.weigh(setting, weighed(config))), []


def write_recipe(path: Path, result: Mapping[str, Any], force: bool = False) -> None:
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


def _judge(task: TuneOptions, subject: Target, cache: Path | None, progress: Progress) -> Judge:
    if task.beir:
        return QrelsJudge(subject, task.beir, task.split, cache, progress, task.on_error)
    return UnlabelledJudge(subject, lambda: _documents(task, subject), task.objective, task.sample, cache, progress)


def _documents(task: TuneOptions, subject: Target) -> Iterable[Document]:
    if subject.index:
        return subject.index.documents.all_documents()
    return read_corpus(*task.sources, config=subject.config.corpus, format=task.format, on_error=task.on_error)


def _data(task: TuneOptions, subject: Target) -> dict[str, str]:
    """Hashes of the files that were read, the user's queries among them."""
    queries = query_file_sha256(subject.config.whitening.query_sample, "whitening.query_sample")
    found = {subject.config.whitening.query_sample: queries} if queries else {}
    if subject.index or task.beir:  # then the judge names its files
        return found
    files, _ = find_sources(task.sources, task.format)
    return found | source_hashes(files)


def _require_one_corpus(task: TuneOptions, subject: Target) -> None:
    """Judgements are for one corpus: the BEIR folder's own, or an index."""
    if task.beir and not subject.index and [Path(source).resolve() for source in task.sources] != [task.beir.resolve()]:
        raise ConfigError(
            f"--beir {task.beir} judges that folder's own corpus; name the folder itself, or an index of it, instead "
            f"of {', '.join(task.sources)}."
        )


def _fit_notes(tuned: Tuned) -> list[str]:
    """What fits could not do as asked, each once; what was taken speaks for all that say the same."""
    notes = (f"while tuning: {one.note}" for one in (tuned.choice.taken, *tuned.measured) if one.note)
    return list(dict.fromkeys(notes))


def _centre_notes(tuned: Tuned, margin: float) -> list[str]:
    """That a setting with another centre scored higher, but not by the margin."""
    best, candidates = max(tuned.measured, key=lambda one: one.score), tuned.choice.candidates
    if any(one is best for one in candidates):
        return []
    return [
        f"{best.setting.label} scored highest ({100 * best.score:.2f}), but its centre is not the recipe's. Drawn "
        f"questions favour some centres, so another one is taken only if its gain is surely above {100 * margin:g}. "
        "To decide, judge some queries and pass them with --beir."
    ]


def _choice(tuned: Tuned, recipe: BuildConfig, subject: Target, file: Path | None) -> dict[str, Any]:
    choice, enough = tuned.choice, tuned.enough
    return {
        "setting": choice.taken.setting.label,
        "reason": choice.reason,
        "value": choice.taken.score,
        "tied": len(choice.tied),
        "best": {"setting": choice.best.setting.label, "value": choice.best.score},
        "raw": {"setting": choice.raw.setting.label, "value": choice.raw.score},
        "gain": choice.gain.to_dict(),
        "over_present": choice.beyond(choice.own, choice.taken).to_dict() if choice.own else None,
        "enough": _enough(enough, choice.taken) if enough else None,
        "command": _command(tuned, recipe, subject, file),
    }


def _enough(enough: MeasuredSetting, taken: MeasuredSetting) -> dict[str, Any]:
    """`strength` is null where it is that of what was taken."""
    strength = enough.setting.whitening.strength
    other = None if strength == taken.setting.whitening.strength else strength
    return {"dim": enough.dim, "bytes": enough.bytes, "value": enough.score, "strength": other}


def _command(tuned: Tuned, recipe: BuildConfig, subject: Target, file: Path | None) -> str:
    """What makes use of the recipe: a refit, or a build where texts must be encoded in another way."""
    verb, base = "isotrope build CORPUS INDEX", BuildConfig()
    if subject.index is not None and tuned.choice.taken.setting.key == subject.own.key:
        verb, base = f"isotrope refit {shlex.quote(str(subject.index.path))}", subject.config
        recipe = dataclasses.replace(recipe, encoder=base.encoder)  # a model that has moved is no change
    elif subject.index is not None:
        verb = "isotrope build CORPUS NEW_INDEX"
    return " ".join([verb, *([f"--config {shlex.quote(str(file))}"] if file else _options(recipe, base))])


def _options(recipe: BuildConfig, base: BuildConfig) -> list[str]:
    """What makes one recipe of another, on the command line; the whitening in any case, to be read."""
    ours, defaults = recipe.to_dict(), base.to_dict()
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
