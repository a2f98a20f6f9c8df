"""`isotrope evaluate retrieval`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from search.cli.evaluate.options import (
    centre_option,
    check_places,
    deliver,
    output_options,
    subject_of,
    subject_options,
    sweep_of,
    sweep_options,
)

if TYPE_CHECKING:
    from search.evaluation.result import Result


@click.command("retrieval")
@click.argument("folder", type=click.Path(path_type=Path), metavar="BEIR_FOLDER")
@click.argument("measured", type=click.Path(path_type=Path), required=False, metavar="[INDEX]")
@subject_options
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
@output_options
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
    from search.cli.progress import BuildProgress
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
    check_places(options, folder)
    if options["plot"]:
        check_plot(options["plot"], options["force"])
    subject, sweep = subject_of(options), sweep_of(options)
    with BuildProgress(options["quiet"]) as progress:
        result = evaluate_retrieval(task, subject, sweep, options["cache"], progress)
    deliver(result, options, options["compare"])
    if options["plot"]:
        _plot(result, options["plot"], options["force"])


def _plot(result: "Result", path: Path, force: bool) -> None:
    from search.cli.output import print_note
    from search.evaluation.plots.retrieval import plot_retrieval

    note = plot_retrieval(result, path, force)
    if note:
        print_note(note)
