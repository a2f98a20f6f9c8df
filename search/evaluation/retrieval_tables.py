"""Tables of retrieval, of an index against exact search, and of tuning; see `search.evaluation.tables`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from search.evaluation.cells import (
    WITH_INTERVAL,
    Table,
    figure_text,
    interval_text,
    is_number,
    list_of,
    mapping_of,
    name_of,
    plain_text,
    scale_of,
)
from search.evaluation.result import Result, Row
from search.ranking.bm25 import describe_bm25
from search.ranking.fusion import describe_fusion
from search.text import counted, number

_BEST_TUNED = 8  # settings of `tune` in its table, beside the controls


def retrieval_tables(result: Result) -> Iterator[Table]:
    """A line a setting, a column a measure; the first one with its interval."""
    protocol, scale = mapping_of(result.provenance.get("protocol")), scale_of(result)
    names = list(dict.fromkeys(name for row in result.results for name in mapping_of(row.get("measure"))))
    first, *others = names or [""]
    cells = []
    for row in result.results:
        found = mapping_of(row.get("measure"))
        plain = [figure_text(mapping_of(found.get(name)).get("value"), scale) for name in others]
        cells.append([name_of(row), interval_text(found.get(first), scale=scale), *plain])
    yield Table(
        _searched(protocol) or "x 100, means over queries",
        ["setting", f"{first} {WITH_INTERVAL}", *others],
        cells,
        tuple(_beside(result.provenance)),
    )


def _searched(protocol: Mapping[str, Any]) -> str:
    queries, documents, depth = (protocol.get(name) for name in ("queries", "documents", "depth"))
    if not (isinstance(queries, int) and isinstance(documents, int) and isinstance(depth, int)):
        return ""
    return (
        f"{protocol.get('task')}, {protocol.get('split')}: x 100, means over {counted(queries, 'query', 'queries')}; "
        f"{counted(documents, 'document')}, {counted(depth, 'hit')} a query judged"
    )


def _beside(provenance: Mapping[str, Any]) -> Iterator[str]:
    """What BM25 and hybrids are; those that differ in their weight alone in one line."""
    if bm25 := mapping_of(provenance.get("bm25")):
        yield f"{describe_bm25(bm25)}."
    hybrids = provenance.get("hybrid")
    found = [mapping_of(one) for one in (hybrids if isinstance(hybrids, list) else [hybrids] if hybrids else [])]
    for kind in dict.fromkeys((one.get("method"), one.get("scaling")) for one in found):
        alike = [one for one in found if (one.get("method"), one.get("scaling")) == kind]
        weights = ", ".join(plain_text(one["weight"]) for one in alike if "weight" in one)
        yield f"{describe_fusion({**alike[0], **({'weight': weights} if weights else {})})}."


def recall_tables(result: Result) -> Iterator[Table]:
    """A column a measurement, with its latencies."""
    yield _transposed(
        result,
        {
            f"recall {WITH_INTERVAL}": lambda row: (
                "1 by construction: the index is exact, and gave the exact answers"
                if row.get("exact")
                else interval_text(row, "recall", ".4f", 1)
            ),
            "queries": _queries,
            "index": _index,
            "size": _size,
            "search, ms p50 / p90 / p99": lambda row: _latency(row, "search"),
            "encoding and search, ms": lambda row: _latency(row, "with_encoding"),
        },
    )


def divergence_tables(result: Result) -> Iterator[Table]:
    """A column a measurement of the ranking by divergence."""
    yield _transposed(
        result,
        {
            f"recall {WITH_INTERVAL}": lambda row: interval_text(row, "recall", ".4f", 1),
            "proved": lambda row: f"{figure_text(row.get('proven'), 100, '.1f')} % of the queries",
            "queries": _queries,
            "candidates": lambda row: (
                f"{number(row.get('candidates'))} of {number(row.get('rows'))} rows, by {row.get('transform')}"
            ),
        },
    )


def _transposed(result: Result, lines: Mapping[str, Callable[[Row], str]]) -> Table:
    columns = ["measured", *(f"recall@{row.get('k')}" for row in result.results)]
    return Table("", columns, [[name, *map(write, result.results)] for name, write in lines.items()])


def _queries(row: Row) -> str:
    origin = row.get("origin")
    return f"{number(row.get('queries'))} from {'the file' if origin == 'file' else f'documents: {origin}'}"


def _index(row: Row) -> str:
    listed = [
        f"{name} {value}" for each in list_of(row.get("search_parameters")) for name, value in mapping_of(each).items()
    ]
    return ", ".join([str(row.get("index_type", "")), *listed])


def _size(row: Row) -> str:
    rows, dim, bytes_each = row.get("rows"), row.get("dim"), figure_text(row.get("bytes_per_vector"), 1, ",.1f")
    if isinstance(rows, int) and isinstance(dim, int):
        return f"{counted(rows, 'vector')} of {counted(dim, 'dimension')}, {bytes_each} bytes each"
    return f"{bytes_each} bytes a vector" if bytes_each else ""


def _latency(row: Row, key: str) -> str:
    timed = mapping_of(mapping_of(row.get("latency_ms")).get(key))
    return " / ".join(number(timed.get(p), 3) for p in ("p50", "p90", "p99")) if timed else ""


def tune_tables(result: Result) -> Iterator[Table]:
    """The best settings and the controls, the frontier, and what was taken."""
    protocol = mapping_of(result.provenance.get("protocol"))
    name, scale = str(protocol.get("measure", "score")), scale_of(result)
    figure = f"{name} {WITH_INTERVAL}"
    cells = [
        [*_setting(row), interval_text(row, scale=scale), number(row.get("dimensions")), _mark(row)]
        for row in _shown(result.results)
    ]
    caption = f"{name} x 100, {number(protocol.get('questions'))} {protocol.get('kind', 'questions')}"
    columns = ["layers", "pooling", "strength", "centre", "shrinkage", figure, "dimensions", ""]
    tied = "tied: cannot be told from the highest, compared question by question"
    yield Table(caption, columns, cells, (tied,) if any("tied" in row[-1] for row in cells) else ())
    cells = []
    for row in result.added["frontier"]:
        layers, _, strength, centre, _ = _setting(row)
        sizes = [number(row.get("bytes")), number(row.get("dimensions"))]
        cells.append([*sizes, layers, strength, centre, interval_text(row, scale=scale), _mark(row)])
    columns = ["bytes", "dimensions", "layers", "strength", "centre", figure, ""]
    yield Table(f"Frontier: {name} x 100 by bytes a vector", columns, cells, _taken(result.added["choice"], scale))
    yield from _weights(mapping_of(result.added.get("hybrid")), name, scale)


def _weights(hybrid: Mapping[str, Any], measure: str, scale: float) -> Iterator[Table]:
    """What each tenth of the weight scored, the best, and what was taken."""
    rows = [mapping_of(row) for row in list_of(hybrid.get("weights"))]
    shown = [
        row for place, row in enumerate(rows)
        if place % 2 == 0 or row.get("taken") or row.get("weight") == hybrid.get("best")
    ]  # fmt: skip
    alone = {0.0: "BM25 alone", 1.0: "vectors alone"}
    cells = []
    for row in shown:
        highest = f"{100 * row['highest']:.0f} %" if is_number(row.get("highest")) else ""
        marks = ", ".join(filter(None, [alone.get(row.get("weight", -1), ""), "taken" if row.get("taken") else ""]))
        cells.append([plain_text(row.get("weight")), interval_text(row, scale=scale), highest, marks])
    if cells:
        remark = f"taken: hybrid.weight={plain_text(hybrid.get('weight'))}, because {hybrid.get('reason')}"
        caption = f"Hybrid: {measure} x 100 by weight of the vectors"
        yield Table(caption, ["weight", f"{measure} {WITH_INTERVAL}", "highest in", ""], cells, (remark,))


def _shown(rows: Sequence[Row]) -> list[Row]:
    """Return the best rows with all dimensions, the controls, the present setting and the one that was taken."""
    ranked = sorted(rows, key=lambda row: -row["value"] if is_number(row.get("value")) else float("inf"))
    wide = [row for row in ranked if row.get("dim") is None]
    shown = [
        row
        for place, row in enumerate(wide)
        if place < _BEST_TUNED
        or row.get("strength") in ("none", 0.0)
        or any(row.get(mark) for mark in ("taken", "present"))
    ]
    return shown + [row for row in ranked if row.get("taken") and row.get("dim") is not None]


def _setting(row: Row) -> list[str]:
    layers = ",".join(map(str, list_of(row.get("layers"))))
    if row.get("strength") == "none":
        return [layers, str(row.get("pooling")), "raw", "", ""]
    named = [plain_text(row.get("strength")), str(row.get("centre")), plain_text(row.get("shrinkage"))]
    return [layers, str(row.get("pooling")), *named]


def _mark(row: Row) -> str:
    marks = ["taken" if row.get("taken") else "tied" if row.get("tied") else ""]
    marks += ["present"] * bool(row.get("present"))
    return ", ".join(filter(None, marks))


def _taken(choice: Mapping[str, Any], scale: float) -> tuple[str, ...]:
    lines = [f"taken: {choice['setting']}, because {choice['reason']}"]
    gain, enough = choice["gain"], choice.get("enough")
    if gain.get("value"):
        decided = "decided" if gain.get("decided") else "not decided"
        over = interval_text(gain, form="+.2f", scale=scale)
        lines.append(f"over raw: {over}, {decided}; flattered a little by having been chosen on it")
    present = mapping_of(choice.get("over_present"))
    if present.get("value"):
        over = interval_text(present, form="+.2f", scale=scale)
        lines.append(f"over the recipe's own: {over}, {'decided' if present.get('decided') else 'not decided'}")
    if enough:
        softer = "" if enough.get("strength") is None else f" at strength {plain_text(enough['strength'])}"
        does = f"{number(enough['dim'])} dimensions ({number(enough['bytes'])} bytes){softer} do as well"
        lines.append(f"as far as the questions can tell, {does}")
    return tuple(lines)
