"""The types and bounds of everything a manifest and a part's record say; whoever has loaded one may rely on them.

An index may come from anywhere, with checksums that are right and contents that are not. What lies deeper than is
written here (settings of a recipe, a schema of metadata) is checked by those whose format it is.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from indexer.store import layout

MAX_DEPTH = 2 * 64 + 16  # metadata is nested up to 64 levels, and its schema says each in two
Count = Annotated[int, Meta(ge=0, le=1 << 48)]
Size = Annotated[int, Meta(ge=1, le=1 << 20)]  # dimensions
Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
FileName = Annotated[str, Meta(pattern=layout.FILE_PATTERN, max_length=200)]
PlainName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z", max_length=200)]
PartName = Annotated[str, Meta(pattern=r"^parts/[0-9]{5,18}\Z")]
PartFile = Annotated[str, Meta(pattern=rf"^({'|'.join(layout.PART_DATA)})\Z")]


class Digest(Struct, forbid_unknown_fields=True):
    """See `FileDigest`."""

    bytes: Count
    sha256: Hash
    blocks: Annotated[str, Meta(pattern=r"^([0-9a-f]{16})*\Z")] = ""


class Part(Struct, forbid_unknown_fields=True):
    """See `PartEntry`."""

    name: PartName
    documents: Count
    rows: Count
    document_key: Hash
    embedding_key: Hash


class Segment(Struct, forbid_unknown_fields=True):
    """See `SegmentEntry`."""

    file: FileName
    first_row: Count
    rows: Count
    factory: Annotated[str, Meta(max_length=500)]
    search_parameters: dict[str, int] = {}


class Transformer(Struct, tag_field="kind", tag="transformer"):
    """The identity of a transformer; settings of poolings that are fitted stand beside these."""

    rules: Count
    weights: dict[str, Hash]
    tokenizer: dict[str, Hash]
    config: dict[str, Hash]
    layers: list[Annotated[int, Meta(ge=0, le=10_000)]]
    pooling: str
    max_length: Annotated[int, Meta(ge=1)]
    query_prefix: str
    document_prefix: str
    lowercase: bool
    precision: str
    batch_tokens: Count
    group_texts: Count | UnsetType = UNSET
    sif_a: float | UnsetType = UNSET
    latte_mix: dict[str, int | float | str | None] | UnsetType = UNSET
    state: dict[PlainName, Hash] | UnsetType = UNSET


class Static(Struct, tag_field="kind", tag="static"):
    """The identity of a table of token vectors."""

    rules: Count
    layers: list[int]
    pooling: str
    max_length: Annotated[int, Meta(ge=1)]
    query_prefix: str
    document_prefix: str
    precision: str
    sif_a: float | UnsetType = UNSET
    latte_mix: dict[str, int | float | str | None] | UnsetType = UNSET
    state: dict[PlainName, Hash] | UnsetType = UNSET


class Given(Struct, tag_field="kind", tag="vectors"):
    """The identity of embeddings that came with the corpus."""

    rules: Count
    model: str


class EncoderFacts(Struct):
    """What a manifest says of the encoder."""

    model: str
    folder: str
    dim: Size
    identity: Transformer | Static | Given


class QueryTexts(Struct):
    """Where the mean of queries comes from."""

    source: str
    texts: Count
    sha256: Hash | UnsetType = UNSET
    texts_sha256: Hash | UnsetType = UNSET


class TransformFacts(Struct):
    """What a manifest says of the transform."""

    file: FileName
    kind: str
    dim: Size
    note: str
    query_texts: QueryTexts
    taken_from: Hash | UnsetType = UNSET


class IndexFields(Struct):
    """See `IndexFigures`."""

    factory: str
    why: str
    recall_at_10: float
    bytes_per_vector: float
    queries: Count
    query_origin: str = ""
    queries_sha256: Hash | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.queries and not self.query_origin:
            raise ValueError("it says of how many queries its recall is, and not of which")


class PointFields(Struct):
    """See `MeasuredPoint`."""

    search_parameters: dict[str, int]
    recall: float


class MeasuredSegmentFields(Struct):
    """See `SegmentFigures`."""

    index: IndexFields | UnsetType = UNSET
    recall_curve: list[PointFields] | UnsetType = UNSET


class StoredRowFields(Struct):
    """See `StoredRow`."""

    part: Count
    row: Count = 0


class DriftFields(Struct):
    """See `DriftFigures`."""

    rows: Count
    mean_shift: float
    expected_mean_shift: float
    covariance: float
    expected_covariance: float
    refit_advised: bool
    since_part: Count | UnsetType = UNSET


class HeldOutFields(Struct):
    """See `HeldOut`."""

    fitted: Count
    held_out: Count
    mean_variance: float
    expected: float | None


class GateFields(Struct):
    """See `GateFigures`."""

    value: float
    limit: float
    passed: bool


class QualityFields(Struct):
    """See `Quality`; gates stand beside these by their names."""

    tokens: Count
    truncated: Count
    self_hit: GateFields
    without_tokens: Count | UnsetType = UNSET
    recall_at_10: GateFields | UnsetType = UNSET
    covariance: GateFields | UnsetType = UNSET
    sample: Count | UnsetType = UNSET
    held_out: HeldOutFields | UnsetType | None = UNSET
    index: IndexFields | UnsetType = UNSET
    recall_curve: list[PointFields] | UnsetType = UNSET
    segments: dict[FileName, MeasuredSegmentFields] | UnsetType = UNSET
    added: dict[str, Any] | UnsetType = UNSET
    added_since: StoredRowFields | UnsetType = UNSET
    drift: DriftFields | UnsetType = UNSET


class ManifestFields(Struct):
    """A manifest without its checksum; fields that are not known here are a later version's, and passed over."""

    format: Literal[1]
    generation: Annotated[int, Meta(ge=1, le=99_999_999)]
    config: dict[str, dict[str, Any]]
    encoder: EncoderFacts
    fingerprint: Hash
    transform: TransformFacts
    parts: list[Part]
    segments: list[Segment]
    files: dict[FileName, Digest]
    schema: dict[str, Any]
    documents: Count
    rows: Count
    quality: QualityFields
    versions: dict[str, str | None]
    created: Annotated[str, Meta(max_length=100)]
    deleted: FileName | None
    features: list[str]


class RecordFields(Struct, forbid_unknown_fields=True):
    """See `PartRecord`."""

    documents: Count
    rows: Count
    dim: Size
    document_key: Hash
    embedding_key: Hash
    fingerprint: Hash
    tokens: Count
    truncated: Count
    not_finite: Count
    zero: Count
    schema: dict[str, Any]
    files: dict[PartFile, Digest]
    without_tokens: Count = 0
    set_aside: list[Count] = []


class PendingDocuments(Struct, forbid_unknown_fields=True):
    """See `PartDocuments`."""

    documents: Count
    document_key: Hash
    embedding_key: Hash
    schema: dict[str, Any]
    digest: Digest


class PendingPart(Struct, forbid_unknown_fields=True):
    """A part of `pending.json`; `known`: rows whose embeddings are those of rows of a complete part."""

    name: PartName
    rows: Count
    written: PendingDocuments
    known: list[tuple[PartName, list[Count], list[Count]]]


class PendingFields(Struct, forbid_unknown_fields=True):
    """What `pending.json` says."""

    format: Count
    config: dict[str, Any]
    fingerprint: Hash
    parts: list[PendingPart]


class StateFields(Struct):
    """What `state.json` says of an encoder's fitted state."""

    files: dict[PlainName, Digest]
    key: str | UnsetType = UNSET
    trained: bool = False


def require_consistent(plain: Mapping[str, Any]) -> None:
    """Raises ValueError where counts and names of a manifest, whose types are right, do not go together."""
    for figure in plain["quality"].values():
        if isinstance(figure, dict) and "passed" in figure:  # a gate of any name
            msgspec.convert(figure, GateFields)
    files, parts = plain["files"], plain["parts"]
    names = [part["name"] for part in parts]
    if not parts or len(set(names)) < len(names):
        raise ValueError("it names no part, or one twice")
    mentioned = [f"{name}/{file}" for name in names for file in (*layout.PART_DATA, layout.PART)]
    mentioned += [plain["transform"]["file"], *(segment["file"] for segment in plain["segments"])]
    mentioned += [plain["deleted"]] if plain.get("deleted") else []
    if missing := [name for name in mentioned if name not in files]:
        raise ValueError(f"it has no checksum of {missing[0]}")
    row = 0
    for segment in plain["segments"]:
        if segment["first_row"] != row:
            raise ValueError(f"{segment['file']} begins with row {segment['first_row']:,}; expected {row:,}")
        row += segment["rows"]
    stored = {name: sum(part[name] for part in parts) for name in ("documents", "rows")}
    if row != stored["rows"]:
        raise ValueError(f"its segments have {row:,} rows, its parts {stored['rows']:,}")
    for name, count in stored.items():
        if not 0 < plain[name] <= count:
            raise ValueError(f"{plain[name]:,} {name} of {count:,} that its parts hold")
