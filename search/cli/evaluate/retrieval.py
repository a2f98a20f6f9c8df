"""`isotrope evaluate retrieval`."""

from pathlib import Path
from typing import Any

import click

from search.cli.options import (
    centre_option,
    check_output_options,
    result_options,
    sweep_of,
    sweep_options,
    target_of,
    target_options,
)


@click.command("retrieval")
@click.argument("folder", type=click.Path(path_type=Path), metavar="BEIR_FOLDER")
@click.argument("measured", type=click.Path(path_type=Path), required=False, metavar="[INDEX]")
@target_options
@sweep_options
@centre_option
@click.option("-k", "cutoffs", default="10,100", show_default=True, metavar="K[,K...]", help="Ranks to cut at; "
              "intervals in the table and --per-query are of nDCG at the first.")  # fmt: skip
@click.option("--split", default="test", show_default=True, help="Which judgements: qrels/SPLIT.tsv.")
@click.option("--per-query", type=click.Path(path_type=Path), metavar="FILE.tsv", help="Write the first nDCG of every "
              "query here, a column a setting.")  # fmt: skip
@click.option("--run", type=click.Path(path_type=Path), metavar="FILE|FOLDER", help="Write the rankings as TREC "
              "runs: a file for one setting; several, and BM25's, go into a folder.")  # fmt: skip
@click.option("--compare", is_flag=True, help="Print paired differences too: to raw embeddings, other centres, BM25; "
              "of a hybrid to its vectors.")  # fmt: skip
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw the first nDCG against whitening "
              "strength into this file (.png, .svg, .pdf).")  # fmt: skip
@click.option("--hybrid", is_flag=True, help="Measure each setting fused with BM25 too, as query --hybrid searches.")
@click.option("--query-vectors", type=click.Path(path_type=Path), metavar="FILE.npy", help="Embeddings of the queries, "
              "beside FILE.ids.txt with their ids: nothing is encoded. With an index only.")  # fmt: skip
@click.option("--no-bm25", is_flag=True, help="Leave out the BM25 baseline.")
@click.option("--on-error", type=click.Choice(["fail", "skip"]), default="fail", help="What to do with a row of the "
              "corpus that cannot be a document, such as a blank one.")  # fmt: skip
@result_options
def command(folder: Path, measured: Path | None, **options: Any) -> None:
    """nDCG, MAP, recall and MRR on a BEIR folder, beside BM25.

    BEIR_FOLDER holds corpus.jsonl, queries.jsonl and qrels/test.tsv. A recipe is measured as the index it would
    build: the corpus is encoded once for all settings. An INDEX (or --index) is asked itself, or, where settings are
    given, its stored embeddings are fitted again. Measures are trec_eval's; figures are percentages with 95 %
    bootstrap intervals over queries, in JSON shares from 0 to 1.

    \b
    Examples:
      isotrope evaluate retrieval scifact my-index
      isotrope evaluate retrieval scifact my-index --hybrid --compare
      isotrope evaluate retrieval scifact --strength none --strength 0.25 --centre role --centre common --compare
      isotrope evaluate retrieval scifact --layers -1 --layers 1,-1 --cache cache -o scifact.json
      isotrope evaluate retrieval scifact --strength none --strength 0 --strength 0.5 --strength 1 --plot scifact.svg
    """
    from indexer.errors import ConfigError
    from search.cli.output import write_and_print
    from search.cli.progress import ProgressBar
    from search.evaluation.plots.drawing import check_plot
    from search.evaluation.retrieval.metrics import parse_cutoffs
    from search.evaluation.retrieval.retrieval import RetrievalOptions, evaluate_retrieval

    task = RetrievalOptions(
        folder,
        options["split"],
        parse_cutoffs(options["cutoffs"]),
        not options["no_bm25"],
        options["run"],
        options["per_query"],
        options["on_error"],
        options["hybrid"],
        options["query_vectors"],
        options["force"],
        {flag: options[name] for name, flag in (("output", "-o"), ("plot", "--plot")) if options[name]},
    )
    if measured and options["index"]:
        raise ConfigError(f"both {measured} and --index {options['index']} name an index; leave one out.")
    options["index"] = measured or options["index"]
    check_output_options(options, folder)
    if options["plot"]:
        check_plot(options["plot"], options["force"])
    subject, sweep = target_of(options), sweep_of(options)
    with ProgressBar(options["quiet"]) as progress:
        result = evaluate_retrieval(task, subject, sweep, options["cache"], progress)
    _print_notes(result)
    write_and_print(result, options, lambda result: _show(result, options["compare"]))
    if options["plot"]:
        _plot(result, options["plot"], options["force"])


def _print_notes(result: dict[str, Any]) -> None:
    from search.cli.output import print_note

    for note in result["notes"]:
        print_note(note)


def _plot(result: dict[str, Any], path: Path, force: bool) -> None:
    from search.cli.output import print_note
    from search.evaluation.plots.retrieval import plot_retrieval

    note = plot_retrieval(result, path, force)
    if note:
        print_note(note)


def _show(result: dict[str, Any], compare: bool) -> None:
    from search.cli.output import print_table
    from search.evaluation.retrieval.metrics import MAP, MRR, measure_names
    from search.ranking.bm25 import describe_bm25
    from search.ranking.fusion import describe_hybrid
    from search.text import counted

    protocol = result["provenance"]["protocol"]
    first, *_ = names = measure_names(protocol["cutoffs"])
    shown = [name for name in names if name[0] == "R" or name in (MAP, MRR)]
    rows = [
        [row["setting"], _with_interval(row["measure"][first])]
        + [f"{100 * row['measure'][name]['value']:.2f}" for name in shown]
        for row in result["results"]
    ]
    title = (
        f"{protocol['task']}, {protocol['split']}: {counted(protocol['queries'], 'query', 'queries')}, "
        f"{counted(protocol['documents'], 'document', 'documents')}, {counted(protocol['depth'], 'hit', 'hits')} a "
        "query judged"
    )
    print_table(["setting", f"{first} [95 %]", *shown], rows, title)
    if compare:
        click.echo()
        _show_comparisons(result["comparisons"], first)
    if "bm25" in result["provenance"]:
        click.echo(f"\n{describe_bm25()}.")
    if "hybrid" in result["provenance"]:
        click.echo(f"{describe_hybrid()}.")


def _show_comparisons(comparisons: list[dict[str, Any]], first: str) -> None:
    from search.cli.output import print_table

    rows = []
    for pair in comparisons:
        found = pair["measure"][first]
        counts = f"{found['won']}/{found['tied']}/{found['lost']}"
        decided = "yes" if found["decided"] else "no"
        rows.append([pair["setting"], pair["against"], _with_interval(found, "+"), decided, counts])
    columns = ["setting", "against", f"difference in {first} [95 %]", "decided", "won/tied/lost"]
    print_table(columns, rows, "Differences over the same queries")


def _with_interval(found: dict[str, Any], sign: str = "") -> str:
    value, low, high = (None if found[end] is None else 100 * found[end] for end in ("value", "low", "high"))
    shown = f"{value:{sign}.2f}"
    return shown if low is None or high is None else f"{shown} [{low:{sign}.1f}, {high:{sign}.1f}]"
