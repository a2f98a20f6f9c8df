"""Measured figures of an index, as its readers see them.

A manifest keeps `quality` as the JSON it was written as, with fields that later versions may add; the types here cover
the fields that are read. None stands for a figure that was not measured.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import asdict

from indexer.store.layout import Count, FileName
from indexer.typed_json import convert_json

MEAN_LIMIT = 0.25  # standard deviations a direction, beyond chance: a refit is advised above
COVARIANCE_LIMIT = 0.5  # of the variance of a direction, beyond chance


class GateFigures(Struct, frozen=True):
    """A gate that the index passed before it was published, or failed where the gate was not required."""

    value: float
    limit: float
    passed: bool


class HeldOut(Struct, frozen=True):
    """The mean variance, in the fitted directions, of rows that the whitening was not fitted on; 1 is perfect.

    `expected` is that of ideal Gaussian data, None where it is not defined.
    """

    fitted: Count
    held_out: Count
    mean_variance: float
    expected: float | None


class IndexFigures(Struct, frozen=True):
    """The kind of index and why it was chosen, its recall, and the queries by which that was measured."""

    factory: str
    why: str
    recall_at_10: float
    bytes_per_vector: float
    queries: Count
    query_origin: str = ""
    queries_sha256: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""

    def __post_init__(self) -> None:
        if self.queries and not self.query_origin:
            raise ValueError("it says of how many queries its recall is, and not of which")


class MeasuredPoint(Struct, frozen=True):
    """Search parameters, and the recall@10 they reach."""

    search_parameters: dict[str, int]
    recall: float


class SegmentFigures(Struct, frozen=True, kw_only=True):
    """Figures of one segment; `recall_curve` in ascending work, empty for an exact index."""

    index: IndexFigures | None = None
    recall_curve: tuple[MeasuredPoint, ...] = ()


class Drift(Struct, frozen=True):
    """How far documents added since the fit lie from those it was fitted on; see `indexer.pipeline.drift`.

    The expected figures are those of chance.
    """

    rows: Count
    mean_shift: float
    expected_mean_shift: float
    covariance: float
    expected_covariance: float
    since_part: Count | None = None  # in indexes of older versions: the first part that was added

    @property
    def refit_advised(self) -> bool:
        """Whether a figure is beyond its limit after chance is subtracted."""
        mean = _beyond(self.mean_shift, self.expected_mean_shift)
        return mean > MEAN_LIMIT or _beyond(self.covariance, self.expected_covariance) > COVARIANCE_LIMIT

    def to_dict(self) -> dict[str, Any]:
        """JSON types, as a manifest has them."""
        figures = {name: value for name, value in asdict(self).items() if name != "since_part"}
        return figures | {"refit_advised": self.refit_advised}


def _beyond(figure: float, chance: float) -> float:
    return math.sqrt(max(0.0, figure**2 - chance**2))


class StoredRow(Struct, frozen=True):
    """A part, by its number, and a row in it."""

    part: Count
    row: Count = 0


class Quality(SegmentFigures, frozen=True, kw_only=True):
    """All figures. Those of a segment are of the first one; `segments` has others, by their files."""

    tokens: Count
    truncated: Count  # texts that the encoder cut
    without_tokens: Count = 0  # texts without a token that a static table knows
    self_hit: GateFigures
    gates: dict[str, GateFigures]  # all of them, by name
    sample: Count = 0
    held_out: HeldOut | None = None
    segments: dict[FileName, SegmentFigures] = {}
    added: dict[str, Any] = {}
    added_since: StoredRow | None = None  # where the rows begin that were added after the fit
    drift: Drift | None = None

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "Quality":
        """Return the figures in `quality` of a manifest. Raises ValueError for wrong types."""
        gates = {name: figure for name, figure in plain.items() if isinstance(figure, dict) and "passed" in figure}
        return convert_json({**plain, "gates": gates}, cls)

    def of_segment(self, file: str, first: bool) -> SegmentFigures:
        """Return the figures of a segment by its file; `first`: whether it is the first of the index."""
        return self.segments.get(file, self if first else SegmentFigures())
