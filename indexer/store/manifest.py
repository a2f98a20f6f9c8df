"""The manifest: one JSON file that is the index. Creating it is the commit point of every change."""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from indexer.config import BuildConfig
from indexer.errors import ConfigError, CorruptIndexError, NotAnIndexError, StoreError
from indexer.hashing import canonical_json
from indexer.regular_files import read_regular
from indexer.settings import named_path
from indexer.store import layout
from indexer.store.files import FileDigest, create_exclusive, make_folder, require_own_folders
from indexer.store.mirror import is_begun, mirror_of
from indexer.store.quality import Quality
from indexer.typed_json import convert_json, decode_json

# What a reader must understand to answer rightly. A manifest that needs more is refused, so later versions can
# add to format 1 without old ones answering wrongly.
ENCODER_STATE = "encoder-state"  # the encoder cannot be run without what lies in encoder/
DELETED = "deleted"  # some stored documents are no longer part of the index
WINDOWS = "windows"  # a document may have several rows
KNOWN_FEATURES = frozenset({ENCODER_STATE, DELETED, WINDOWS})
_LOOKED_AT = 1000  # entries of a folder, where an index is not at the place that was named
MOST_BYTES = 1 << 30  # of a manifest; that of a billion documents has about 200 MB


@dataclass(frozen=True)
class PartEntry:
    """One part as the manifest lists it; rows follow on from those of the part before."""

    name: str
    documents: int
    rows: int
    document_key: str
    embedding_key: str


@dataclass(frozen=True)
class SegmentEntry:
    """One FAISS file: stored rows [first_row, first_row + rows) of the index, deleted ones among them."""

    file: str
    first_row: int
    rows: int
    factory: str
    search_parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """Everything a reader needs. `files` maps every file (path relative to the index) to its digest.

    `documents` and `rows` count those that are part of the index; the parts may hold more, which `deleted` lists.
    """

    generation: int
    config: dict[str, Any]
    encoder: dict[str, Any]
    fingerprint: str
    transform: dict[str, Any]
    parts: tuple[PartEntry, ...]
    segments: tuple[SegmentEntry, ...]
    files: dict[str, FileDigest]
    schema: dict[str, Any]
    documents: int
    rows: int
    quality: dict[str, Any]
    versions: dict[str, str]
    created: str
    deleted: str | None = None
    features: tuple[str, ...] = ()

    @property
    def stored_documents(self) -> int:
        """Documents in all parts, deleted ones included."""
        return sum(part.documents for part in self.parts)

    @property
    def stored_rows(self) -> int:
        """Rows in all parts, those of deleted documents included."""
        return sum(part.rows for part in self.parts)

    @cached_property
    def measured(self) -> Quality:
        """What `quality` says."""
        return Quality.of(self.quality)

    def to_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain["format"] = layout.FORMAT
        plain["parts"] = [vars(part) for part in self.parts]
        plain["segments"] = [vars(segment) for segment in self.segments]
        plain["files"] = {name: digest.to_dict() for name, digest in self.files.items()}
        plain["features"] = list(self.features)
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Manifest":
        values = {name: plain[name] for name in cls.__dataclass_fields__}
        values["parts"] = tuple(PartEntry(**part) for part in plain["parts"])
        values["segments"] = tuple(SegmentEntry(**segment) for segment in plain["segments"])
        values["files"] = {name: FileDigest(**digest) for name, digest in plain["files"].items()}
        values["features"] = tuple(plain["features"])
        return cls(**values)


def list_generations(index: Path) -> list[int]:
    """Numbers of the manifests present, ascending; empty when there is no index."""
    try:
        if (remote := mirror_of(index)) is not None:
            names = [Path(name).name for name in remote[0].store.list(layout.MANIFESTS)]
        else:
            with os.scandir(index / layout.MANIFESTS) as entries:  # there may be thousands
                names = [entry.name for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"{index}: cannot be opened: {error.strerror}.") from error
    matches = (layout.MANIFEST_NAME.fullmatch(name) for name in names)
    return sorted(int(match.group(1)) for match in matches if match)


def published_at(place: str | Path) -> Path | None:
    """The folder of the index that a path or a URL names; None where none was published."""
    index = named_path(place, "the index")
    if mirror_of(index) is None:
        return index if layout.is_index(index) else None
    return index if list_generations(index) else None


def load_manifest(index: Path) -> Manifest:
    """The newest manifest. Raises NotAnIndexError, CorruptIndexError, or StoreError for a newer format."""
    numbers = list_generations(index)
    while True:
        if not numbers:
            raise NotAnIndexError(_nothing_here(index))
        way_back = f", delete it to go back to generation {numbers[-2]}" if len(numbers) > 1 else ""
        try:
            manifest = load_generation(index, numbers[-1], f"{way_back}, or build again with --overwrite")
            if (remote := mirror_of(index)) is not None:
                remote[0].know(manifest.files)
            return manifest
        except StoreError:
            before, numbers = numbers, list_generations(index)
            if numbers[-1:] == before[-1:]:
                raise  # else it was followed by another, and forgotten, before it could be read


def load_generation(index: Path, number: int, way_out: str = "") -> Manifest:
    """One manifest by its number; errors as in `load_manifest`."""
    path = index / layout.manifest_name(number)
    try:
        if (remote := mirror_of(index)) is not None:
            data = remote[0].store.read(layout.manifest_name(number))
        else:
            require_own_folders(index, [layout.manifest_name(number)])
            data = read_regular(path, MOST_BYTES, follow_links=False)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}.") from error
    return _parse(data, path, number, way_out)


def publish(index: Path, manifest: Manifest) -> None:
    """Make `manifest` the index, in one step. Every file it names must already be durable."""
    data = _render(manifest.to_dict())
    if (remote := mirror_of(index)) is not None:
        remote[0].create_manifest(manifest.generation, data)
        return
    make_folder(index / layout.MANIFESTS)
    create_exclusive(index / layout.manifest_name(manifest.generation), data)


def _render(plain: dict[str, Any]) -> bytes:
    """The manifest's bytes, laid out as by `json.dumps` with `indent=1`, in a fraction of its time."""
    import msgspec

    canonical = canonical_json(plain)
    checksum = b'{"checksum":"%s",' % sha256(canonical).hexdigest().encode()  # the first key in alphabetical order
    return msgspec.json.format(checksum + canonical[1:], indent=1) + b"\n"


def _parse(data: bytes, path: Path, number: int, way_out: str) -> Manifest:
    from indexer.store.manifest_schema import MAX_DEPTH, ManifestFields, require_consistent

    try:
        plain = decode_json(data, dict[str, Any], MAX_DEPTH)
        version = plain.get("format")
        if isinstance(version, int) and version > layout.FORMAT:
            raise StoreError(
                f"{path}: written in format {version}; this isotrope reads up to format {layout.FORMAT}. Upgrade it."
            )
        plain.pop("checksum", None)
        if _render(plain) != data:  # byte for byte, so that no flipped bit passes
            raise ValueError("checksum mismatch")
        features = convert_json(plain.get("features"), list[str])
        if unknown := set(features) - KNOWN_FEATURES:
            raise StoreError(
                f"{path}: needs {', '.join(sorted(unknown))}, unknown to this version of isotrope. Upgrade it."
            )
        convert_json(plain, ManifestFields)
        require_consistent(plain)
        if plain["generation"] != number:
            raise ValueError(f"it is generation {plain['generation']}, not {number}")
        BuildConfig.from_dict(plain["config"])
        return Manifest.from_dict(plain)
    except (ValueError, ConfigError) as error:
        raise CorruptIndexError(
            f"{path}: damaged ({str(error).rstrip('.')}). Restore it from a copy{way_out}."
        ) from error


def _nothing_here(index: Path) -> str:
    if is_begun(index):
        return f"{index}: an unfinished build, not an index yet. Run the same build command again to continue it."
    if mirror_of(index) is not None:
        return f"{index}: no such index. Build one with: isotrope build SOURCE {index}"
    if not index.exists():
        near = difflib.get_close_matches(index.name, [path.name for path in _indexes_in(index.parent)], n=1)
        meant = f'; did you mean "{index.with_name(near[0])}"?' if near else "."
        return f"{index}: no such index{meant} Build one with: isotrope build SOURCE {index}"
    if inside := _indexes_in(index):
        return f'{index}: not an index, but it holds one; did you mean "{inside[0]}"?'
    return f"{index}: not an index (it has no manifest). Build one with: isotrope build SOURCE INDEX"


def _indexes_in(folder: Path) -> list[Path]:
    """Indexes among the first entries of a folder, by name; none where it cannot be read."""
    try:
        some = sorted(islice(folder.iterdir(), _LOOKED_AT))
        return [path for path in some if layout.is_index(path)]
    except OSError:
        return []
