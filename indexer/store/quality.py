"""Measured figures of an index.

A manifest keeps `quality` as its JSON, with fields that later versions may add; the types here cover the fields that
are read. None is a figure that was not measured.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import asdict

from indexer.store.layout import Count, FileName
from indexer.typed_json import convert_json

MEAN_LIMIT = 0.25  # standard deviations a direction, beyond chance, above which a refit is advised
COVARIANCE_LIMIT = 0.5  # share of a direction's variance, beyond chance, above which a refit is advised
LEAST_SHARE = 0.05  # of the rows of an index: fewer added ones hardly change a fit to all of them, so none is advised


class GateFigures(Struct, frozen=True):
    """A gate that the index passed before publication, or failed if it was not required."""

    value: float
    limit: float
    passed: bool


class HeldOut(Struct, frozen=True):
    """The mean variance, in the fitted directions, of rows that the whitening was not fitted on; 1 is perfect.
    `expected` is the value for ideal Gaussian data, None if undefined."""

    fitted: Count
    held_out: Count
    mean_variance: float
    expected: float | None


class IndexFigures(Struct, frozen=True):
    """The kind of index and the reason for it, its recall, and the queries that measured the recall."""

    factory: str
    why: str
    recall_at_10: float
    bytes_per_vector: float
    queries: Count
    query_origin: str = ""
    queries_sha256: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""

    def __post_init__(self) -> None:
        if self.queries and not self.query_origin:
            raise ValueError("it has a number of recall queries without their origin")


class MeasuredPoint(Struct, frozen=True):
    """Search parameters and their recall@10."""

    search_parameters: dict[str, int]
    recall: float


class SegmentFigures(Struct, frozen=True, kw_only=True):
    """Figures of one segment; `recall_curve` is in ascending work, empty for an exact index."""

    index: IndexFigures | None = None
    recall_curve: tuple[MeasuredPoint, ...] = ()


class RecallEntry(Struct, frozen=True, kw_only=True):
    """A measurement of the recall@10 of the whole index, published with a generation.

    `recall_before` was measured with the search parameters of the generation before, `recall_at_10` with
    `search_parameters`, which that generation stores. `promised` is index.recall.
    """

    generation: Count
    documents: Count
    rows: Count
    stored_rows: Count  # including deleted ones
    recall_before: float | None = None
    recall_at_10: float
    promised: float
    queries: Count
    query_origin: str
    search_parameters: dict[FileName, dict[str, int]]
    date: Annotated[str, Meta(max_length=100)]


class Drift(Struct, frozen=True):
    """The distance of documents added since the fit from the fitted documents; see `indexer.pipeline.drift`. The
    expected figures are the values by chance."""

    rows: Count
    mean_shift: float
    expected_mean_shift: float
    covariance: float
    expected_covariance: float
    share: float = 1.0  # of the stored rows; not in old indexes
    since_part: Count | None = None  # in old indexes: the first part that was added

    @property
    def refit_advised(self) -> bool:
        """Whether the added rows are enough to matter, and a figure exceeds its limit after subtracting chance."""
        if self.share < LEAST_SHARE:
            return False
        mean = _beyond(self.mean_shift, self.expected_mean_shift)
        return mean > MEAN_LIMIT or _beyond(self.covariance, self.expected_covariance) > COVARIANCE_LIMIT

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON types, as in a manifest."""
        figures = {name: value for name, value in asdict(self).items() if name != "since_part"}
        return figures | {"refit_advised": self.refit_advised}


def _beyond(figure: float, chance: float) -> float:
    return math.sqrt(max(0.0, figure**2 - chance**2))


class StoredRow(Struct, frozen=True):
    """A part number and a row in the part."""

    part: Count
    row: Count = 0


class Quality(SegmentFigures, frozen=True, kw_only=True):
    """All figures. Those of `SegmentFigures` are of the first segment; `segments` has the others, by file."""

    tokens: Count
    truncated: Count  # texts that the encoder truncated
    without_tokens: Count = 0  # texts without a token of a static table
    self_hit: GateFigures
    gates: dict[str, GateFigures]  # by name
    sample: Count = 0
    held_out: HeldOut | None = None
    segments: dict[FileName, SegmentFigures] = {}
    added: dict[str, Any] = {}
    added_since: StoredRow | None = None  # the first row that was added after the fit
    drift: Drift | None = None
    recall_history: tuple[RecallEntry, ...] = ()  # oldest first

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "Quality":
        """Return the figures in `quality` of a manifest. Raises ValueError for wrong types."""
        gates = {name: figure for name, figure in plain.items() if isinstance(figure, dict) and "passed" in figure}
        return convert_json({**plain, "gates": gates}, cls)

    @property
    def last_recall(self) -> float | None:
        """The recall@10 of the last measurement: of the whole index, or of its first segment when it was built; None
        if nothing was measured."""
        if self.recall_history:
            return self.recall_history[-1].recall_at_10
        return self.index.recall_at_10 if self.index else None

    def of_segment(self, file: str, first: bool) -> SegmentFigures:
        """Return the figures of a segment by its file; `first`: it is the first segment of the index."""
        return self.segments.get(file, self if first else SegmentFigures())
