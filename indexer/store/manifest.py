"""The manifest: the JSON file that defines the index. Its creation is the commit point of every change."""

import difflib
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from indexer.errors import ConfigError, CorruptIndexError, NotAnIndexError, StoreError, as_argument, spelled
from indexer.hashing import canonical_json
from indexer.recipe.config import BuildConfig
from indexer.recipe.loading import named_path
from indexer.store import layout
from indexer.store.files import FileDigest
from indexer.store.layout import Count, FileName, Hash, IndexSize, PlainName
from indexer.store.local_store import reading
from indexer.store.quality import Quality
from indexer.store.stores import store_at
from indexer.typed_json import convert_json, decode_json

# Features that a reader must support for correct answers. Readers reject manifests with unknown features, so that later
# versions can extend format 1.
ENCODER_STATE = "encoder-state"  # the encoder needs the files in encoder/
DELETED = "deleted"  # some stored documents are deleted
WINDOWS = "windows"  # a document may have several rows
EMPTY = "empty"  # no document is live; without parts the dimensions of given vectors may be unknown (0)
KNOWN_FEATURES = frozenset({ENCODER_STATE, DELETED, WINDOWS, EMPTY})
_LOOKED_AT = 1000  # entries of a folder, searched for indexes if the given path is none
MOST_BYTES = 1 << 30  # of a manifest; for a billion documents it has about 200 MB


class PartEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One part as the manifest lists it; its rows follow those of the previous part."""

    name: layout.PartName
    documents: Count
    rows: Count
    document_key: Hash
    embedding_key: Hash


class SegmentEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One FAISS file: stored rows [first_row, first_row + rows) of the index, deleted rows included."""

    file: FileName
    first_row: Count
    rows: Count
    factory: Annotated[str, Meta(max_length=500)]
    search_parameters: dict[str, int] = {}


class Manifest(Struct, frozen=True, kw_only=True, dict=True):
    """The contents of a manifest. `files` maps every file (path relative to the index) to its digest.

    `documents` and `rows` count live documents and rows; the parts may have more, which `deleted` lists. `encoder`,
    `transform` and `quality` keep their JSON, with fields that later versions may add.
    """

    format: Literal[1] = 1
    generation: Annotated[int, Meta(ge=1, le=99_999_999)]
    config: dict[str, dict[str, Any]]
    encoder: dict[str, Any]
    fingerprint: Hash
    transform: dict[str, Any]
    parts: tuple[PartEntry, ...]
    segments: tuple[SegmentEntry, ...]
    files: dict[FileName, FileDigest]
    schema: dict[str, Any]
    documents: Count
    rows: Count
    quality: dict[str, Any]
    versions: Mapping[str, str | None]
    created: Annotated[str, Meta(max_length=100)]
    deleted: FileName | None = None
    features: tuple[str, ...] = ()

    @property
    def stored_documents(self) -> int:
        """Documents in all parts, including deleted ones."""
        return sum(part.documents for part in self.parts)

    @property
    def stored_rows(self) -> int:
        """Rows in all parts, including those of deleted documents."""
        return sum(part.rows for part in self.parts)

    @cached_property
    def measured(self) -> Quality:
        """The figures in `quality`."""
        return Quality.of(self.quality)

    @property
    def space(self) -> str:
        """The space of the index's unit vectors, determined by encoder and transform."""
        return f"{self.fingerprint} {self.files[self.transform['file']].sha256}"

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest as JSON types."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


class TokenEncoder(Struct, kw_only=True):
    """The identity of an encoder of tokens, without settings of fitted poolings."""

    rules: Count
    layers: list[Annotated[int, Meta(ge=0, le=10_000)]]
    pooling: str
    max_length: Annotated[int, Meta(ge=1)]
    query_prefix: str
    document_prefix: str
    precision: str
    sif_a: float | UnsetType = UNSET
    latte_mix: dict[str, int | float | str | None] | UnsetType = UNSET
    state: dict[PlainName, Hash] | UnsetType = UNSET
    truncate_dim: Count | UnsetType = UNSET


class Transformer(TokenEncoder, tag_field="kind", tag="transformer", kw_only=True):
    """The identity of a transformer."""

    weights: dict[str, Hash]
    tokenizer: dict[str, Hash]
    config: dict[str, Hash]
    lowercase: bool
    batch_tokens: Count
    group_texts: Count | UnsetType = UNSET
    modules: dict[PlainName, Hash] | UnsetType = UNSET


class Static(TokenEncoder, tag_field="kind", tag="static"):
    """The identity of a table of token vectors."""


class Given(Struct, tag_field="kind", tag="vectors"):
    """The identity of embeddings that came with the corpus."""

    rules: Count
    model: str


class Remote(Struct, tag_field="kind", tag="server"):
    """The identity of a model behind a server."""

    rules: Count
    model: str
    query_prefix: str
    document_prefix: str
    state: dict[PlainName, Hash]
    truncate_dim: Count | UnsetType = UNSET


class EncoderFacts(Struct):
    """The types of `encoder` in a manifest."""

    model: str
    folder: str
    dim: IndexSize
    identity: Transformer | Static | Given | Remote


class QueryTexts(Struct):
    """The origin of the query mean."""

    source: str
    texts: Count
    sha256: Hash | UnsetType = UNSET
    texts_sha256: Hash | UnsetType = UNSET


class TransformFacts(Struct):
    """The types of `transform` in a manifest."""

    file: FileName
    kind: str
    dim: IndexSize
    note: str
    query_texts: QueryTexts
    taken_from: Hash | UnsetType = UNSET


class ManifestFacts(Struct):
    """The types of the fields that a `Manifest` keeps as JSON."""

    encoder: EncoderFacts
    transform: TransformFacts


class StateFields(Struct):
    """The contents of `state.json`: an encoder's fitted state."""

    files: dict[PlainName, FileDigest]
    key: str = ""  # hash of the texts it was fitted on
    trained: bool = False  # copied from the folder `encoder.fitted`


def list_generations(index: Path) -> list[int]:
    """Return the generations with a manifest, ascending; empty if there is no index."""
    try:
        names = store_at(index).names(layout.MANIFESTS)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"{index}: cannot be opened: {error.strerror}.") from error
    matches = (layout.MANIFEST_NAME.fullmatch(name) for name in names)
    return sorted(int(match.group(1)) for match in matches if match)


def published_at(place: str | Path) -> Path | None:
    """Return the folder of the index at a path or URL; None if none was published there."""
    index = named_path(place, "the index")
    return index if store_at(index).has(layout.MANIFESTS) else None


def load_manifest(index: Path) -> Manifest:
    """Return the newest manifest. Raises NotAnIndexError, CorruptIndexError, or StoreError for a newer format."""
    numbers = list_generations(index)
    while True:
        if not numbers:
            raise NotAnIndexError(_nothing_here(index))
        way_back = f", delete it to go back to generation {numbers[-2]}" if len(numbers) > 1 else ""
        again = f"build again with {as_argument('overwrite', True, 'RunOptions')}"
        try:
            manifest = load_generation(index, numbers[-1], f"{way_back}, or {again}")
            store_at(index).know(manifest.files)
            return manifest
        except StoreError:
            before, numbers = numbers, list_generations(index)
            if numbers[-1:] == before[-1:]:
                raise  # otherwise a newer generation replaced it before it was read


def load_generation(index: Path, number: int, fix: str = "") -> Manifest:
    """Return the manifest of a generation; raises the errors of `load_manifest`."""
    path = index / layout.manifest_name(number)
    with reading(path):
        data = store_at(index).read_manifest(layout.manifest_name(number), MOST_BYTES)
    return parse_manifest(data, path, number, fix)


def publish(index: Path, manifest: Manifest) -> None:
    """Make `manifest` the index atomically. Every file that it lists must already be durable."""
    store_at(index).publish(manifest.generation, _render(manifest.to_dict()))


def _render(plain: dict[str, Any]) -> bytes:
    """Return the manifest's bytes in the layout of `json.dumps` with `indent=1`, in a fraction of its time."""
    canonical = canonical_json(plain)
    checksum = b'{"checksum":"%s",' % sha256(canonical).hexdigest().encode()  # the first key in alphabetical order
    return msgspec.json.format(checksum + canonical[1:], indent=1) + b"\n"


def parse_manifest(data: bytes, path: Path | str, number: int, fix: str = "") -> Manifest:
    """Return the manifest of a generation from its bytes; `path` is its name in errors. Raises the errors of
    `load_manifest`."""
    try:
        plain = decode_json(data, dict[str, Any], layout.MAX_DEPTH)
        version = plain.get("format")
        if isinstance(version, int) and version > layout.FORMAT:
            raise StoreError(
                f"{path}: written in format {version}, but this version reads up to format {layout.FORMAT}. Fix: "
                "upgrade isotrope."
            )
        plain.pop("checksum", None)
        if _render(plain) != data:  # byte for byte, so that any flipped bit is detected
            raise ValueError("checksum mismatch")
        features = convert_json(plain.get("features"), list[str])
        if unknown := set(features) - KNOWN_FEATURES:
            raise StoreError(
                f"{path}: needs {', '.join(sorted(unknown))}, unknown to this version. Fix: upgrade isotrope."
            )
        convert_json(plain, ManifestFacts)
        manifest = convert_json(plain, Manifest)
        require_consistent(manifest)
        if manifest.generation != number:
            raise ValueError(f"it is generation {manifest.generation}, not {number}")
        BuildConfig.from_dict(manifest.config)
        return manifest
    except (ValueError, ConfigError) as error:
        raise CorruptIndexError(
            f"{path}: damaged ({str(error).rstrip('.')}). Fix: restore it from a copy{fix}."
        ) from error


def require_consistent(manifest: Manifest) -> None:
    """Raise ValueError if counts, names or figures of a well-typed manifest contradict each other."""
    Quality.of(manifest.quality)  # not `measured`, which keeps what it decodes
    files, names = manifest.files, [part.name for part in manifest.parts]
    is_empty = EMPTY in manifest.features
    if not (names or is_empty) or len(set(names)) < len(names):
        raise ValueError("it lists no part, or a part twice")
    if names and 0 in (manifest.encoder["dim"], manifest.transform["dim"]):
        raise ValueError("its vectors have no dimensions")
    mentioned = [f"{name}/{file}" for name in names for file in (*layout.PART_DATA, layout.PART)]
    mentioned += [manifest.transform["file"], *(segment.file for segment in manifest.segments)]
    mentioned += [manifest.deleted] if manifest.deleted else []
    if missing := [name for name in mentioned if name not in files]:
        raise ValueError(f"it lists no checksum for {missing[0]}")
    row = 0
    for segment in manifest.segments:
        if segment.first_row != row:
            raise ValueError(f"{segment.file} begins with row {segment.first_row:,}; expected {row:,}")
        row += segment.rows
    if row != manifest.stored_rows:
        raise ValueError(f"its segments have {row:,} rows, its parts {manifest.stored_rows:,}")
    for name in ("documents", "rows"):
        count, stored = getattr(manifest, name), getattr(manifest, f"stored_{name}")
        fits = count <= stored if manifest.deleted else count == stored
        if not fits or (count == 0) != is_empty:
            raise ValueError(f"it counts {count:,} {name}, its parts {stored:,}")


def _nothing_here(index: Path) -> str:
    store = store_at(index)
    build = f"Build one with: {spelled('build_index(corpus, index)', f'isotrope build SOURCE {index}')}"
    if store.has(layout.PULLED):
        again = spelled("call pull_index again", "run the same isotrope pull again")
        return f"{index}: an unfinished pull, not an index yet. Fix: {again} to continue it."
    if store.has(layout.PARTS):
        again = spelled("call build_index again", "run the same build command again")
        return f"{index}: an unfinished build, not an index yet. Fix: {again} to continue it."
    if not store.has():
        near = difflib.get_close_matches(index.name, [path.name for path in _indexes_in(index.parent)], n=1)
        meant = f'; did you mean "{index.with_name(near[0])}"?' if near else "."
        return f"{index}: no such index{meant} {build}"
    if inside := _indexes_in(index):
        return f'{index}: not an index, but it contains one; did you mean "{inside[0]}"?'
    if index.is_file() or store.top():
        files = spelled(f'build_index(read_corpus("{index}"), INDEX)', f"isotrope build {index} INDEX")
        build = f"Fix: name the folder of an index. To build one from these files: {files}"
    return f"{index}: not an index (it has no manifest). {build}"


def _indexes_in(folder: Path) -> list[Path]:
    """Return indexes among the first entries of a folder, by name; none if it is unreadable."""
    try:
        paths = sorted(islice(folder.iterdir(), _LOOKED_AT))
        return [path for path in paths if (path / layout.MANIFESTS).is_dir()]
    except OSError:
        return []
