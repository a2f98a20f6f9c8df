"""Opening an index: its manifest, its transform and its segments, each checked before it is used."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer import ann
from indexer.arrays import Embeddings, Mask, RowIds, SearchResult, Vectors
from indexer.config import BuildConfig
from indexer.encoders.identity import UNLIMITED, EncoderIdentity
from indexer.errors import ConfigError, StoreError
from indexer.settings import named_path
from indexer.store import layout
from indexer.store.embeddings import EmbeddingReader
from indexer.store.integrity import check_files, check_sizes, hashed_on_open, load_transform
from indexer.store.manifest import Manifest, list_generations, load_manifest
from indexer.store.numbering import LiveNumbering
from indexer.store.quality import MeasuredPoint
from indexer.transforms import Transform
from search.segments import Segment, open_segment, search_segments

if TYPE_CHECKING:
    from indexer.store.documents import DocumentReader


_SHAPING = ("kind", "pooling", "layers", "max_length", "precision")  # of the encoder, shown


@dataclass(frozen=True)
class OpenIndex:
    """One generation of an index, as it was when it was opened. Parts are read when they are first needed."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path) -> "OpenIndex":
        """Open the newest generation.

        Compares all sizes, and hashes what search reads if that is at most 256 MB; larger files are compared
        MiB by MiB as they are read. Raises NotAnIndexError, CorruptIndexError or StoreError.
        """
        opened = cls.unchecked(path)
        try:
            check_sizes(opened.path, opened.manifest)
            check_files(opened.path, opened.manifest, _needed(opened.manifest))
        except StoreError:
            if not opened.is_followed:
                raise
            return cls.open(path)  # `isotrope compact` has removed that generation meanwhile
        return opened

    @classmethod
    def unchecked(cls, path: str | Path) -> "OpenIndex":
        """The newest generation before its files are looked at; `load` does that. Raises as `open`, of the manifest."""
        index = named_path(path, "the index")
        return cls(index, load_manifest(index))

    def load(self) -> "OpenIndex":
        """Check all that `open` checks and read into memory what search needs, each byte hashed once.

        Returns this index, or the generation that followed it if its files were removed meanwhile.
        """
        try:
            check_sizes(self.path, self.manifest)
            if self._hashed_at_once:  # the files of vectors and transform are hashed as they are read
                check_files(self.path, self.manifest, _documents(self.manifest))
            _ = self.segments, self.documents
        except StoreError:
            if not self.is_followed:
                raise
            return OpenIndex.unchecked(self.path).load()
        return self

    @property
    def is_followed(self) -> bool:
        """Whether another generation has been published since this one was opened."""
        return list_generations(self.path)[-1:] != [self.manifest.generation]

    @cached_property
    def config(self) -> BuildConfig:
        """The recipe the index was built by."""
        return BuildConfig.from_dict(self.manifest.config)

    @cached_property
    def encoder(self) -> EncoderIdentity:
        """The encoder the index was built with, as its manifest states it."""
        return EncoderIdentity.from_dict(self.manifest.encoder["identity"])

    @cached_property
    def transform(self) -> Transform:
        """The fitted transform."""
        return load_transform(self.path, self.manifest)

    @cached_property
    def documents(self) -> "DocumentReader":
        """Documents by row number."""
        from indexer.corpus.schema import schema_from_json  # here, as it takes time: the encoder is loaded meanwhile
        from indexer.store.documents import DocumentReader

        stored = self.numbering.stored_documents
        return DocumentReader(self.path, self.manifest, schema_from_json(self.manifest.schema), stored)

    @cached_property
    def numbering(self) -> LiveNumbering:
        """Which document each row stands for. All numbers here and above count what is live only."""
        return LiveNumbering(self.path, self.manifest)

    @cached_property
    def stored_embeddings(self) -> EmbeddingReader:
        """Raw embeddings by stored row."""
        return EmbeddingReader(self.path, self.manifest)

    def embeddings(self, rows: RowIds) -> Embeddings:
        """Raw embeddings of some rows, (n, d)."""
        stored = self.numbering.stored_rows
        return self.stored_embeddings.rows(rows if stored is None else stored[rows])

    def vectors(self, rows: RowIds) -> Vectors:
        """Unit vectors of some rows, (n, k): the transform of their embeddings."""
        stored = self.numbering.stored_rows
        return self._stored_vectors(rows if stored is None else stored[rows])

    @cached_property
    def segments(self) -> list[Segment]:
        """Each segment with its FAISS index, loaded or memory-mapped."""
        dim, files = self.transform.dim, self.manifest.files
        return [
            open_segment(self.path / entry.file, entry, files[entry.file], dim, self._hashed_at_once)
            for entry in self.manifest.segments
        ]

    def search(self, vectors: Vectors, k: int, allowed: Mask | None = None, exact: bool = False) -> list[SearchResult]:
        """For each vector (n, dim) the best k rows and all that tie with the k-th, best first: (scores, rows).

        `allowed` (rows,) says which rows may be found, None all; `exact` compares with every one of them.
        """
        numbering = self.numbering
        live, stored = numbering.live_rows, numbering.stored_rows
        mask = live if allowed is None else allowed
        if allowed is not None and live is not None and stored is not None:
            mask = np.zeros(len(live), bool)
            mask[stored[allowed]] = True
        found = search_segments(self.segments, vectors, k, mask, self._stored_vectors, exact)
        return [(scores, numbering.numbers_of(rows)) for scores, rows in found]

    def accelerate(self, device: str) -> None:
        """Search exact segments on a device ("cuda", "cuda:N" or "mps"), with the same answers.

        Raises ConfigError for another name, MachineError for a device that is not there or too small.
        """
        from indexer.encoders.device import choose_device  # here, as it imports torch

        choose_device(device)
        self.segments[:] = [replace(one, index=ann.on_device(one.index, device)) for one in self.segments]

    def reach_recall(self, recall: float) -> None:
        """Search as far as a recall@10 of at least `recall` took when the build measured it.

        Raises ConfigError when it did not measure as much. Exact indexes have recall 1 as they are.
        """
        for number, segment in enumerate(self.segments):
            if not segment.exact:
                ann.set_search_parameters(segment.index, ann.parameters_for(self.recall_curve(number), recall))

    def recall_curve(self, segment: int) -> Sequence[MeasuredPoint]:
        """What was measured of a segment that is not exact, in ascending work. Raises ConfigError if nothing was."""
        file = self.manifest.segments[segment].file
        curve = self.manifest.measured.of_segment(file, segment == 0).recall_curve
        if not curve:
            raise ConfigError(
                f"{self.path}: the recall of {file} was not measured. Search exactly (--exact), or measure it with "
                "isotrope refit."
            )
        return curve

    def _stored_vectors(self, rows: RowIds) -> Vectors:
        return self.transform.transform(self.stored_embeddings.rows(rows), "document")

    @cached_property
    def _hashed_at_once(self) -> bool:
        return hashed_on_open(self.manifest, _needed(self.manifest))


def is_index(path: str | Path) -> bool:
    """Whether an index was published at this path, whole or damaged."""
    return (Path(path) / layout.MANIFESTS).is_dir()


def _needed(manifest: Manifest) -> list[str]:
    """Files that search reads."""
    state = [name for name in manifest.files if name.startswith(f"{layout.ENCODER}/")]
    segments = [entry.file for entry in manifest.segments]
    deleted = [manifest.deleted] if manifest.deleted else []
    return [manifest.transform["file"], *segments, *state, *deleted, *_documents(manifest)]


def _documents(manifest: Manifest) -> list[str]:
    return [f"{part.name}/{layout.DOCUMENTS}" for part in manifest.parts]


def settings_in_words(facts: dict[str, Any]) -> dict[str, str]:
    """How an index was built, from `describe_index`, in words: what `inspect` and the report both show."""
    encoder, transform, whitening = facts["encoder"], facts["transform"], facts["config"]["whitening"]
    chunk = facts["config"]["chunk"]
    windows = {"windows": f"at most {chunk['tokens']} tokens, {chunk['overlap']} of them those of the one before"}
    shaping = [f"{key} {encoder[key]}" for key in _SHAPING if encoder.get(key) and encoder[key] != UNLIMITED]
    return {
        "model": facts["model"] or "not named",
        "encoder": ", ".join(shaping) if "pooling" in encoder else "none: the embeddings came with the corpus",
        **(windows if chunk["tokens"] else {}),
        "fingerprint": facts["fingerprint"],
        "transform": f"{transform['kind']}, {encoder['dim']} -> {transform['dim']} dimensions, {_fitted(whitening)}",
    }


def _fitted(whitening: dict[str, Any]) -> str:
    """How the transform was fitted."""
    kind = whitening.get("kind", "whitening")
    if kind == "hellinger":
        return "nothing fitted"
    strength = [f"strength {whitening['strength']}"] if kind == "whitening" else []
    centred = kind == "flow" or whitening["strength"] != "none"  # without whitening nothing is subtracted
    return ", ".join([*strength, f"centre {whitening['centre'] if centred else 'none'}"])


def describe_index(opened: OpenIndex) -> dict[str, Any]:
    """What `isotrope inspect` shows: JSON types."""
    manifest = opened.manifest
    encoder = {key: value for key, value in manifest.encoder["identity"].items() if not isinstance(value, dict)}
    kinds: Counter[str] = Counter()
    for name, digest in manifest.files.items():
        kinds[Path(name).name if name.startswith(layout.PARTS) else name.partition("/")[0]] += digest.bytes
    return {
        "index": str(opened.path),
        "format": layout.FORMAT,
        "generation": manifest.generation,
        "created": manifest.created,
        "documents": manifest.documents,
        "rows": manifest.rows,
        "deleted": manifest.stored_documents - manifest.documents,
        "parts": len(manifest.parts),
        "model": manifest.encoder["model"],
        "fingerprint": manifest.fingerprint,
        "encoder": encoder | {"dim": manifest.encoder["dim"]},
        "transform": manifest.transform,
        "segments": [vars(entry) for entry in manifest.segments],
        "metadata": manifest.schema,
        "quality": manifest.quality,
        "bytes": kinds | {"total": sum(kinds.values())},
        "config": opened.config.to_dict(),
        "versions": manifest.versions,
    }
