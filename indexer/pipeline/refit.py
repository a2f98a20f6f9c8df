"""`refit_index`: a new transform, or another kind of index, from the stored embeddings; no document is encoded."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from indexer import ann
from indexer.config import BuildConfig, RunOptions
from indexer.corpus.query_file import query_file_sha256
from indexer.errors import ConfigError
from indexer.pipeline.change import Change, change
from indexer.pipeline.encoder_state import LateEncoder
from indexer.pipeline.fit import KnownQueries, fit
from indexer.pipeline.publication import next_generation, publish_generation, published_parts, published_recipe
from indexer.pipeline.rows import published_contents
from indexer.pipeline.segment import write_segment_of
from indexer.pipeline.stored_transform import published_transform, write_transform
from indexer.pipeline.sweep import sweep_after
from indexer.progress import NoProgress, Progress
from indexer.settings import named_path
from indexer.store.checked import verify_parts

CHANGEABLE = ("whitening", "index")  # sections of the recipe that need no encoding


@dataclass(frozen=True)
class RefitReport:
    """What a refit did."""

    index: Path
    generation: int
    up_to_date: bool
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
) -> RefitReport:
    """Fit the transform anew on the documents that are live now, and write their vectors as one segment.

    `assignments` ("whitening.strength=0.5") change settings of whitening and index; ConfigError for any other. The
    encoder is needed only for query-like texts, where those are not the ones the present transform knows. Raises
    CorruptIndexError for a damaged part, QualityError, ModelError, MismatchError, LockedError, StoreError and
    MachineError as `build_index`.
    """
    options, progress = options or RunOptions(), progress or NoProgress()
    with change(named_path(index, "the index")) as opened:
        config = changed_recipe(opened.config, assignments)
        ann.check_factory(ann.factory_of(config.index.type), config.whitening.dim)
        query_file_sha256(config.whitening.query_sample, "whitening.query_sample")
        query_file_sha256(config.index.queries, "index.queries")
        verify_parts(opened.index, opened.published, {part.name for part in opened.published.parts})
        source = LateEncoder(opened, config, options, model)
        records, generation = opened.records(), next_generation(opened.index)
        contents = published_contents(opened.index, opened.published)
        fitted = fit(contents.population, source, progress, _known_queries(opened))
        transform = write_transform(opened.index, generation, fitted)
        segment = write_segment_of(
            opened.index, generation, contents, records, transform, config, source, options, progress
        )
        manifest = publish_generation(
            opened.index,
            generation,
            published_recipe(opened.published, config),
            published_parts(opened.published),
            transform,
            [segment.entry(opened.index)],
            contents.live,
            segment.quality,
        )
        notes = (manifest.transform["note"], *segment.filled.notes, sweep_after(opened.index))
        return RefitReport(
            opened.index,
            manifest.generation,
            False,
            manifest.documents,
            manifest.rows,
            manifest.transform["dim"],
            tuple(note for note in notes if note),
            manifest.quality,
        )


def changed_recipe(config: BuildConfig, assignments: Sequence[str]) -> BuildConfig:
    """The recipe with some settings changed. Raises ConfigError for one that vectors or texts depend on."""
    for assignment in assignments:
        section = assignment.partition(".")[0].strip()
        if section not in CHANGEABLE:
            raise ConfigError(
                f'--set "{assignment}": refit changes {" and ".join(CHANGEABLE)} only; anything else needs the texts '
                "to be read or encoded again. Build at another path, or with --overwrite."
            )
    return config.with_overrides(assignments)


def _known_queries(opened: Change) -> KnownQueries | None:
    """The mean of query-like texts that the present transform holds, if it does."""
    texts = opened.published.transform["query_texts"]
    stored = published_transform(opened.index, opened.published).transform
    if stored.query_mean is None or "texts_sha256" not in texts or texts["source"] == "none":
        return None
    return KnownQueries(texts["texts_sha256"], stored.query_mean)
