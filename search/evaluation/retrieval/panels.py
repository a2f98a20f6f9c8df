"""What the picture of a retrieval result shows: lines of an nDCG by whitening strength, in panels that share axes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search.evaluation.retrieval.metrics import measure_names
from search.evaluation.settings import written

_CENTRES = {"role": "two means (role)", "common": "one mean (common)", "none": "no centring (none)"}
_LOOKS = {"role": ("#0072b2", "o"), "common": ("#d55e00", "s"), "none": ("#009e73", "^")}
_HYBRID_LOOKS = {"role": ("#cc79a7", "D"), "common": ("#e69f00", "v"), "none": ("#56b4e9", "P")}
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6a3d9a")
_MARKERS = ("o", "s", "^", "D", "v", "P")  # no divisor in common with the colours: 42 lines that differ
HYBRID_RAW = "hybrid, raw"
_COMPARABLE = 0.45  # of the range of several panels; one that needs less would be squeezed by sharing their axis
Row = Mapping[str, Any]
Kind = tuple[str, int | None, float, bool]  # centre, dim, shrinkage, hybrid
Interval = tuple[float, float]


@dataclass(frozen=True)
class Point:
    """A figure times 100 with the ends of its interval, if it has one."""

    value: float
    low: float | None
    high: float | None

    @property
    def ends(self) -> list[float]:
        """All that is known of it."""
        return [end for end in (self.low, self.value, self.high) if end is not None]


@dataclass(frozen=True)
class Line:
    """One way of whitening: its figures by strength, in ascending order."""

    label: str
    look: tuple[str, str]  # colour and marker
    points: Mapping[float, Point]


@dataclass(frozen=True)
class Panel:
    """One embedding, a pooling of some layers."""

    title: str
    lines: tuple[Line, ...]
    raw: Point | None
    baselines: Mapping[str, float]
    levels: tuple[str, ...] = ()  # those of the baselines that are settings without a strength

    @property
    def raw_label(self) -> str:
        """What raw embeddings are called; empty where they were not measured."""
        if self.raw is None:
            return ""
        return "raw" if self.raw.low is None or self.raw.high is None else "raw, 95 % shaded"

    @property
    def labels(self) -> list[str]:
        """All that a legend must explain."""
        return [*filter(None, [self.raw_label]), *self.baselines, *(line.label for line in self.lines)]

    @property
    def range(self) -> Interval:
        """What everything drawn takes of the axis of figures."""
        points = [point for line in self.lines for point in line.points.values()]
        points += [self.raw] if self.raw else []
        ends = [end for point in points for end in point.ends] + list(self.baselines.values())
        return min(ends), max(ends)


def panels_of(result: Mapping[str, Any]) -> list[Panel]:
    """What is drawn, in the order of the result; an embedding that was measured only raw has no panel."""
    measure = measure_of(result)
    measured = [row for row in result["results"] if row["pooling"] is not None]
    settings = [row for row in measured if not _is_level(row)]
    baselines = {row["setting"]: _point(row, measure).value for row in result["results"] if row["pooling"] is None}
    unwhitened = [row for row in settings if row["strength"] == "none"]
    raw = {_embedding(row): _point(row, measure) for row in unwhitened if not _is_hybrid(row)}
    raw_hybrids = {_embedding(row): {HYBRID_RAW: _point(row, measure).value} for row in unwhitened if _is_hybrid(row)}
    whitened = [row for row in settings if row["strength"] != "none"]
    kinds = list(dict.fromkeys(map(_kind, whitened)))
    panels = []
    for embedding in dict.fromkeys(map(_embedding, whitened)):
        own = [row for row in whitened if _embedding(row) == embedding]
        lines = tuple(line for kind in kinds if (line := _line(kind, kinds, own, measure)).points)
        others = {row["setting"]: _point(row, measure).value for row in measured if _is_level(row, embedding)}
        levels = raw_hybrids.get(embedding, {}) | others | baselines
        panels.append(Panel(_named(*embedding), lines, raw.get(embedding), levels, tuple(others)))
    return panels


def shared_ranges(panels: Sequence[Panel]) -> list[Interval]:
    """The range of each panel's axis. Neighbours share one, equal range as long as that squeezes none of them."""
    groups: list[list[Interval]] = []
    for panel in panels:
        joined = [*(groups[-1] if groups else ()), panel.range]
        low, high = _union(joined)
        if groups and min(top - bottom for bottom, top in joined) >= _COMPARABLE * (high - low):
            groups[-1] = joined
        else:
            groups.append([panel.range])
    return [_union(group) for group in groups for _ in group]


def measure_of(result: Mapping[str, Any]) -> str:
    """The measure that is drawn: nDCG at the first rank asked for."""
    return measure_names(result["provenance"]["protocol"]["cutoffs"])[0]


def _embedding(row: Row) -> tuple[str, tuple[int, ...]]:
    return row["pooling"], tuple(row["layers"])


def _kind(row: Row) -> Kind:
    return row["centre"], row["dim"], row["shrinkage"], _is_hybrid(row)


def _is_level(row: Row, embedding: tuple[str, tuple[int, ...]] | None = None) -> bool:
    """Whether a setting (of this embedding) has no strength to be drawn at: another kind, or a mere removal."""
    special = bool(row.get("kind") or (row["strength"] == "none" and row.get("removed")))
    return special and (embedding is None or _embedding(row) == embedding)


def _is_hybrid(row: Row) -> bool:
    return bool(row.get("hybrid"))


def _point(row: Row, measure: str) -> Point:
    found = row["measure"][measure]
    low, high = (None if found[end] is None else 100 * found[end] for end in ("low", "high"))
    return Point(100 * found["value"], low, high)


def _line(kind: Kind, kinds: Sequence[Kind], rows: Sequence[Row], measure: str) -> Line:
    """The rows of one kind. It looks the same wherever it is drawn, and a centre alone the same in all pictures."""
    number = kinds.index(kind)
    look = _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)]
    if len({other[1:3] for other in kinds}) == 1:
        look = (_HYBRID_LOOKS if kind[3] else _LOOKS)[kind[0]]
    points = {row["strength"]: _point(row, measure) for row in rows if _kind(row) == kind}
    return Line(_label(kind, kinds), look, dict(sorted(points.items())))


def _label(kind: Kind, kinds: Sequence[Kind]) -> str:
    """The centre, and dimensions and shrinkage where they are not left as they are in all lines."""
    centre, dim, shrinkage, hybrid = kind
    words = [f"hybrid, {_CENTRES[centre]}" if hybrid else _CENTRES[centre]]
    if any(other[1] for other in kinds):
        words.append(f"{dim} dimensions" if dim else "all dimensions")
    if any(other[2] for other in kinds):
        words.append(f"shrinkage {written(shrinkage)}")
    return ", ".join(words)


def _named(pooling: str, layers: tuple[int, ...]) -> str:
    if not layers:
        return "embeddings that came with the corpus" if pooling == "given" else f"static table, {pooling} pooling"
    names = " + ".join("last" if layer == -1 else str(layer) for layer in layers)
    return f"{'last layer' if names == 'last' else f'layer {names}'}, {pooling} pooling"


def _union(ranges: Sequence[Interval]) -> Interval:
    lows, highs = zip(*ranges, strict=True)
    return min(lows), max(highs)
