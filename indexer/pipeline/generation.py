"""The generation being written: the lock, what it follows on, the draft of its manifest, publishing, sweeping.

Every change of an index goes through one: what is published is kept or left out, what is new is added, and nothing is
seen of it before `publish` has created its manifest. Noting something down touches no file.
"""

import re
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from indexer.arrays import Mask, RowIds
from indexer.corpus.schema import merge_schemas, schema_from_json, schema_to_json
from indexer.encoders.chunker import DocumentChunker
from indexer.errors import CorruptIndexError, ExistsError, StoreError
from indexer.models.encoder_spec import EncoderSpec
from indexer.pipeline.leftovers import SWEPT, remove_temporary, state_folders, swept_files
from indexer.pipeline.published_index import PublishedIndex
from indexer.pipeline.rows import RowView
from indexer.recipe.config import BuildConfig
from indexer.store import layout, parts
from indexer.store.bucket import PROBE
from indexer.store.files import (
    FileDigest,
    atomic_write_bytes,
    digest_file,
    make_folder,
    remove_file,
    remove_folder,
    writer_lock,
)
from indexer.store.integrity import check_file, check_sizes
from indexer.store.manifest import (
    DELETED,
    ENCODER_STATE,
    WINDOWS,
    Manifest,
    PartEntry,
    SegmentEntry,
    list_generations,
    load_generation,
    load_manifest,
    publish,
)
from indexer.store.numbering import write_deleted
from indexer.store.parts import PartDocuments, PartRecord
from indexer.store.sending import PARTS_OF_WRITER, open_sender
from indexer.store.stores import open_stored, store_at
from indexer.system.versions import library_versions
from indexer.transforms import Transform, transform_to_bytes


@dataclass(frozen=True)
class FittedTransform:
    """A transform, the sample it was fitted on, and where its query mean comes from (JSON types)."""

    transform: Transform
    sample: RowView
    query_texts: dict[str, Any]


class Generation:
    """The next generation of an index that is locked. `published` is what it follows on, if there is anything.

    `config` is its recipe, and `donor` the index whose transform is taken over, if one is. Without `overwrite` what is
    built must be what is published. Held by one process, and never sent to another.
    """

    def __init__(self, index: Path, published: PublishedIndex | None, overwrite: bool) -> None:
        self.index, self.published, self.overwrite = index, published, overwrite
        self.number = (list_generations(index) or [0])[-1] + 1
        self.store, self.sender = store_at(index), open_sender(index)
        self.donor: PublishedIndex | None = None
        self.model: str | Path | None = None  # the folder of a published index's model, if it has moved
        self.fitted: FittedTransform | None = None  # how the transform was fitted, if that was now
        self.segments: list[SegmentEntry] = []
        self._kept: frozenset[str] = frozenset()  # files of segments that were there before
        self.parts: list[PartEntry] = []
        self.files: dict[str, FileDigest] = {}  # of the manifest, so far
        self._schemas: list[dict[str, Any]] = []
        self._transform: Transform | None = None
        self._transform_entry: dict[str, Any] = {}
        self._encoder: dict[str, Any] = {}
        self._fingerprint, self._has_state = "", False
        self._deleted: list[RowIds] = []
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._spec: EncoderSpec | None = None
        self._chunker: DocumentChunker | None = None
        self.config = BuildConfig() if published is None else published.config

    @property
    def spec(self) -> EncoderSpec:
        """The encoder: the published one, found when it is first asked for, unless it is another. Raises ModelError
        and MismatchError."""
        if self._spec is None:
            self._spec = self.followed.spec(self.model)
        return self._spec

    def set_spec(self, spec: EncoderSpec) -> None:
        """The encoder of the generation, in place of the one that it had so far."""
        self._spec, self._chunker = spec, None

    @property
    def chunker(self) -> DocumentChunker:
        """What makes rows of documents, with the encoder's own tokenizer."""
        if self._chunker is None:
            self._chunker = DocumentChunker(self.spec, self.config.chunk)
        return self._chunker

    @property
    def continues(self) -> bool:
        """Whether the corpus must be the published one: a build without `overwrite`, where something is published."""
        return self.published is not None and not self.overwrite

    @property
    def followed(self) -> PublishedIndex:
        """What is published, where something must be."""
        if self.published is None:
            raise RuntimeError(f"{self.index}: nothing is published yet")
        return self.published

    @cached_property
    def scratch(self) -> Path:
        """A folder outside the index that goes with the generation."""
        self._scratch = tempfile.TemporaryDirectory(prefix="isotrope-", ignore_cleanup_errors=True)
        return Path(self._scratch.name)

    def close(self) -> None:
        """Let go of files."""
        try:
            self.sender.close()
            if self.published is not None:
                self.published.close()
        finally:
            if self._scratch is not None:
                self._scratch.cleanup()

    @property
    def transform(self) -> Transform:
        """The transform, once it was kept, written or copied."""
        if self._transform is None:
            raise RuntimeError("the generation has no transform yet")
        return self._transform

    def keep_everything(self, parts: int | None = None, segments: int | None = None) -> None:
        """What is published stays as it is; of its parts and segments the first ones, if some are written anew."""
        self.keep_encoder()
        self.keep_parts(parts)
        self.keep_transform()
        self.keep_segments(segments)

    # --- the encoder

    def keep_encoder(self) -> None:
        """The encoder stays the published one."""
        manifest = self.followed.manifest
        state = _inside(manifest.files, f"{layout.ENCODER}/")
        self._encoder, self._fingerprint, self._has_state = manifest.encoder, manifest.fingerprint, bool(state)
        self.files |= state

    def set_encoder(self, dim: int, state: Mapping[str, FileDigest]) -> None:
        """The encoder is that of `spec`; embeddings have `dim` numbers, and `state` are files of its fitted state."""
        # A hub id is looked up again by whoever opens the index; only a folder's place must be remembered.
        spec, folder = self.spec, self.spec.folder if self.spec.local else ""
        self._encoder = {"model": spec.model, "folder": folder, "dim": dim, "identity": spec.identity.to_dict()}
        self._fingerprint, self._has_state = spec.fingerprint, bool(state)
        self.files |= state

    # --- parts

    def keep_parts(self, count: int | None = None) -> None:
        """The first published parts, by default all, stay as they are. What is deleted stays deleted: who writes the
        others anew keeps the numbers of their documents."""
        manifest = self.followed.manifest
        kept = manifest.parts[:count]
        names = {part.name for part in kept}
        self.parts += kept
        self.files |= {name: digest for name, digest in manifest.files.items() if name.rpartition("/")[0] in names}
        self._schemas.append(manifest.schema)
        self.delete(np.flatnonzero(~self.followed.live))

    def is_settled(self, part: int) -> bool:
        """Whether a part's number is not beyond those that are published. An earlier sweep has then looked at the part:
        some generation names it."""
        return part <= self._last_parts.get(part // PARTS_OF_WRITER, -1)

    @property
    def first_part(self) -> int:
        """The lowest number that a new part may have: no settled one, and in object storage one of this writer's."""
        first = self.sender.first_part
        return self._last_parts.get(first // PARTS_OF_WRITER, first - 1) + 1

    @cached_property
    def _last_parts(self) -> dict[int, int]:
        """The greatest number of a published part, by writer."""
        published = self.published.manifest.parts if self.published else ()
        numbers = sorted(int(part.name.rpartition("/")[2]) for part in published)
        return {number // PARTS_OF_WRITER: number for number in numbers}

    def add_part(self, name: str, documents: PartDocuments, record: PartRecord) -> None:
        """A complete part, whoever wrote it; parts follow in order. What was set aside in it is deleted."""
        first = sum(part.documents for part in self.parts)
        self.delete(np.array(record.set_aside, np.int64) + first)
        self.parts.append(
            PartEntry(name, documents.documents, record.rows, documents.document_key, documents.embedding_key)
        )
        self.files |= {f"{name}/{file}": digest for file, digest in record.files.items()}
        self.files[f"{name}/{layout.PART}"] = digest_file(self.index / name / layout.PART, open_stored)
        self._schemas.append(record.schema)

    def delete(self, stored_documents: RowIds) -> None:
        """These documents of the parts, by their stored numbers, are no longer part of the index."""
        self._deleted.append(stored_documents)

    # --- the transform

    def keep_transform(self) -> None:
        """The transform stays the published one."""
        published = self.followed
        self._note_transform(published.transform, published.manifest.transform, published.transform_digest)

    def write_transform(self, fitted: FittedTransform) -> None:
        """Write a transform that was fitted."""
        entry = {"kind": fitted.transform.kind, "query_texts": fitted.query_texts} | fitted.transform.settings()
        self.fitted = fitted
        self._write_transform(fitted.transform, entry)

    def copy_transform(self, donor: PublishedIndex) -> None:
        """Write another index's transform; "taken_from" in the manifest, its sha256, says that it was not fitted."""
        entry = donor.manifest.transform | {"taken_from": donor.transform_digest.sha256}
        self._write_transform(donor.transform, entry)

    def _write_transform(self, transform: Transform, entry: dict[str, Any]) -> None:
        name = layout.transform_name(self._file_number)
        make_folder((self.index / name).parent)
        digest = atomic_write_bytes(self.index / name, transform_to_bytes(transform))
        self._note_transform(transform, entry | {"file": name}, digest)

    def _note_transform(self, transform: Transform, entry: dict[str, Any], digest: FileDigest) -> None:
        self._transform, self._transform_entry = transform, entry
        self.files[entry["file"]] = digest

    # --- segments

    def keep_segments(self, count: int | None = None) -> None:
        """The first published segments, by default all, stay as they are."""
        manifest = self.followed.manifest
        kept = manifest.segments[:count]
        self.segments += kept
        self._kept = frozenset(entry.file for entry in kept)
        self.files |= {entry.file: manifest.files[entry.file] for entry in kept}

    @property
    def next_segment(self) -> str:
        """The name of the segment that this generation writes next."""
        number = sum(entry.file not in self._kept for entry in self.segments)
        return layout.segment_name(self._file_number, number)

    def add_segment(self, entry: SegmentEntry, digest: FileDigest) -> None:
        """A segment that was written, of the rows after those of the segments before."""
        self.segments.append(entry)
        self.files[entry.file] = digest

    @property
    def indexed_rows(self) -> int:
        """Rows in all segments so far."""
        return sum(entry.rows for entry in self.segments)

    @property
    def _file_number(self) -> int:
        """What new files are numbered by: the generation, and in object storage by whom."""
        return self.sender.file_number(self.number)

    # --- the end

    def publish(self, quality: dict[str, Any]) -> Manifest:
        """Write the list of deleted documents, if there are any, then create the manifest: the generation is there."""
        deleted, live = None, self._live()
        documents, rows = sum(part.documents for part in self.parts), sum(part.rows for part in self.parts)
        if live is not None:
            deleted, self.files[deleted] = write_deleted(self.index, self._file_number, np.flatnonzero(~live))
            documents, rows = int(np.count_nonzero(live)), self._live_rows(live)
        chunked = self.config.chunk.tokens > 0 or any(part.rows != part.documents for part in self.parts)
        features = {ENCODER_STATE: self._has_state, DELETED: deleted is not None, WINDOWS: chunked}
        manifest = Manifest(
            generation=self.number,
            config=self._recipe(),
            encoder=self._encoder,
            fingerprint=self._fingerprint,
            transform=self._transform_entry,
            parts=tuple(self.parts),
            segments=tuple(self.segments),
            files=self.files,
            features=tuple(name for name, needed in features.items() if needed),
            schema=schema_to_json(merge_schemas(list(map(schema_from_json, self._schemas)))),
            documents=documents,
            rows=rows,
            quality=quality,
            versions=library_versions(),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            deleted=deleted,
        )
        self.sender.send_all(self.files, self.number)
        publish(self.index, manifest)
        return manifest

    def _recipe(self) -> dict[str, Any]:
        """The settings; those of an earlier version as it wrote them, where they are kept."""
        if self.published is not None and self.config is self.published.config:
            return self.published.manifest.config
        return self.config.to_dict()

    def live_of_last(self, documents: int) -> Mask | None:
        """Which of the last documents of the parts are live so far, (documents,); None when all are."""
        live = self._live()
        return None if live is None or live[len(live) - documents :].all() else live[len(live) - documents :]

    def _live(self) -> Mask | None:
        """Which documents of the parts are live, (stored documents,); None when all are."""
        deleted = np.concatenate([np.zeros(0, np.int64), *self._deleted])
        if not len(deleted):
            return None
        live = np.ones(sum(part.documents for part in self.parts), bool)
        live[deleted] = False
        return live

    def _live_rows(self, live: Mask) -> int:
        """Rows of live documents. Raises CorruptIndexError for a changed list of windows."""
        count = first = 0
        for part in self.parts:
            alive, first = live[first : first + part.documents], first + part.documents
            if alive.all():
                count += part.rows
                continue
            if part.rows != part.documents:
                name = f"{part.name}/{layout.WINDOWS}"
                check_file(self.index / name, self.files[name])
                alive = alive[parts.read_window_documents(self.index / part.name)]
            count += int(np.count_nonzero(alive))
        return count

    def sweep_before(self, fingerprint: str) -> None:
        """Remove temporary files and unfinished parts; before the first publication also parts of another encoder."""
        for name in (layout.MANIFESTS, *SWEPT):
            remove_temporary(self.index, name)
        self.sender.end_pending()
        fresh, sent = not list_generations(self.index), self.store.sent_sizes(layout.PARTS)
        for number in self.store.leftover_parts(self.is_settled):
            name = layout.part_name(number)
            mark = f"{name}/{layout.PART}"
            unfinished = mark in sent or not (self.index / mark).exists()  # sent: it is read from there
            record = parts.read_record(self.index / name) if fresh else None
            if unfinished or (fresh and (record is None or record.fingerprint != fingerprint)):
                remove_folder(self.index, name)
            else:
                remove_temporary(self.index, name)

    def sweep(self, forgotten: Collection[str] | None = None) -> str:
        """Remove parts, transforms and segments that no manifest names; files we did not make are left alone.
        `forgotten` are those that removed manifests named: with them, settled parts are looked at too.

        The index is published by now, so what cannot be removed is no failure: it is said in the note returned.
        """
        index = self.index
        try:
            if forgotten is not None:
                self._last_parts.clear()
            self.sender.sweep(self._unnamed, forgotten or ())
            new = (number for number in layout.part_numbers(index) if not self.is_settled(number))
            marks = {f"{layout.part_name(number)}/{layout.PART}" for number in new}
            states = {f"{name}/{layout.STATE}" for name in state_folders(index)}
            unnamed = self._unnamed({*marks, *states, *swept_files(index)})
            for mark in sorted(unnamed & (marks | states)):
                remove_folder(index, mark.rpartition("/")[0])
            for name in sorted(unnamed - marks - states):
                remove_file(index, name)
            for part in self.parts:  # a worker that was killed leaves some in a part that another then wrote
                remove_temporary(index, part.name)
        except StoreError as error:
            return f"leftovers of earlier builds stay: {error}"
        return ""

    def _unnamed(self, names: Collection[str]) -> set[str]:
        """Return the files of `names` that no manifest names. Reads manifests, newest first, until no file is left.

        A file with the number of an earlier generation is kept as long as that generation exists, and so is a settled
        part, because otherwise each change would read all manifests. Files that the generation's manifest does not name
        were removed by the sweep after it, unless it was interrupted twice.
        """
        left, numbers = set(names) - self.files.keys(), list_generations(self.index)
        if self.published and self.published.manifest.generation in numbers:
            left -= self.published.manifest.files.keys()
        earlier = set(numbers[:-2])
        left = {name for name in left if not self._is_earlier(name, earlier)}
        while left and numbers:
            left -= load_generation(self.index, numbers.pop()).files.keys()
        return left

    def _is_earlier(self, name: str, generations: Collection[int]) -> bool:
        """Whether a file is taken for one of some earlier generations, by its number."""
        folder, _, rest = name.partition("/")
        number = re.split(r"[-./]", rest)[0]
        if not number.isdecimal():
            return False
        if folder == layout.PARTS:
            return self.is_settled(int(number))
        return folder in SWEPT and self.sender.generation_of(int(number)) in generations


@contextmanager
def open_generation(index: Path, overwrite: bool = False, create: bool = False) -> Iterator[Generation]:
    """Lock an index and begin its next generation: the newest manifest is read, sizes compared, leftovers swept.

    With `create` the index need not be there yet: its folder is made, and the caller sweeps (`sweep_before`) once the
    encoder is known. With `overwrite` as well a damaged one is no obstacle. Raises NotAnIndexError, CorruptIndexError,
    StoreError and LockedError, and without `create` ExistsError where a build was prepared.
    """
    if create:
        require_index_folder(index)
        make_folder(index)
    else:
        seen = load_manifest(index)  # says what is wrong with a path that is no index, before a lock file is made there
    with writer_lock(index):
        if create:
            published = _published(index, overwrite)
        else:
            is_newest = list_generations(index)[-1:] == [seen.generation]
            published = PublishedIndex(index, seen if is_newest else load_manifest(index))
        generation = Generation(index, published, overwrite or not create)
        try:
            if published and not (create and overwrite):
                check_sizes(index, published.manifest)
            if published and not create:
                _require_nothing_prepared(index)
                generation.sweep_before(published.manifest.fingerprint)
            yield generation
        finally:
            generation.close()


def _require_nothing_prepared(index: Path) -> None:
    if store_at(index).has(layout.PENDING):
        raise ExistsError(
            f"{index}: a build was prepared here, and this change would drop what was encoded for it. Finish that "
            f"build (isotrope encode-parts, then isotrope build), or give it up: isotrope encode-parts {index} --cancel"
        )


def require_index_folder(index: Path) -> None:
    """Refuse a path where anything is that is not part of an index. Raises StoreError."""
    try:
        names = store_at(index).top()
        if index.exists() and not index.is_dir():
            raise StoreError(f"{index}: is a file; expected a folder for the index, or a path where nothing is yet.")
    except OSError as error:
        raise StoreError(f"{index}: cannot be used: {error.strerror}.") from error
    if foreign := sorted(name for name in names - layout.TOP_LEVEL if not name.startswith(PROBE)):
        raise StoreError(
            f"{index}: holds files that are not an index's ({', '.join(foreign[:3])}); nothing was changed. "
            "Give an empty or a new folder."
        )


def _published(index: Path, overwrite: bool) -> PublishedIndex | None:
    """The newest generation, None if there is none; a damaged one only stands in the way of who does not overwrite."""
    if not list_generations(index):
        return None
    try:
        return PublishedIndex(index, load_manifest(index))
    except CorruptIndexError:
        if overwrite:
            return None
        raise


def _inside(files: Mapping[str, FileDigest], folder: str) -> dict[str, FileDigest]:
    return {name: digest for name, digest in files.items() if name.startswith(folder)}
