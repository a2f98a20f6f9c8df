"""`build_index`: ingest -> encode -> fit -> index -> publish, each step leaving only whole files behind."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from indexer import ann
from indexer.corpus.corpus import Corpus, validated_documents
from indexer.corpus.document import Document
from indexer.corpus.query_file import query_file_sha256
from indexer.encoders.chunker import DocumentChunker
from indexer.encoders.fitted_state import load_fitted_state
from indexer.errors import ConfigError, ExistsError
from indexer.models.cross_encoder_spec import with_recorded_hash
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.resolution import resolve_spec, spec_difference
from indexer.pipeline.generation import Generation, open_generation
from indexer.pipeline.published_index import PublishedIndex
from indexer.pipeline.steps.encode import EncodedParts, encode_parts
from indexer.pipeline.steps.fit import fit
from indexer.pipeline.steps.index_encoder import (
    LazyEncoder,
    finished_encoder,
    require_finished,
    require_same_encoder,
    state_files,
    unknown_note,
)
from indexer.pipeline.steps.index_segment import write_segments
from indexer.pipeline.steps.ingest import Ingested, corpus_differs, ingest
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import BuildConfig
from indexer.recipe.loading import named_path
from indexer.recipe.run_options import RunOptions
from indexer.store.integrity import damaged_files
from indexer.store.manifest import Manifest, load_manifest
from indexer.transforms import Whitening


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

    `transform_from` names an index whose transform (with its whitening settings, and the state its encoder was fitted
    with) is reused instead of fitting one; MismatchError if it was built with another encoder.

    An encoder that is fitted to a corpus (int8, pooling "sif" or "latte-mix") must be finished: `encoder.fitted` names
    a folder that `train_encoder` wrote. Else ConfigError.

    Raises CorpusError for bad rows, ExistsError when a complete index of another recipe or corpus is in the way
    (unless `options.overwrite`), QualityError when a gate fails, LockedError, StoreError, ModelError and
    MachineError as their names say. Whatever was complete before an error or a kill is kept for the next run.
    """
    options, progress = options or RunOptions(), progress or NoProgress()
    with ingested_corpus(corpus, index, config or BuildConfig(), options, progress, transform_from) as begun:
        generation, ingested = begun
        if is_up_to_date(generation, ingested):
            return _up_to_date(generation.followed)
        return _encode_and_publish(generation, ingested, options, progress)


@contextmanager
def ingested_corpus(
    corpus: Iterable[Document],
    index: str | Path,
    config: BuildConfig,
    options: RunOptions,
    progress: Progress,
    transform_from: str | Path | None = None,
) -> Iterator[tuple[Generation, Ingested]]:
    """The next generation of an index, with the corpus read and its documents written; raises as `build_index`."""
    index = named_path(index, "the index")
    spec, donor = check_recipe(corpus, config, reuses_transform=transform_from is not None), None
    config = with_recorded_hash(config)
    if transform_from is not None:
        donor = _donor(named_path(transform_from, "the index whose transform is taken over"), spec)
        config = replace(config, whitening=donor.config.whitening)
    with open_generation(index, options.overwrite, create=True) as generation:
        generation.config, generation.donor = config, donor
        generation.set_spec(finished_encoder(generation, spec))
        if generation.continues:
            require_same_recipe(generation)
        require_finished(generation.spec)
        generation.sweep_before(generation.spec.fingerprint)
        documents = corpus if isinstance(corpus, Corpus) else validated_documents(corpus, config.corpus)
        yield generation, ingest(documents, generation, progress)


def check_recipe(corpus: Iterable[Document], config: BuildConfig, reuses_transform: bool = False) -> EncoderSpec:
    """Return the encoder of a recipe, before it is fitted. Raises what is wrong with the recipe, before a corpus is
    read."""
    if isinstance(corpus, Corpus) and corpus.config != config.corpus:
        raise ConfigError(
            "the corpus is read by other column rules than the recipe's; pass read_corpus(..., config=recipe.corpus)."
        )
    ann.check_factory(ann.factory_of(config.index.type), config.whitening.dim)
    spec = resolve_spec(config)
    if spec.trained and not reuses_transform:
        load_fitted_state(spec)
    if not reuses_transform:
        query_file_sha256(config.whitening.query_sample, "whitening.query_sample")
    query_file_sha256(config.index.queries, "index.queries")
    _ = DocumentChunker(spec, config.chunk).chunker
    return spec


def _donor(index: Path, spec: EncoderSpec) -> PublishedIndex:
    """Another index, whose transform is to be taken over. Raises MismatchError, and what reading it raises."""
    donor = PublishedIndex(index, load_manifest(index))
    require_same_encoder(donor, spec)
    _ = donor.transform
    return donor


def _encode_and_publish(
    generation: Generation, ingested: Ingested, options: RunOptions, progress: Progress
) -> BuildReport:
    encoder = LazyEncoder(generation.config, options, generation.spec)
    encoded = encode_parts(ingested.parts, generation, encoder, options, progress)
    rows = ingested.rows(generation.index, encoded.live)
    if generation.donor:
        generation.copy_transform(generation.donor)
    else:
        generation.write_transform(fit(rows, encoder, progress))
    notes = encoder.get().notes if generation.spec.traits.has_table else ()
    written = write_segments(generation, rows, encoded.records, encoder, options, progress)
    generation.set_encoder(encoded.records[0].dim, state_files(generation.index, generation.spec))
    manifest = generation.publish(written.figures)
    left = (generation.sweep(),)
    about = (manifest.transform["note"], _whitened_note(generation), *encoded.notes, *unknown_note(manifest.quality))
    notes = (*about, *notes, *written.notes, *left)
    return _report(generation.index, manifest, encoded, tuple(note for note in notes if note))


def _whitened_note(generation: Generation) -> str:
    """That vectors which came with the corpus are indexed whitened, and how to index them unchanged."""
    strength = generation.config.whitening.strength
    if generation.spec.traits.encodes_texts or strength == "none" or not isinstance(generation.transform, Whitening):
        return ""
    return (
        f"the vectors of the corpus are indexed whitened (whitening.strength={strength:g}). To index them as they are, "
        "only scaled to unit length, pass --set whitening.strength=none"
    )


def _report(index: Path, manifest: Manifest, encoded: EncodedParts, notes: tuple[str, ...]) -> BuildReport:
    return BuildReport(
        index=index,
        generation=manifest.generation,
        up_to_date=False,
        documents=manifest.documents,
        rows=manifest.rows,
        dim=manifest.transform["dim"],
        parts_encoded=len(encoded.encoded),
        parts_kept=len(manifest.parts) - len(encoded.encoded),
        rows_encoded=encoded.fresh,
        rows_reused=encoded.reused,
        rows_given=encoded.given,
        tokens=manifest.quality["tokens"],
        truncated=manifest.quality["truncated"],
        retries=encoded.retries,
        backend=encoded.backend,
        notes=notes,
        quality=manifest.quality,
    )


def _up_to_date(published: PublishedIndex) -> BuildReport:
    manifest = published.manifest
    return BuildReport(
        published.index, manifest.generation, True, manifest.documents, manifest.rows, manifest.transform["dim"]
    )


def is_up_to_date(generation: Generation, ingested: Ingested) -> bool:
    """With `overwrite`, only an index of the same recipe whose every byte is right needs no new generation."""
    published = generation.published
    if published is None:
        return False
    manifest = published.manifest
    if [part.name for part in ingested.parts] != [part.name for part in manifest.parts]:
        return False
    if manifest.stored_documents - manifest.documents != count_set_aside(published):
        return False
    if generation.continues:
        return True
    same_recipe = published.config == generation.config and manifest.fingerprint == generation.spec.fingerprint
    return same_recipe and not any(_input_differences(generation)) and not damaged_files(generation.index, manifest)


def require_same_recipe(generation: Generation) -> None:
    """Raises ExistsError naming every difference of what is published, and the ways out."""
    published = generation.followed.manifest
    differences = list(_recipe_differences(generation))
    if differences:
        raise ExistsError(
            f"{generation.index}: holds a complete index of another recipe: {'; '.join(differences)}. "
            "Pass --overwrite to publish this one as its next generation, or build at another path."
        )
    gone = published.stored_documents - published.documents - count_set_aside(generation.followed)
    if gone:
        raise corpus_differs(generation, f"{gone:,} of the documents it was built from were deleted or replaced since")


def count_set_aside(published: PublishedIndex) -> int:
    """Documents of an index that were never live, since the encoder died of them."""
    if published.manifest.deleted is None:
        return 0
    return sum(len(record.set_aside) for record in published.records())


def _recipe_differences(generation: Generation) -> Iterator[str]:
    """Every setting, and the encoder or the inputs, in which what is published is not what is being built."""
    wanted, there = generation.config.to_dict(), generation.followed.config.to_dict()
    papers = [config.transform_settings() for config in (generation.followed.config, generation.config)]
    if papers[0] != papers[1]:
        yield f"the transform's settings are {_shown(papers[0])} there and {_shown(papers[1])} here"
    for section, settings in wanted.items():
        if section in ("encoder", "papers"):
            continue  # compared by fingerprint: the same model under another name is the same encoder
        for key, value in settings.items():
            found = there[section][key]
            if _meaning(section, key, found) != _meaning(section, key, value):
                yield f"{section}.{key} is {_shown(found)} there and {_shown(value)} here"
    published = generation.followed.manifest
    if published.fingerprint != generation.spec.fingerprint:
        yield spec_difference(published.encoder["identity"], generation.spec)
    else:
        yield from _input_differences(generation)


def _input_differences(generation: Generation) -> Iterator[str]:
    """What a generation was made of beside recipe and corpus, where it is not what is at hand."""
    published, config = generation.followed.manifest, generation.config
    taken = generation.donor.transform_digest.sha256 if generation.donor else ""
    if published.transform.get("taken_from", "") != taken:
        yield "its transform was fitted there and is another index's here, or the other way round"
    elif not taken and published.transform["query_texts"].get("sha256", "") != query_file_sha256(
        config.whitening.query_sample, "whitening.query_sample"
    ):
        yield "the queries in whitening.query_sample have changed"
    measured = published.measured.index
    if (measured.queries_sha256 if measured else "") != query_file_sha256(config.index.queries, "index.queries"):
        yield "the queries in index.queries have changed"


def _meaning(section: str, key: str, value: Any) -> Any:
    """Settings that are written in several ways, as what they mean."""
    if (section, key) == ("index", "type"):
        return ann.factory_of(value)
    return bool(value) if key in ("query_sample", "vector_column") else value  # contents are compared by hash


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
