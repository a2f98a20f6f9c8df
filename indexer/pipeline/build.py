"""`build_index`: ingest -> encode -> fit -> index -> publish, each step leaving only whole files behind."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from indexer import ann
from indexer.config import BuildConfig, RunOptions
from indexer.corpus import Corpus
from indexer.corpus.corpus import validated_documents
from indexer.corpus.document import Document
from indexer.corpus.query_file import query_file_sha256
from indexer.encoders import resolve_spec
from indexer.encoders.chunker import DocumentChunker
from indexer.errors import ConfigError, CorruptIndexError, StoreError
from indexer.pipeline.changes import other_inputs, require_same_recipe
from indexer.pipeline.context import BuildContext
from indexer.pipeline.encode import EncodedPart, encode_parts
from indexer.pipeline.encoder_state import (
    EncoderSource,
    adopt_state,
    fit_encoder,
    kept_state_note,
    require_fittable,
    require_same_state,
    unknown_note,
    with_kept_state,
)
from indexer.pipeline.fit import fit
from indexer.pipeline.ingest import Ingested, corpus_differs, ingest
from indexer.pipeline.publication import new_parts, next_generation, publish_generation, recipe_of_build
from indexer.pipeline.segment import write_segment_of
from indexer.pipeline.stored_transform import copy_transform, taken_transform, write_transform
from indexer.pipeline.sweep import sweep_after, sweep_before
from indexer.progress import NoProgress, Progress
from indexer.settings import named_path
from indexer.store import layout
from indexer.store.checked import check_sizes, damaged_files
from indexer.store.files import make_folder, writer_lock
from indexer.store.manifest import Manifest, list_generations, load_manifest


@dataclass(frozen=True)
class BuildReport:
    """What a build did. Counts of work are of this run; documents, rows and quality of the index."""

    index: Path
    generation: int
    up_to_date: bool
    documents: int
    rows: int
    dim: int
    parts_encoded: int = 0
    parts_kept: int = 0  # complete already: from an interrupted run or an earlier generation
    rows_encoded: int = 0
    rows_reused: int = 0  # embeddings found by their text in an earlier generation
    rows_given: int = 0  # embeddings that came with the corpus
    tokens: int = 0
    truncated: int = 0  # documents, or their windows, cut at the encoder's max_length
    retries: int = 0  # batches halved after running out of memory
    backend: str = ""  # what ran the encoder, such as "openvino, bf16"; empty when nothing was encoded
    notes: tuple[str, ...] = ()
    quality: dict[str, Any] = field(default_factory=dict)


def build_index(
    corpus: Iterable[Document],
    index: str | Path,
    config: BuildConfig | None = None,
    options: RunOptions | None = None,
    progress: Progress | None = None,
    transform_from: str | Path | None = None,
) -> BuildReport:
    """Build an index directory, or continue an interrupted build of it, or find it up to date.

    `transform_from` names an index whose transform (with its whitening settings, and for int8 its calibration) is
    taken over instead of fitting one; MismatchError if it was built with another encoder.

    Raises CorpusError for bad rows, ExistsError when a complete index of another recipe or corpus is in the way
    (unless `options.overwrite`), QualityError when a gate fails, LockedError, StoreError, ModelError and
    MachineError as their names say. Whatever was complete before an error or a kill is kept for the next run.
    """
    config, options, progress = config or BuildConfig(), options or RunOptions(), progress or NoProgress()
    index = named_path(index, "the index")
    if isinstance(corpus, Corpus) and corpus.config != config.corpus:
        raise ConfigError(
            "the corpus is read by other column rules than the recipe's; pass read_corpus(..., config=recipe.corpus)."
        )
    # What is wrong with the recipe shows now and not after hours of encoding.
    ann.check_factory(ann.factory_of(config.index.type), config.whitening.dim)
    spec, taken = resolve_spec(config.encoder), None
    if transform_from is not None:
        taken = taken_transform(Path(transform_from), spec)
        config = replace(config, whitening=taken.config.whitening)
    else:
        query_file_sha256(config.whitening.query_sample, "whitening.query_sample")
        require_fittable(spec)
    query_file_sha256(config.index.queries, "index.queries")
    _ = DocumentChunker(spec, config.chunk).chunker
    _require_index_folder(index)
    make_folder(index)
    with writer_lock(index):
        published = _published(index, options.overwrite)
        if taken:
            adopt_state(index, spec, taken, published)
        spec = with_kept_state(index, spec)
        build = BuildContext(index, config, spec, published, options.overwrite, taken.stored if taken else None)
        require_same_state(build)
        if published and not options.overwrite:
            check_sizes(index, published)
            require_same_recipe(build, published)
        sweep_before(index, spec.fingerprint)
        documents = corpus if isinstance(corpus, Corpus) else validated_documents(corpus, config.corpus)
        if published and published.deleted and not options.overwrite:
            gone = published.stored_documents - published.documents
            raise corpus_differs(build, f"{gone:,} of the documents it was built from were deleted or replaced since")
        ingested = ingest(documents, build, progress)
        if published and _same(ingested, published) and _nothing_to_do(build, published):
            return BuildReport(
                index,
                published.generation,
                True,
                published.documents,
                published.rows,
                published.transform["dim"],
            )
        fitted = fit_encoder(build, ingested.contents(index).population, options, progress)
        if build.spec.state and fitted.fingerprint != build.fingerprint:
            ingested = ingested.to_encode_anew()
        report = _produce(fitted, ingested, options, progress)
        notes = tuple(note for note in (kept_state_note(fitted), sweep_after(index)) if note)
        return replace(report, notes=(*report.notes, *notes))


def _produce(build: BuildContext, ingested: Ingested, options: RunOptions, progress: Progress) -> BuildReport:
    source = EncoderSource(build.config, options, build.spec)
    encoded = encode_parts(ingested.slots, build, source, options, progress)
    records = [slot.record or encoded[slot.name].record for slot in ingested.slots]
    contents = ingested.contents(build.index)
    generation = next_generation(build.index)
    index, config = build.index, build.config
    if build.taken:
        transform = copy_transform(index, generation, build.taken)
    else:
        transform = write_transform(index, generation, fit(contents.population, source, progress))
    known = source.get().notes if build.spec.traits.has_table else ()
    segment = write_segment_of(index, generation, contents, records, transform, config, source, options, progress)
    recipe, held = recipe_of_build(build, records[0].dim), new_parts(index, ingested.slots, records)
    manifest = publish_generation(
        index, generation, recipe, held, transform, [segment.entry(index)], None, segment.quality
    )
    return _report(build, manifest, encoded, (*known, *segment.filled.notes))


def _report(
    build: BuildContext, manifest: Manifest, encoded: dict[str, EncodedPart], notes: tuple[str, ...]
) -> BuildReport:
    reused, given = sum(part.reused for part in encoded.values()), sum(part.given for part in encoded.values())
    return BuildReport(
        index=build.index,
        generation=manifest.generation,
        up_to_date=False,
        documents=manifest.documents,
        rows=manifest.rows,
        dim=manifest.transform["dim"],
        parts_encoded=len(encoded),
        parts_kept=len(manifest.parts) - len(encoded),
        rows_encoded=sum(part.record.rows for part in encoded.values()) - reused - given,
        rows_reused=reused,
        rows_given=given,
        tokens=manifest.quality["tokens"],
        truncated=manifest.quality["truncated"],
        retries=sum(part.retries for part in encoded.values()),
        backend="; ".join(sorted({part.backend for part in encoded.values() if part.backend})),
        notes=tuple(note for note in (manifest.transform["note"], *unknown_note(manifest.quality), *notes) if note),
        quality=manifest.quality,
    )


def _published(index: Path, overwrite: bool) -> Manifest | None:
    """The newest generation, None if there is none; a damaged one only stands in the way of who does not overwrite."""
    if not list_generations(index):
        return None
    try:
        return load_manifest(index)
    except CorruptIndexError:
        if overwrite:
            return None
        raise


def _same(ingested: Ingested, published: Manifest) -> bool:
    return published.deleted is None and [slot.name for slot in ingested.slots] == [
        part.name for part in published.parts
    ]


def _nothing_to_do(build: BuildContext, published: Manifest) -> bool:
    """With `overwrite`, only an index of the same recipe whose every byte is right needs no new generation."""
    if not build.overwrite:
        return True
    same_recipe = BuildConfig.from_dict(published.config) == build.config and published.fingerprint == build.fingerprint
    return same_recipe and not any(other_inputs(build, published)) and not damaged_files(build.index, published)


def _require_index_folder(index: Path) -> None:
    """Refuse a path where anything is that is not part of an index."""
    try:
        names = {entry.name for entry in index.iterdir()} if index.is_dir() else set()
        if index.exists() and not index.is_dir():
            raise StoreError(f"{index}: is a file; expected a folder for the index, or a path where nothing is yet.")
    except OSError as error:
        raise StoreError(f"{index}: cannot be used: {error.strerror}.") from error
    if foreign := sorted(names - layout.TOP_LEVEL):
        raise StoreError(
            f"{index}: holds files that are not an index's ({', '.join(foreign[:3])}); nothing was changed. "
            "Give an empty or a new folder."
        )
