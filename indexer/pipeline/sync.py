"""`sync_index`: make the documents of an index equal to a corpus, in one generation.

New documents are added, changed ones replaced, vanished ones deleted. Files whose bytes are unchanged are not read: the
digest of a file is a metadata column of its document. It is computed before the text is read, so a file that changes
meanwhile differs from its document at the next run.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Unpack

import numpy.typing as npt

from indexer.corpus.corpus import Corpus
from indexer.corpus.document import Document
from indexer.corpus.records import Records, documents_of, opened_corpus, require_same_rules
from indexer.corpus.row import BadRow
from indexer.corpus.sources import SourceFile
from indexer.errors import ConfigError, ExistsError, as_argument, spelled
from indexer.models.cross_encoder_spec import with_recorded_hash
from indexer.pipeline.add import AddReport, Upserts, known_schema, publish_upserts
from indexer.pipeline.build import build_index, check_recipe, recipe_differences
from indexer.pipeline.build_inputs import BuildInputs, Recipe, SyncInputs, recipe_of, sync_inputs
from indexer.pipeline.generation import Generation, open_generation
from indexer.pipeline.published_index import PublishedIndex
from indexer.pipeline.steps.build_encoder import finished_encoder
from indexer.pipeline.steps.ingest import require_no_sources
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import BuildConfig, without_auto
from indexer.recipe.loading import named_path
from indexer.recipe.run_options import RunOptions
from indexer.store.manifest import list_generations, load_manifest
from indexer.typed_arguments import checked

_DIGESTS = ("sha256", "etag")  # columns with the digest of a local file, and of an object


@dataclass(frozen=True)
class SyncReport(AddReport):
    """Result of a synchronisation. `documents` and `rows` count the resulting index."""

    deleted: int = 0  # ids that the corpus lacks
    kept: tuple[str, ...] = ()  # files that could not be read, whose documents stay as they were


@dataclass(frozen=True)
class SyncPlan:
    """The changes that `sync_index` would make: ids, in the order of the corpus or of the index."""

    index: Path
    generation: int  # the newest; 0 if there is no index yet
    documents: int  # in that generation
    unchanged: int = 0
    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()

    @property
    def needs_force(self) -> bool:
        """Whether `sync_index` refuses the plan without `force`."""
        return _is_too_much(len(self.deleted), self.documents)


@checked
def sync_index(
    corpus: Records,
    index: str | Path,
    config: Recipe | None = None,
    options: RunOptions | None = None,
    progress: Progress | None = None,
    **inputs: Unpack[SyncInputs],
) -> SyncReport:
    """Make the documents of an index equal to a corpus: add, replace and delete in one generation.

    `corpus` is as in `build_index`. An index that does not exist yet is built by the recipe `config`; an existing index
    keeps its own, and another raises ExistsError. `inputs` are `SyncInputs`. Nothing is published if nothing
    changed. Embeddings are reused by text.

    With a corpus of files, only new and changed files are read. A file that cannot be read is skipped if the corpus
    skips bad rows, and its document stays.

    The same call continues an interrupted one. Raises ConfigError, without `force`, if more than half of the documents
    would be deleted; otherwise as `build_index` and `add_documents`.
    """
    options, progress, given = options or RunOptions(), progress or NoProgress(), sync_inputs(inputs)
    index, force = named_path(index, "the index"), given.get("force", False)
    if not list_generations(index):
        return _build(corpus, index, _recipe(corpus, config), options, progress, given)
    with open_generation(index) as generation:
        published, generation.model = generation.previous, given.get("model")
        corpus = opened_corpus(corpus, published.config.corpus)
        if config is not None:
            _require_same_recipe(generation, corpus, recipe_of(config, {}))
        files = _files_of(corpus, published)
        upserts = _upserts(corpus, published, files, given.get("vectors"))
        if not force:
            upserts.check = lambda: _require_most(upserts)
        added = publish_upserts(generation, upserts, given.get("encoder"), options, progress)
        if files:
            added = replace(added, unchanged=added.unchanged + files.unchanged)
        kept = tuple(published.documents.find_ids(files.unread)) if files else ()
        if not (force or upserts.changed or added.unchanged or kept):
            require_no_sources(corpus)
        return SyncReport(**vars(added), deleted=len(upserts.vanished), kept=kept)


@checked
def plan_sync(corpus: Records, index: str | Path, config: Recipe | None = None) -> SyncPlan:
    """Return the changes that `sync_index` would make, without a lock. Nothing is encoded or written.

    Files are compared by their digests and not read. `config` is the recipe of an index that does not exist yet. Raises
    CorpusError for bad rows, ConfigError for a corpus with other rules than the index's, and errors of damaged indexes.
    """
    index = named_path(index, "the index")
    if not list_generations(index):
        recipe = _recipe(corpus, config)
        corpus = opened_corpus(corpus, recipe.corpus)
        if isinstance(corpus, Corpus) and _has_files(corpus, recipe):
            corpus.report.documents = len(corpus.files)
            return SyncPlan(index, 0, 0, added=tuple(file.label for file in corpus.files))
        return SyncPlan(index, 0, 0, added=tuple(document.id for document in documents_of(corpus, recipe.corpus)))
    published = PublishedIndex(index, load_manifest(index))
    try:
        corpus = opened_corpus(corpus, published.config.corpus)
        return _plan(corpus, published)
    finally:
        published.close()


def _recipe(corpus: Records, config: Recipe | None) -> BuildConfig:
    """Return the recipe of an index that does not exist yet; by default the standard one with the corpus's rules."""
    if config is None and isinstance(corpus, Corpus):
        return BuildConfig(corpus=corpus.config)
    return recipe_of(config, {})


def _build(
    corpus: Records, index: Path, config: BuildConfig, options: RunOptions, progress: Progress, given: SyncInputs
) -> SyncReport:
    """Build an index that does not exist yet."""
    if given.get("model") is not None:
        raise ConfigError(
            f"{index}: there is no index yet, so its model cannot have moved. Fix: name the model in the recipe "
            f"({spelled('config.encoder.model', '--set encoder.model=MODEL')})."
        )
    vectors = given.get("vectors")
    inputs = BuildInputs() if vectors is None else BuildInputs(vectors=vectors)
    built = vars(build_index(corpus, index, config, options, progress, **inputs))
    shared = {name: built[name] for name in SyncReport.__dataclass_fields__ if name in built}
    return SyncReport(**shared, added=built["documents"])


def _require_same_recipe(generation: Generation, corpus: Records, config: BuildConfig) -> None:
    """Raise ExistsError with every difference between a recipe and that of the index."""
    published = generation.config
    spec = check_recipe(corpus, config)
    generation.config = with_recorded_hash(without_auto(config, asdict(published.hybrid)))
    generation.spec = finished_encoder(generation, spec)
    if differences := list(recipe_differences(generation)):
        raise ExistsError(
            f"{generation.index}: has another recipe: {'; '.join(differences)}. Fix: leave out the recipe, because an "
            "index keeps its own, or sync to another path."
        )
    generation.config = published


def _require_most(upserts: Upserts) -> None:
    """Raise ConfigError if more than half of the documents would be deleted."""
    gone, documents = len(upserts.vanished), upserts.published.manifest.documents
    if _is_too_much(gone, documents):
        raise ConfigError(
            f"{upserts.published.index}: more than half of its documents ({gone:,} of {documents:,}) are not in the "
            "source; nothing was changed. A disk may not be mounted, or the source may be the wrong one. Fix: check "
            f"the source, or pass {as_argument('force', True)} to delete them."
        )


def _is_too_much(gone: int, documents: int) -> bool:
    return 2 * gone > documents


def _plan(corpus: Records, published: PublishedIndex) -> SyncPlan:
    files, added, replaced = _files_of(corpus, published), list[str](), list[str]()
    upserts = _upserts(corpus, published, files)
    if files:
        known = published.documents.find_ids(files.changed)
        for identity in files.changed:
            (replaced if identity in known else added).append(identity)
    else:
        for document, number in upserts.changes():
            (added if number is None else replaced).append(document.id)
    manifest, deleted = published.manifest, published.documents.ids(upserts.vanished.tolist())
    unchanged = files.unchanged if files else upserts.unchanged
    ids = tuple(added), tuple(replaced), tuple(deleted)
    return SyncPlan(published.index, manifest.generation, manifest.documents, unchanged, *ids)


def _has_files(corpus: Records, config: BuildConfig) -> bool:
    """Whether the documents are files. Raises ConfigError for a corpus with other rules than the recipe."""
    if not isinstance(corpus, Corpus):
        return False
    require_same_rules(corpus, config.corpus)
    return corpus.config.documents == "files"


def _files_of(corpus: Records, published: PublishedIndex) -> "_FileChanges | None":
    """Return the changes of files, if the documents are files."""
    if isinstance(corpus, Corpus) and _has_files(corpus, published.config):
        return _FileChanges(corpus, published)
    return None


def _upserts(
    corpus: Records, published: PublishedIndex, files: "_FileChanges | None", vectors: npt.ArrayLike | None = None
) -> Upserts:
    """Return the changes that make the index equal to the corpus. A file's document is kept even if the file cannot be
    read."""
    rules = published.config.corpus
    documents = documents_of(corpus, rules, vectors, known_schema(published)) if files is None else files
    upserts = Upserts(published, documents, whole=True)
    upserts.keep(files.labels if files else ())
    return upserts


class _FileChanges:
    """The new and changed files of a corpus; iterating reads them."""

    def __init__(self, corpus: Corpus, published: PublishedIndex) -> None:
        known = _known_digests(published)
        self._corpus, self._schema = corpus, known_schema(published)
        self._changed: list[SourceFile] = []
        self._read: set[str] = set()
        self.labels = [file.label for file in corpus.files]
        for file in corpus.files:
            digest = _digest(file)
            if not digest or known.get(file.label) != digest:
                self._changed.append(file)
        corpus.report.documents = len(self.labels)

    @property
    def unchanged(self) -> int:
        return len(self.labels) - len(self._changed)

    @property
    def changed(self) -> list[str]:
        """The ids of new and changed files."""
        return [file.label for file in self._changed]

    @property
    def unread(self) -> list[str]:
        """The ids of new and changed files that gave no document."""
        return [name for name in self.changed if name not in self._read]

    def __iter__(self) -> Iterator[Document]:
        limited = self._corpus.limited_to(self._changed)
        documents = limited.documents(self._schema)
        limited.report.files = len(self.labels)
        limited.report.documents += self.unchanged
        self._corpus.report = limited.report
        for document in documents:
            self._read.add(document.id)
            yield document


def _digest(file: SourceFile) -> str:
    """Return the digest of a file; "" for a file that cannot be read."""
    from indexer.corpus.files.folder import file_digest  # only files need its packages

    try:
        return file_digest(file)
    except (OSError, BadRow):
        return ""


def _known_digests(published: PublishedIndex) -> dict[str, str]:
    """Return id -> digest of the indexed files."""
    documents, known = published.documents, dict[str, str]()
    names = [name for name in _DIGESTS if name in documents.schema.names]
    for part in range(len(published.manifest.parts)):
        ids, *columns = (
            column.to_pylist() for column in documents.columns(part, [("id",), *((each,) for each in names)])
        )
        for column in columns:
            known |= {name: digest for name, digest in zip(ids, column, strict=True) if digest}
    return known
