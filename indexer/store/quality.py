"""What was measured of an index, as its readers see it.

A manifest keeps `quality` as the JSON it was written as, with what later versions may add; here is what is read of it.
Its types have been checked when the manifest was loaded (`indexer.store.manifest_schema`). What stands None was not
measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

Record = TypeVar("Record")


@dataclass(frozen=True)
class GateFigures:
    """A gate that the index was held to before it was published."""

    value: float
    limit: float
    passed: bool


@dataclass(frozen=True)
class HeldOut:
    """The mean variance, in the fitted directions, of rows that the whitening was not fitted on; 1 is perfect.

    `expected` is that of ideal Gaussian data, None where it is not defined.
    """

    fitted: int
    held_out: int
    mean_variance: float
    expected: float | None


@dataclass(frozen=True)
class IndexFigures:
    """What kind of index was made and why, what it reaches, and by which queries that was measured."""

    factory: str
    why: str
    recall_at_10: float
    bytes_per_vector: float
    queries: int
    query_origin: str = ""
    queries_sha256: str = ""


@dataclass(frozen=True)
class MeasuredPoint:
    """Search parameters, and the recall@10 they reach."""

    search_parameters: dict[str, int]
    recall: float


@dataclass(frozen=True)
class SegmentFigures:
    """What was measured of one segment; `recall_curve` in ascending work, empty for an exact index."""

    index: IndexFigures | None = None
    recall_curve: tuple[MeasuredPoint, ...] = ()


@dataclass(frozen=True)
class DriftFigures:
    """How far documents added since the fit lie from those it was fitted on; see `indexer.pipeline.drift`."""

    rows: int
    mean_shift: float
    expected_mean_shift: float
    covariance: float
    expected_covariance: float
    refit_advised: bool
    since_part: int | None = None  # in indexes of older versions: the first part that was added


@dataclass(frozen=True)
class StoredRow:
    """A part, by its number, and a row in it."""

    part: int
    row: int = 0


@dataclass(frozen=True)
class Quality:
    """All of it. `first` is of the first segment, `segments` of others, by their files."""

    tokens: int = 0
    truncated: int = 0  # texts that the encoder cut
    without_tokens: int = 0  # texts without a token that a static table knows
    gates: Mapping[str, GateFigures] = field(default_factory=dict)  # by name
    held_out: HeldOut | None = None
    first: SegmentFigures = field(default_factory=SegmentFigures)
    segments: Mapping[str, SegmentFigures] = field(default_factory=dict)
    added_since: StoredRow | None = None  # where the rows begin that were added after the fit
    drift: DriftFigures | None = None

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "Quality":
        """What `quality` of a manifest says."""
        return cls(
            plain.get("tokens", 0),
            plain.get("truncated", 0),
            plain.get("without_tokens", 0),
            {name: _record(GateFigures, figure) for name, figure in plain.items() if _is_gate(figure)},
            _optional(HeldOut, plain.get("held_out")),
            _segment(plain),
            {file: _segment(figures) for file, figures in plain.get("segments", {}).items()},
            _optional(StoredRow, plain.get("added_since")),
            _optional(DriftFigures, plain.get("drift")),
        )

    def of_segment(self, file: str, first: bool) -> SegmentFigures:
        """The figures of a segment by its file; `first`: whether it is the first of the index."""
        return self.segments.get(file, self.first if first else SegmentFigures())


def _segment(plain: Mapping[str, Any]) -> SegmentFigures:
    curve = tuple(_record(MeasuredPoint, point) for point in plain.get("recall_curve", ()))
    return SegmentFigures(_optional(IndexFigures, plain.get("index")), curve)


def _optional(kind: type[Record], plain: Mapping[str, Any] | None) -> Record | None:
    return None if plain is None else _record(kind, plain)


def _record(kind: type[Record], plain: Mapping[str, Any]) -> Record:
    """The fields that the record has; others are passed over."""
    return kind(**{name: plain[name] for name in kind.__annotations__ if name in plain})


def _is_gate(figure: Any) -> bool:
    return isinstance(figure, dict) and "passed" in figure
