"""Opening an index: its manifest, its transform and its segments, each checked before it is used."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from indexer import ann
from indexer.config import BuildConfig
from indexer.errors import CorruptIndexError
from indexer.store import layout
from indexer.store.checked import CheckedFile, read_checked
from indexer.store.manifest import Manifest, SegmentEntry, load_manifest
from indexer.store.verify import are_hashed_at_once, check_files, check_sizes
from indexer.transforms import Transform, parse_transform

if TYPE_CHECKING:
    from indexer.store.documents import DocumentReader

Vectors = npt.NDArray[np.float32]
Found = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


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
        check_sizes(opened.path, opened.manifest)
        check_files(opened.path, opened.manifest, _needed(opened.manifest))
        return opened

    @classmethod
    def unchecked(cls, path: str | Path) -> "OpenIndex":
        """The newest generation before its files are looked at; `load` does that. Raises as `open`, of the manifest."""
        return cls(Path(path), load_manifest(Path(path)))

    def load(self) -> None:
        """Check all that `open` checks and read into memory what search needs, each byte hashed once."""
        check_sizes(self.path, self.manifest)
        if self._hashed_at_once:  # the files of vectors and transform are hashed as they are read
            check_files(self.path, self.manifest, _documents(self.manifest))
        _ = self.segments, self.documents

    @cached_property
    def config(self) -> BuildConfig:
        """The recipe the index was built by."""
        return BuildConfig.from_dict(self.manifest.config)

    @cached_property
    def transform(self) -> Transform:
        """The fitted transform."""
        name = self.manifest.transform["file"]
        return parse_transform(read_checked(self.path / name, self.manifest.files[name]), str(self.path / name))

    @cached_property
    def documents(self) -> "DocumentReader":
        """Documents by row number."""
        from indexer.corpus.schema import parse  # here, as it takes time: the encoder is loaded meanwhile
        from indexer.store.documents import DocumentReader

        return DocumentReader(self.path, self.manifest, parse(self.manifest.schema))

    @cached_property
    def segments(self) -> list[tuple[SegmentEntry, Any]]:
        """Each segment with its FAISS index, loaded."""
        return [(entry, self._load(entry)) for entry in self.manifest.segments]

    def search(self, vectors: Vectors, k: int) -> list[Found]:
        """For each vector the best k rows of the index and all that tie with the k-th: (scores, rows)."""
        found = [
            [(scores, rows + entry.first_row) for scores, rows in ann.search_index(index, vectors, k)]
            for entry, index in self.segments
        ]
        return [_merge(segments) for segments in zip(*found, strict=True)]

    @cached_property
    def _hashed_at_once(self) -> bool:
        return are_hashed_at_once(self.manifest, _needed(self.manifest))

    def _load(self, entry: SegmentEntry) -> Any:
        path, stamp = self.path / entry.file, self.manifest.files[entry.file]
        if self._hashed_at_once:  # sha256 is twice as fast as a digest for each MiB
            index = ann.load_index(BytesIO(read_checked(path, stamp)), str(path))
        else:
            with CheckedFile(path, stamp) as file:
                index = ann.load_index(file, str(path))
        if index.ntotal != entry.rows or index.d != self.transform.dim:
            raise CorruptIndexError(
                f"{path}: {index.ntotal:,} vectors of {index.d} dimensions, the manifest says {entry.rows:,} of "
                f"{self.transform.dim}. Build the index again."
            )
        ann.set_search_parameters(index, entry.search_parameters)
        return index


def is_index(path: str | Path) -> bool:
    """Whether an index was published at this path, whole or damaged."""
    return (Path(path) / layout.MANIFESTS).is_dir()


def _needed(manifest: Manifest) -> list[str]:
    """Files that search reads."""
    state = [name for name in manifest.files if name.startswith(f"{layout.ENCODER}/")]
    segments = [entry.file for entry in manifest.segments]
    return [manifest.transform["file"], *segments, *state, *_documents(manifest)]


def _documents(manifest: Manifest) -> list[str]:
    return [f"{part.name}/{layout.DOCUMENTS}" for part in manifest.parts]


def _merge(segments: tuple[Found, ...]) -> Found:
    scores = np.concatenate([scores for scores, _ in segments])
    rows = np.concatenate([rows for _, rows in segments])
    order = np.lexsort((rows, -scores))
    return scores[order], rows[order]


def settings_in_words(facts: dict[str, Any]) -> dict[str, str]:
    """How an index was built, from `describe_index`, in words: what `inspect` and the report both show."""
    encoder, transform, whitening = facts["encoder"], facts["transform"], facts["config"]["whitening"]
    return {
        "model": facts["model"],
        "encoder": ", ".join(f"{key} {encoder[key]}" for key in ("pooling", "layers", "max_length", "precision")),
        "fingerprint": facts["fingerprint"],
        "transform": f"{transform['kind']}, {encoder['dim']} -> {transform['dim']} dimensions, "
        f"strength {whitening['strength']}, centre {whitening['centre']}",
    }


def describe_index(opened: OpenIndex) -> dict[str, Any]:
    """What `isotrope inspect` shows: JSON types."""
    manifest = opened.manifest
    encoder = {key: value for key, value in manifest.encoder["identity"].items() if not isinstance(value, dict)}
    kinds: Counter[str] = Counter()
    for name, stamp in manifest.files.items():
        kinds[Path(name).name if name.startswith(layout.PARTS) else name.partition("/")[0]] += stamp.bytes
    return {
        "index": str(opened.path),
        "format": layout.FORMAT,
        "generation": manifest.generation,
        "created": manifest.created,
        "documents": manifest.documents,
        "rows": manifest.rows,
        "parts": len(manifest.parts),
        "model": manifest.encoder["model"],
        "fingerprint": manifest.fingerprint,
        "encoder": encoder | {"dim": manifest.encoder["dim"]},
        "transform": manifest.transform,
        "segments": [vars(entry) for entry in manifest.segments],
        "metadata": manifest.schema,
        "quality": manifest.quality,
        "bytes": kinds | {"total": sum(kinds.values())},
        "config": manifest.config,
        "versions": manifest.versions,
    }
