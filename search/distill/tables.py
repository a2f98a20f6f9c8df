"""Tables of what a query encoder loses, for the terminal and the report."""

from collections.abc import Iterator, Mapping
from typing import Any

from search.evaluation.result import Result, Row
from search.evaluation.tables import Table, difference_cells, interval_text, is_number, mapping_of, plain_text
from search.formatting import counted, number


def distill_tables(result: Result) -> Iterator[Table]:
    """Yield a table with a line for each set of questions."""
    cells = []
    for pair in result.comparisons or ():
        (name, difference), *_ = mapping_of(pair.get("measure")).items() or [("", {})]
        figures = [_figure(result, pair, label, name) for label in (pair.get("against"), pair.get("setting"))]
        values = [figure.get("value") for figure in figures]
        share = ""
        if is_number(values[0]) and is_number(values[1]) and values[0]:
            share = f"{100 * values[1] / values[0]:.1f} %"
        task = f"{plain_text(pair.get('task'))}, {plain_text(name)}"
        cells.append([task, *map(interval_text, figures), *difference_cells(difference), share])
    columns = ["questions", "own encoder [95 %]", "table [95 %]", "difference [95 %]", "decided", "of own encoder"]
    facts = mapping_of(result.added.get("table"))
    fitted = (
        f"{number(facts.get('tokens'))} tokens of {number(facts.get('dim'))} dimensions, fitted to "
        f"{number(facts.get('documents'))} texts"
    )
    yield Table("x 100", columns, cells, (fitted, *_speed(result)))


def _figure(result: Result, pair: Row, label: Any, name: str) -> Mapping[str, Any]:
    rows = (row for row in result.results if (row.get("task"), row.get("setting")) == (pair.get("task"), label))
    return mapping_of(mapping_of(next(rows, {}).get("measure")).get(name))


def _speed(result: Result) -> Iterator[str]:
    """Yield the median times to encode a question, and the share of equal hits."""
    times = [f"{row['ms']:.2f} ms by the {row.get('setting')}" for row in result.results if is_number(row.get("ms"))]
    if times:
        yield f"a question is encoded in {' and '.join(times)} (median, this machine)"
    for row in result.results:
        if is_number(row.get("shared")):
            questions = counted(row.get("queries") or 0, "drawn question")
            yield f"of the first ten hits of {questions}, {100 * row['shared']:.0f} % are the same"
