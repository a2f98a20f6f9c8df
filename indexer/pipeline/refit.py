"""`refit_index`: fit a new transform or build another kind of index from the stored embeddings."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from indexer import ann
from indexer.corpus.query_file import query_file_sha256
from indexer.errors import ConfigError, as_argument, spelled
from indexer.models.cross_encoder_spec import with_recorded_hash
from indexer.models.query_encoder_spec import require_no_query_encoder, with_recorded_query_encoder
from indexer.pipeline.generation import Generation, open_generation
from indexer.pipeline.steps.build_encoder import LazyEncoder
from indexer.pipeline.steps.fit import fit, known_query_mean
from indexer.pipeline.steps.index_segment import write_segments
from indexer.pipeline.steps.kept_recall import begin_again
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import BuildConfig, EncoderConfig, changed_settings, shown, without_auto
from indexer.recipe.earlier_names import current_name
from indexer.recipe.loading import named_path
from indexer.recipe.paper_methods import TRANSFORMS
from indexer.recipe.run_options import RunOptions
from indexer.store.integrity import verify_parts
from indexer.store.manifest import Manifest
from indexer.typed_arguments import checked

FITTED = ("whitening", "index")  # recipe sections that change vectors or segments, and need no encoding
RANKING = ("queries", "hybrid", "rerank")  # recipe sections that only change how queries are answered
CHANGEABLE = FITTED + RANKING
_OF_TRANSFORMS = {method.section for method in TRANSFORMS.values() if method.section}  # sections of [papers]
_OF_MODELS = ("pooling", "max_length", "query_prompt", "document_prompt", "model_settings")
_HASHED = ("rerank.model", "rerank.max_length", "rerank.precision")  # settings that change rerank.sha256


@dataclass(frozen=True)
class RefitReport:
    """Result of a refit."""

    index: Path
    generation: int
    documents: int
    rows: int
    dim: int
    notes: tuple[str, ...] = ()
    quality: dict[str, Any] = field(default_factory=dict)
    changed: tuple[str, ...] = ()  # settings, such as "whitening.strength 0.25 -> 0.5"


@checked
def refit_index(
    index: str | Path,
    assignments: Sequence[str] = (),
    options: RunOptions | None = None,
    progress: Progress | None = None,
    model: str | Path | None = None,
    recipe: BuildConfig | None = None,
) -> RefitReport:
    """Fit the transform again on the live documents, and rewrite their vectors.

    `recipe` replaces the `CHANGEABLE` sections and must otherwise equal the index's recipe; its `encoder.model` may be
    another location of the same model. `assignments` ("whitening.strength=0.5") then change settings of these sections;
    any other raises ConfigError. If only sections in `RANKING` change, vectors and segments stay and only the recipe is
    published. The encoder is needed only for query-like texts whose mean the current transform lacks.

    Raises CorruptIndexError for a damaged part, QualityError, ModelError, MismatchError, LockedError, StoreError and
    MachineError as `build_index`.
    """
    options, progress = options or RunOptions(), progress or NoProgress()
    with open_generation(named_path(index, "the index")) as generation:
        published, generation.model = generation.previous, model
        recipe = recipe and without_auto(recipe, asdict(published.config.hybrid))
        config = generation.config = changed_recipe(published.config, assignments, recipe)
        if recipe and not model and recipe.encoder.location != published.config.encoder.location:
            generation.model = recipe.encoder.location
            _ = generation.spec  # raises MismatchError for another model
        changed = {*map(_section, assignments)} | _changed_sections(published.config, recipe)
        if changed and changed <= set(RANKING):
            if "queries" in changed:
                generation.config = with_recorded_query_encoder(config, published.manifest)
            generation.keep_everything()
            return _report(generation, generation.publish(published.manifest.quality))
        require_no_query_encoder(config)
        ann.check_factory(ann.factory_of(config.index.type), config.whitening.dim)
        query_file_sha256(config.whitening.query_sample, "whitening.query_sample")
        queries = config.index.queries
        if queries != published.config.index.queries or Path(queries).exists():  # a file that was removed is not used
            query_file_sha256(queries, "index.queries")
        verify_parts(generation.index, published.manifest, {part.name for part in published.manifest.parts})
        encoder, rows = LazyEncoder(config, options, lambda: generation.spec), published.rows()
        generation.keep_encoder()
        generation.keep_parts()
        generation.write_transform(fit(rows, encoder, progress, known_query_mean(published)))
        written = write_segments(generation, rows, published.records(), encoder, options, progress)
        kept = begin_again(generation, rows, written.figures, options, progress, encoder.encode_queries)
        manifest = generation.publish(kept.figures)
        return _report(generation, manifest, manifest.transform["note"], *written.notes, kept.note)


def _report(generation: Generation, manifest: Manifest, *notes: str) -> RefitReport:
    return RefitReport(
        index=generation.index,
        generation=manifest.generation,
        documents=manifest.documents,
        rows=manifest.rows,
        dim=manifest.transform["dim"],
        notes=tuple(filter(None, (*notes, generation.sweep()))),
        quality=manifest.quality,
        changed=changed_settings(generation.previous.config, generation.config, CHANGEABLE),
    )


def _section(assignment: str) -> str:
    """Return the section that an assignment changes; settings of a transform's paper count as whitening."""
    section, _, rest = current_name(assignment.partition("=")[0].strip()).partition(".")
    return "whitening" if section == "papers" and rest.partition(".")[0] in _OF_TRANSFORMS else section


def _changed_sections(config: BuildConfig, recipe: BuildConfig | None) -> set[str]:
    if recipe is None:
        return set()
    changed = {name for name in CHANGEABLE if getattr(recipe, name) != getattr(config, name)}
    return changed | ({"whitening"} if recipe.transform_settings() != config.transform_settings() else set())


def _with_sections_of(config: BuildConfig, recipe: BuildConfig) -> BuildConfig:
    """Return the index's recipe with the changeable sections of `recipe`. Raises ConfigError if others differ."""
    ours, theirs = ({"papers": {}} | each.to_dict() for each in (config, recipe))
    places = "url" if config.encoder.traits.is_remote else "model"  # where the same model is
    for section in ours.keys() - set(CHANGEABLE):
        for key in ours[section].keys() | theirs[section].keys():
            here, there = theirs[section].get(key), ours[section].get(key)
            is_open = _is_open(section, key, here) or (section == "encoder" and key == places)
            if here != there and not is_open and key not in _OF_TRANSFORMS:
                raise ConfigError(
                    f"{spelled('recipe', '--config')}: {section}.{key} is {here!r} in the recipe and {there!r} in the "
                    f"index; {_only()}"
                )
    return replace(config, papers=recipe.papers, **{name: getattr(recipe, name) for name in CHANGEABLE})


def _only() -> str:
    return (
        f"refit changes {', '.join(CHANGEABLE[:-1])} and {CHANGEABLE[-1]} only; other settings need the texts to be "
        f"read or encoded again. Fix: build at another path, or with {as_argument('overwrite', True, 'RunOptions')}."
    )


def _is_open(section: str, key: str, value: object) -> bool:
    """Return whether a recipe leaves a setting of the model's folder to the index."""
    return section == "encoder" and key in _OF_MODELS and value == getattr(EncoderConfig, key)


def changed_recipe(config: BuildConfig, assignments: Sequence[str], recipe: BuildConfig | None = None) -> BuildConfig:
    """Return the recipe with some settings changed. Raises ConfigError for a setting that refit cannot change.

    Records the hash of a named cross-encoder, and raises as `resolve_cross_encoder` does.
    """
    for assignment in assignments:
        if _section(assignment) not in CHANGEABLE:
            raise ConfigError(f"{shown(assignment)}: {_only()}")
    is_same_reranker = recipe is None or recipe.rerank == config.rerank
    if recipe is not None:
        config = _with_sections_of(config, recipe)
    named = {assignment.partition("=")[0].strip() for assignment in assignments}
    if named.isdisjoint(_HASHED):
        changed = without_auto(config.with_overrides(assignments), asdict(config.hybrid))
        return changed if is_same_reranker else with_recorded_hash(changed)
    changed = without_auto(config.with_overrides(['rerank.sha256=""', *assignments]), asdict(config.hybrid))
    return with_recorded_hash(changed)
