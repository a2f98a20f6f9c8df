"""`refit_index`: a new transform, or another kind of index, from the stored embeddings; no document is encoded."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from indexer import ann
from indexer.corpus.query_file import query_file_sha256
from indexer.errors import ConfigError
from indexer.models.cross_encoder_spec import with_recorded_hash
from indexer.pipeline.generation import Generation, open_generation
from indexer.pipeline.published_index import PublishedIndex
from indexer.pipeline.steps.fit import KnownQueryMean, fit
from indexer.pipeline.steps.index_encoder import LazyEncoder
from indexer.pipeline.steps.index_segment import write_segments
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import BuildConfig
from indexer.recipe.loading import named_path
from indexer.recipe.paper_methods import TRANSFORMS, current_name
from indexer.recipe.run_options import RunOptions
from indexer.store.integrity import verify_parts
from indexer.store.manifest import Manifest

FITTED = ("whitening", "index")  # sections of the recipe that need no encoding, and what is written anew
ASKED = ("hybrid", "rerank")  # those of how questions are answered: the recipe is published anew, and nothing else
CHANGEABLE = FITTED + ASKED
_ONLY = (
    f"refit changes {', '.join(CHANGEABLE[:-1])} and {CHANGEABLE[-1]} only; anything else needs the texts to be read "
    "or encoded again. Build at another path, or with --overwrite."
)
_OF_TRANSFORMS = {method.section for method in TRANSFORMS.values() if method.section}  # of [papers]
_HASHED = ("rerank.model", "rerank.max_length", "rerank.precision")  # settings that another hash goes with


@dataclass(frozen=True)
class RefitReport:
    """What a refit did."""

    index: Path
    generation: int
    documents: int
    rows: int
    dim: int
    notes: tuple[str, ...] = ()
    quality: dict[str, Any] = field(default_factory=dict)


def refit_index(
    index: str | Path,
    assignments: Sequence[str] = (),
    options: RunOptions | None = None,
    progress: Progress | None = None,
    model: str | Path | None = None,
    recipe: BuildConfig | None = None,
) -> RefitReport:
    """Fit the transform anew on the documents that are live now, and write their vectors anew.

    `recipe` replaces the `CHANGEABLE` sections, and must otherwise be the index's own; its `encoder.model` may be
    another place of the same model. `assignments` ("whitening.strength=0.5") then change settings of these sections;
    ConfigError for any other. Where only sections in `ASKED` change, vectors and segments stay as they are: a new
    recipe is published. The encoder is needed only for query-like texts, where those are not the ones the present
    transform knows. Raises CorruptIndexError for a damaged part, QualityError, ModelError, MismatchError, LockedError,
    StoreError and MachineError as `build_index`.
    """
    options, progress = options or RunOptions(), progress or NoProgress()
    with open_generation(named_path(index, "the index")) as generation:
        published, generation.model = generation.followed, model
        config = generation.config = changed_recipe(published.config, assignments, recipe)
        if recipe and not model and recipe.encoder.model != published.config.encoder.model:
            generation.model = recipe.encoder.model
            _ = generation.spec  # raises MismatchError for another model
        changed = {_section(one) for one in assignments} | _changed_sections(published.config, recipe)
        if changed and changed <= set(ASKED):
            generation.keep_everything()
            return _report(generation, generation.publish(published.manifest.quality))
        ann.check_factory(ann.factory_of(config.index.type), config.whitening.dim)
        query_file_sha256(config.whitening.query_sample, "whitening.query_sample")
        queries = config.index.queries
        if queries != published.config.index.queries or Path(queries).exists():  # else one that went is done without
            query_file_sha256(queries, "index.queries")
        verify_parts(generation.index, published.manifest, {part.name for part in published.manifest.parts})
        encoder, rows = LazyEncoder(config, options, lambda: generation.spec), published.rows()
        generation.keep_encoder()
        generation.keep_parts()
        generation.write_transform(fit(rows, encoder, progress, _known_query_mean(published)))
        written = write_segments(generation, rows, published.records(), encoder, options, progress)
        manifest = generation.publish(written.figures)
        return _report(generation, manifest, manifest.transform["note"], *written.notes)


def _report(generation: Generation, manifest: Manifest, *notes: str) -> RefitReport:
    """What was published; what no generation needs any longer is swept."""
    said = (*notes, generation.sweep())
    return RefitReport(
        index=generation.index,
        generation=manifest.generation,
        documents=manifest.documents,
        rows=manifest.rows,
        dim=manifest.transform["dim"],
        notes=tuple(note for note in said if note),
        quality=manifest.quality,
    )


def _section(assignment: str) -> str:
    """Return the section that an assignment changes; the one of the transform's paper counts as whitening."""
    name = current_name(assignment.partition("=")[0].strip())
    return "whitening" if any(name.startswith(f"papers.{one}.") for one in _OF_TRANSFORMS) else name.partition(".")[0]


def _changed_sections(config: BuildConfig, recipe: BuildConfig | None) -> set[str]:
    if recipe is None:
        return set()
    changed = {name for name in CHANGEABLE if getattr(recipe, name) != getattr(config, name)}
    return changed | ({"whitening"} if recipe.transform_settings() != config.transform_settings() else set())


def _with_sections_of(config: BuildConfig, recipe: BuildConfig) -> BuildConfig:
    """The index's recipe with the changeable sections of another. Raises ConfigError where the others differ."""
    ours, theirs = ({"papers": {}} | one.to_dict() for one in (config, recipe))
    for section in ours.keys() - set(CHANGEABLE):
        for key in ours[section].keys() | theirs[section].keys():
            here, there = theirs[section].get(key), ours[section].get(key)
            if here != there and (section, key) != ("encoder", "model") and key not in _OF_TRANSFORMS:
                raise ConfigError(
                    f"--config: {section}.{key} is {here!r} in the recipe and {there!r} in the index; {_ONLY}"
                )
    return replace(config, papers=recipe.papers, **{name: getattr(recipe, name) for name in CHANGEABLE})


def changed_recipe(config: BuildConfig, assignments: Sequence[str], recipe: BuildConfig | None = None) -> BuildConfig:
    """The recipe with some settings changed. Raises ConfigError for one that vectors or texts depend on.

    A cross-encoder that is named has its hash recorded: raises as `resolve_cross_encoder` does.
    """
    for assignment in assignments:
        if _section(assignment) not in CHANGEABLE:
            raise ConfigError(f'--set "{assignment}": {_ONLY}')
    is_same_reranker = recipe is None or recipe.rerank == config.rerank
    if recipe is not None:
        config = _with_sections_of(config, recipe)
    named = {assignment.partition("=")[0].strip() for assignment in assignments}
    if named.isdisjoint(_HASHED):
        changed = config.with_overrides(assignments)
        return changed if is_same_reranker else with_recorded_hash(changed)
    return with_recorded_hash(config.with_overrides(['rerank.sha256=""', *assignments]))


def _known_query_mean(published: PublishedIndex) -> KnownQueryMean | None:
    """The mean of query-like texts that the present transform holds, if it does."""
    texts, stored = published.manifest.transform["query_texts"], published.transform
    if stored.query_mean is None or "texts_sha256" not in texts or texts["source"] == "none":
        return None
    return KnownQueryMean(texts["texts_sha256"], stored.query_mean)
