"""The transform of a generation: written as it was fitted, kept, or taken over from another index."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.config import BuildConfig
from indexer.encoders import EncoderSpec, spec_difference
from indexer.errors import MismatchError
from indexer.pipeline.rows import Sample
from indexer.store import layout
from indexer.store.checked import check_sizes, load_transform
from indexer.store.files import FileDigest, atomic_write_bytes, make_folder
from indexer.store.manifest import Manifest, load_manifest
from indexer.transforms import Transform, transform_to_bytes

Files = dict[str, FileDigest]


@dataclass(frozen=True)
class Fitted:
    """The transform, the sample it was fitted on, and where its query mean comes from (JSON types)."""

    transform: Transform
    sample: Sample
    query_texts: dict[str, Any]


@dataclass(frozen=True)
class StoredTransform:
    """A transform with what the manifest says of it; `fitted` is how it was fitted, if that was now."""

    transform: Transform
    entry: dict[str, Any]
    stamp: FileDigest
    fitted: Fitted | None = None

    @property
    def files(self) -> Files:
        return {self.entry["file"]: self.stamp}


@dataclass(frozen=True)
class Donor:
    """Another index, whose transform is taken over."""

    index: Path
    manifest: Manifest
    stored: StoredTransform

    @property
    def config(self) -> BuildConfig:
        return BuildConfig.from_dict(self.manifest.config)


def taken_transform(index: Path, spec: EncoderSpec) -> Donor:
    """The transform of another index. Raises MismatchError unless that was built with the same encoder."""
    manifest = load_manifest(index)
    check_sizes(index, manifest)
    identity = {key: value for key, value in manifest.encoder["identity"].items() if key != "state"}
    if identity != spec.identity.to_dict():
        raise MismatchError(
            f"{index}: its transform was fitted to another encoder's embeddings: {spec_difference(identity, spec)}. "
            "Take the transform of an index that was built with this recipe's encoder."
        )
    return Donor(index, manifest, published_transform(index, manifest))


def published_transform(index: Path, published: Manifest) -> StoredTransform:
    """The transform of a published generation."""
    stamp = published.files[published.transform["file"]]
    return StoredTransform(load_transform(index, published), published.transform, stamp)


def write_transform(index: Path, generation: int, fitted: Fitted) -> StoredTransform:
    """Write a transform that was fitted."""
    entry = {"kind": fitted.transform.kind, "query_texts": fitted.query_texts} | fitted.transform.settings()
    return _written(index, generation, fitted.transform, entry, fitted)


def copy_transform(index: Path, generation: int, taken: StoredTransform) -> StoredTransform:
    """Write another index's transform; the manifest says by "taken_from" (its sha256) that it was not fitted here."""
    return _written(index, generation, taken.transform, taken.entry | {"taken_from": taken.stamp.sha256}, None)


def _written(
    index: Path, generation: int, transform: Transform, entry: dict[str, Any], fitted: Fitted | None
) -> StoredTransform:
    name = layout.transform_name(generation)
    make_folder((index / name).parent)
    stamp = atomic_write_bytes(index / name, transform_to_bytes(transform))
    return StoredTransform(transform, entry | {"file": name}, stamp, fitted)
