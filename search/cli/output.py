"""Printing of results on stdout, as JSON with --json or else as tables, and of notes on stderr.

rich is imported where a table is printed, because it takes as long as a search.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from indexer.errors import as_shown
from search.cli.options import written_by
from search.formatting import counted, escape, first_of, size

if TYPE_CHECKING:
    from indexer.corpus.corpus import CorpusReport
    from indexer.progress import Progress
    from search.evaluation.result import Result
    from search.evaluation.tables import Table as ResultTable

_UNKNOWN, _IGNORED = 3, 5  # left-out files named in notes on documents that are files, and on tables
_WIDEST = 100_000  # characters of a table


def print_result(
    result: "Result",
    options: Mapping[str, Any],
    compare: bool = True,
    write: "Callable[[Path, Any, bool], None] | None" = None,
) -> None:
    """Print the notes of a measurement on stderr, and write and print its result by `write_and_print`.

    `compare` adds paired differences to the tables.
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
    """Write a result to the file of `result_options`, and print it as JSON or with `show`.

    `write` writes the file; the default is `search.result_files.write_json`.
    """
    from search.result_files import write_json

    if options["output"]:
        (write or write_json)(options["output"], result, options["force"])
    with stdout_free_for(*written_by(options).values()):
        if options["as_json"]:
            print_json(result)
        else:
            show(result)
            print_written(*(path for flag, path in written_by(options).items() if flag != "--plot"))


def print_written(*paths: Path) -> None:
    """Print the names and sizes of written files. A stream has no size and may be standard output."""
    from indexer.system.output_files import is_stream

    for path in paths:
        if not is_stream(path):
            print_line(f"written  {path}, {size(path.stat().st_size)}")


def print_plot(options: Mapping[str, Any]) -> None:
    """Print the name and size of the file of --plot, unless the result is printed as JSON."""
    if not options["as_json"]:
        with stdout_free_for(*written_by(options).values()):
            print_written(options["plot"])


@contextmanager
def stdout_free_for(*written: Path | None) -> Iterator[None]:
    """Redirect prints to standard error if a result is written to standard output."""
    from indexer.system.output_files import is_stdout

    if any(path is not None and is_stdout(path) for path in written):
        with redirect_stdout(sys.stderr):
            yield
    else:
        yield


def print_json(value: Any) -> None:
    """Print one line of strict JSON; NaN and infinity become null."""
    from search.result_files import to_json

    click.echo(to_json(value))


def print_report(
    report: Any,
    as_json: bool,
    read: "CorpusReport | None" = None,
    remarks: Sequence[str] = (),
    printed: list[str] | None = None,
    **more: Any,
) -> bool:
    """Print the notes of a report and `remarks`, and with `as_json` the report as JSON with `more`.

    The report is a dataclass with `index` and perhaps `notes`; `read` is that of its corpus. Notes in `printed` are
    left out, and replaced there by those of this report. Returns `as_json`: whether the report is printed completely.
    """
    lines = [*getattr(report, "notes", ()), *remarks]
    if retries := getattr(report, "retries", 0):
        lines.append(f"{retries:,} batches ran out of memory and were halved; scores may differ by rounding")
    lines += remarks_on(read) if read else ()
    for line in lines:
        if line not in (printed or ()):
            print_note(line)
    if printed is not None:
        printed[:] = lines
    if as_json:
        corpus = {"corpus": {name: value for name, value in vars(read).items() if value}} if read else {}
        print_json(asdict(report) | {"index": str(report.index)} | more | corpus)
    return as_json


def print_line(line: str) -> None:
    """Print a sentence of a result on stdout. Here and below, an index in object storage is named by its URL."""
    click.echo(escape(as_shown(line), newlines=True))


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print two columns, name and value, without rows whose value is empty."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        if value:
            table.add_row(Text(name), Text(escape(as_shown(value), newlines=True)))
    Console().print(table)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", figures: bool = True) -> None:
    """Print a table with the first column aligned left and the others aligned right if they contain `figures`."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number and figures else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(escape(as_shown(cell), newlines=True)) for cell in row))
    console = Console()
    # Columns are never cut, so that figures stay complete; terminals break long lines.
    needed = Measurement.get(console, console.options.update(max_width=_WIDEST), table).maximum
    console = Console(width=max(needed, console.width))
    if title:
        console.print(Text(escape(title, newlines=True), style="bold"), soft_wrap=True)
    console.print(table, crop=False, overflow="ignore")


def print_tables(tables: Sequence["ResultTable"]) -> None:
    """Print the tables of a result, each with its caption above and its remarks below."""
    for number, table in enumerate(tables):
        if number:
            click.echo()
        print_table(table.columns, table.rows, table.caption, table.figures)
        for remark in table.remarks:
            print_line(remark)


def print_note(line: str) -> None:
    """Print a note on stderr."""
    click.echo(f"note: {escape(as_shown(line), newlines=True)}", err=True)


def note_length(query: str, tokens: int, limit: int, hybrid: bool) -> None:
    """Print a note on a query without known tokens, or on one that was cut at `limit` tokens."""
    if not tokens:
        effect = "its hits come from BM25 alone" if hybrid else "its hits are meaningless"
        print_note(f'the query "{query[:40]}" contains no token that the encoder knows; {effect}')
    if tokens > limit:
        print_note(f'the query "{query[:40]}..." has {tokens:,} tokens and was cut at {limit}')


def remarks_on(read: "CorpusReport") -> list[str]:
    """Return notes on a pass over the corpus."""
    from indexer.corpus.row import described
    from indexer.corpus.sources import as_documents, can_be_documents, id_lists_of

    remarks = []
    if read.made_ids:
        repeated = f"; {read.repeated:,} repeat others and end in -2, -3 and so on" if read.repeated else ""
        remarks.append(
            f"{read.made_ids:,} documents had no id and got one from their content{repeated}; if a column has their "
            "ids, build with --id-column NAME"
        )
    if read.numbered:
        remarks.append(
            f"{read.numbered:,} vectors came without a list of ids; their ids are the row numbers 0 to "
            f"{read.numbered - 1:,}. To name them, write a list beside {read.unlisted[0]}: "
            f"{id_lists_of(Path(read.unlisted[0]))}"
        )
    if read.blank_lines:
        remarks.append(f"{read.blank_lines:,} blank lines were skipped")
    if read.files:
        left_out = f"; left out: {described(read.left_out)}" if read.left_out else ""
        unknown = f"; unknown types: {first_of(read.ignored_files, _UNKNOWN)}" if read.ignored_files else ""
        verb = "is a document" if read.documents == 1 else "are documents"
        remarks.append(f"{counted(read.documents, 'file')} {verb}{left_out}{unknown}")
    if read.rejected:
        listed = f"; see {read.rejects_file}" if read.rejects_file else ""
        skipped = counted(read.rejected.total(), "file" if read.files else "row")
        verb = "was" if read.rejected.total() == 1 else "were"
        remarks.append(f"{skipped} {verb} skipped ({described(read.rejected)}){listed}")
    if read.older_rejects_file:
        remarks.append(f"the list of rows that an earlier run skipped was moved to {read.older_rejects_file}")
    if read.ignored_files and not read.files:
        shown = first_of(read.ignored_files, _IGNORED)
        documents = f". With {as_documents()}, each file would be a document" * can_be_documents(read.ignored_files)
        count = f"{len(read.ignored_files):,}"
        remarks.append(f"{count} files or folders that are not corpora were skipped: {shown}{documents}")
    if read.unused_columns:
        names = ", ".join(f'"{name}"' for name in read.unused_columns)
        remarks.append(f"no row has a column {names} from the settings")
    return remarks
