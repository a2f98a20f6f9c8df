"""`isotrope evaluate sts`."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from search.cli.evaluate.methods_options import methods_options
from search.cli.evaluate.sts_tables import by_protocol, cells
from search.cli.options import check_output_options, result_options, sweep_of, sweep_options, target_of, target_options


@click.command("sts")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@target_options
@sweep_options
@click.option(
    "--protocol",
    "protocols",
    multiple=True,
    type=click.Choice(["mean", "wmean", "all"]),
    help="How a task of several subsets becomes one figure: the mean of their correlations (the default, as in the "
    "paper), the mean weighted by pairs, or one correlation over all pairs; repeatable.",
)
@click.option(
    "--fit",
    default="",
    metavar="task|corpus:PATH|index",
    help="What the whitening is fitted on: the task's own sentences (the paper's, transductive), another corpus (a "
    "sample of whitening.sample documents), or the embeddings of --index. Default: index with --index, else task.",
)
@click.option(
    "--table",
    type=click.Choice(["paper"]),
    help="Print our figures beside the published ones of WhiteningBERT, Table 1; models that are not on this machine "
    "are fetched if the hub can be reached.",
)
@methods_options
@result_options
def command(sources: tuple[str, ...], protocols: tuple[str, ...], fit: str, table: str | None, **options: Any) -> None:
    """Spearman's correlation with human similarity scores, seven STS tasks.

    SOURCE is a folder of TSV files (score, sentence1, sentence2; such as sts12.MSRpar.tsv, a subset of STS12), a
    SentEval download, or the id of a Hugging Face data set. Every sentence passes through the encoder once,
    however many settings are measured. Figures are times 100, with 95 % bootstrap intervals; those of different
    protocols or fits are not comparable.

    \b
    Examples:
      isotrope evaluate sts sts-folder
      isotrope evaluate sts sts-folder --layers -1 --layers 1,-1 --strength none --strength 1 -o sts.json
      isotrope evaluate sts sts-folder --index my-index --protocol mean --protocol all
      isotrope evaluate sts sts-folder --fit corpus:docs.jsonl --set whitening.sample=2000
      isotrope evaluate sts sts-folder --table paper
      isotrope evaluate sts sts-folder --methods sif --methods latte-mix --train sentences.txt
    """
    from search.cli.output import print_note, write_and_print
    from search.cli.progress import ProgressBar

    check_output_options(options, *sources, fit.partition("corpus:")[2])
    measure, show = _chosen(table, options)
    with ProgressBar(options["quiet"]) as progress:
        result = measure(sources, protocols, fit, options, progress)
    for note in result["notes"]:
        print_note(note)
    write_and_print(result, options, show)


def _chosen(table: str | None, options: dict[str, Any]) -> tuple[Callable[..., dict[str, Any]], Callable[..., None]]:
    """What measures, and what shows the result."""
    if options["methods"]:
        from search.cli.evaluate.sts_methods import measure_methods, show_methods

        if table:
            raise click.UsageError("--table paper and --methods print tables of their own; give one of them.")
        return measure_methods, show_methods
    if options["train"] or options["train_documents"] or options["seeds"] is not None:
        raise click.UsageError("--train, --train-documents and --seeds belong to --methods.")
    return (_paper, _show_paper) if table else (_sweep, _show)


def _sweep(
    sources: Sequence[str], protocols: Sequence[Any], fit: str, options: dict[str, Any], progress: Any
) -> dict[str, Any]:
    from search.evaluation.sts.data import read_tasks
    from search.evaluation.sts.sts import StsOptions, evaluate_sts

    subject = target_of(options)
    plan = StsOptions(subject.settings(sweep_of(options)), protocols or ("mean",), fit)
    return evaluate_sts(subject, read_tasks(*sources), plan, options["cache"], progress)


def _paper(
    sources: Sequence[str], protocols: Sequence[Any], fit: str, options: dict[str, Any], progress: Any
) -> dict[str, Any]:
    from search.evaluation.papers.whiteningbert import refuse_other_protocols, whiteningbert_table
    from search.evaluation.sts.data import read_tasks

    refuse_other_protocols(protocols, fit, bool(options["index"]), sweep_of(options))
    return whiteningbert_table(target_of(options), read_tasks(*sources), options["cache"], progress)


def _show(result: dict[str, Any]) -> None:
    """A table a protocol: a row a setting, its tasks, the average and the interval of the average."""
    from search.cli.output import print_table
    from search.text import counted

    for protocol, tasks, rows in by_protocol(result):
        title = (
            f"Spearman x100, protocol {protocol}, fit {result['provenance']['fit']['name']}, "
            f"Avg over {counted(len(tasks), 'task', 'tasks')}"
        )
        print_table(["setting", *tasks, "Avg", "95 %"], cells(rows, tasks, lambda row: [_ends(row)]), title)
        _show_comparisons([row for row in result["comparisons"] if row["protocol"] == protocol])


def _show_comparisons(rows: list[dict[str, Any]]) -> None:
    from search.cli.output import print_table

    if rows:
        click.echo()
        cells = [
            [row["setting"], row["against"], f"{row['difference']:+.2f}", _ends(row), "yes" if row["decided"] else "no"]
            for row in rows
        ]
        print_table(["setting", "less", "difference of Avg", "95 %", "decided"], cells, "Paired by the bootstrap")


def _ends(row: dict[str, Any]) -> str:
    return "undefined" if row["low"] is None else f"{row['low']:.2f} to {row['high']:.2f}"


def _show_paper(result: dict[str, Any]) -> None:
    """Each published row, below it our own and the difference."""
    from search.cli.output import print_table

    table = result["table"]
    lines = [_line(row["method"], row["published"], table) for row in table["baselines"]]
    model = None
    for row in table["rows"]:
        if row["model"] != model:
            model = row["model"]
            lines += [_line("", {}, table), _line(model, {}, table)]
        name = f"  {row['pooling']} {row['layers']}{' whitened' if row['whitening'] else ''}"
        if row["published"]:
            lines.append(_line(f"{name}, published", row["published"], table))
        lines.append(_line(f"{name}, ours" if row["ours"] else f"    {row['status']}", row["ours"] or {}, table))
        if row["difference"]:
            lines.append(_line("    difference", row["difference"], table, "+.2f"))
    click.echo(f"Spearman x100, protocol mean, fit task. Published: {table['source']}")
    print_table(["", *table["columns"]], lines)


def _line(name: str, figures: dict[str, float | None], table: dict[str, Any], form: str = ".2f") -> list[str]:
    found = [figures.get(column) for column in table["columns"]]
    return [name, *("" if figure is None else f"{figure:{form}}" for figure in found)]
