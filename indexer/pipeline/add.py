"""`add_documents`: write new documents as new parts and a new segment; a known id replaces its document.

Published files never change: the next generation names the old parts and segments together with the new ones, and
lists the replaced documents as deleted. Small parts at the end are rewritten into the new one (see `folding`).
Unchanged documents are skipped, so running the same command again changes nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pyarrow as pa

from indexer.arrays import RowIds
from indexer.corpus.columns import way_out_of
from indexer.corpus.corpus import Corpus
from indexer.corpus.document import Document
from indexer.corpus.ids import has_content_id
from indexer.corpus.records import Records, documents_of, opened_corpus
from indexer.corpus.row import BadRow
from indexer.corpus.schema import merge_schemas, schema_from_json
from indexer.corpus.sources import require_id_lists
from indexer.encoders.protocol import Encoder
from indexer.errors import CorpusError
from indexer.pipeline.build import encode_and_publish
from indexer.pipeline.build_inputs import AddInputs, add_inputs
from indexer.pipeline.delete import publish_deletions
from indexer.pipeline.drift import AddedSince, drift_since
from indexer.pipeline.generation import Generation, open_generation
from indexer.pipeline.part_merging import Arriving, Tail, tail_to_fold
from indexer.pipeline.published_index import PublishedIndex
from indexer.pipeline.rows import RowView
from indexer.pipeline.steps.build_encoder import LazyEncoder, unknown_note
from indexer.pipeline.steps.encode import EncodedParts, encode_parts
from indexer.pipeline.steps.fit import refit_note
from indexer.pipeline.steps.index_segment import COUNTS, WrittenSegments, write_segments
from indexer.pipeline.steps.ingest import PendingPart, cut_into_parts, ingest, require_no_sources
from indexer.pipeline.steps.kept_recall import keep_recall
from indexer.progress import NoProgress, Progress
from indexer.recipe.index_config import StoreConfig
from indexer.recipe.loading import named_path
from indexer.recipe.run_options import RunOptions
from indexer.store.document_tables import loses_precision
from indexer.store.documents import read_column
from indexer.store.manifest import Manifest
from indexer.store.quality import Drift
from indexer.typed_arguments import checked

_CLASH = "the metadata of the new documents does not fit the index: "


@dataclass(frozen=True)
class AddReport:
    """Result of an addition. `documents` and `rows` count the resulting index."""

    index: Path
    generation: int
    documents: int
    rows: int
    added: int = 0  # new ids
    replaced: int = 0  # known ids with a changed document
    unchanged: int = 0  # documents already in the index
    rows_encoded: int = 0
    rows_reused: int = 0  # embeddings found by their text
    rows_given: int = 0  # embeddings that came with the corpus
    tokens: int = 0
    truncated: int = 0
    retries: int = 0
    backend: str = ""
    drift: Drift | None = None
    notes: tuple[str, ...] = ()
    quality: dict[str, Any] = field(default_factory=dict)


@checked
def add_documents(
    corpus: Records,
    index: str | Path,
    options: RunOptions | None = None,
    progress: Progress | None = None,
    **inputs: Unpack[AddInputs],
) -> AddReport:
    """Add documents to an index with its own encoder and transform; a document with a known id replaces the old one.

    `corpus` is as in `build_index`; `inputs` are `AddInputs`. An index without documents is built from them by
    its recipe. An addition never changes the transform of the documents already in the index.

    The same call continues an interrupted addition. Raises
    CorpusError, ModelError, MismatchError, QualityError, LockedError, StoreError and MachineError as `build_index`.
    """
    options, progress, given = options or RunOptions(), progress or NoProgress(), add_inputs(inputs)
    with open_generation(named_path(index, "the index")) as generation:
        published, generation.model = generation.previous, given.get("model")
        corpus = opened_corpus(corpus, published.config.corpus)
        if isinstance(corpus, Corpus) and published.manifest.documents:
            require_id_lists(corpus.files, generation.index)
        documents = documents_of(corpus, published.config.corpus, given.get("vectors"), known_schema(published))
        upserts = Upserts(published, documents)
        report = publish_upserts(generation, upserts, given.get("encoder"), options, progress)
        if not (upserts.changed or upserts.unchanged):
            require_no_sources(corpus)
        return report


def known_schema(published: PublishedIndex) -> pa.Schema | None:
    """Return the metadata schema that new documents must fit; None for an index without documents."""
    return schema_from_json(published.manifest.schema) if published.manifest.documents else None


def publish_upserts(
    generation: Generation, upserts: "Upserts", encoder: Encoder | None, options: RunOptions, progress: Progress
) -> AddReport:
    """Publish a generation with the new and changed documents and without the replaced and vanished ones.

    Publishes nothing if nothing changed. `encoder` is used if it is the index's.
    """
    published = upserts.published
    arriving = Arriving(upserts, generation.config.store.part_documents)
    if not arriving.held:
        upserts.check()
        deletion = publish_deletions(generation, upserts.vanished, (), options, progress)
        counts = deletion.documents, deletion.rows
        index, number = generation.index, deletion.generation
        return AddReport(index, number, *counts, unchanged=upserts.unchanged, notes=deletion.notes)
    if arriving.is_whole:
        upserts.check()  # before documents are written
    if not published.manifest.documents:
        return _build(generation, upserts, arriving, options, progress)
    if encoder is not None and encoder.spec.identity.fingerprint == published.manifest.fingerprint:
        generation.spec = encoder.spec  # its files were compared with the index's when it was loaded
    else:
        encoder = None
    lazy = LazyEncoder(generation.config, options, generation.spec, encoder)
    tail = tail_to_fold(published, arriving)
    ingested = ingest(chain(tail.documents, arriving), generation, progress, adding=True)
    require_same_types(published, ingested.parts)
    upserts.check()
    generation.keep_everything(tail.parts, tail.segments)
    generation.delete(published.stored(upserts.replaced))
    generation.delete(published.stored(upserts.vanished))
    encoded = encode_parts(ingested.parts, generation, lazy, options, progress)
    rows = ingested.rows(generation.index, generation.live_of_last(ingested.documents))
    written = write_segments(generation, rows, encoded.records, lazy, options, progress)
    since = AddedSince.of(published.manifest)
    drift = drift_since(since, generation.transform, generation.index, generation.parts, generation.files)
    figures = since.figures() | ({"drift": drift.to_dict()} if drift else {})

    def all_rows() -> RowView:
        return published.rows().run(slice(0, tail.parts)).followed_by(rows, generation.live())

    figures = _quality(published.manifest, tail, written) | figures
    kept = keep_recall(generation, all_rows, figures, options, progress, lazy.encode_queries)
    manifest = generation.publish(kept.figures)
    enough = refit_note(manifest, generation.config)
    notes = (*encoded.notes, *unknown_note(written.figures), *written.notes, kept.note, enough, generation.sweep())
    return _report(manifest, upserts, tail, encoded, drift, (*notes, generation.compaction_note()))


class Upserts:
    """The new and changed documents of a corpus; counts the unchanged ones on the way.

    With `whole` the corpus is to be all documents of the index: those that it lacks have `vanished`. `check` is called
    once the corpus has been read, and may raise.
    """

    def __init__(self, published: PublishedIndex, documents: Iterable[Document], whole: bool = False) -> None:
        self.published, self._documents, self._whole = published, documents, whole
        self._seen = np.zeros(published.manifest.documents, bool)
        self._replaced: list[int] = []
        self.new = self.unchanged = 0
        self.check: Callable[[], None] = lambda: None

    @property
    def changed(self) -> int:
        """New documents, and known ids with a changed document."""
        return self.new + len(self._replaced)

    @property
    def replaced(self) -> RowIds:
        """The numbers of replaced documents, complete once the corpus has been read."""
        return np.array(self._replaced, np.int64)

    @property
    def vanished(self) -> RowIds:
        """The numbers of documents that a whole corpus lacks, complete once it has been read."""
        return np.flatnonzero(~self._seen if self._whole else self._seen[:0])

    def keep(self, ids: Sequence[str]) -> None:
        """Keep the documents of some ids even if the corpus lacks them."""
        self._seen[list(self.published.documents.find_ids(ids).values())] = True

    def __iter__(self) -> Iterator[Document]:
        return (document for document, _ in self.changes())

    def changes(self) -> Iterator[tuple[Document, int | None]]:
        """Yield the new and changed documents, each with the number of the document that it replaces."""
        store = self.published.config.store
        for documents in cut_into_parts(self._documents, store.part_documents):
            known = self.published.find([document.id for document in documents])
            for document in documents:
                number, stored = known.get(document.id, (None, None))
                if number is None or stored is None:
                    self.new += 1
                    yield document, None
                    continue
                self._seen[number] = True
                if _is_same(document, stored, store):
                    self.unchanged += 1
                    continue
                if not self._whole and has_content_id(document):  # a content id never replaces other content
                    raise CorpusError(
                        f'document "{document.id}" came without an id, and the id made from its content belongs to a '
                        "document in the index whose content was replaced. Fix: give the new document an id, or delete "
                        "the document in the index."
                    )
                self._replaced.append(number)
                yield document, number


def _build(
    generation: Generation, upserts: Upserts, arriving: Arriving, options: RunOptions, progress: Progress
) -> AddReport:
    """Build an index that has no documents by its recipe. A transform that was taken from another index stays."""
    published = generation.previous
    if "taken_from" in published.manifest.transform:
        generation.transform_source = published
    ingested = ingest(arriving, generation, progress)
    manifest, encoded, notes = encode_and_publish(generation, ingested, options, progress)
    return _report(manifest, upserts, Tail(0, 0), encoded, None, notes)


def _is_same(document: Document, stored: Document, store: StoreConfig) -> bool:
    """Return whether a document equals the stored one; vectors are compared after rounding to the stored type."""
    if document != stored or document.vector is None or stored.vector is None:
        return document == stored and document.vector is stored.vector
    with np.errstate(over="ignore"):
        rounded = document.vector.astype(store.embeddings).astype(np.float32)
    return np.array_equal(rounded, stored.vector)


def _quality(published: Manifest, tail: Tail, written: WrittenSegments) -> dict[str, Any]:
    """Return the figures of the whole index: its first segment's, with counts updated.

    "segments" maps the file of each added segment to its measurements; "added" has all figures of the last one.
    """
    kept, new = dict(published.quality), written.figures
    kept |= {name: kept.get(name, 0) + new.get(name, 0) - tail.counts[name] for name in COUNTS}
    kept["added"] = {name: figure for name, figure in new.items() if name not in (*COUNTS, "segments")}
    gone = {segment.file for segment in published.segments[tail.segments :]}
    measured = {file: figures for file, figures in kept.get("segments", {}).items() if file not in gone}
    kept["segments"] = {**measured, **written.measured}
    return kept


def _report(
    manifest: Manifest,
    upserts: Upserts,
    tail: Tail,
    encoded: EncodedParts,
    drift: Drift | None,
    notes: tuple[str, ...],
) -> AddReport:
    """Report an addition. Excludes the rewritten tail; a part from an interrupted run counts only its tokens."""
    work = encoded.work()
    work |= {name: max(0, work[name] - tail.rows) for name in ("rows_reused", "rows_given")}
    work |= {name: work[name] - tail.counts[name] for name in ("tokens", "truncated")}
    return AddReport(
        index=upserts.published.index,
        generation=manifest.generation,
        documents=manifest.documents,
        rows=manifest.rows,
        added=upserts.new,
        replaced=len(upserts.replaced),
        unchanged=upserts.unchanged,
        **work,
        drift=drift,
        notes=tuple(filter(None, notes)),
        quality=manifest.quality,
    )


def require_same_types(published: PublishedIndex, pending: Sequence[PendingPart]) -> None:
    """Raise CorpusError for a column whose types in the index and in new parts have no common type.

    Integers become floats if the other side has fractions, as within one build, unless that rounds an integer.
    """
    known = schema_from_json(published.manifest.schema)
    arriving = [schema_from_json(part.written.schema) for part in pending]
    try:
        merged = merge_schemas([known, *arriving])
    except BadRow as bad:
        raise CorpusError(f"{_CLASH}{bad.what}. Fix: {way_out_of(bad.way_out, for_index=True)}.") from bad
    schemas = chain(((part.name, known) for part in published.manifest.parts),
                    zip((part.name for part in pending), arriving, strict=True))  # fmt: skip
    for name, column in ((name, column) for name, schema in schemas for column in schema):
        kind = merged.field(column.name).type
        if column.type == kind:
            continue
        values = read_column(published.index / name, column.name)
        if values is not None and loses_precision(values, kind):
            raise CorpusError(
                f'{_CLASH}together they make column "{column.name}" {kind}, which rounds integers beyond 2**53. '
                "Fix: use the number type of the index in the new documents."
            )
