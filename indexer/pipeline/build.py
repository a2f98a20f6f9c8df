"""`build_index`: ingest -> encode -> fit -> index -> publish, each step leaving only whole files behind."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from indexer import ann
from indexer.config import BuildConfig, RunOptions
from indexer.corpus import Corpus
from indexer.corpus.document import Document
from indexer.corpus.given import checked_documents
from indexer.corpus.schema import describe, merge_schemas, parse
from indexer.encoders import resolve_spec
from indexer.errors import ConfigError, CorruptIndexError, QualityError, StoreError
from indexer.pipeline.changes import require_same_recipe
from indexer.pipeline.context import BuildContext
from indexer.pipeline.encode import EncodedPart, EncoderSource, encode_parts
from indexer.pipeline.fit import Fitted, fit, query_sample_hash
from indexer.pipeline.fitted_encoder import fit_encoder, require_fittable, state_files, with_kept_state
from indexer.pipeline.index import Filled, fill_index, judge
from indexer.pipeline.ingest import Ingested, ingest
from indexer.pipeline.progress import Progress, Silent
from indexer.pipeline.sweep import sweep_after, sweep_before
from indexer.store import layout, parts
from indexer.store.files import FileStamp, make_folder, remove_file, stamp_file, write_bytes
from indexer.store.lock import writer_lock
from indexer.store.manifest import ENCODER_STATE, Manifest, PartEntry, SegmentEntry, generations, load_manifest, publish
from indexer.store.verify import check_sizes, damaged_files
from indexer.transforms import dump_transform
from indexer.versions import library_versions

_MOST_THREADS = 4  # that transform and judge parts: each holds one


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
    tokens: int = 0
    truncated: int = 0  # documents cut at the encoder's max_length
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
) -> BuildReport:
    """Build an index directory, or continue an interrupted build of it, or find it up to date.

    Raises CorpusError for bad rows, ExistsError when a complete index of another recipe or corpus is in the way
    (unless `options.overwrite`), QualityError when a gate fails, LockedError, StoreError, ModelError and
    MachineError as their names say. Whatever was complete before an error or a kill is kept for the next run.
    """
    config, options, progress = config or BuildConfig(), options or RunOptions(), progress or Silent()
    index = Path(index)
    if isinstance(corpus, Corpus) and corpus.config != config.corpus:
        raise ConfigError(
            "the corpus is read by other column rules than the recipe's; pass read_corpus(..., config=recipe.corpus)."
        )
    # What is wrong with the recipe shows now and not after hours of encoding.
    ann.require_factory(ann.factory_of(config.index.type), config.whitening.dim)
    query_sample_hash(config.whitening)
    spec = resolve_spec(config.encoder)
    require_fittable(spec)
    _require_index_folder(index)
    make_folder(index)
    with writer_lock(index):
        published = _published(index, options.overwrite)
        spec = with_kept_state(index, spec)
        build = BuildContext(index, config, spec, published, options.overwrite)
        if published and not options.overwrite:
            check_sizes(index, published)
            require_same_recipe(build, published)
        sweep_before(index, spec.fingerprint)
        documents = corpus if isinstance(corpus, Corpus) else checked_documents(corpus, config.corpus)
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
        report = _produce(fit_encoder(build, ingested, progress), ingested, options, progress)
        left = sweep_after(index)
        return replace(report, notes=(*report.notes, left)) if left else report


def _produce(build: BuildContext, ingested: Ingested, options: RunOptions, progress: Progress) -> BuildReport:
    source = EncoderSource(build.config, options, build.spec)
    encoded = encode_parts(ingested.slots, build, source, options, progress)
    records = [slot.record or encoded[slot.name].record for slot in ingested.slots]
    threads = min(options.threads or os.cpu_count() or 1, _MOST_THREADS)
    fitted = fit(build.index, ingested, source, progress)
    generation = (generations(build.index) or [0])[-1] + 1
    segment = build.index / layout.segment_name(generation, 0)
    make_folder(segment.parent)
    filled = fill_index(fitted, records, build.config, segment, threads, progress)
    try:
        quality = judge(filled, fitted, records, build.config, threads, progress)
    except QualityError:
        remove_file(segment)
        raise
    manifest = _manifest(build, generation, ingested, records, fitted, filled, quality)
    publish(build.index, manifest)
    return _report(build, manifest, encoded, fitted)


def _manifest(
    build: BuildContext,
    generation: int,
    ingested: Ingested,
    records: list[parts.PartRecord],
    fitted: Fitted,
    filled: Filled,
    quality: dict[str, Any],
) -> Manifest:
    """Write the transform, and put together the manifest that names every file."""
    transform, segment = layout.transform_name(generation), layout.segment_name(generation, 0)
    make_folder((build.index / transform).parent)
    files = _part_files(build.index, ingested, records)
    files[transform] = write_bytes(build.index / transform, dump_transform(fitted.transform))
    files[segment] = filled.stamp
    if build.spec.state:
        files |= state_files(build.index, build.spec)
    rows = sum(record.rows for record in records)
    return Manifest(
        generation=generation,
        config=build.config.to_dict(),
        encoder={
            "model": build.spec.model,
            # A hub id is looked up again by whoever opens the index; only a folder's place must be remembered.
            "folder": build.spec.folder if build.spec.local else "",
            "dim": records[0].dim,
            "identity": build.spec.identity,
        },
        fingerprint=build.spec.fingerprint,
        transform={"file": transform, "kind": fitted.transform.kind, "query_texts": fitted.query_texts}
        | fitted.transform.settings(),
        parts=tuple(
            PartEntry(slot.name, slot.documents, record.rows, slot.document_key, slot.embedding_key)
            for slot, record in zip(ingested.slots, records, strict=True)
        ),
        segments=(SegmentEntry(segment, 0, rows, filled.factory, filled.search_parameters),),
        files=files,
        features=(ENCODER_STATE,) if build.spec.state else (),
        schema=describe(merge_schemas([parse(record.schema) for record in records])),
        documents=sum(record.documents for record in records),
        rows=rows,
        quality=quality,
        versions=library_versions(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _part_files(index: Path, ingested: Ingested, records: list[parts.PartRecord]) -> dict[str, FileStamp]:
    files: dict[str, FileStamp] = {}
    for slot, record in zip(ingested.slots, records, strict=True):
        files |= {f"{slot.name}/{name}": stamp for name, stamp in record.files.items()}
        files[f"{slot.name}/{layout.PART}"] = stamp_file(index / slot.name / layout.PART)
    return files


def _report(build: BuildContext, manifest: Manifest, encoded: dict[str, EncodedPart], fitted: Fitted) -> BuildReport:
    reused = sum(part.reused for part in encoded.values())
    return BuildReport(
        index=build.index,
        generation=manifest.generation,
        up_to_date=False,
        documents=manifest.documents,
        rows=manifest.rows,
        dim=manifest.transform["dim"],
        parts_encoded=len(encoded),
        parts_kept=len(manifest.parts) - len(encoded),
        rows_encoded=sum(part.record.rows for part in encoded.values()) - reused,
        rows_reused=reused,
        tokens=manifest.quality["tokens"],
        truncated=manifest.quality["truncated"],
        retries=sum(part.retries for part in encoded.values()),
        backend="; ".join(sorted({part.backend for part in encoded.values() if part.backend})),
        notes=tuple(note for note in (manifest.transform["note"],) if note),
        quality=manifest.quality,
    )


def _published(index: Path, overwrite: bool) -> Manifest | None:
    """The newest generation, None if there is none; a damaged one only stands in the way of who does not overwrite."""
    if not generations(index):
        return None
    try:
        return load_manifest(index)
    except CorruptIndexError:
        if overwrite:
            return None
        raise


def _same(ingested: Ingested, published: Manifest) -> bool:
    return [slot.name for slot in ingested.slots] == [part.name for part in published.parts]


def _nothing_to_do(build: BuildContext, published: Manifest) -> bool:
    """With `overwrite`, only an index of the same recipe whose every byte is right needs no new generation."""
    if not build.overwrite:
        return True
    same_recipe = published.config == build.config.to_dict() and published.fingerprint == build.fingerprint
    same_queries = published.transform["query_texts"].get("sha256", "") == query_sample_hash(build.config.whitening)
    return same_recipe and same_queries and not damaged_files(build.index, published)


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
