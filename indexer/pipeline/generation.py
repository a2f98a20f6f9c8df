"""The generation being written: the writer lock, the draft of its manifest, publishing and sweeping.

Every change of an index keeps or drops what the previous generation published, adds new files, and becomes visible when
`publish` creates the manifest. The `keep_*` and `add_*` methods only edit the draft.
"""

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from indexer.arrays import Mask, RowIds
from indexer.corpus.schema import merge_schemas, schema_from_json, schema_to_json
from indexer.errors import CorruptIndexError, ExistsError, NotPublishedError, StoreError, spelled
from indexer.models.encoder_spec import EncoderSpec
from indexer.pipeline.published_index import PublishedIndex
from indexer.pipeline.rows import RowView, even_runs
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
    remove_temporary,
    writer_lock,
)
from indexer.store.integrity import check_file, check_sizes
from indexer.store.manifest import (
    DELETED,
    EMPTY,
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
from indexer.store.parts import PartRecord
from indexer.store.sending import PARTS_OF_WRITER, open_sender
from indexer.store.stores import open_stored, store_at
from indexer.system.versions import library_versions
from indexer.transforms import Transform, transform_to_bytes

# Above these numbers a compaction is advised: a query takes about 0.04 ms longer for each segment, and each addition
# leaves a generation on disk.
MOST_SEGMENTS, MOST_GENERATIONS = 64, 1000


@dataclass(frozen=True)
class FittedTransform:
    """A transform, the sample that it was fitted on, and the origin of its query mean (JSON types)."""

    transform: Transform
    sample: RowView
    query_texts: dict[str, Any]


class Generation:
    """The next generation of a locked index.

    `published` is the previous generation, if there is one. Without `overwrite` a build must reproduce it. `config` is
    the recipe, and `transform_source` the index whose transform is reused. Used in one process only.
    """

    def __init__(self, index: Path, published: PublishedIndex | None, overwrite: bool) -> None:
        self.index, self.published, self.overwrite = index, published, overwrite
        self.number = (list_generations(index) or [0])[-1] + 1
        self.store, self.sender = store_at(index), open_sender(index)
        self.transform_source: PublishedIndex | None = None
        self.model: str | Path | None = None  # the folder of the published model, if it has moved
        self.fitted: FittedTransform | None = None  # if this generation fits the transform
        self.segments: list[SegmentEntry] = []
        self._kept_segments = 0
        self.parts: list[PartEntry] = []
        self.files: dict[str, FileDigest] = {}  # of the manifest
        self._schemas: list[dict[str, Any]] = []
        self._transform: Transform | None = None
        self._transform_entry: dict[str, Any] = {}
        self._encoder: dict[str, Any] = {}
        self._fingerprint = ""
        self._deleted: list[RowIds] = []
        self.config = BuildConfig() if published is None else published.config
        self._closing = ExitStack()
        if published is not None:
            self._closing.callback(published.close)
        self._closing.callback(self.sender.close)

    def close(self) -> None:
        self._closing.close()

    @cached_property
    def spec(self) -> EncoderSpec:
        """The encoder: by default the published one, resolved on first use. Raises ModelError and MismatchError."""
        return self.previous.spec(self.model)

    @property
    def continues(self) -> bool:
        """Whether the corpus must equal the published one: a build without `overwrite` of a published index."""
        return self.published is not None and not self.overwrite

    @property
    def previous(self) -> PublishedIndex:
        """The previous generation. Raises RuntimeError if nothing is published."""
        if self.published is None:
            raise RuntimeError(f"{self.index}: nothing is published yet")
        return self.published

    @cached_property
    def scratch(self) -> Path:
        """A temporary folder outside the index, removed by `close`."""
        folder = tempfile.TemporaryDirectory(prefix="isotrope-", ignore_cleanup_errors=True)
        return Path(self._closing.enter_context(folder))

    @property
    def transform(self) -> Transform:
        """The transform. Raises RuntimeError before it is kept, written or copied."""
        if self._transform is None:
            raise RuntimeError("the generation has no transform yet")
        return self._transform

    def keep_everything(self, parts: int | None = None, segments: int | None = None) -> None:
        """Keep the published encoder and transform, and the first parts and segments (by default all)."""
        self.keep_encoder()
        self.keep_parts(parts)
        self.keep_transform()
        self.keep_segments(segments)

    def keep_encoder(self) -> None:
        manifest = self.previous.manifest
        self._encoder, self._fingerprint = manifest.encoder, manifest.fingerprint
        self.files |= {name: digest for name, digest in manifest.files.items() if name.startswith(f"{layout.ENCODER}/")}

    def set_encoder(self, dim: int, state: Mapping[str, FileDigest]) -> None:
        """Record the encoder of `spec`, the embedding dimension and the files of the fitted state."""
        # Readers resolve a hub id themselves; only the path of a local folder must be stored.
        spec, folder = self.spec, self.spec.folder if self.spec.local else ""
        self._encoder = {"model": spec.model, "folder": folder, "dim": dim, "identity": spec.identity.to_dict()}
        self._fingerprint = spec.fingerprint
        self.files |= state

    def keep_parts(self, count: int | None = None) -> None:
        """Keep the first published parts, by default all.

        All deletions stay, so rewritten later parts must keep their document numbers.
        """
        manifest = self.previous.manifest
        self.parts += manifest.parts[:count]
        names = {part.name for part in self.parts}
        self.files |= {name: digest for name, digest in manifest.files.items() if name.rpartition("/")[0] in names}
        self._schemas.append(manifest.schema)
        self.delete(np.flatnonzero(~self.previous.live))

    def is_settled(self, part: int) -> bool:
        """Whether a part's number is within the published numbers, so that an earlier sweep has checked the part."""
        return part <= self._last_parts.get(part // PARTS_OF_WRITER, -1)

    @property
    def first_part(self) -> int:
        """The lowest unsettled part number, in object storage within this writer's range."""
        first = self.sender.first_part
        return self._last_parts.get(first // PARTS_OF_WRITER, first - 1) + 1

    @cached_property
    def _last_parts(self) -> dict[int, int]:
        """The highest published part number of each writer."""
        published = self.published.manifest.parts if self.published else ()
        numbers = sorted(int(part.name.rpartition("/")[2]) for part in published)
        return {number // PARTS_OF_WRITER: number for number in numbers}

    def add_part(self, name: str, record: PartRecord) -> None:
        """Append a complete part. Its quarantined documents are deleted."""
        first = sum(part.documents for part in self.parts)
        self.delete(np.array(record.quarantined, np.int64) + first)
        keys = record.document_key, record.embedding_key
        self.parts.append(PartEntry(name, record.documents, record.rows, *keys))
        self.files |= {f"{name}/{file}": digest for file, digest in record.files.items()}
        self.files[f"{name}/{layout.PART}"] = digest_file(self.index / name / layout.PART, open_stored)
        self._schemas.append(record.schema)

    def delete(self, stored_documents: RowIds) -> None:
        self._deleted.append(stored_documents)

    def keep_transform(self) -> None:
        published = self.previous
        self._note_transform(published.transform, published.manifest.transform, published.transform_digest)

    def write_transform(self, fitted: FittedTransform) -> None:
        """Write a newly fitted transform."""
        entry = {"kind": fitted.transform.kind, "query_texts": fitted.query_texts} | fitted.transform.settings()
        self.fitted = fitted
        self._write_transform(fitted.transform, entry)

    def copy_transform(self, transform_source: PublishedIndex) -> None:
        """Write the transform of another index; "taken_from" in the manifest is the sha256 of its file."""
        entry = transform_source.manifest.transform | {"taken_from": transform_source.transform_digest.sha256}
        self._write_transform(transform_source.transform, entry)

    def _write_transform(self, transform: Transform, entry: dict[str, Any]) -> None:
        name = layout.transform_name(self._file_number)
        make_folder((self.index / name).parent)
        digest = atomic_write_bytes(self.index / name, transform_to_bytes(transform))
        self._note_transform(transform, entry | {"file": name}, digest)

    def _note_transform(self, transform: Transform, entry: dict[str, Any], digest: FileDigest) -> None:
        self._transform, self._transform_entry = transform, entry
        self.files[entry["file"]] = digest

    def keep_segments(self, count: int | None) -> None:
        manifest = self.previous.manifest
        self.segments += manifest.segments[:count]
        self._kept_segments = len(self.segments)
        self.files |= {entry.file: manifest.files[entry.file] for entry in self.segments}

    @property
    def next_segment(self) -> str:
        """The file name of the next new segment."""
        return layout.segment_name(self._file_number, len(self.segments) - self._kept_segments)

    def add_segment(self, entry: SegmentEntry, digest: FileDigest) -> None:
        """Append a segment of the rows that follow the earlier segments."""
        self.segments.append(entry)
        self.files[entry.file] = digest

    @property
    def _file_number(self) -> int:
        """The number in new file names: the generation, in object storage combined with the writer."""
        return self.sender.file_number(self.number)

    def publish(self, quality: dict[str, Any]) -> Manifest:
        """Write the list of deleted documents, if any, then create the manifest."""
        deleted, live = None, self.live()
        if live is not None:
            deleted, self.files[deleted] = write_deleted(self.index, self._file_number, np.flatnonzero(~live))
        documents, rows = self.counts()
        chunked = self.config.chunk.tokens > 0 or any(part.rows != part.documents for part in self.parts)
        has_state = any(name.startswith(f"{layout.ENCODER}/") for name in self.files)
        features = {ENCODER_STATE: has_state, DELETED: deleted is not None, WINDOWS: chunked, EMPTY: not documents}
        kept = self.published if self.published and self.config is self.published.config else None
        manifest = Manifest(
            generation=self.number,
            config=self.config.to_dict() if kept is None else kept.manifest.config,  # as its version wrote it
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
        if (review := _review.get()) is not None and not review(self.index, manifest):
            raise NotPublishedError(
                f"{self.index}: the review rejected generation {self.number:,}, so the index is unchanged. The "
                "same command without a review publishes it, and encodes no document again."
            )
        publish(self.index, manifest)
        return manifest

    def live_of_last(self, documents: int) -> Mask | None:
        """Return which of the last documents of the parts are live, (documents,); None if all are."""
        live = self.live()
        last = None if live is None else live[len(live) - documents :]
        return None if last is None or last.all() else last

    def counts(self) -> tuple[int, int]:
        """Return the numbers of live documents and rows. Raises CorruptIndexError for a damaged list of windows."""
        if (live := self.live()) is None:
            return sum(part.documents for part in self.parts), self.stored_rows
        return int(np.count_nonzero(live)), self._live_rows(live)

    @property
    def stored_rows(self) -> int:
        """Rows of all parts, including deleted ones."""
        return sum(part.rows for part in self.parts)

    def live(self) -> Mask | None:
        """Return which documents of the parts are live, (stored documents,); None if all are."""
        deleted = np.concatenate([np.zeros(0, np.int64), *self._deleted])
        if not len(deleted):
            return None
        live = np.ones(sum(part.documents for part in self.parts), bool)
        live[deleted] = False
        return live

    def _live_rows(self, live: Mask) -> int:
        """Count the rows of live documents. Raises CorruptIndexError for a damaged list of windows."""
        count = first = 0
        for part in self.parts:
            alive, first = live[first : first + part.documents], first + part.documents
            if part.rows != part.documents and not alive.all():
                name = f"{part.name}/{layout.WINDOWS}"
                check_file(self.index / name, self.files[name])
                alive = alive[parts.read_window_documents(self.index / part.name)]
            count += part.rows if alive.all() else int(np.count_nonzero(alive))
        return count

    def sweep_before(self, fingerprint: str) -> None:
        """Remove temporary files and unfinished parts; before the first publication also parts of other encoders."""
        for name in (".", layout.MANIFESTS, *layout.SWEPT):
            remove_temporary(self.index, name)
        self.sender.end_pending()
        fresh, sent = not list_generations(self.index), self.store.sent_sizes(layout.PARTS)
        for number in self.store.leftover_parts(self.is_settled):
            name = layout.part_name(number)
            mark = f"{name}/{layout.PART}"
            unfinished = mark in sent or not (self.index / mark).exists()  # a sent record is read from the bucket
            record = parts.read_record(self.index / name) if fresh else None
            if unfinished or (fresh and (record is None or record.fingerprint != fingerprint)):
                remove_folder(self.index, name)
            else:
                remove_temporary(self.index, name)

    def sweep(self, removed: Collection[str] | None = None) -> str:
        """Remove parts, transforms and segments that no manifest names; foreign files stay.

        `removed` are the files that removed manifests named: with them, settled files are checked too. The index is
        already published, so a failure to remove files is no error; it is returned as a note.
        """
        index, unnamed_of = self.index, self._unnamed if removed is not None else self._unnamed_new
        try:
            self.sender.sweep(unnamed_of, removed or ())
            marks = {f"{layout.part_name(number)}/{layout.PART}" for number in layout.part_numbers(index)}
            marks |= set(layout.state_records(index))
            unnamed = unnamed_of({*marks, *layout.swept_files(index)})
            for mark in sorted(unnamed & marks):
                remove_folder(index, mark.rpartition("/")[0])
            for name in sorted(unnamed - marks):
                remove_file(index, name)
            for part in self.parts:  # a killed worker leaves some in a part that another worker wrote
                remove_temporary(index, part.name)
        except StoreError as error:
            return f"leftovers of earlier builds were not removed: {error}"
        return ""

    def compaction_note(self) -> str:
        """Return advice to compact the index if it has many more segments than a build makes, or many generations."""
        cut = even_runs([part.rows for part in self.parts], self.config.index.segment_rows)
        segments, generations = len(self.segments), len(list_generations(self.index))
        many = [f"{segments:,} segments that every query searches"] if segments - len(cut) > MOST_SEGMENTS else []
        many += [f"{generations:,} generations on disk"] if generations > MOST_GENERATIONS else []
        advice = spelled(f'compact_index("{self.index}")', f"isotrope compact {self.index}")
        return f"the index has {' and '.join(many)}; a compaction is advised: {advice}" if many else ""

    def _unnamed_new(self, names: Collection[str]) -> set[str]:
        """Return the files of `names`, except settled ones, that no manifest names.

        The sweep after an earlier generation removed the files that no manifest named, unless it was interrupted twice.
        Without this exception each change would read all manifests. `compact` looks at every file.
        """
        return self._unnamed([name for name in set(names) - self.files.keys() if not self._is_settled_file(name)])

    def _unnamed(self, names: Collection[str]) -> set[str]:
        """Return the files of `names` that no manifest names. Reads manifests, newest first, until no file is left."""
        left, numbers = set(names) - self.files.keys(), list_generations(self.index)
        if self.published and self.published.manifest.generation in numbers:
            left -= self.published.manifest.files.keys()
        while left and numbers:
            left -= load_generation(self.index, numbers.pop()).files.keys()
        return left

    def _is_settled_file(self, name: str) -> bool:
        """Whether a file's number is of a generation before the previous one, or of a settled part. The state of an
        encoder, which has no number, is settled if it is older than the previous manifest."""
        folder, number, path = name.partition("/")[0], layout.file_number(name), self.index / name
        if folder == layout.ENCODER:
            before = self.store.published_time(self.published.manifest.generation) if self.published else 0.0
            return path.exists() and path.stat().st_mtime < before
        if folder == layout.PARTS:
            return number is not None and self.is_settled(number)
        return number is not None and self.sender.generation_of(number) < self.number - 1


Review = Callable[[Path, Manifest], bool]
_review: ContextVar[Review | None] = ContextVar("review", default=None)


@contextmanager
def reviewed_by(review: Review) -> Iterator[None]:
    """Within the block, publish changes of indexes only if `review` returns True.

    It is called with the folder of the index and the manifest of the new generation, whose files are complete:
    `search.Index(folder, manifest)` opens it. Otherwise the change raises NotPublishedError.
    """
    token = _review.set(review)
    try:
        yield
    finally:
        _review.reset(token)


@contextmanager
def open_generation(
    index: Path, overwrite: bool = False, create: bool = False, erasing: bool = False
) -> Iterator[Generation]:
    """Lock an index and begin its next generation: read the newest manifest, compare file sizes, sweep leftovers.

    With `create` the index may be missing: its folder is made, and the caller calls `sweep_before` once the encoder is
    known. `create` with `overwrite` also accepts a damaged index. Only with `erasing` may an erasure have begun.
    Raises NotAnIndexError, CorruptIndexError, StoreError and LockedError, ExistsError for an unfinished erasure, and
    without `create` ExistsError if a build was prepared.
    """
    if create:
        require_index_folder(index)
        make_folder(index)
    else:
        seen = load_manifest(index)  # fails for a path that is no index before a lock file is created there
    with writer_lock(index):
        if not erasing:
            require_no_erasure(index)
        if create:
            published = _published(index, overwrite)
        else:
            is_newest = list_generations(index)[-1:] == [seen.generation]
            published = PublishedIndex(index, seen if is_newest else load_manifest(index))
        with closing(Generation(index, published, overwrite or not create)) as generation:
            if published and not (create and overwrite):
                check_sizes(index, published.manifest)
            if published and not create:
                require_no_pending(index)
                generation.sweep_before(published.manifest.fingerprint)
            yield generation


def require_no_erasure(index: Path) -> None:
    """Raise ExistsError for an index with an unfinished erasure."""
    if store_at(index).has(layout.ERASE):
        raise ExistsError(f"{index}: an erasure of documents is unfinished. Fix: finish it: {finish_erasure(index)}")


def finish_erasure(index: Path) -> str:
    """Return the command that finishes an erasure."""
    return spelled(f'erase_documents("{index}", [], proof)', f"isotrope erase {index} --proof FILE")


def require_no_pending(index: Path) -> None:
    """Raise ExistsError for an index with a prepared build."""
    if store_at(index).has(layout.PENDING):
        raise ExistsError(
            f"{index}: a build was prepared here, and this change would drop its encoded parts. Fix: "
            + spelled(
                f'finish that build (encode_pending, then build_index), or cancel_pending("{index}").',
                "finish that build (isotrope encode-parts, then isotrope build), or cancel it: isotrope "
                f"encode-parts {index} --cancel",
            )
        )


def require_index_folder(index: Path) -> None:
    """Raise StoreError for a path that holds anything other than parts of an index."""
    try:
        names = store_at(index).top()
        if index.exists() and not index.is_dir():
            raise StoreError(f"{index}: is a file; expected an index folder or a new path.")
    except OSError as error:
        raise StoreError(f"{index}: cannot be used: {error.strerror}.") from error
    if foreign := sorted(name for name in names - layout.TOP_LEVEL if not name.startswith(PROBE)):
        raise StoreError(
            f"{index}: contains files that do not belong to an index ({', '.join(foreign[:3])}); nothing was changed. "
            "Fix: name an empty or a new folder."
        )


def _published(index: Path, overwrite: bool) -> PublishedIndex | None:
    """Return the newest generation; None if there is none, or with `overwrite` if it is damaged."""
    if not list_generations(index):
        return None
    try:
        return PublishedIndex(index, load_manifest(index))
    except CorruptIndexError:
        if overwrite:
            return None
        raise
