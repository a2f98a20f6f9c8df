"""Opening an index: its manifest, its transform and its segments, each checked before it is used."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer import ann
from indexer.config import BuildConfig
from indexer.corpus.schema import parse
from indexer.errors import CorruptIndexError
from indexer.store import layout
from indexer.store.checked import CheckedFile, read_checked
from indexer.store.documents import DocumentReader
from indexer.store.manifest import Manifest, SegmentEntry, load_manifest
from indexer.store.verify import check_files, check_sizes
from indexer.transforms import Transform, parse_transform

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
        index = Path(path)
        manifest = load_manifest(index)
        check_sizes(index, manifest)
        check_files(index, manifest, _needed(manifest))
        return cls(index, manifest)

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
    def documents(self) -> DocumentReader:
        """Documents by row number."""
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

    def _load(self, entry: SegmentEntry) -> Any:
        path = self.path / entry.file
        with CheckedFile(path, self.manifest.files[entry.file]) as file:
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
    documents = [f"{part.name}/{layout.DOCUMENTS}" for part in manifest.parts]
    return [manifest.transform["file"], *(entry.file for entry in manifest.segments), *documents]


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
