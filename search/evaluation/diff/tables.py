"""Tables of the difference between two indexes, for the terminal and the report."""

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from search.evaluation.result import Result, Row
from search.evaluation.tables import Table, figure_text, interval_text, list_of, mapping_of, plain_text
from search.formatting import counted, excerpt, number, percent

_SHOWN, _WIDTH = 3, 48  # questions with their hits side by side, and characters of a hit


def diff_tables(result: Result) -> Iterator[Table]:
    """Yield tables of documents, of answers, and of the answers that changed most."""
    documents = mapping_of(result.added.get("documents"))
    columns = ["before", "after", "added", "removed", "changed"]
    remarks = tuple(f"setting: {setting}" for setting in map(plain_text, list_of(result.added.get("settings"))))
    yield Table("Documents", columns, [[number(documents.get(name, 0)) for name in columns]], remarks)
    for row in result.results:
        yield _of_answers(row)
    for example in list_of(result.added.get("examples"))[:_SHOWN]:
        yield _side_by_side(mapping_of(example))


def _of_answers(row: Row) -> Table:
    k, questions = number(row.get("k")), row.get("queries")
    cells = [
        [f"hits of the first {k} that the other index does not return, %", interval_text(row, "changed")],
        ["questions with the same hits, %", figure_text(row.get("unchanged"))],
        ["questions with another first hit, %", figure_text(row.get("first_changed"))],
        ["score of a common hit, change on average", figure_text(row.get("score_rise"), "+.4f", 1)],
        ["score of a common hit, absolute change", figure_text(row.get("score_moved"), ".4f", 1)],
        ["gained hits, by their documents", _counts(row.get("gained"))],
        ["lost hits, by their documents", _counts(row.get("lost"))],
    ]
    shown = counted(questions, "question") if isinstance(questions, int) else ""
    return Table(f"Answers to {shown}, from {row.get('origin')}", ["", ""], cells)


def _counts(kinds: Any) -> str:
    words = {"same": "in both indexes unchanged"}
    given = (f"{number(count)} {words.get(kind, kind)}" for kind, count in mapping_of(kinds).items() if count)
    return ", ".join(given) or "none"


def _side_by_side(example: Mapping[str, Any]) -> Table:
    before, after = ([mapping_of(hit) for hit in list_of(example.get(side))] for side in ("before", "after"))
    ids = [{hit.get("id") for hit in side} for side in (before, after)]
    pairs = zip_longest(before, after, fillvalue=mapping_of(None))
    rows = [[str(rank), _hit(old, ids[1]), _hit(new, ids[0])] for rank, (old, new) in enumerate(pairs, start=1)]
    share = percent(example.get("changed"))
    return Table(
        f"{excerpt(str(example.get('question')), 80)}: {share} changed", ["", "before", "after"], rows, figures=False
    )


def _hit(hit: Mapping[str, Any], others: set[Any]) -> str:
    """Return score, id and title of a hit, marked if the other answer lacks it."""
    if not hit:
        return ""
    mark = "  " if hit.get("id") in others else "* "
    named = f"{hit.get('id')}  {hit.get('title') or ''}".strip()
    return f"{mark}{figure_text(hit.get('score'), '.3f', 1)}  {excerpt(named, _WIDTH)}"
