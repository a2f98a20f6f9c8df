"""Where results go and how they look: JSON with --json, else a table for people, on stdout; remarks on stderr."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from indexer.errors import as_shown
from search.cli.options import written_by
from search.text import escape

if TYPE_CHECKING:
    from indexer.corpus import CorpusReport
    from indexer.progress import Progress
    from search.evaluation.cells import Table as ResultTable
    from search.evaluation.result import Result
    from search.hits import Hit


_EXCERPT = 160  # characters
_FOLDED = 3  # near-duplicates named under a hit
_WIDEST = 100_000  # characters of a table
_NARROWEST = 40  # columns that hits are laid out in; a terminal with fewer breaks the lines
_LEAST_TEXT = 40  # columns for text beside whole ids
_BETWEEN = 2  # columns


def print_result(
    result: "Result",
    options: Mapping[str, Any],
    compare: bool = True,
    write: "Callable[[Path, Any, bool], None] | None" = None,
) -> None:
    """What a measurement found: its notes on stderr, and the rest as `write_and_print`, its tables for people.

    `compare`: with paired differences among the tables.
    """
    from search.evaluation.tables import tables_of

    for note in result.notes:
        print_note(note)
    write_and_print(result, options, lambda _: print_tables(tables_of(result, compare)), write)


def print_measured(
    options: Mapping[str, Any], measure: "Callable[[Progress], Result]", compare: bool = True
) -> "Result":
    """Measure, showing the progress, and print the result as `print_result` does. Returns the result."""
    from search.cli.progress import ProgressBar

    with ProgressBar(options["quiet"]) as progress:
        result = measure(progress)
    print_result(result, options, compare)
    return result


def write_and_print(
    result: Mapping[str, Any],
    options: Mapping[str, Any],
    show: Callable[[Any], None],
    write: Callable[[Path, Any, bool], None] | None = None,
) -> None:
    """Write and print a result as `result_options` ask: to the file, as JSON, or by `show` for people.

    `write` writes the file, else `search.files.write_json`.
    """
    from search.files import write_json

    if options["output"]:
        (write or write_json)(options["output"], result, options["force"])
    with stdout_free_for(*written_by(options).values()):
        if options["as_json"]:
            print_json(result)
        else:
            show(result)


@contextmanager
def stdout_free_for(*written: Path | None) -> Iterator[None]:
    """While one of these is standard output, a result goes there and all that is printed to standard error."""
    from indexer.output_files import is_stdout

    if any(path is not None and is_stdout(path) for path in written):
        with redirect_stdout(sys.stderr):
            yield
    else:
        yield


def print_json(value: Any) -> None:
    """One line of strict JSON; a number that JSON has no word for becomes null."""
    from search.files import to_json

    click.echo(to_json(value))


def print_report(report: Any, as_json: bool) -> bool:
    """The notes of a change's report, a dataclass with `notes` and `index`; with `as_json` all of it.

    Returns whether that is all there is to print.
    """
    for line in report.notes:
        print_note(line)
    if as_json:
        print_json(asdict(report) | {"index": str(report.index)})
    return as_json


def print_line(line: str) -> None:
    """A sentence of a result, on stdout; an index in object storage is called by its URL, as it is everywhere here."""
    click.echo(escape(as_shown(line), newlines=True))


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Two columns: what, and how much."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(Text(name), Text(escape(as_shown(value), newlines=True)))
    Console().print(table)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """A table for people: the first column to the left, the others, which hold figures, to the right."""
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(escape(as_shown(cell), newlines=True)) for cell in row))
    console = Console()
    # Every column, however wide: in a pipe, and on a terminal, which breaks lines by itself, as a cut figure is none.
    needed = Measurement.get(console, console.options.update(max_width=_WIDEST), table).maximum
    console = Console(width=max(needed, console.width))
    if title:
        console.print(Text(escape(title, newlines=True), style="bold"), soft_wrap=True)
    console.print(table, crop=False, overflow="ignore")


def print_tables(tables: Sequence["ResultTable"]) -> None:
    """The tables of a result, each with its caption above and its remarks below."""
    for place, table in enumerate(tables):
        if place:
            click.echo()
        print_table(table.columns, table.rows, table.caption)
        for remark in table.remarks:
            print_line(remark)


def print_note(line: str) -> None:
    """A remark, on stderr."""
    click.echo(f"note: {escape(as_shown(line), newlines=True)}", err=True)


def note_length(query: str, tokens: int, limit: int, hybrid: bool) -> None:
    """A remark on a query that the encoder knows nothing of, or that was cut at `limit` tokens."""
    if not tokens:
        so = "its hits are those of BM25 alone" if hybrid else "its hits mean nothing"
        print_note(f'the query "{query[:40]}" holds nothing that the encoder knows; {so}')
    if tokens > limit:
        print_note(f'the query "{query[:40]}..." has {tokens:,} tokens and was cut at {limit}')


def remarks_on(read: "CorpusReport") -> list[str]:
    """What a pass over the corpus has to say."""
    remarks = []
    if read.made_ids:
        again = f"; {read.repeated:,} repeat others, told apart by -2, -3 and so on" if read.repeated else ""
        remarks.append(f"{read.made_ids:,} documents had no id; theirs are made of their content{again}")
    if read.blank_lines:
        remarks.append(f"blank lines left out: {read.blank_lines:,}")
    if read.rejected:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(read.rejected.items()))
        listed = f"; see {read.rejects_file}" if read.rejects_file else ""
        remarks.append(f"{sum(read.rejected.values()):,} rows were left out ({reasons}){listed}")
    if read.older_rejects_file:
        remarks.append(f"the list of rows that an earlier run left out is now {read.older_rejects_file}")
    if read.ignored_files:
        shown = ", ".join(read.ignored_files[:5])
        remarks.append(f"{len(read.ignored_files):,} files or folders that are no corpus were left out: {shown}")
    if read.unused_columns:
        names = ", ".join(f'"{name}"' for name in read.unused_columns)
        remarks.append(f"no row has a column {names}, which the settings name")
    return remarks


def print_hits(query: str, hits: Sequence["Hit"], group_by: str | None = None) -> None:
    """A query and its hits: score, id, title and the first lines of the text; `group_by`: after the value of a column.

    On a terminal an id takes a third of the columns at most, and is shortened in the middle; elsewhere, where a program
    may read it, lines are as long as whole ids need. Scores are always whole.
    """
    console = Console()
    console.print(Text(escape(query, newlines=True), style="bold"))
    if not hits:
        console.print("no hits\n")
        return
    scores, ids = list(map(_score, hits)), [escape(hit.id) for hit in hits]
    if any(hit.rerank_score is not None for hit in hits):
        console.print(Text("reranked <- score" + " (vector, BM25)" * any(hit.parts for hit in hits), style="dim"))
    elif any(hit.parts for hit in hits):
        console.print(Text("score (vector, BM25)", style="dim"))
    width = max(console.width, _NARROWEST)
    if console.is_terminal:
        ids = [_shortened(name, width // 3) for name in ids]
    widths = [max(map(cell_len, column)) for column in (scores, ids)]
    if not console.is_terminal:
        width = max(width, sum(widths) + 2 * _BETWEEN + _LEAST_TEXT)
    table = Table.grid(padding=(0, _BETWEEN))
    table.add_column(no_wrap=True, justify="right", min_width=widths[0])
    table.add_column(no_wrap=True, style="cyan", min_width=widths[1])
    table.add_column(overflow="fold")
    for score, name, hit in zip(scores, ids, hits, strict=True):
        group = [(f"{group_by}: {_value_at(hit.metadata, group_by)}  ", "yellow")] if group_by is not None else []
        table.add_row(score, Text(name), Text.assemble(*group, _excerpt(hit)))
        if hit.folded:
            table.add_row("", "", Text(_folded(hit), style="dim"))
    console = Console(width=width)
    console.print(table, crop=False)
    console.print()


def _value_at(metadata: Mapping[str, Any], column: str) -> str:
    """The value of a metadata column, or "none"."""
    value = metadata.get(column)
    return "none" if value is None else escape(str(value))


def _score(hit: "Hit") -> str:
    """A score; of a hybrid one its parts too, of a reranked hit the cross-encoder's before it."""
    parts = f" ({hit.parts.vector:.3f}, {hit.parts.bm25:5.2f})" if hit.parts else ""
    reranked = "" if hit.rerank_score is None else f"{hit.rerank_score:.3f} <- "
    return f"{reranked}{hit.score:.3f}{parts}"


def _shortened(text: str, width: int) -> str:
    """Text in at most so many columns: what is too long loses its middle, for ids differ at their ends."""
    if cell_len(text) <= width:
        return text
    clusters = list[str]()  # a character, and the marks over and under it
    for character in text:
        if clusters and not cell_len(character):
            clusters[-1] += character
        else:
            clusters.append(character)
    head, tail = list[str](), list[str]()
    room = width - 1
    while clusters:
        side, cluster = (head, clusters.pop(0)) if len(head) <= len(tail) else (tail, clusters.pop())
        room -= cell_len(cluster)
        if room < 0:
            break
        side.append(cluster)
    return "".join([*head, "\N{HORIZONTAL ELLIPSIS}", *reversed(tail)])


def _folded(hit: "Hit") -> str:
    """How many near-duplicates are folded under a hit, and the first of them."""
    ids = [escape(one.id) for one in hit.folded[:_FOLDED]]
    more = hit.folded_count - len(ids)
    return f"+ {hit.folded_count:,} folded: {', '.join(ids)}{f' and {more:,} more' if more else ''}"


def _excerpt(hit: "Hit") -> Text:
    words = escape(" ".join((hit.window.text if hit.window else hit.text).split()), newlines=True)
    text = words if len(words) <= _EXCERPT else f"{words[:_EXCERPT].rsplit(' ', 1)[0]} ..."
    title = [(escape(hit.title, newlines=True), "bold"), (": " if text else "")] if hit.title else []
    return Text.assemble(*title, text)
