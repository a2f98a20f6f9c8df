"""How each kind of result is laid out as tables."""
# TODO-DOC search.evaluation.report.results:
# TODO-DOC Result files of `isotrope evaluate`, read and laid out as tables.
# TODO-DOC search.evaluation.report.numbers:
# TODO-DOC How a report writes numbers.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeGuard

from indexer.errors import EvaluationError
from indexer.hashing import fingerprint
from indexer.regular_files import read_regular
from indexer.typed_json import convert_json, decode_json
from search.evaluation import result as schema
from search.text import number

_MOST_BYTES = 1 << 28
_WANTED = 'expected a result file of isotrope evaluate: a JSON object with "provenance" and "results"'
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A table of text, the first column naming the rows."""

    caption: str
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class ResultFile:
    """One result file. `encoders` are the fingerprints of what was measured."""

    name: str
    provenance: Row
    results: Sequence[Row]
    comparisons: Sequence[Row] = ()
    notes: Sequence[str] = ()

    @property
    def kind(self) -> str:
        """What was measured, for a heading."""
        first = self.results[0]
        return next((name for name, key in _KINDS.items() if key in first), "Results")

    @property
    def encoders(self) -> set[str]:
        """Fingerprints of the encoders measured, as far as the file names any."""
        named = {str(row["encoder"]) for row in self.results if row.get("encoder")}
        identity = self.provenance.get("encoder")
        if not named and isinstance(identity, Mapping) and isinstance(identity.get("identity"), Mapping):
            named = {fingerprint(dict(identity["identity"]))}
        return named

    def tables(self) -> list[Table]:
        """The results, then paired comparisons."""
        laid_out = [_LAYOUT.get(self.kind, _plain)(self.results)]
        return laid_out + ([_comparisons(self.comparisons)] if self.comparisons else [])


def read_result(path: Path) -> ResultFile:
    """Read a result file. Raises EvaluationError naming what is not as expected."""
    try:
        stored = decode_json(read_regular(path, _MOST_BYTES), schema.Stored)
    except OSError as error:
        raise EvaluationError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise EvaluationError(f"{path}: {error}; {_WANTED}.") from None
    if not stored.results:
        raise EvaluationError(f'{path}: its "results" are empty; {_WANTED}.')
    comparisons = stored.comparisons or []
    found = ResultFile(path.name, stored.provenance, stored.results, comparisons, _notes(stored))
    _require(path, "provenance", stored.provenance, schema.Provenance)
    _require(path, "results", stored.results, _SCHEMA.get(found.kind, list[schema.Row]))
    _require(path, "comparisons", comparisons, list[schema.Comparison])
    return found


def _require(path: Path, place: str, value: Any, kind: Any) -> None:
    """Raises EvaluationError, naming the place, for a value of another type than is shown."""
    try:
        convert_json(value, kind)
    except ValueError as error:
        said = str(error).replace("`$", f"`$.{place}")
        raise EvaluationError(f"{path}: {said}. Write it again with isotrope evaluate.") from None


def _notes(stored: schema.Stored) -> list[str]:
    listed = [stored.notes, *(row.get("notes") for row in stored.results)]
    return [str(note) for notes in listed if isinstance(notes, list) for note in notes]


def _sts(rows: Sequence[Row]) -> Table:
    """A line a model and setting, a column a task. What is measured twice stands twice."""
    tasks = list(dict.fromkeys(str(row.get("task")) for row in rows))
    lines: dict[tuple[str, str, int], dict[str, str]] = {}
    for row in rows:
        model = f"{row['model']}: " if row.get("model") else ""
        name = f"{model}{row.get('setting', '')}, {row.get('protocol', '')}, fit {row.get('fit', '')}"
        encoder, task = str(row.get("encoder")), str(row.get("task"))
        times = next(n for n in count() if task not in lines.get((name, encoder, n), {}))
        spread = row.get("standard_deviation")
        said = f", sd over seeds {spread:.2f}" if isinstance(spread, float) else ""
        lines.setdefault((name, encoder, times), {})[task] = with_interval(row, "spearman") + said
    names = _told_apart(list(lines))
    cells = [[name, *(line.get(task, "") for task in tasks)] for name, line in zip(names, lines.values(), strict=True)]
    return Table("Spearman's correlation x 100 [95 % interval]", ["setting, protocol, fit", *tasks], cells)


def _told_apart(keys: Sequence[tuple[str, str, int]]) -> list[str]:
    """A name for each (name, encoder, time): with the encoder where that differs, and a number from the second on."""
    encoders: dict[str, set[str]] = {}
    for name, encoder, _ in keys:
        encoders.setdefault(name, set()).add(encoder)
    return [
        name + f", encoder {encoder[:12]}…" * (len(encoders[name]) > 1) + f" ({times + 1})" * (times > 0)
        for name, encoder, times in keys
    ]


def _rte(rows: Sequence[Row]) -> Table:
    """A line a setting: the accuracy at thresholds that were chosen on other pairs, and on these."""
    chosen = [("train", "threshold chosen on other pairs"), ("best", "threshold chosen on these pairs (optimistic)")]
    shown = [(key, name) for key, name in chosen if any(isinstance(row.get(key), Mapping) for row in rows)]
    cells = [
        [f"{row.get('setting', '')}, fit {row.get('fit', '')}", *(_accuracy(row.get(key)) for key, _ in shown),
         with_interval(row, "majority"), number(row.get("pairs"))]
        for row in rows
    ]  # fmt: skip
    columns = ["setting, fit", *(name for _, name in shown), "always the commoner label", "pairs"]
    return Table("accuracy in per cent [95 % interval]", columns, cells)


def _accuracy(found: Any) -> str:
    threshold = number(found.get("threshold"), 3) if isinstance(found, Mapping) else ""
    said = with_interval(found, "accuracy")
    return f"{said} at {threshold}" if said else ""


def _retrieval(rows: Sequence[Row]) -> Table:
    """A line a setting, a column a measure."""
    names = list(dict.fromkeys(name for row in rows for name in _measures(row)))
    cells = [
        [str(row.get("setting", "")), *(with_interval(_measures(row).get(name), "value", scale=100) for name in names)]
        for row in rows
    ]
    return Table("x 100, mean over queries [95 % interval]", ["setting", *names], cells)


def _recall(rows: Sequence[Row]) -> Table:
    """A column a measurement, with its latencies."""
    lines: dict[str, Callable[[Row], str]] = {
        "recall [95 % interval]": lambda row: (
            "1 by construction (exact)" if row.get("exact") is True else with_interval(row, "recall", ".4f")
        ),
        "queries": lambda row: f"{number(row.get('queries'))} ({row.get('origin', '')})",
        "index": lambda row: f"{row.get('index_type', '')} {_parameters(row.get('search_parameters'))}".strip(),
        "bytes a vector": lambda row: number(row.get("bytes_per_vector")),
        "search, ms p50 / p90 / p99": lambda row: _latency(row, "search"),
        "with encoding, ms": lambda row: _latency(row, "with_encoding"),
    }
    return Table(
        "",
        ["", *(f"recall@{row.get('k')}" for row in rows)],
        [[name, *map(write, rows)] for name, write in lines.items()],
    )


def _words(rows: Sequence[Row]) -> Table:
    """A line a set, or a section of it, and kind of vectors."""
    cells = [
        [
            f"{row.get('vectors', '')}: {row.get('task', '')}, {row.get('section', '')}",
            str(row.get("measure", "")),
            with_interval(row, "value"),
            f"{number(row.get('covered'))} of {number(row.get('items'))}",
        ]
        for row in rows
    ]
    return Table("x 100 [95 % interval]", ["vectors, set", "measure", "value", "items"], cells)


def _divergence(rows: Sequence[Row]) -> Table:
    """A column a measurement of the ranking by divergence."""
    lines: dict[str, Callable[[Row], str]] = {
        "recall [95 % interval]": lambda row: with_interval(row, "recall", ".4f"),
        "proved": lambda row: number(row.get("proven"), 3),
        "queries": lambda row: f"{number(row.get('queries'))} ({row.get('origin', '')})",
        "candidates": lambda row: number(row.get("candidates")),
    }
    return Table(
        "",
        ["", *(f"recall@{row.get('k')}" for row in rows)],
        [[name, *map(write, rows)] for name, write in lines.items()],
    )


def _plain(rows: Sequence[Row]) -> Table:
    """Whatever else: a column for each key whose values are plain."""
    keys = [
        key for key in dict.fromkeys(key for row in rows for key in row) if any(_is_plain(r.get(key)) for r in rows)
    ]
    return Table("", list(keys), [[number(row.get(key)) for key in keys] for row in rows])


def _comparisons(rows: Sequence[Row]) -> Table:
    """Paired differences; * where the interval leaves out 0."""
    names = list(dict.fromkeys(name for row in rows for name in _measures(row))) or ["difference"]

    def cell(row: Row, name: str) -> str:
        found, key, scale = (row, "difference", 1) if "difference" in row else (_measures(row).get(name), "value", 100)
        star = " *" if isinstance(found, Mapping) and found.get("decided") is True else ""
        return with_interval(found, key, "+.2f", scale) + star

    def name_of(row: Row) -> str:
        protocol = f", {row['protocol']}" if row.get("protocol") else ""
        model = f"{row['model']}: " if row.get("model") else ""
        return f"{model}{row.get('setting', '')} less {row.get('against', '')}{protocol}"

    cells = [[name_of(row), *(cell(row, name) for name in names)] for row in rows]
    return Table("paired differences [95 % interval]; * where it leaves out 0", ["settings", *names], cells)


def _measures(row: Row) -> Row:
    found = row.get("measure")
    return found if isinstance(found, Mapping) else {}


def _parameters(listed: Any) -> str:
    if not isinstance(listed, list):
        return ""
    return ", ".join(f"{name} {value}" for each in listed if isinstance(each, dict) for name, value in each.items())


def _latency(row: Row, key: str) -> str:
    found = row.get("latency_ms")
    timed = found.get(key) if isinstance(found, Mapping) else None
    return " / ".join(number(timed.get(p), 3) for p in ("p50", "p90", "p99")) if isinstance(timed, Mapping) else ""


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float)


_KINDS = {
    "Similarity (STS)": "spearman",
    "Entailment (RTE)": "majority",
    "Recall against exact search": "latency_ms",
    "Ranking by divergence": "proven",
    "Word vectors": "covered",
    "Retrieval": "measure",
}
_LAYOUT = {
    "Similarity (STS)": _sts,
    "Entailment (RTE)": _rte,
    "Recall against exact search": _recall,
    "Ranking by divergence": _divergence,
    "Word vectors": _words,
    "Retrieval": _retrieval,
}
_SCHEMA: dict[str, Any] = {
    "Similarity (STS)": list[schema.StsRow],
    "Entailment (RTE)": list[schema.RteRow],
    "Recall against exact search": list[schema.RecallRow],
    "Ranking by divergence": list[schema.DivergenceRow],
    "Word vectors": list[schema.WordsRow],
    "Retrieval": list[schema.RetrievalRow],
}

_LARGEST = 1e300  # a whole number of JSON may be larger than any float


def with_interval(found: Any, key: str, form: str = ".2f", scale: float = 1) -> str:
    """The value of `key` in a result with its interval [low, high], as `resampling.Interval` is written."""
    if not isinstance(found, Mapping) or not _is_number(found.get(key)):
        return ""
    low, high = found.get("low"), found.get("high")
    ends = f" [{scale * low:{form}}, {scale * high:{form}}]" if _is_number(low) and _is_number(high) else ""
    return f"{scale * found[key]:{form}}{ends}"


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) > _LARGEST
