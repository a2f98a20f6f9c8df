"""What both tables of `isotrope evaluate sts` share: a row a setting, a column a task, a table a protocol."""

from collections.abc import Callable, Iterator
from typing import Any

import click

By = dict[str, dict[str, Any]]
"""Rows of results by setting and task."""


def by_protocol(result: dict[str, Any]) -> Iterator[tuple[str, list[str], By]]:
    """(protocol, tasks, rows) of each protocol, an empty line before every one but the first."""
    for number, protocol in enumerate(result["provenance"]["protocol"]):
        if number:
            click.echo()
        rows: By = {}
        for row in result["results"]:
            if row["protocol"] == protocol:
                rows.setdefault(row["setting"], {})[row["task"]] = row
        yield protocol, [task for task in next(iter(rows.values())) if task != "average"], rows


def cells(rows: By, tasks: list[str], of_average: Callable[[dict[str, Any]], list[str]]) -> list[list[str]]:
    """A line a setting: its tasks, the average, and what is said of that."""
    return [
        [name, *(f"{found[task]['spearman']:.2f}" for task in [*tasks, "average"]), *of_average(found["average"])]
        for name, found in rows.items()
    ]
