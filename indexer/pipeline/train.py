"""Encoders fitted to a corpus before a build.

`train_encoder` writes a folder for any number of indexes. `train_for_index` fits an encoder for one build of the
command line, into the index directory, where a resumed build finds it again.
"""

import hashlib
import heapq
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from indexer.corpus.corpus import Corpus
from indexer.corpus.document import Document, joined_text, only_encoded
from indexer.corpus.records import Records, documents_of
from indexer.encoders.document_windows import DocumentChunker
from indexer.encoders.fitted_state import FITTED, RECIPE, fit_state, fitted_record
from indexer.encoders.int8 import CALIBRATION_TEXTS, require_calibration
from indexer.errors import ConfigError, CorpusError, spelled
from indexer.hashing import hash_id, hash_texts
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.resolution import resolve_spec
from indexer.pipeline.build import check_recipe
from indexer.pipeline.generation import require_index_folder
from indexer.pipeline.published_index import PublishedIndex
from indexer.pipeline.steps.build_encoder import is_published, state_files, stored_state, write_state
from indexer.progress import NoProgress, Progress, step_callback
from indexer.recipe.config import BuildConfig
from indexer.recipe.loading import named_path, require_text
from indexer.recipe.run_options import RunOptions
from indexer.store.files import atomic_write_bytes, make_folder, writer_lock
from indexer.store.manifest import list_generations, load_manifest
from indexer.store.sending import open_sender
from indexer.system.output_files import check_output_folder
from indexer.typed_arguments import checked

_BLOCK = 1024  # texts fitted together


@dataclass(frozen=True)
class TrainReport:
    """Result of a training. `losses` are rows [step, reconstruction, KL]: means since the previous row."""

    folder: Path
    documents: int
    texts: int
    tokens: int = 0
    steps: int = 0
    losses: Sequence[Sequence[float]] = ()


@checked
def train_encoder(
    corpus: Records,
    folder: str | Path,
    config: BuildConfig,
    options: RunOptions | None = None,
    progress: Progress | None = None,
    documents: int = 0,
) -> TrainReport:
    """Fit the recipe's encoder to a corpus; write its state and a recipe that uses it into a new folder.

    `documents` limits the sample to the documents with the smallest id hashes; 0 means all (int8: 300). With chunking
    the texts are their windows. Raises ConfigError (also for an encoder that needs no training and for a folder inside
    an index), ExistsError if the folder is not empty, CorpusError, and as loading and training do.
    """
    options, progress, folder = options or RunOptions(), progress or NoProgress(), Path(folder)
    if documents < 0:
        raise ConfigError(f"the number of documents is {documents}; expected 0 (all) or more.")
    check_output_folder(folder, or_empty=True)
    require_text(str(folder.resolve()), "the folder")  # its name is written to the recipe
    config = replace(config, encoder=replace(config.encoder, fitted=""))
    spec = resolve_spec(config)
    if not spec.identity.needs_state:
        raise ConfigError(
            f'encoder.pooling is "{spec.identity.pooling}" with encoder.precision "{spec.identity.precision}", which '
            'needs no training; expected encoder.pooling "sif" or "latte-mix", or encoder.precision "int8".'
        )
    require_calibration(spec)
    progress.phase("reading", None)
    size = documents or (CALIBRATION_TEXTS if spec.identity.precision == "int8" else 0)
    chosen = _sampled_documents(documents_of(corpus, config.corpus), config, size)
    texts = DocumentChunker(spec, config.chunk, config.corpus.text)(chosen).texts
    files, facts = _fitted(spec, texts, options, progress)
    make_folder(folder)
    for name, data in files.items():
        atomic_write_bytes(folder / name, data)
    built_with = replace(config, encoder=replace(config.encoder, fitted=str(folder.resolve())))
    atomic_write_bytes(folder / RECIPE, built_with.to_toml().encode())
    known = {name: facts[name] for name in ("tokens", "steps", "losses") if name in facts}
    return TrainReport(folder, len(chosen), len(texts), **known)


def train_for_index(
    corpus: Records,
    index: str | Path,
    config: BuildConfig,
    options: RunOptions | None = None,
    progress: Progress | None = None,
) -> str:
    """Fit the encoder of a build, unless it is fitted; return a note for the user, or "".

    The state is written into the index directory. A state that an interrupted run fitted to the same texts is reused,
    and the state of a published generation is always kept. Raises as `build_index` and `train_encoder` do.
    """
    options, progress, index = options or RunOptions(), progress or NoProgress(), named_path(index, "the index")
    if not config.encoder.needs_fitting or config.encoder.fitted:
        return ""
    spec = check_recipe(corpus, config)
    if not spec.identity.needs_state:
        return ""
    require_calibration(spec)
    if list_generations(index):
        published = PublishedIndex(index, load_manifest(index))
        if is_published(published, spec) or not options.overwrite:
            kept = "the encoder keeps the state of the previous generation; build at another path to fit it again"
            return kept if options.overwrite else ""
    require_index_folder(index)
    make_folder(index)
    with writer_lock(index), closing(open_sender(index)) as sender:
        progress.phase("reading for the encoder", None)
        texts = _texts_of_build(corpus, config, spec)
        key, state = hashlib.sha256(hash_texts(texts).tobytes()).hexdigest(), stored_state(index, spec)
        if state is not None and state.key == key:
            return ""
        files, _ = _fitted(spec, texts, options, progress)
        write_state(index, spec, {name: data for name, data in files.items() if name != FITTED}, key)
        sender.share({}, state_files(index, spec))
    verb = "calibrated" if spec.identity.precision == "int8" else "trained"
    return (
        f"the encoder was first {verb} on {len(texts):,} texts of this corpus, because encoder.fitted names no folder"
    )


def _fitted(
    spec: EncoderSpec, texts: Sequence[str], options: RunOptions, progress: Progress
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return the files of the fitted state, with its record, and facts about the training."""

    def blocks() -> Iterator[list[str]]:
        return (list(texts[start : start + _BLOCK]) for start in range(0, len(texts), _BLOCK))

    progress.phase("fitting the encoder", None)
    with tempfile.TemporaryDirectory(prefix="isotrope-") as scratch:
        folder = Path(scratch)
        facts = fit_state(spec, blocks, folder, options, step_callback(progress, "training"))
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        return {**files, FITTED: fitted_record(spec, folder)}, facts


def _texts_of_build(corpus: Records, config: BuildConfig, spec: EncoderSpec) -> list[str]:
    """Return the texts of the sample that whitening is fitted on, for int8 of a smaller sample."""
    if isinstance(corpus, Iterator) or (isinstance(corpus, Corpus) and any(file.is_stdin for file in corpus.files)):
        raise ConfigError(
            "the encoder is fitted to the corpus before the build, but a stream can be read only once. Fix: write the "
            "corpus to a file, or first run "
            f"{spelled('train_encoder', 'isotrope train')} and set encoder.fitted to its folder."
        )
    int8 = spec.identity.precision == "int8"
    sample = CALIBRATION_TEXTS if int8 else config.whitening.sample
    documents = (
        (document for document, _, _ in corpus.rows())
        if isinstance(corpus, Corpus)
        else documents_of(corpus, config.corpus)
    )
    chosen = _sampled_documents(documents, config, 0 if sample == "all" else int(sample))
    return DocumentChunker(spec, config.chunk, config.corpus.text)(chosen).texts


def sampled_texts(corpus: Iterable[Document], config: BuildConfig, size: int) -> list[str]:
    """Return the joined texts of the `size` documents with the smallest id hashes (0: all), in corpus order.

    Raises CorpusError for an empty corpus.
    """
    return [joined_text(document, config.corpus.text) for document in _sampled_documents(corpus, config, size)]


def _sampled_documents(corpus: Iterable[Document], config: BuildConfig, size: int) -> list[Document]:
    """Return the documents of `sampled_texts`, with only the columns that are encoded."""
    rows = (
        (hash_id(document.id), number, only_encoded(document, config.corpus.text))
        for number, document in enumerate(corpus)
    )
    chosen = heapq.nsmallest(size, rows) if size else list(rows)
    if not chosen:
        raise CorpusError("the corpus has no documents to train on; expected at least one.")
    return [document for _, _, document in sorted(chosen, key=lambda row: row[1])]
