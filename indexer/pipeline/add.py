"""`add_documents`: new documents in parts and a segment of their own; a known id replaces its document.

Nothing that is published is written again: the next generation names the old parts and segments beside the new ones,
and lists the replaced documents as deleted. A document that is there already, to the last column, is left alone, so
running the same command again changes nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from indexer.config import RunOptions
from indexer.corpus import Corpus
from indexer.corpus.corpus import validated_documents
from indexer.corpus.document import Document
from indexer.corpus.ids import has_content_id
from indexer.corpus.schema import schema_from_json
from indexer.errors import ConfigError, CorpusError
from indexer.pipeline.added_types import require_same_types
from indexer.pipeline.change import Change, change
from indexer.pipeline.drift import AddedSince, Drift, drift_since
from indexer.pipeline.encode import EncodedPart, encode_parts
from indexer.pipeline.encoder_state import EncoderSource, unknown_note
from indexer.pipeline.ingest import ingest, same_document
from indexer.pipeline.publication import (
    new_parts,
    next_generation,
    publish_generation,
    published_parts,
    published_recipe,
)
from indexer.pipeline.segment import COUNTS, write_segment_of
from indexer.pipeline.stored_transform import published_transform
from indexer.pipeline.sweep import sweep_after
from indexer.progress import NoProgress, Progress
from indexer.settings import named_path
from indexer.store import parts
from indexer.store.manifest import Manifest, SegmentEntry

SMALL_ROWS = 50_000  # a segment of at most so many is exact whatever the recipe says


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
    with change(named_path(index, "the index")) as opened:
        build = opened.context(model)
        if isinstance(corpus, Corpus) and corpus.config != build.config.corpus:
            raise ConfigError(
                "the corpus is read by other column rules than the index's; pass "
                "read_corpus(..., config=the index's recipe.corpus)."
            )
        news = Upserts(opened, _checked(corpus, opened))
        arriving = iter(news)
        first = next(arriving, None)
        if first is None and news.unchanged:
            return _up_to_date(opened, news)
        ingested = ingest(chain([] if first is None else [first], arriving), build, progress, beside=True)
        require_same_types(opened, ingested.slots)
        source = EncoderSource(build.config, options, build.spec)
        encoded = encode_parts(ingested.slots, build, source, options, progress)
        records = [slot.record or encoded[slot.name].record for slot in ingested.slots]
        transform = published_transform(opened.index, opened.published)
        generation, contents = next_generation(opened.index), ingested.contents(opened.index)
        segment = write_segment_of(
            opened.index, generation, contents, records, transform, build.config, source, options, progress,
            small=sum(contents.rows) <= SMALL_ROWS,
        )  # fmt: skip
        held = published_parts(opened.published) + new_parts(opened.index, ingested.slots, records)
        live = np.concatenate([news.left(), np.ones(sum(contents.documents), bool)])
        since = AddedSince.of(opened.published)
        drift = drift_since(since, transform.transform, opened.index, held)
        entry = segment.entry(opened.index, opened.published.stored_rows)
        quality = _quality(opened.published, entry[0], segment.quality) | since.figures()
        if drift:
            quality["drift"] = drift.to_dict()
        segments = [*published_segments(opened.published), entry]
        recipe = published_recipe(opened.published)
        manifest = publish_generation(opened.index, generation, recipe, held, transform, segments, live, quality)
        left = sweep_after(opened.index)
        return _report(
            opened.index,
            manifest,
            news,
            encoded,
            records,
            drift,
            (*unknown_note(segment.quality), *segment.filled.notes, left),
        )


def _checked(corpus: Iterable[Document], opened: Change) -> Iterator[Document]:
    known = schema_from_json(opened.published.schema)
    if isinstance(corpus, Corpus):
        return corpus.documents(known)
    return validated_documents(corpus, opened.config.corpus, known)


class Upserts:
    """The documents of a corpus that an index does not hold as they are; counts the others as they go by."""

    def __init__(self, opened: Change, documents: Iterable[Document]) -> None:
        self._opened, self._documents = opened, documents
        self._replaced: list[int] = []
        self.new = self.unchanged = 0

    @property
    def replaced(self) -> int:
        return len(self._replaced)

    def left(self) -> Any:
        """Which stored documents stay live, (stored documents,), once the corpus has been read."""
        live = self._opened.live
        live[self._opened.stored(np.array(self._replaced, np.int64))] = False
        return live

    def __iter__(self) -> Iterator[Document]:
        stream, reader = iter(self._documents), self._opened.documents
        while documents := list(islice(stream, self._opened.config.store.part_documents)):
            numbers = reader.find_ids([document.id for document in documents])
            there = dict(zip(numbers, self._opened.fetch(list(numbers.values())), strict=True))
            for document in documents:
                if document.id not in there:
                    self.new += 1
                elif same_document(document, there[document.id], self._opened.config.store):
                    self.unchanged += 1
                    continue
                else:
                    _require_given_id(document)
                    self._replaced.append(numbers[document.id])
                yield document


def _require_given_id(document: Document) -> None:
    """Raises CorpusError where an id that is made of content would replace a document with other content."""
    if has_content_id(document):
        raise CorpusError(
            f'document "{document.id}" came without an id; the id made of its content is in the index, but the '
            "document there was replaced and has other content. Way out: give the new document an id of its own, or "
            "delete the one that is there."
        )


def published_segments(published: Manifest) -> list[tuple[SegmentEntry, Any]]:
    """The segments of a published generation with their stamps, kept as they are."""
    return [(entry, published.files[entry.file]) for entry in published.segments]


def _quality(published: Manifest, entry: SegmentEntry, segment: dict[str, Any]) -> dict[str, Any]:
    """Figures of the whole index: those of its first segment stay, counts are of both.

    "segments" has what was measured of each added one, by file; "added" all about the last.
    """
    kept = dict(published.quality)
    kept |= {name: kept.get(name, 0) + segment.get(name, 0) for name in COUNTS}
    kept["added"] = {name: figure for name, figure in segment.items() if name not in COUNTS}
    measured = {name: segment[name] for name in ("index", "recall_curve") if name in segment}
    kept["segments"] = {**kept.get("segments", {}), entry.file: measured}
    return kept


def _up_to_date(opened: Change, news: Upserts) -> AddReport:
    published = opened.published
    return AddReport(opened.index, published.generation, published.documents, published.rows, unchanged=news.unchanged)


def _report(
    index: Path,
    manifest: Manifest,
    news: Upserts,
    encoded: dict[str, EncodedPart],
    records: list[parts.PartRecord],
    drift: Drift | None,
    notes: tuple[str, ...],
) -> AddReport:
    reused, given = sum(part.reused for part in encoded.values()), sum(part.given for part in encoded.values())
    return AddReport(
        index=index,
        generation=manifest.generation,
        documents=manifest.documents,
        rows=manifest.rows,
        added=news.new,
        replaced=news.replaced,
        unchanged=news.unchanged,
        rows_encoded=sum(part.record.rows for part in encoded.values()) - reused - given,
        rows_reused=reused,
        rows_given=given,
        tokens=sum(record.tokens for record in records),
        truncated=sum(record.truncated for record in records),
        retries=sum(part.retries for part in encoded.values()),
        backend="; ".join(sorted({part.backend for part in encoded.values() if part.backend})),
        drift=drift,
        notes=tuple(note for note in notes if note),
        quality=manifest.quality,
    )
