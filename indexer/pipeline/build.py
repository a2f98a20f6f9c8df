"""`build_index`: ingest -> encode -> fit -> index -> publish. Each step leaves only complete files behind."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Unpack

from indexer import ann
from indexer.corpus.corpus import Corpus
from indexer.corpus.files.markup import kind_of
from indexer.corpus.query_file import query_file_sha256
from indexer.corpus.records import Records, documents_of, require_same_rules
from indexer.encoders.document_windows import DocumentChunker
from indexer.encoders.fitted_state import load_fitted_state
from indexer.errors import ExistsError, spelled
from indexer.models.cross_encoder_spec import with_recorded_hash
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.hub import DEMO_SHA256
from indexer.models.identity import identity_difference
from indexer.models.query_encoder_spec import require_no_query_encoder
from indexer.models.resolution import resolve_spec
from indexer.pipeline.build_inputs import BuildInputs, Recipe, build_inputs, recipe_of
from indexer.pipeline.generation import Generation, open_generation
from indexer.pipeline.published_index import PublishedIndex
from indexer.pipeline.steps.build_encoder import (
    LazyEncoder,
    finished_encoder,
    probed_encoder,
    require_finished,
    require_same_encoder,
    state_files,
    unknown_note,
)
from indexer.pipeline.steps.encode import EncodedParts, encode_parts
from indexer.pipeline.steps.fit import fit
from indexer.pipeline.steps.index_segment import write_segments
from indexer.pipeline.steps.ingest import Ingested, corpus_differs, ingest, replacing
from indexer.pipeline.steps.kept_recall import begin_again
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import BuildConfig, WhiteningConfig, without_auto
from indexer.recipe.loading import named_path
from indexer.recipe.ranking import OF_CODE, OF_ROWS
from indexer.recipe.run_options import RunOptions
from indexer.store.integrity import damaged_files
from indexer.store.manifest import Manifest, load_manifest
from indexer.transforms import fewest_rows
from indexer.typed_arguments import checked

_POTION = ("48003d10a1f686321e4e79f5f306fe1fcf1d2b883a90785c939563a506bb89be", "minishlab/potion-base-4M")
_MEASURED_AT = "https://isotrope.github.io/isotrope/benchmarks/#the-default-strength-with-other-models"
_MEASURED_ON = {
    WhiteningConfig(): frozenset({DEMO_SHA256["model.safetensors"]}),
    WhiteningConfig(strength=0.5, centre="none"): frozenset(_POTION),  # of `configs/static.toml`, by a table in int8
}
"""The whitening of a recipe -> sha256 of the weights, and hub ids, of the models that it was measured on."""


@dataclass(frozen=True)
class BuildReport:
    """Result of a build. `documents`, `rows`, `dim` and `quality` describe the index, the other counts this run."""

    index: Path
    generation: int
    up_to_date: bool
    documents: int
    rows: int
    dim: int
    parts_encoded: int = 0
    parts_kept: int = 0  # already complete: from an interrupted run or an earlier generation
    rows_encoded: int = 0
    rows_reused: int = 0  # embeddings found by their text in an earlier generation
    rows_given: int = 0  # embeddings that came with the corpus
    tokens: int = 0
    truncated: int = 0  # documents, or their windows, cut at the encoder's max_length
    retries: int = 0  # batches halved after running out of memory
    backend: str = ""  # of the encoder, such as "openvino, bf16"; empty if nothing was encoded
    untuned: bool = False  # the whitening is a recipe's default, which was measured on another model
    notes: tuple[str, ...] = ()
    quality: dict[str, Any] = field(default_factory=dict)


@checked
def build_index(
    corpus: Records,
    index: str | Path,
    config: Recipe | None = None,
    options: RunOptions | None = None,
    progress: Progress | None = None,
    **inputs: Unpack[BuildInputs],
) -> BuildReport:
    """Build an index directory, or continue an interrupted build, or report that the index is up to date.

    `corpus` is the result of `read_corpus`, the path of a file, an Arrow table, a pandas or polars frame, or an
    iterable of texts, dicts, `Document`s and such tables. `config` is the recipe, its file or its name. `inputs` are
    `BuildInputs`, such as `model="BAAI/bge-small-en-v1.5"` or `vectors=array`.

    `transform_from` names an index whose transform, whitening settings and fitted encoder state are reused; raises
    MismatchError if it was built with another encoder. An encoder that is fitted to a corpus (int8, pooling "sif" or
    "latte-mix") needs `encoder.fitted`, a folder that `train_encoder` wrote; ConfigError otherwise.

    Without documents the index is empty, and the first `add` builds it by its recipe; sources without documents raise
    CorpusError (see `read_corpus`).

    Raises CorpusError for bad rows, ExistsError if the path has a complete index of another recipe or corpus (unless
    `options.overwrite`), QualityError if a gate fails, LockedError, StoreError, ModelError and MachineError.
    Parts completed before an error or a kill are kept for the next run.
    """
    options, progress = options or RunOptions(), progress or NoProgress()
    given = build_inputs(inputs)
    begun = ingested_corpus(corpus, index, recipe_of(config, given), options, progress, given)
    with begun as (generation, ingested):
        if is_up_to_date(generation, ingested):
            manifest = generation.previous.manifest
            dim = manifest.transform["dim"]
            return BuildReport(generation.index, manifest.generation, True, manifest.documents, manifest.rows, dim)
        manifest, encoded, notes = encode_and_publish(generation, ingested, options, progress)
        report = _report(generation.index, manifest, encoded, notes)
        untuned = not generation.transform_source and is_untuned(generation.config, generation.spec)
        return replace(report, untuned=untuned)


@contextmanager
def ingested_corpus(
    corpus: Records,
    index: str | Path,
    config: BuildConfig,
    options: RunOptions,
    progress: Progress,
    inputs: BuildInputs | None = None,
) -> Iterator[tuple[Generation, Ingested]]:
    """Yield the next generation of an index with the corpus read and its documents written; raises as `build_index`."""
    index, source = named_path(index, "the index"), None
    inputs = inputs or BuildInputs()
    transform_from = inputs.get("transform_from")
    spec = check_recipe(corpus, config, reuses_transform=transform_from is not None)
    require_no_query_encoder(config)
    config = with_recorded_hash(without_auto(config, usual_hybrid(corpus)))
    if transform_from is not None:
        folder = named_path(transform_from, "the index whose transform is reused")
        source = PublishedIndex(folder, load_manifest(folder))
        require_same_encoder(source, spec)
        _ = source.transform  # raises CorruptIndexError if it is damaged
        config = replace(config, whitening=source.config.whitening)
    with open_generation(index, options.overwrite, create=True) as generation:
        generation.config, generation.transform_source = config, source
        generation.spec = finished_encoder(generation, spec)
        if generation.continues:
            require_same_recipe(generation)
        generation.spec = probed_encoder(generation)  # of a recipe that is not refused
        require_finished(generation.spec)
        generation.sweep_before(generation.spec.fingerprint)
        documents = documents_of(corpus, config.corpus, inputs.get("vectors"))
        yield generation, ingest(documents, generation, progress)


def check_recipe(corpus: Records, config: BuildConfig, reuses_transform: bool = False) -> EncoderSpec:
    """Return the unfitted encoder of a recipe. Raises for an invalid recipe before the corpus is read."""
    if isinstance(corpus, Corpus):
        require_same_rules(corpus, config.corpus)
    ann.check_factory(ann.factory_of(config.index.type), config.whitening.dim)
    spec = resolve_spec(config)
    if spec.fitted and not reuses_transform:
        load_fitted_state(spec)
    if not reuses_transform:
        query_file_sha256(config.whitening.query_sample, "whitening.query_sample")
    query_file_sha256(config.index.queries, "index.queries")
    _ = DocumentChunker(spec, config.chunk, config.corpus.text).chunker
    return spec


def encode_and_publish(
    generation: Generation, ingested: Ingested, options: RunOptions, progress: Progress
) -> tuple[Manifest, EncodedParts, tuple[str, ...]]:
    """Publish the generation of an ingested corpus; return its manifest, the encoded parts and notes."""
    encoder = LazyEncoder(generation.config, options, generation.spec)
    encoded = encode_parts(ingested.parts, generation, encoder, options, progress)
    rows = ingested.rows(generation.index, generation.live_of_last(ingested.documents))
    if generation.transform_source:
        generation.copy_transform(generation.transform_source)
    else:
        generation.write_transform(fit(rows, encoder, progress))
    notes = encoder.get().notes if generation.spec.traits.has_table else generation.spec.notes
    written = write_segments(generation, rows, encoded.records, encoder, options, progress)
    generation.set_encoder(generation.transform.input_dim, state_files(generation.index, generation.spec))
    kept = begin_again(generation, rows, written.figures, options, progress, encoder.encode_queries)
    manifest = generation.publish(kept.figures)
    about = (
        manifest.transform["note"],
        _as_given_note(manifest, generation),
        *encoded.notes,
        _code_terms_note(generation.config),
        *unknown_note(manifest.quality),
    )
    notes = (*about, *notes, *written.notes, kept.note, generation.sweep())
    return manifest, encoded, tuple(filter(None, notes))


def usual_hybrid(corpus: Records) -> Mapping[str, Any]:
    """Return the settings that "auto" stands for in [hybrid]: by whether most documents are files of source code."""
    if not isinstance(corpus, Corpus) or corpus.config.documents != "files":
        return OF_ROWS
    of_code = sum(bool(kind_of({"suffix": PurePosixPath(file.label).suffix}).language) for file in corpus.files)
    return OF_CODE if 2 * of_code > len(corpus.files) else OF_ROWS


def _code_terms_note(config: BuildConfig) -> str:
    if config.corpus.documents != "files" or config.hybrid.terms != "code":
        return ""
    return (
        "most files are source code: hybrid search finds definitions by name, and parts of names such as read_file "
        f'(hybrid.terms = "code", hybrid.unit = "{config.hybrid.unit}")'
    )


def is_untuned(config: BuildConfig, spec: EncoderSpec) -> bool:
    """Return whether the whitening is the default of a recipe that was measured on another model, or on other settings
    of this one. Embeddings from the corpus have a note of their own, and cannot be tuned.
    """
    settings = replace(config.whitening, sample=WhiteningConfig.sample, query_sample="")
    measured = _MEASURED_ON.get(settings)
    if measured is None or not spec.traits.encodes_texts:
        return False
    of = spec.identity
    as_measured = of.pooling == "mean" and not (of.query_prefix or of.document_prefix or of.truncate_dim)
    return not as_measured or measured.isdisjoint({spec.model, *of.weights.values()})


def _as_given_note(manifest: Manifest, generation: Generation) -> str:
    """Return a note that the vectors of the corpus could be whitened, "" for too few or if the recipe asks for it."""
    config = generation.config
    if generation.spec.traits.encodes_texts or config.whitening.is_fitted(config.encoder.pooling):
        return ""
    if manifest.rows < max(1, fewest_rows(config.whitening, manifest.encoder["dim"])):
        return ""
    compare = spelled(
        'evaluate_retrieval(index, RetrievalOptions(beir, query_vectors=file), Sweep(strengths=("none", 0.25)))',
        "isotrope evaluate retrieval BEIR_FOLDER --index INDEX --query-vectors FILE.npy --strength none "
        "--strength 0.25 --compare",
    )
    setting = "whitening.strength=0.25"
    whiten = spelled(f'refit_index(index, ["{setting}"])', f"isotrope refit INDEX --set {setting}")
    return (
        "the vectors of the corpus are indexed as they are, scaled to unit length. A soft whitening added 0.1 to 3.6 "
        f"nDCG@10 to vectors of two models ({_MEASURED_AT}). With judged queries and their vectors, compare: "
        f"{compare}. To whiten: {whiten}"
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
        **encoded.work(),
        notes=notes,
        quality=manifest.quality,
    )


def is_up_to_date(generation: Generation, ingested: Ingested) -> bool:
    """Return whether no new generation is needed; with `overwrite` also the recipe must match and files be intact."""
    published = generation.published
    if published is None:
        return False
    manifest = published.manifest
    if [part.name for part in ingested.parts] != [part.name for part in manifest.parts]:
        return False
    if manifest.stored_documents - manifest.documents != count_quarantined(published):
        return False
    if generation.continues:
        return True
    same_recipe = published.config == generation.config and manifest.fingerprint == generation.spec.fingerprint
    return same_recipe and not any(_input_differences(generation)) and not damaged_files(generation.index, manifest)


def require_same_recipe(generation: Generation) -> None:
    """Raise ExistsError with every difference if the published recipe is another, or documents were deleted."""
    published = generation.previous.manifest
    differences = list(recipe_differences(generation))
    if differences:
        raise ExistsError(
            f"{generation.index}: already contains a complete index of another recipe: {'; '.join(differences)}. "
            f"Fix: pass {replacing()} to publish this recipe as the next generation, or build at another path."
        )
    gone = published.stored_documents - published.documents - count_quarantined(generation.previous)
    if gone:
        raise corpus_differs(generation, f"{gone:,} of its documents were deleted or replaced since it was built")


def count_quarantined(published: PublishedIndex) -> int:
    """Count the quarantined documents: stored, but never live, because they crash the encoder."""
    if published.manifest.deleted is None:
        return 0
    return sum(len(record.quarantined) for record in published.records())


def recipe_differences(generation: Generation) -> Iterator[str]:
    """Yield every difference in settings, encoder or inputs between the published index and this build."""
    wanted, published = generation.config.to_dict(), generation.previous
    there, here = (config.transform_settings() for config in (published.config, generation.config))
    if there != here:
        yield f"the transform's settings are {_shown(there)} there and {_shown(here)} here"
    stored = published.config.to_dict()
    for section, settings in wanted.items():
        if section in ("encoder", "papers"):
            continue  # compared by fingerprint: the same model under another name is the same encoder
        for key, value in settings.items():
            other = stored[section][key]
            if _meaning(section, key, other) != _meaning(section, key, value):
                yield f"{section}.{key} is {_shown(other)} there and {_shown(value)} here"
    if published.manifest.fingerprint != generation.spec.fingerprint:
        expected = published.manifest.encoder["identity"]
        if generation.spec.identity.state is None:  # of a server with other settings, which is not asked
            expected = {key: value for key, value in expected.items() if key != "state"}
        yield identity_difference(expected, generation.spec.identity)
    else:
        yield from _input_differences(generation)


def _input_differences(generation: Generation) -> Iterator[str]:
    published, config = generation.previous.manifest, generation.config
    reused = generation.transform_source.transform_digest.sha256 if generation.transform_source else ""
    if published.transform.get("taken_from", "") != reused:
        yield "its transform was fitted there and is reused from another index here, or the other way round"
    elif not reused and published.transform["query_texts"].get("sha256", "") != query_file_sha256(
        config.whitening.query_sample, "whitening.query_sample"
    ):
        yield "the queries in whitening.query_sample have changed"
    measured = published.measured.index
    if (measured.queries_sha256 if measured else "") != query_file_sha256(config.index.queries, "index.queries"):
        yield "the queries in index.queries have changed"


def _meaning(section: str, key: str, value: Any) -> Any:
    """Return a setting in canonical form."""
    if (section, key) == ("index", "type"):
        return ann.factory_of(value)
    return bool(value) if key in ("query_sample", "vector_column") else value  # contents are compared by hash


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
