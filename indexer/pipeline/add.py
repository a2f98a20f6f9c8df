"""`add_documents`: new documents in parts and a segment of their own; a known id replaces its document.

Nothing that is published is changed: the next generation names the old parts and segments beside the new ones, and
lists the replaced documents as deleted. Small parts at the end are folded into the new one (see `folding`). A document
that is there already, to the last column, is left alone, so running the same command again changes nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from indexer.arrays import RowIds
from indexer.corpus.columns import way_out_of
from indexer.corpus.corpus import Corpus, validated_documents
from indexer.corpus.document import Document
from indexer.corpus.ids import has_content_id
from indexer.corpus.row import BadRow
from indexer.corpus.schema import merge_schemas, schema_from_json
from indexer.errors import ConfigError, CorpusError
from indexer.pipeline.drift import AddedSince, drift_since
from indexer.pipeline.folding import Arriving, Tail, tail_to_fold
from indexer.pipeline.generation import open_generation
from indexer.pipeline.published_index import PublishedIndex
from indexer.pipeline.steps.encode import EncodedParts, encode_parts
from indexer.pipeline.steps.index_encoder import LazyEncoder, unknown_note
from indexer.pipeline.steps.index_segment import COUNTS, WrittenSegments, write_segments
from indexer.pipeline.steps.ingest import PendingPart, cut_into_parts, empty_corpus, ingest
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import StoreConfig
from indexer.recipe.loading import named_path
from indexer.recipe.run_options import RunOptions
from indexer.store.documents import loses_precision, read_column
from indexer.store.manifest import Manifest
from indexer.store.quality import Drift

_CLASH = "the new documents' metadata does not fit the index's: "


@dataclass(frozen=True)
class AddReport:
    """What an addition did; `documents` and `rows` are those of the index now."""

    index: Path
    generation: int
    documents: int
    rows: int
    added: int = 0  # new ids
    replaced: int = 0  # ids that were there, with another document
    unchanged: int = 0  # documents that were there as they are
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


def add_documents(
    corpus: Iterable[Document],
    index: str | Path,
    options: RunOptions | None = None,
    progress: Progress | None = None,
    model: str | Path | None = None,
) -> AddReport:
    """Add documents to an index with its own encoder and transform; a document whose id is there replaces that one.

    `model` is the model's folder if it has moved. Interrupted additions are continued by the same call. Raises
    CorpusError, ModelError, MismatchError, QualityError, LockedError, StoreError and MachineError as `build_index`.
    """
    options, progress = options or RunOptions(), progress or NoProgress()
    with open_generation(named_path(index, "the index")) as generation:
        published, generation.model = generation.followed, model
        if isinstance(corpus, Corpus) and corpus.config != generation.config.corpus:
            raise ConfigError(
                "the corpus is read by other column rules than the index's; pass "
                "read_corpus(..., config=the index's recipe.corpus)."
            )
        upserts = Upserts(published, _validated(corpus, published))
        encoder = LazyEncoder(generation.config, options, generation.spec)
        arriving = Arriving(upserts, generation.config.store.part_documents)
        if not arriving.held and upserts.unchanged:
            return _up_to_date(published, upserts)
        if not arriving.held:
            raise empty_corpus(corpus)
        tail = tail_to_fold(published, arriving)
        ingested = ingest(chain(tail.documents, arriving), generation, progress, beside=True)
        require_same_types(published, ingested.parts)
        generation.keep_everything(tail.parts, tail.segments)
        generation.delete(upserts.replaced_documents)
        encoded = encode_parts(ingested.parts, generation, encoder, options, progress)
        rows = ingested.rows(generation.index, generation.live_of_last(ingested.documents))
        written = write_segments(generation, rows, encoded.records, encoder, options, progress)
        since = AddedSince.of(published.manifest)
        drift = drift_since(since, generation.transform, generation.index, generation.parts, generation.files)
        quality = _quality(published.manifest, tail, written) | since.figures()
        if drift:
            quality["drift"] = drift.to_dict()
        manifest = generation.publish(quality)
        notes = (*encoded.notes, *unknown_note(written.figures), *written.notes, generation.sweep())
        return _report(manifest, upserts, tail, encoded, drift, notes)


def _validated(corpus: Iterable[Document], published: PublishedIndex) -> Iterator[Document]:
    known = schema_from_json(published.manifest.schema)
    if isinstance(corpus, Corpus):
        return corpus.documents(known)
    return validated_documents(corpus, published.config.corpus, known)


class Upserts:
    """The documents of a corpus that an index does not hold as they are; counts the others as they go by."""

    def __init__(self, published: PublishedIndex, documents: Iterable[Document]) -> None:
        self.published, self._documents = published, documents
        self._replaced: list[int] = []
        self.new = self.unchanged = 0

    @property
    def replaced(self) -> int:
        """How many ids were there with another document."""
        return len(self._replaced)

    @property
    def replaced_documents(self) -> RowIds:
        """The stored numbers of the documents that were replaced, once the corpus has been read."""
        return self.published.stored(np.array(self._replaced, np.int64))

    def __iter__(self) -> Iterator[Document]:
        store = self.published.config.store
        for documents in cut_into_parts(self._documents, store.part_documents):
            there = self.published.find([document.id for document in documents])
            for document in documents:
                if document.id not in there:
                    self.new += 1
                elif same_document(document, there[document.id][1], store):
                    self.unchanged += 1
                    continue
                else:
                    _require_given_id(document)
                    self._replaced.append(there[document.id][0])
                yield document


def same_document(one: Document, stored: Document, store: StoreConfig) -> bool:
    """Whether a document is the stored one, its vector too if it comes with one: rounded as storing it rounds it."""
    if one != stored or one.vector is None or stored.vector is None:
        return one == stored and one.vector is stored.vector
    with np.errstate(over="ignore"):
        rounded = one.vector.astype(store.embeddings).astype(np.float32)
    return np.array_equal(rounded, stored.vector)


def _require_given_id(document: Document) -> None:
    """Raises CorpusError where an id that is made of content would replace a document with other content."""
    if has_content_id(document):
        raise CorpusError(
            f'document "{document.id}" came without an id; the id made of its content is in the index, but the '
            "document there was replaced and has other content. Way out: give the new document an id of its own, or "
            "delete the one that is there."
        )


def _quality(published: Manifest, tail: Tail, written: WrittenSegments) -> dict[str, Any]:
    """Figures of the whole index: those of its first segment stay, counts are of both, the tail counted once.

    "segments" has what was measured of each added one that is there, by file; "added" all about the last.
    """
    kept, new = dict(published.quality), written.figures
    kept |= {name: kept.get(name, 0) + new.get(name, 0) - tail.counts[name] for name in COUNTS}
    kept["added"] = {name: figure for name, figure in new.items() if name not in (*COUNTS, "segments")}
    gone = {segment.file for segment in published.segments[tail.segments :]}
    measured = {file: figures for file, figures in kept.get("segments", {}).items() if file not in gone}
    kept["segments"] = {**measured, **written.measured}
    return kept


def _up_to_date(published: PublishedIndex, upserts: Upserts) -> AddReport:
    manifest = published.manifest
    return AddReport(
        published.index, manifest.generation, manifest.documents, manifest.rows, unchanged=upserts.unchanged
    )


def _report(
    manifest: Manifest,
    upserts: Upserts,
    tail: Tail,
    encoded: EncodedParts,
    drift: Drift | None,
    notes: tuple[str, ...],
) -> AddReport:
    """The tail is no news; of a part that an interrupted run left, nothing is counted but its tokens."""
    return AddReport(
        index=upserts.published.index,
        generation=manifest.generation,
        documents=manifest.documents,
        rows=manifest.rows,
        added=upserts.new,
        replaced=upserts.replaced,
        unchanged=upserts.unchanged,
        rows_encoded=encoded.fresh,
        rows_reused=max(0, encoded.reused - tail.rows),
        rows_given=max(0, encoded.given - tail.rows),
        tokens=sum(record.tokens for record in encoded.records) - tail.counts["tokens"],
        truncated=sum(record.truncated for record in encoded.records) - tail.counts["truncated"],
        retries=encoded.retries,
        backend=encoded.backend,
        drift=drift,
        notes=tuple(note for note in notes if note),
        quality=manifest.quality,
    )


def require_same_types(published: PublishedIndex, pending: Sequence[PendingPart]) -> None:
    """Raises CorpusError for a column whose types in the index and in new parts have no type in common.

    A column of whole numbers becomes one of floats where the other has fractions, as within one build, unless some of
    the whole numbers would be rounded by that.
    """
    known = schema_from_json(published.manifest.schema)
    arriving = [schema_from_json(part.written.schema) for part in pending]
    try:
        merged = merge_schemas([known, *arriving])
    except BadRow as bad:
        way_out = way_out_of(bad.way_out, for_index=True)
        raise CorpusError(f"{_CLASH}{bad.what}. Fix: {way_out}.") from bad
    schemas = chain(((part.name, known) for part in published.manifest.parts),
                    zip((part.name for part in pending), arriving, strict=True))  # fmt: skip
    for name, schema in schemas:
        _require_digits(published.index / name, schema, merged)


def _require_digits(folder: Path, schema: pa.Schema, merged: pa.Schema) -> None:
    for column in schema:
        kind = merged.field(column.name).type
        if column.type == kind:
            continue
        values = read_column(folder, column.name)
        if values is not None and loses_precision(values, kind):
            raise CorpusError(
                f'{_CLASH}together they make column "{column.name}" {kind}, which would round whole numbers beyond '
                "2**53 that are there. Give the new documents such numbers as the index has them."
            )
