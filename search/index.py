"""An open index: its manifest, transform and segments, each checked before use.

`Index` is one generation. `LiveRows` reads its live rows block by block: raw embeddings, vectors, text hashes and
lengths. Document and row numbers count live documents and rows only.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from indexer import ann
from indexer.arrays import Embeddings, Mask, RowIds, SearchResult, TextHashes, Vectors
from indexer.errors import ConfigError, StoreError, as_argument, as_shown, spelled
from indexer.models.identity import EncoderIdentity
from indexer.recipe.config import BuildConfig, without_auto
from indexer.recipe.loading import named_path
from indexer.store import layout
from indexer.store.embeddings import EmbeddingReader
from indexer.store.integrity import check_files, check_sizes, hashed_on_open, load_transform
from indexer.store.manifest import Manifest, list_generations, load_generation, load_manifest
from indexer.store.numbering import DocumentIds, LiveNumbering
from indexer.transforms import Transform
from indexer.typed_arguments import checked
from search.formatting import decimal, escape, html_table
from search.segments import MissingRows, SearchedSegment, Segment, VectorsOf, open_segment, search_segments
from search.unit_vectors import require_array

if TYPE_CHECKING:
    from indexer.models.encoder_spec import EncoderSpec
    from indexer.pipeline.rows import RowView
    from indexer.store.documents import DocumentReader


@dataclass(frozen=True)
class Index:
    """One generation of an index. Its files are read on first use."""

    path: Path
    manifest: Manifest
    hosted: tuple[SearchedSegment, ...] = ()  # segments that other processes search
    inode: tuple[int, int, int] | None = None  # the manifest's; None in object storage

    def __repr__(self) -> str:
        facts = [f"{name} {value}" for name, value in self._facts().items() if name != "path"]
        return f'Index("{self._facts()["path"]}", {", ".join(facts)})'

    def _repr_html_(self) -> str:
        """Return the facts of `repr` as a table for notebooks."""
        return html_table("Index", self._facts().items())

    def _facts(self) -> dict[str, str]:
        """Return the main facts of the manifest in words."""
        manifest, recall = self.manifest, self.manifest.measured.last_recall
        kinds = dict.fromkeys(entry.factory for entry in manifest.segments)
        facts = {
            "path": as_shown(str(self.path)),
            "generation": f"{manifest.generation:,}",
            "documents": f"{manifest.documents:,}",
            "dimensions": f"{manifest.transform['dim']:,}",
            "model": manifest.encoder["model"] or "not named",
            "search": ", ".join(kinds),
            "recall@10": decimal(recall) if recall is not None else "",
        }
        return {name: escape(value) for name, value in facts.items() if value}

    @classmethod
    @checked
    def open(cls, path: str | Path, generation: int | None = None) -> "Index":
        """Open the newest generation, or an earlier one by number.

        Compares all sizes, and hashes the files that search reads if they have at most 256 MB together; larger files
        are compared MiB by MiB as they are read. Raises NotAnIndexError, CorruptIndexError or StoreError, and
        ConfigError for a generation that does not exist.
        """
        index = cls.unchecked(path) if generation is None else cls._earlier(path, generation)
        try:
            check_sizes(index.path, index.manifest)
            check_files(index.path, index.manifest, _needed(index.manifest))
        except StoreError:
            if generation is not None or not index.is_followed:
                raise
            return cls.open(path)  # `isotrope compact` has removed that generation meanwhile
        return index

    @classmethod
    @checked
    def unchecked(cls, path: str | Path) -> "Index":
        """Open the newest generation without checking its files (see `load`). Raises the errors of the manifest."""
        index = named_path(path, "the index")
        manifest = load_manifest(index)
        return cls(index, manifest, inode=_inode(index, manifest))

    @classmethod
    def _earlier(cls, path: str | Path, generation: int) -> "Index":
        index = named_path(path, "the index")
        newest, numbers = load_manifest(index), list_generations(index)
        if generation not in numbers:
            kept = f"{numbers[0]:,} to {numbers[-1]:,}" if len(numbers) > 1 else f"{newest.generation:,} only"
            raise ConfigError(
                f"{index}: there is no generation {generation:,}; it has {kept}. `compact` removes older ones."
            )
        return cls(index, load_generation(index, generation))

    def load(self) -> "Index":
        """Check what `open` checks and load the files for search into memory; each byte is hashed once.

        Returns this index, or the next generation if its files were removed meanwhile.
        """
        try:
            check_sizes(self.path, self.manifest)
            if self._hashed_at_once:  # files of vectors and transform are hashed as they are read
                check_files(self.path, self.manifest, _documents(self.manifest))
            _ = self.segments, self.documents
        except StoreError:
            if not self.is_followed:
                raise
            return Index.unchecked(self.path).load()
        return self

    def close(self) -> None:
        """Close all files and mapped segments, which the next use opens again.

        Running searches keep theirs, and the background hash of a large file ends first.
        """
        opened = vars(self)
        if "documents" in opened:
            self.documents.close()
        if "stored_embeddings" in opened:
            self.stored_embeddings.close()
        opened.pop("segments", None)

    @property
    def is_followed(self) -> bool:
        """Whether a later generation or another index was published at this path since this one was opened."""
        if list_generations(self.path)[-1:] != [self.manifest.generation]:
            return True
        return self.inode is not None and self.inode != _inode(self.path, self.manifest)

    @cached_property
    def config(self) -> BuildConfig:
        """The recipe of the index."""
        return without_auto(BuildConfig.from_dict(self.manifest.config))  # of indexes without these settings

    @checked
    def encoder_spec(self, model: str | Path | None = None) -> "EncoderSpec":
        """Find and hash the encoder; `model` is its folder if it has moved. Raises ModelError and MismatchError."""
        from indexer.models.resolution import spec_of_index

        return spec_of_index(self.path, self.manifest, model)

    @cached_property
    def encoder(self) -> EncoderIdentity:
        """The identity of the encoder from the manifest."""
        return EncoderIdentity.from_dict(self.manifest.encoder["identity"])

    @cached_property
    def transform(self) -> Transform:
        """The fitted transform."""
        return load_transform(self.path, self.manifest)

    @cached_property
    def documents(self) -> "DocumentReader":
        """Documents by row number."""
        from indexer.corpus.schema import schema_from_json  # here, because it takes time, while the encoder loads
        from indexer.store.documents import DocumentReader

        stored = self.numbering.stored_documents
        return DocumentReader(self.path, self.manifest, schema_from_json(self.manifest.schema), stored)

    @cached_property
    def numbering(self) -> LiveNumbering:
        """The document of each row; numbers count live documents and rows only."""
        return LiveNumbering(self.path, self.manifest)

    @cached_property
    def stored_embeddings(self) -> EmbeddingReader:
        """Raw embeddings by stored row."""
        return EmbeddingReader(self.path, self.manifest)

    @cached_property
    def ids(self) -> DocumentIds:
        """The look-up of documents by id."""
        return DocumentIds(self.documents)

    @checked
    def embeddings(self, rows: RowIds) -> Embeddings:
        """Return raw embeddings (n, d) of some rows."""
        stored = self.numbering.stored_rows
        return self.stored_embeddings.rows(rows if stored is None else stored[rows])

    @checked
    def vectors(self, rows: RowIds) -> Vectors:
        """Return unit vectors (n, k) of some rows: the transform of their embeddings."""
        stored = self.numbering.stored_rows
        return self.stored_vectors(rows if stored is None else stored[rows])

    @cached_property
    def segments(self) -> list[Segment]:
        """The segments with their FAISS indexes, loaded or memory-mapped."""
        return [self.open_segment(number) for number in range(len(self.manifest.segments))]

    @checked
    def open_segment(self, number: int) -> Segment:
        """Open one segment with its FAISS index, loaded or memory-mapped. Raises ConfigError for an unknown number."""
        if not 0 <= number < (count := len(self.manifest.segments)):
            raise ConfigError(f"number is {number}; expected 0 to {count - 1}, the segments of {self.path}.")
        entry = self.manifest.segments[number]
        digest = self.manifest.files[entry.file]
        path, dim = self.path / entry.file, self.transform.dim
        return open_segment(path, entry, digest, dim, self.stored_vectors, self._hashed_at_once)

    @property
    def searched(self) -> Sequence[SearchedSegment]:
        """The segments to search: in other processes, or opened here."""
        return self.hosted or self.segments

    @checked
    def search(
        self,
        vectors: Vectors,
        k: int,
        allowed: Mask | None = None,
        exact: bool = False,
        missing: MissingRows | None = None,
    ) -> list[SearchResult]:
        """Return (scores, rows) for each vector (n, dim): the best k rows and all ties with the k-th, best first.

        `allowed` (rows,) is a mask of the rows that may be found, None for all; `exact` compares with each of them;
        `missing` is as in `search_segments`. Raises ConfigError for vectors that are not (n, dim) and finite.
        """
        require_array(vectors, self.transform.dim)
        numbering = self.numbering
        live, stored = numbering.live_rows, numbering.stored_rows
        mask = live if allowed is None else allowed
        if allowed is not None and live is not None and stored is not None:
            mask = np.zeros(len(live), bool)
            mask[stored[allowed]] = True
        results = search_segments(self.searched, vectors, k, mask, exact, missing)
        return [(scores, numbering.numbers_of(rows)) for scores, rows in results]

    @checked
    def accelerate(self, device: str) -> None:
        """Search exact segments on a device ("cuda", "cuda:N" or "mps"), with the same answers.

        Raises ConfigError for an unknown name, MachineError for a missing device or too little memory.
        """
        from indexer.encoders.device import choose_device  # here, as it imports torch

        choose_device(device)
        self.segments[:] = [replace(segment, index=ann.on_device(segment.index, device)) for segment in self.segments]

    @checked
    def reach_recall(self, recall: float) -> None:
        """Set the search parameters that the build measured for a recall@10 of at least `recall`.

        From index.recall on, they are at least the stored ones, which later measurements can have widened. Raises
        ConfigError if the build measured less, or nothing. Exact segments have recall 1.
        """
        for number, segment in enumerate(self.searched):
            if segment.exact:
                continue
            file = segment.entry.file
            curve = self.manifest.measured.of_segment(file, number == 0).recall_curve
            if not curve:
                raise ConfigError(
                    f"{self.path}: the recall of {file} was not measured. Fix: measure it with "
                    f"{spelled('refit_index', 'isotrope refit')}, or search with {as_argument('exact', True)}."
                )
            parameters = ann.parameters_for(curve, recall)
            if recall >= self.config.index.recall:
                stored = segment.entry.search_parameters
                parameters = {name: max(value, stored.get(name, value)) for name, value in parameters.items()}
            segment.set_search_parameters(parameters)

    @cached_property
    def stored_vectors(self) -> VectorsOf:
        """Return unit vectors (n, k) of some stored rows, which include deleted ones."""
        transform, embeddings = self.transform, self.stored_embeddings
        return lambda rows: transform.transform(embeddings.rows(rows), "document")  # refers to no Index, as segments do

    @cached_property
    def _hashed_at_once(self) -> bool:
        return hashed_on_open(self.path, self.manifest, _needed(self.manifest))


def _inode(path: Path, manifest: Manifest) -> tuple[int, int, int] | None:
    """Return the inode, time and size of a manifest, which differ from those of another index's manifest."""
    try:
        status = (path / layout.manifest_name(manifest.generation)).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _needed(manifest: Manifest) -> list[str]:
    state = [name for name in manifest.files if name.startswith(f"{layout.ENCODER}/")]
    segments = [entry.file for entry in manifest.segments]
    deleted = [manifest.deleted] if manifest.deleted else []
    return [manifest.transform["file"], *segments, *state, *deleted, *_documents(manifest)]


def _documents(manifest: Manifest) -> list[str]:
    return [f"{part.name}/{layout.DOCUMENTS}" for part in manifest.parts]


BLOCK_ROWS = 4096


class LiveRows:
    """The live rows of an open index, read block by block.

    Their files are hashed first if they have at most 256 MB; in larger ones embeddings are checked as they are read,
    and `isotrope verify` checks the others. Raises CorruptIndexError.
    """

    def __init__(self, index: Index) -> None:
        self.index, self._numbering = index, index.numbering
        self._folders = [index.path / part.name for part in index.manifest.parts]
        files = (layout.EMBEDDINGS, layout.MOMENTS, layout.WINDOWS)
        check_files(
            index.path, index.manifest, [f"{part.name}/{file}" for part in index.manifest.parts for file in files]
        )

    def __len__(self) -> int:
        return self._numbering.rows

    @property
    def id_hashes(self) -> npt.NDArray[np.uint64]:
        """Hashes (documents,) of all ids, by which samples are drawn."""
        return self.index.ids.hashes

    def sample(self, size: int | str) -> "RowView":
        """Return the rows of the `size` documents with the smallest id hashes, or of "all"."""
        from indexer.pipeline.rows import RowView  # here, because a query does not need it

        parts, live = self.index.manifest.parts, self._numbering.live_documents
        hashes = np.zeros(self.index.manifest.stored_documents, np.uint64)
        hashes[slice(None) if live is None else live] = self.id_hashes
        documents, rows = [part.documents for part in parts], [part.rows for part in parts]
        return RowView(self._folders, documents, rows, hashes, live).sample(size)

    def embedding_blocks(self) -> Iterator[tuple[int, Embeddings]]:
        """Yield (first row, raw embeddings (m, d)) of every row, block by block."""
        live, start = self._numbering.live_rows, 0
        for first, embeddings in self.index.stored_embeddings.blocks():
            kept = embeddings if live is None else embeddings[live[first : first + len(embeddings)]]
            if len(kept):
                yield start, kept
                start += len(kept)

    def vector_blocks(self) -> Iterator[tuple[int, Vectors]]:
        """Yield (first row, unit vectors (m, k)) of every row, block by block."""
        for first, embeddings in self.embedding_blocks():
            yield first, self.index.transform.transform(embeddings, "document")

    def hash_blocks(self) -> Iterator[tuple[int, TextHashes]]:
        """Yield (first row, text hashes (m, 2)), part by part."""
        from indexer.store.parts import read_text_hashes

        start = 0
        for hashes in self._of_parts(read_text_hashes):
            yield start, hashes
            start += len(hashes)

    def length_blocks(self) -> Iterator[npt.NDArray[np.int32]]:
        """Yield the tokens (m,) of each row's text before truncation, part by part."""
        from indexer.store.parts import read_token_counts

        return self._of_parts(read_token_counts)

    def vectors(self, rows: RowIds) -> Vectors:
        """Return vectors (n, k) of the given rows, in their order."""
        return self.index.vectors(rows)

    def text_hashes(self, rows: RowIds) -> TextHashes:
        """Return text hashes (n, 2) of the given rows, in their order."""
        from indexer.store.parts import read_text_hashes

        stored = rows if self._numbering.stored_rows is None else self._numbering.stored_rows[rows]
        firsts = self.index.stored_embeddings.firsts
        hashes, part_of = np.zeros((len(rows), 2), np.uint64), np.searchsorted(firsts, stored, side="right") - 1
        for part in np.unique(part_of).tolist():
            places = np.flatnonzero(part_of == part)
            hashes[places] = read_text_hashes(self._folders[part])[stored[places] - firsts[part]]
        return hashes

    def _of_parts(self, read: Callable[[Path], npt.NDArray[Any]]) -> Iterator[npt.NDArray[Any]]:
        """Yield the values of each part's live rows, by a function that reads a folder."""
        live, firsts = self._numbering.live_rows, self.index.stored_embeddings.firsts
        for part, folder in enumerate(self._folders):
            values = read(folder)
            yield values if live is None else values[live[firsts[part] : firsts[part + 1]]]
